"""Pictures of the triggers of a table, out of frame files, against drawing alone: at most 1.3 times it.

Ours finds the file of each trigger, in the order of files and times, reads and draws; the peer draws
strain that lies in memory, once for ten triggers, between them. CPU time of one process. Memory is the
peak of a process that reads the strain of all triggers of the table and of a tenth of them, and draws
nothing.

    python benchmarks/bench_triggers.py --triggers 10000 --frames 100 --format gwf
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse, record, spread
from datasets.strain import StrainRecipe, read_frames
from datasets.triggers import places, read_triggers

START, SECONDS, EDGE = 1_000_000_000, 64, 4


def write_frames(folder: Path, count: int, rate: int, ending: str) -> None:
    import h5py

    for start in range(START, START + count * SECONDS, SECONDS):
        values = 1e-21 * np.random.default_rng(start).standard_normal(SECONDS * rate)
        path = folder / f"H-H1_SIM-{start}-{SECONDS}.{ending}"
        if ending == "gwf":
            from gwpy.timeseries import TimeSeries

            name = "H1:SIM-STRAIN"
            TimeSeries(values, t0=start, sample_rate=rate, name=name, channel=name).write(path)
            continue
        with h5py.File(path, "w") as file:
            data = file.create_dataset("strain/Strain", data=values, compression="gzip")
            data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / rate, start


def write_triggers(file: Path, count: int, frames: int) -> Path:
    rng = np.random.default_rng(0)
    inside = rng.uniform(EDGE, SECONDS - EDGE, count)
    times = START + SECONDS * rng.integers(frames, size=count) + inside
    file.write_text("event_time,ifo,snr\n" + "".join(f"{time:.6f},H1,8.0\n" for time in times))
    return file


def asked(table: Path, folder: Path) -> Iterator[tuple[str, float]]:
    triggers = read_triggers(table)
    files = places(triggers, read_frames(str(folder)))
    yield from sorted(zip(map(str, files), triggers.gps.tolist(), strict=True))


def peak(table: Path, folder: Path, recipe: StrainRecipe, to: multiprocessing.SimpleQueue) -> None:
    for path, gps in asked(table, folder):
        recipe.read(path, at=gps)
    to.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triggers", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--rate", type=int, default=4096)
    parser.add_argument("--format", choices=["hdf5", "gwf"], default="hdf5")
    parser.add_argument("--rounds", type=int, default=3)
    settings = parse(parser, triggers=10, frames=2, rounds=1)
    recipe = StrainRecipe(fmax=1200.0)
    with tempfile.TemporaryDirectory() as name:
        folder, count = Path(name), settings.triggers
        write_frames(folder, settings.frames, settings.rate, settings.format)
        table = write_triggers(folder / "all.csv", count, settings.frames)
        fewer = write_triggers(folder / "fewer.csv", count // 10, settings.frames)
        signals = [recipe.read(path, at=gps) for path, gps in list(asked(fewer, folder))[:8]]

        recipe.image(signals[0])
        times: dict[str, list[float]] = {"ours": [], "alone": []}
        for _ in range(settings.rounds):
            began, alone, drawn = time.process_time(), 0.0, 0
            for number, (path, gps) in enumerate(asked(table, folder)):
                recipe.image(recipe.read(path, at=gps))
                if number % 10 == 0:
                    now = time.process_time()
                    recipe.image(signals[number % len(signals)])
                    alone, drawn = alone + time.process_time() - now, drawn + 1
            times["ours"].append(time.process_time() - began - alone)
            times["alone"].append(alone * count / drawn)
        ratio = spread(times["ours"], times["alone"])
        fork, memory = multiprocessing.get_context("fork"), []
        for one in (fewer, table):
            queue = fork.SimpleQueue()
            child = fork.Process(target=peak, args=(one, folder, recipe, queue))
            child.start()
            memory.append(queue.get())
            child.join()
    print(
        f"{count} triggers in {settings.frames} {settings.format} files of {SECONDS} s: ratio "
        f"{ratio[0]:.2f} [{ratio[1]:.2f} to {ratio[2]:.2f}]  "
        f"{1e3 * min(times['ours']) / count:.1f} ms each\n"
        f"peak of memory: {memory[0]:.0f} MiB for {count // 10}, {memory[1]:.0f} MiB for {count}  "
        f"load {os.getloadavg()[0]:.1f}"
    )
    figures = {"ratio of ours to drawing alone, CPU": ratio, "MiB, a tenth and all": memory}
    record(f"triggers, {settings.format}", figures)


if __name__ == "__main__":
    main()
