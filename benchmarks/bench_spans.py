"""Calls that are labelled as spans of SIMULATED recordings, found again in new ones.

    python benchmarks/bench_spans.py

Four call types of 0.3 to 2 s, one short and one long, sound in recordings of pink noise. A model is trained on the labels of
`--train` recordings by each of two routes: ``spans``, the labels as they are, and ``hand``, clips of the model's window that
were cut around each call beforehand, a file each. `learners.evaluate --events` then counts what both find in `--new`
recordings, and at how many false alarms an hour: by the model's own rule, and at the best threshold with at most
`--alarms` an hour.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import soundfile
from numpy.typing import NDArray

from benchmarks._shared import parse, software_and_hardware
from datasets.sources.sounds import pink_noise

RATE = 24000
Floats = NDArray[np.float64]


class Call(NamedTuple):
    """A call in a recording: its class, start and end in seconds."""

    label: str
    start: float
    end: float


def chirp(t: Floats, rng: np.random.Generator) -> Floats:
    """A short upward sweep."""
    low, high = rng.uniform(2500, 3200), rng.uniform(5000, 6000)
    return np.sin(2 * np.pi * (low + (high - low) * t / t[-1] / 2) * t)


def hoot(t: Floats, rng: np.random.Generator) -> Floats:
    """A low tone with a second harmonic."""
    pitch = rng.uniform(400, 520)
    return np.sin(2 * np.pi * pitch * t) + 0.4 * np.sin(4 * np.pi * pitch * t)


def trill(t: Floats, rng: np.random.Generator) -> Floats:
    """A tone whose pitch swings 18 to 24 times a second."""
    return np.sin(
        2 * np.pi * rng.uniform(3300, 3900) * t + 12 * np.sin(2 * np.pi * rng.uniform(18, 24) * t)
    )


def rattle(t: Floats, rng: np.random.Generator) -> Floats:
    """Long: noise between 1.5 and 6 kHz in pulses, 9 to 12 a second."""
    from scipy.signal import butter, sosfilt

    noise = sosfilt(butter(4, [1500, 6000], "band", fs=RATE, output="sos"), rng.normal(size=len(t)))
    return np.asarray(noise * (np.sin(2 * np.pi * rng.uniform(9, 12) * t) > 0))


#: The models, each with its shortest and longest duration in seconds.
CALLS: dict[str, tuple[Callable[[Floats, np.random.Generator], Floats], float, float]] = {
    "chirp": (chirp, 0.3, 0.4),
    "hoot": (hoot, 0.5, 1.0),
    "trill": (trill, 0.6, 1.2),
    "rattle": (rattle, 1.5, 2.0),
}


def recording(
    rng: np.random.Generator, seconds: float, calls: int, longest: float
) -> tuple[NDArray[np.float32], list[Call]]:
    """Pink noise with ``calls`` calls, 0 to 15 dB above it while they sound, none over another; no call is longer than
    ``longest`` seconds."""
    values = pink_noise(rng, round(seconds * RATE)).astype(float)
    values /= values.std()
    slot, placed = seconds / calls, list[Call]()
    for number, label in enumerate(rng.permutation(np.resize([*CALLS], calls))):
        model, shortest, longer = CALLS[label]
        length = min(rng.uniform(shortest, longer), longest)
        start = number * slot + rng.uniform(0.05, slot - length - 0.05)
        t = np.arange(round(length * RATE)) / RATE
        call = model(t, rng) * np.minimum(1, np.minimum(t, t[::-1]) / 0.02)
        first = round(start * RATE)
        values[first : first + len(t)] += call / call.std() * 10 ** (rng.uniform(0, 15) / 20)
        placed.append(Call(str(label), start, start + length))
    return (0.02 * values).astype(np.float32), placed


def write_recordings(
    folder: Path, count: int, seed: int, format: str, settings: argparse.Namespace
) -> str:
    """Recordings with their table of labels, in the ``format`` raven, audacity or csv; returns the value of ``--data``."""
    folder.mkdir(parents=True)
    rng, rows = np.random.default_rng(seed), []
    for number in range(count):
        values, calls = recording(rng, settings.seconds, settings.calls, settings.longest)
        file = folder / f"rec{number:02}.wav"
        soundfile.write(file, values, RATE)
        rows += [(file.name, *call) for call in calls]
        times = [(f"{call.start:.6f}", f"{call.end:.6f}", call.label) for call in calls]
        if format == "audacity":
            file.with_suffix(".txt").write_text("".join("\t".join(row) + "\n" for row in times))
        if format == "raven":
            head = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tAnnotation\n"
            lines = [f"{n + 1}\tSpectrogram 1\t1\t" + "\t".join(row) for n, row in enumerate(times)]
            (folder / f"rec{number:02}.Table.1.selections.txt").write_text(
                head + "\n".join(lines) + "\n"
            )
    if format != "csv":
        return str(folder)
    with (folder / "labels.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("path", "label", "start", "end"), *rows])
    return str(folder / "labels.csv")


def cut_by_hand(labels: Path, folder: Path, window: float) -> str:
    """A clip of ``window`` seconds around each call of a CSV table of labels, a folder a class."""
    with labels.open(newline="") as stream:
        rows = [*csv.DictReader(stream)]
    for number, row in enumerate(rows):
        file = folder / row["label"] / f"{Path(row['path']).stem}_{number}.wav"
        file.parent.mkdir(parents=True, exist_ok=True)
        values, rate = soundfile.read(labels.parent / row["path"])
        middle = (float(row["start"]) + float(row["end"])) / 2
        first = round(min(max(middle - window / 2, 0), len(values) / rate - window) * rate)
        soundfile.write(file, values[first : first + round(window * rate)], rate)
    return str(folder)


def evaluate(data: str, new: str, out: Path, flags: list[str], alarms: float) -> dict[str, float]:
    """Train on ``data``; the events found in ``new``, by the model's rule and with at most ``alarms`` false alarms an hour."""
    from learners.evaluate import main as evaluate
    from learners.finetune import main as finetune

    finetune(["--data", data, "--out", str(out / "run"), *flags])
    evaluate([str(out / "run/model"), "--data", new, "--events", "--out", str(out / "events")])
    figures = json.loads((out / "events/report.json").read_text())
    allowed = [p for p in figures["curve"] if (p["false_alarms_per_hour"] or 0) <= alarms]
    best = max((point["found"] for point in allowed), default=0)
    rule = {
        name: figures[name] for name in ("events", "found", "predicted", "false_alarms", "hours")
    }
    return {**rule, "found at best threshold": best} | {
        row["class"]: row["found"] for row in figures["classes"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=int, default=28)
    parser.add_argument("--new", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10, help="in each recording")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each recording")
    parser.add_argument("--longest", type=float, default=2.0, help="call, in seconds")
    parser.add_argument("--format", default="csv", choices=["csv", "raven", "audacity"])
    parser.add_argument(
        "--window", type=float, default=2.0, help="of the clips that are cut by hand"
    )
    parser.add_argument("--routes", nargs="+", default=["spans", "hand"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--alarms", type=float, default=2.0, help="an hour, at most")
    parser.add_argument(
        "--flags", default="", help="of finetune, separated by |: --flags='--size|128'"
    )
    settings = parse(parser, train=6, new=1, calls=8, seconds=30.0, flags="--size|64|--epochs|0")
    flags = [flag for flag in settings.flags.split("|") if flag]
    results: dict[str, list[dict[str, float]]] = {}
    for seed in settings.seeds:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            data = write_recordings(
                work / "train", settings.train, 2 * seed, settings.format, settings
            )
            new = write_recordings(work / "new", settings.new, 2 * seed + 1, "csv", settings)
            for route in settings.routes:
                source = data
                if route == "hand":
                    labels = write_recordings(
                        work / "labels", settings.train, 2 * seed, "csv", settings
                    )
                    source = cut_by_hand(Path(labels), work / "clips", settings.window)
                figures = evaluate(
                    source, new, work / route, [*flags, "--seed", str(seed)], settings.alarms
                )
                results.setdefault(route, []).append(figures)
                print(route, seed, json.dumps(figures), flush=True)
    for route, rows in results.items():
        for name in ("found", "found at best threshold", "false_alarms"):
            values = [row[name] for row in rows]
            print(f"{route}: {name} {statistics.mean(values):.1f} ({min(values)} to {max(values)})")
    print(software_and_hardware("scipy"))


if __name__ == "__main__":
    main()
