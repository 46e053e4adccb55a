"""Events in long SIMULATED recordings: are they found, where, and what is their probability worth?

    python benchmarks/check_events.py

A model learns the six classes of `demo:sounds`, and noise as `--background`, from clips of 2 s that
were cut out of recordings made by `datasets.demos.sounds.recording`; it then hears other recordings
by `learners.predict --events`. One of `--hours` with `--events` sounds in it as in the clips is
counted: an event is found where a row of its class overlaps it; precision is the part of rows that
do. A row begins and ends well where both are within a hop (1 s) of those of the sound.

Calibration is looked at on `--many` events, over which a row's stated probability is compared with
how often it is right: as written (the mean of the windows' logits), and as that of the surest
window would be.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import soundfile

from benchmarks._record import parse, record
from datasets.demos.sounds import CLASSES, Event, recording

RATE, WINDOW = 16000, 2.0


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--many", type=int, default=600)
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--low", type=float, default=-5.0, help="dB, the faintest sound")
    parser.add_argument("--high", type=float, default=15.0, help="dB, the loudest")
    parser.add_argument("--gap", type=float, default=1.0)
    parser.add_argument("--work", type=Path, default=None)
    settings = parse(
        parser, hours=0.02, events=3, many=6, per_class=6, epochs=1, backbone="test_resnet"
    )
    with tempfile.TemporaryDirectory() as scratch:
        work = settings.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        model = work / "run/model"
        if not model.is_dir():
            from learners.finetune import main as finetune

            write_clips(work, settings.per_class, (settings.low, settings.high))
            pretrained = [] if settings.backbone != "test_resnet" else ["--no-pretrained"]
            finetune([
                "--data", str(work / "known"), "--background", str(work / "noise"),
                "--backbone", settings.backbone, *pretrained, "--size", "128", "--window", str(WINDOW),
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
        hours = settings.many * 12 / 3600
        rows, events = hear(model, work, "many", hours, settings.many, settings)
        right = np.array([event is not None for event in matched(rows, events)])
        stated = np.array([float(row["probability"]) for row in rows])
        figures["many rows"] = len(rows)
        if rows:
            figures |= {"right": float(right.mean()), "stated": float(stated.mean())}
        for low, high in ((0, 0.7), (0.7, 0.9), (0.9, 0.97), (0.97, 1.01)):
            inside = (stated >= low) & (stated < high)
            if inside.any():
                figures[f"stated {low:g} to {min(high, 1):g}"] = [
                    int(inside.sum()), float(stated[inside].mean()), float(right[inside].mean()),
                ]  # fmt: skip
    print(json.dumps(figures, indent=1), f"load {os.getloadavg()[0]:.1f}")
    record("events", figures)


if __name__ == "__main__":
    main()
