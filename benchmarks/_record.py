"""Where benchmarks leave their figures: benchmarks/results.json, which belongs to one machine.

    from benchmarks._record import parse, record
    settings = parse(parser, items=8)           # --small: 8 where --items is not given
    record("predict", {"ratio": 0.93, "ours s": 1.21})

The last figures of each name stay, those of `--small` by themselves; `python -m benchmarks.table`
prints and draws the ratios. Git ignores the file. `$SECONDHAND_RESULTS` names another one.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"


def parse(parser: argparse.ArgumentParser, **small: Any) -> argparse.Namespace:
    """The command line, with `--small`, which every benchmark takes.

    Parameters
    ----------
    small : the sizes with which the benchmark comes to its figures in seconds, by the options'
        names: their defaults under `--small`. They tell whether it runs, and nothing of speed.
    """
    said = ", ".join(f"--{name} {value}" for name, value in small.items()).replace("_", "-")
    parser.add_argument("--small", action="store_true", help=f"to see that it runs: {said}")
    if "--small" in sys.argv[1:]:
        parser.set_defaults(**small)
    return parser.parse_args()


def record(name: str, figures: Mapping[str, Any]) -> None:
    """Keep a benchmark's figures, with the time and the load of the machine.

    Parameters
    ----------
    name : of the benchmark, as "predict"; its last figures are replaced.
    figures : plain values. A ratio of times, ours over the peer's, is a number below a key that
        begins with "ratio"; its least and greatest go beside it as a list of three: [median, least,
        greatest].
    """
    name += ", small" if "--small" in sys.argv[1:] else ""
    path = results_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {
        "figures": dict(figures),
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 2),
    }
    with open(path.with_suffix(".lock"), "w") as lock:  # benchmarks may end at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = {**read(), name: entry}
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
        os.replace(beside, path)


def processor() -> str:
    """Its kind, and what of it changes ratios: "AMD EPYC (avx2)"; a ratio is of one kind alone."""
    try:
        told = dict(
            map(str.strip, line.split(":", 1))
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if ":" in line
        )
    except OSError:
        return platform.processor() or platform.machine()
    flags = told.get("flags", "").split()
    units = [unit for unit in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if unit in flags]
    return f"{told.get('model name', platform.machine())} ({', '.join(units) or 'no wide units'})"


def spread(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Each round's ratio of ours over the peer's: median, least, greatest."""
    ratios = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
    return [round(value, 3) for value in (statistics.median(ratios), min(ratios), max(ratios))]


def read() -> dict[str, dict[str, Any]]:
    """All figures that are kept, by the benchmark's name."""
    try:
        found = json.loads(results_path().read_text())
    except FileNotFoundError:
        return {}
    return dict(found)


def results_path() -> Path:
    return Path(os.environ.get("SECONDHAND_RESULTS", RESULTS))
