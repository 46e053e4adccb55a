"""Q-scans: this project's against gwpy's, the peer, in one process and in alternating rounds.

    python benchmarks/bench_qscan.py --rounds 5

Both make the same four views, 0.5, 1, 2 and 4 s, on the same grid, from strain in memory:
whitening, transform, interpolation. "q_transform" calls gwpy's method of that name once a view, as
its users do; "by hand" whitens and transforms once with gwpy's parts and interpolates four times.
Medians.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse, record, spread
from datasets.strain.qscan import qtransform
from datasets.strain.whitening import whiten

RATE, VIEWS, BAND = 4096, (0.5, 1.0, 2.0, 4.0), (10.0, 1200.0)


def spans(centre: float) -> list[tuple[float, float]]:
    return [(centre - v / 2, centre + v / 2) for v in VIEWS]


def ours(values: np.ndarray, width: int, height: int) -> None:
    centre = values.size / RATE / 2
    white = whiten(values, RATE)
    gram = qtransform(white, RATE, frange=BAND, search=(centre - 0.25, centre + 0.25))
    gram.images(spans(centre), width=width, height=height)


def gwpy_q_transform(values: np.ndarray, width: int, height: int) -> None:
    from gwpy.timeseries import TimeSeries

    series, centre = TimeSeries(values, sample_rate=RATE, t0=0), values.size / RATE / 2
    for start, stop in spans(centre):
        series.q_transform(
            qrange=(4, 64), frange=BAND, gps=centre, outseg=(start, stop), logf=True,
            tres=(stop - start) / width, fres=height,
        )  # fmt: skip


def gwpy_by_hand(values: np.ndarray, width: int, height: int) -> None:
    from gwpy.segments import Segment
    from gwpy.signal.qtransform import q_scan
    from gwpy.timeseries import TimeSeries

    series, centre = TimeSeries(values, sample_rate=RATE, t0=0), values.size / RATE / 2
    white = series.whiten(asd=series.asd(2, 1, window="hann", method="median"))
    search = Segment(centre - 0.25, centre + 0.25)
    gram, _ = q_scan(white, qrange=(4, 64), frange=BAND, search=search)
    for start, stop in spans(centre):
        tres = (stop - start) / width
        gram.interpolate(outseg=Segment(start, stop), logf=True, tres=tres, fres=height)


def compare(name: str, batch: list[np.ndarray], width: int, height: int, rounds: int) -> None:
    ways: dict[str, Callable[[np.ndarray, int, int], None]] = {
        "ours": ours,
        "q_transform": gwpy_q_transform,
        "by hand": gwpy_by_hand,
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways.values():
        way(batch[0], width, height)  # imports, and what is kept between calls
    for _ in range(rounds):
        for key, way in ways.items():
            began = time.perf_counter()
            for values in batch:
                way(values, width, height)
            taken[key].append((time.perf_counter() - began) / len(batch))
    ms = {key: 1e3 * median(times) for key, times in taken.items()}
    print(
        f"{name}, {height} x {width} a view: ours {ms['ours']:.1f} ms a segment; gwpy q_transform "
        f"{ms['q_transform']:.1f} ms, {ms['q_transform'] / ms['ours']:.1f}x; gwpy by hand "
        f"{ms['by hand']:.1f} ms, {ms['by hand'] / ms['ours']:.1f}x"
    )
    record(
        f"Q-scan, {name}, {height} x {width}",
        {
            f"ratio of ours to gwpy {way}, clock": spread(taken["ours"], taken[way])
            for way in ("q_transform", "by hand")
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8, help="segments of 8 s together")
    settings = parse(parser, rounds=1, batch=1)
    rounds = settings.rounds
    rng = np.random.default_rng(0)
    long = [1e-22 * rng.standard_normal(32 * RATE)]
    batch = [1e-22 * rng.standard_normal(8 * RATE) for _ in range(settings.batch)]
    if not settings.small:
        compare("32 s", long, 224, 224, rounds)
        compare("32 s", long, 1000, 500, rounds)
    compare(f"8 s in a batch of {settings.batch}", batch, 224, 224, (rounds + 1) // 2)


if __name__ == "__main__":
    main()
