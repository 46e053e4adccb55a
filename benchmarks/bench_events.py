"""Events in long SIMULATED recordings: recall, precision, boundaries and calibration.

    python benchmarks/bench_events.py

A model learns the six classes of `demo:sounds`, and noise as `--background`, from clips of 2 s that
were cut out of recordings of pink noise (`recording`); it then hears others
by `learners.predict --events`. One of `--hours` with `--events` sounds in it as in the clips is
counted: an event is found where a row of its class overlaps it; precision is the part of rows that
do. A row begins and ends well where both are within a hop (1 s) of those of the sound.

Calibration is looked at on `--many` fainter events, -16 to 4 dB, told by a logistic regression of band
energies whose single windows are calibrated: how often rows are right (without a threshold), and what
they say, by the mean of the windows' logits, as they are written; by the surest window; and by the
sum, as if windows were independent.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import soundfile
from numpy.typing import NDArray

from benchmarks._shared import parse, software_and_hardware
from datasets.core.part import Part
from datasets.sources import sounds
from datasets.sources.sounds import CLASSES

RATE, WINDOW = 16000, 2.0


class Event(NamedTuple):
    """A simulated sound in a recording, and the seconds between which it has 98 % of its energy."""

    label: str
    start: float
    end: float


def recording(
    labels: Sequence[str],
    *,
    rng: np.random.Generator | int = 0,
    rate: int = 16000,
    duration: float = 600.0,
    snr: tuple[float, float] = (0.0, 20.0),
) -> tuple[NDArray[np.float32], list[Event]]:
    """A long recording of pink noise with simulated sounds at random times, none over another.

    Parameters
    ----------
    labels : of `sounds.CLASSES`, one for each sound, in the order of time; each has 2 to 6 s.
    duration : seconds; at least 10 for each sound.
    snr : dB, from lowest to highest: the power of a sound while it sounds, over the noise's.

    Returns
    -------
    float32 [samples], and what is in it.
    """
    slot = duration / max(1, len(labels))
    if labels and slot < 10:
        raise ValueError(f"{len(labels)} sounds in {duration:g} s: at most one in 10 s")
    rng = np.random.default_rng(rng)
    parts = np.array_split(np.empty(round(rate * duration), np.float32), max(1, int(duration / 60)))
    values = np.concatenate(
        [sounds.pink_noise(rng, len(part)).astype(np.float32) for part in parts]
    )
    events = []
    for n, label in enumerate(labels):
        length = rng.uniform(2, 6)
        t = np.arange(round(rate * length)) / rate
        heard = sounds.sound(label, rng, t, float(rate))
        energy = np.cumsum(heard**2)
        inside = np.searchsorted(energy, energy[-1] * np.array([0.01, 0.99]))
        at = round((n * slot + rng.uniform(1, slot - length - 1)) * rate)
        loud = np.sqrt(np.mean(heard[inside[0] : inside[1] + 1] ** 2))
        heard *= 10 ** (rng.uniform(*snr) / 20) / loud
        values[at : at + len(heard)] += heard.astype(np.float32)
        events.append(Event(label, *((at + inside) / rate)))
    return values * np.float32(0.5 / np.abs(values).max()), events


def write_clips(folder: Path, per_class: int, snr: tuple[float, float]) -> None:
    """`known/CLASS/N.wav`, each about the middle of a sound, and `noise/N.wav` from between."""
    rng = np.random.default_rng(1)
    for label in CLASSES:
        (folder / "known" / label).mkdir(parents=True)
        values, events = recording(
            [label] * per_class, rng=rng, rate=RATE, duration=12.0 * per_class, snr=snr
        )
        for n, event in enumerate(events):
            room = max(0.0, event.end - event.start - WINDOW / 2) / 2
            first = (event.start + event.end - WINDOW) / 2 + rng.uniform(-room, room)
            write_span(folder / "known" / label / f"{n}.wav", values, first)
    (folder / "noise").mkdir()
    values, _ = recording([], rng=rng, rate=RATE, duration=WINDOW * 2 * per_class)
    for n in range(2 * per_class):
        write_span(folder / "noise" / f"{n}.wav", values, n * WINDOW)


def write_span(path: Path, values: np.ndarray, first: float) -> None:
    at = max(0, round(first * RATE))
    soundfile.write(path, values[at : at + round(WINDOW * RATE)], RATE)


def hear(
    model: Path, folder: Path, name: str, hours: float, count: int, settings: argparse.Namespace
) -> tuple[list[dict[str, str]], list[Event]]:
    """A recording's rows as predicted, and what is in it."""
    from learners.predict import main as predict

    rng = np.random.default_rng([7, count])
    labels = [CLASSES[k] for k in rng.integers(0, len(CLASSES), count)]
    snr = (settings.low, settings.high)
    values, events = recording(labels, rng=rng, rate=RATE, duration=hours * 3600, snr=snr)
    path = folder / f"{name}.wav"
    soundfile.write(path, values, RATE)
    del values
    call = [str(model), str(path), "--overwrite", "--gap", str(settings.gap), "--top", "6"]
    out = folder / f"{name}.csv"
    predict([*call, "--events", "--out", str(out)])
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return rows, events


def matched(rows: list[dict[str, str]], events: list[Event]) -> list[Event | None]:
    """The event that each row is of: of its class, and overlapping."""
    found: list[Event | None] = []
    for row in rows:
        start, end = float(row["start"]), float(row["end"])
        over = [e for e in events if e.label == row["label"] and e.start < end and start < e.end]
        found.append(over[0] if over else None)
    return found


def bands(values: np.ndarray) -> np.ndarray:
    """Means, spreads and steps of log energies in 24 bands of frames of 32 ms."""
    frames = values[: len(values) // 512 * 512].reshape(-1, 512) * np.hanning(512)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    edges = np.unique(np.geomspace(2, 257, 25).astype(int))
    logs = np.log(np.add.reduceat(power, edges[:-1], axis=1) + 1e-9)
    logs -= np.median(logs)
    steps = np.abs(np.diff(logs, axis=0)).mean(axis=0)
    return np.concatenate([logs.mean(axis=0), logs.std(axis=0), steps])


def windows_of(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Event]]:
    """Of a recording of three classes: features, classes (3: noise) and starts of windows; events."""
    rng = np.random.default_rng(seed)
    labels = [CLASSES[k] for k in rng.integers(0, 3, count)]
    values, events = recording(labels, rng=rng, rate=RATE, duration=12.0 * count, snr=(-16.0, 4.0))
    starts = np.arange(0.0, 12.0 * count - WINDOW + 0.5)
    cut = [values[round(a * RATE) : round((a + WINDOW) * RATE)] for a in starts]
    truth = np.full(len(starts), 3)
    for event in events:
        inside = np.minimum(starts + WINDOW, event.end) - np.maximum(starts, event.start)
        truth[inside >= min(WINDOW, event.end - event.start) / 2] = CLASSES.index(event.label)
    return np.array([bands(one) for one in cut]), truth, starts, events


def calibration(count: int) -> dict[str, float]:
    """What rows say against how often they are right, for `count` events."""
    from sklearn.linear_model import LogisticRegression

    from datasets.items.labels import UNKNOWN
    from learners.inference.predictions import Prediction
    from learners.predictions.merging import Events
    from learners.rule.calibrators import fit_temperature
    from learners.rule.fitting import uncalibrated
    from learners.rule.reasons import Reason

    features, truth, _, _ = windows_of(max(12, count // 2), 1)
    centre, spread = features.mean(axis=0), features.std(axis=0) + 1e-9
    fitted = LogisticRegression(max_iter=300, C=0.05).fit((features - centre) / spread, truth)
    features, truth, _, _ = windows_of(max(12, count // 5), 2)
    scale = fit_temperature(fitted.decision_function((features - centre) / spread), truth).value
    features, truth, starts, events = windows_of(count, 3)
    z = fitted.decision_function((features - centre) / spread) / scale
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    windows = []
    for start, row in zip(starts, p, strict=True):
        top = sorted(
            ((name, float(share)) for name, share in zip(CLASSES, row[:3], strict=False)),
            key=lambda pair: -pair[1],
        )
        label = top[0][0] if row.argmax() < 3 else UNKNOWN
        windows.append(
            Prediction(
                Part("", float(start), float(start + WINDOW)), label, *top[0], Reason(), top, 0.0
            )
        )
    rows = Events(uncalibrated(3)).rows(windows[0].with_more(windows=tuple(windows)))
    right, stated, surest, summed = [], [], [], []
    for row in rows:
        right.append(
            any(
                e.label == row.label and e.start < row.part.end and row.part.start < e.end
                for e in events
            )
        )
        overlapping = [
            w
            for w in windows
            if w.label == row.label
            and row.part.start < (w.part.start + w.part.end) / 2 < row.part.end
        ]
        rest = max(1e-12, 1 - sum(share for _, share in row.top))
        shares = np.array([*(max(share, 1e-12) for _, share in row.top), rest]) ** len(overlapping)
        stated.append(row.probability)
        surest.append(max(w.probability for w in overlapping))
        summed.append(shares[0] / shares.sum())
    heard = p.argmax(axis=1) < 3
    return {
        "many rows": len(rows),
        "windows right": float((p.argmax(axis=1) == truth)[heard].mean()),
        "windows say": float(p.max(axis=1)[heard].mean()),
        "rows right": float(np.mean(right)),
        "rows say": float(np.mean(stated)),
        "by the surest window": float(np.mean(surest)),
        "by the sum": float(np.mean(summed)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--many", type=int, default=320)
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--low", type=float, default=-5.0, help="dB, the faintest sound")
    parser.add_argument("--high", type=float, default=15.0, help="dB, the loudest")
    parser.add_argument("--gap", type=float, default=1.0)
    parser.add_argument("--work", type=Path, default=None)
    settings = parse(
        parser, hours=0.02, events=3, many=12, per_class=6, epochs=1, backbone="test_resnet"
    )
    with tempfile.TemporaryDirectory() as scratch:
        work = settings.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        model = work / "run/model"
        if not model.is_dir():
            from learners.finetune import main as finetune

            write_clips(work, settings.per_class, (settings.low, settings.high))
            pretrained = [] if settings.backbone != "test_resnet" else ["--weights", "none"]
            finetune([
                "--data", str(work / "known"), "--background", str(work / "noise"),
                "--backbone", settings.backbone, *pretrained, "--size", "128", "--spectrogram", f"{{window: {WINDOW}}}",
                "--overlap", "0.5", "--epochs", str(settings.epochs), "--out", str(work / "run"),
            ])  # fmt: skip
        rows, events = hear(model, work, "long", settings.hours, settings.events, settings)
        of = matched(rows, events)
        found = {id(event) for event in of if event is not None}
        ends = [
            abs(float(row[name]) - getattr(event, name))
            for row, event in zip(rows, of, strict=True)
            if event is not None
            for name in ("start", "end")
        ]
        figures = {
            "rows": len(rows),
            "precision": sum(event is not None for event in of) / max(1, len(rows)),
            "recall": len(found) / len(events),
            "ends within a hop": float(np.mean(np.array(ends) <= 1.0)) if ends else 0.0,
            "median error of an end, s": float(np.median(ends)) if ends else 0.0,
        }
        figures |= calibration(settings.many)
    print(json.dumps(figures, indent=1))
    print(software_and_hardware("scikit-learn"))


if __name__ == "__main__":
    main()
