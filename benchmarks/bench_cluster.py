"""Rendering on a cluster: two Dask workers against one. Target: ratio <= 0.62 (1.6x).

Peer: the same command with one worker. A local cluster of each kind is started once, which is not
counted; then they draw the same strain Q-scans (or clips of sound) in turns, each time into an
empty cache. Beside the seconds stands the processor time of the workers per picture: on a busy
machine seconds tell of the neighbours, and twice the same processor time of the work lost to it.

    python benchmarks/bench_cluster.py --kind strain --items 48 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # before numpy is loaded

import numpy as np

from benchmarks._record import parse, record


def make_files(folder: Path, kind: str, count: int) -> list[Path]:
    """Noise: 32 s of strain at 4096 Hz as text is slow to read, so HDF5; or 5 s of sound."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(count):
        if kind == "strain":
            import h5py

            path = folder / f"H-H1_SIM-{1_000_000_000 + 32 * number}-32.hdf5"
            with h5py.File(path, "w") as file:
                data = file.create_dataset(
                    "strain/Strain", data=1e-21 * rng.standard_normal(32 * 4096)
                )
                data.attrs["Xspacing"] = 1 / 4096
                data.attrs["Xstart"] = 1_000_000_000 + 32 * number
                file["meta/GPSstart"] = 1_000_000_000 + 32 * number
                file["meta/Duration"] = 32
        else:
            import soundfile

            path = folder / f"{number:04}.wav"
            soundfile.write(path, rng.uniform(-0.5, 0.5, 5 * 44_100), 44_100)
        paths.append(path)
    return paths


def busy(cluster: Any) -> float:
    """Seconds of a core that the workers have used since they started."""
    return float(sum(cluster._client.run(time.process_time).values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["strain", "sound"], default="strain")
    parser.add_argument("--items", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    settings = parse(parser, kind="sound", items=4, rounds=1)
    from datasets.drawings import pictures as caches
    from datasets.drawings.cluster import connect
    from datasets.recipes import RECIPES

    caches.CHUNK = 4  # else the last chunks decide on so few files
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing)
        files = make_files(folder, settings.kind, settings.items)
        recipe = RECIPES[settings.kind].infer(files)
        with connect("local", workers=1) as one, connect("local", workers=2) as two:
            seconds: dict[str, list[float]] = {"one": [], "two": []}
            cores: dict[str, list[float]] = {"one": [], "two": []}
            for turn in range(-1, settings.rounds):  # the first warms both up
                for name, cluster in (("one", one), ("two", two)):
                    store = caches.PictureCache(folder / f"{name}{turn}")
                    used, began = busy(cluster), time.perf_counter()
                    pictures, rejected = store.render_all(files, recipe, cluster=cluster)
                    took, used = time.perf_counter() - began, busy(cluster) - used
                    if rejected or None in pictures:
                        raise SystemExit(f"not all were drawn: {rejected[:3]}")
                    if turn >= 0:
                        seconds[name].append(took)
                        cores[name].append(used)
    for name in seconds:
        print(
            f"{name} worker{'s' * (name == 'two')}: median {statistics.median(seconds[name]):.2f} s "
            f"for {settings.items} pictures, "
            f"{statistics.median(cores[name]) / settings.items * 1e3:.0f} ms of a core a picture"
        )
    gains = [b / a for a, b in zip(seconds["one"], seconds["two"], strict=True)]
    work = [b / a for a, b in zip(cores["one"], cores["two"], strict=True)]
    ratio = statistics.median(gains)
    print(f"ratio {ratio:.2f} [{min(gains):.2f} to {max(gains):.2f}], {1 / ratio:.2f}x as fast")
    print(f"processor time, two over one: {statistics.median(work):.2f}")
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    record(f"cluster {settings.kind}", {"ratio two workers / one": [ratio, min(gains), max(gains)],
           "ratio of processor time": statistics.median(work), "items": settings.items})  # fmt: skip


if __name__ == "__main__":
    main()
