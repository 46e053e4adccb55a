"""A table of 100 000 rows: how soon training starts with a warm cache, and in how much memory.

The rows are spans of half a second in 200 recordings (`--layout spans`), or files of their own
(`--layout files`). The first pass draws the pictures, which is not counted. Then the fine-tuning
command is started again in a process of its own and stopped at its first training batch. Prints
seconds since the start of the process, how many of them it had a core (on a machine with nothing
else to do they are nearly the same), and the peak of its memory without that of its workers. The
limits are 60 s and 1.5 GB.

    python benchmarks/bench_rows.py            # 10 minutes, 1 GB of disk; --folder DIR keeps it
    python benchmarks/bench_rows.py --layout files
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks._record import parse

RATE = 8000
SPAN, STEP = 0.5, 0.05  # seconds
RECORDINGS = 200
LABELS = ("low", "middle", "high", "higher")


def write_table(folder: Path, layout: str, rows: int) -> Path:
    """The table and its files, unless they are there. Tones: their pictures are small files."""
    table = folder / f"{layout}-{rows}.csv"
    if table.exists():
        return table
    place = folder / layout
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    each = -(-rows // RECORDINGS)
    lines = ["path,label,group,start,end"]
    for number in range(RECORDINGS):
        label = LABELS[number % len(LABELS)]
        tone = 200 * 2 ** (number % len(LABELS)) * rng.uniform(0.9, 1.1)
        if layout == "spans":
            path = place / f"{label}-{number:03d}.wav"
            write_tone(path, tone, STEP * each + SPAN)
            starts = np.arange(each) * STEP
            lines += [f"{path},{label},{number},{s:.2f},{s + SPAN:.2f}" for s in starts]
        else:
            for part in range(each):
                path = place / f"{label}-{number:03d}-{part:04d}.wav"
                write_tone(path, tone * rng.uniform(0.98, 1.02), SPAN / 2)
                lines.append(f"{path},{label},{number},,")
    table.write_text("\n".join(lines[: rows + 1]) + "\n")
    return table


def write_tone(path: Path, frequency: float, seconds: float) -> None:
    import soundfile

    t = np.arange(round(RATE * seconds)) / RATE
    swing = 0.05 * frequency * np.sin(2 * np.pi * t / 3)
    values = 0.5 * np.sin(2 * np.pi * frequency * t + swing)
    soundfile.write(path, values, RATE, subtype="PCM_16")


def start_training(table: Path, out: Path, began: float, workers: int) -> None:
    """The command itself, stopped at the first batch. Prints seconds, and bytes at the peak."""
    from unittest.mock import patch  # which refuses names that are no more

    from learners.finetune import main
    from learners.runs import reading
    from learners.training import members

    def first_batch(learn: object, *_: object) -> None:
        told("ready to train")
        batch, _ = learn.dls.train.one_batch()  # type: ignore[attr-defined]
        assert len(batch) == 16
        told("first batch")
        sys.stdout.flush()
        os._exit(0)

    def told(what: str) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
        seconds = time.time() - began
        print(f"{what:16}{seconds:7.1f} s, {spent:.1f} s of a core {peak:6.2f} GB", flush=True)

    load_items = reading.load_items

    def loaded(*given: object, **named: object) -> object:
        told("commands read")
        found = load_items(*given, **named)  # type: ignore[arg-type]
        told("items loaded")
        return found

    words = ["--data", str(table), "--out", str(out), "--overwrite", "--size", "64"]
    with patch.object(reading, "load_items", loaded), patch.object(members, "_train", first_batch):
        main([*words, "--workers", str(workers)])
    raise SystemExit("it ended without a first batch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, help="for the files and pictures, to be kept")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--layout", choices=("spans", "files"), default="spans")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    arguments = parse(parser, rows=400, workers=0)
    if arguments.folder is None:
        with tempfile.TemporaryDirectory() as passing:
            subprocess.run([sys.executable, *sys.argv, "--folder", passing], check=True)
        return
    folder = arguments.folder.resolve()
    os.environ["SECONDHAND_CACHE"] = str(folder / "cache")
    table = write_table(folder, arguments.layout, arguments.rows)
    if arguments.began:
        start_training(table, folder / "run", arguments.began, arguments.workers)
    for name in ("cold",) if arguments.small else ("cold", "warm"):
        print(f"{name}, {arguments.rows} rows, {arguments.layout}:", flush=True)
        subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--began", str(time.time())], check=True
        )
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
