"""Helpers of the benchmarks: `--small`, a description of the machine, alternating timings, a model of digits."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil


def parse(parser: argparse.ArgumentParser, **small: Any) -> argparse.Namespace:
    """The command line, with `--small`, which every benchmark takes.

    Parameters
    ----------
    small : the sizes with which the benchmark comes to its figures in seconds, by the options'
        names: their defaults under `--small`. They tell whether it runs, and nothing of speed.
    """
    small_flags = ", ".join(f"--{name} {value}" for name, value in small.items()).replace("_", "-")
    parser.add_argument("--small", action="store_true", help=f"to see that it runs: {small_flags}")
    if "--small" in sys.argv[1:]:
        parser.set_defaults(**small)
    return parser.parse_args()


def software_and_hardware(*libraries: str) -> str:
    """Where figures were measured: processor, cores, load, and the versions of the libraries."""
    cores = len(os.sched_getaffinity(0))
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("torch", *libraries))
    return f"{processor()}, {cores} cores, load {os.getloadavg()[0]:.1f}; {', '.join(versions)}"


def processor() -> str:
    """Its kind, and what of it changes ratios: "AMD EPYC (avx2)"; a ratio is of one kind alone."""
    try:
        cpu_info = dict(
            map(str.strip, line.split(":", 1))
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if ":" in line
        )
    except OSError:
        return platform.processor() or platform.machine()
    flags = cpu_info.get("flags", "").split()
    units = [unit for unit in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if unit in flags]
    return (
        f"{cpu_info.get('model name', platform.machine())} ({', '.join(units) or 'no wide units'})"
    )


def spread(ours: Sequence[float], peer: Sequence[float]) -> str:
    """Each round's ratio of ours over the peer's: "median  [least to greatest]"."""
    ratios = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
    return f"{statistics.median(ratios):.2f}  [{min(ratios):.2f} to {max(ratios):.2f}]"


class Side:
    """A program measured in turns with others. Its process answers each line on standard input with seconds: by the clock, and
    of processor time, its workers' included."""

    def __init__(self, script: str, name: str, *arguments: str, **environment: str) -> None:
        self.name = name
        self.times: list[float] = []
        self.work: list[float] = []
        self.process = subprocess.Popen(
            [sys.executable, script, "--side", name, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip

    def go(self) -> float:
        assert self.process.stdin
        assert self.process.stdout
        print("go", file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        while line and not line.startswith("seconds "):
            line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early")
        words = line.split()
        self.processor = float(words[2]) if len(words) > 2 else float("nan")
        return float(words[1])

    def round(self) -> None:
        self.times.append(self.go())
        self.work.append(self.processor)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()  # it then removes what it wrote
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()


def compare(ours: Side, *peers: Side, rounds: int = 5) -> None:
    """Alternate, the first round of each being a warm-up; print medians and each ratio's spread."""
    sides = (ours, *peers)
    for side in sides:
        side.go()
    for number in range(rounds):
        for side in sides:
            side.round()
        shown = (f"{s.name} {s.times[-1]:.2f} s ({s.work[-1]:.2f} of processor)" for s in sides)
        print(f"round {number + 1}: {', '.join(shown)}", flush=True)
    for side in sides:
        side.end()
        print(
            f"{side.name:8} median {statistics.median(side.times):.2f} s of {rounds}, "
            f"{statistics.median(side.work):.2f} s of processor time"
        )
    for peer in peers:
        for what, mine, theirs in (
            ("clock", ours.times, peer.times),
            ("processor", ours.work, peer.work),
        ):
            print(f"{ours.name} / {peer.name} by {what:9} {spread(mine, theirs)}")


def serve(work: Callable[[], object]) -> None:
    """The loop of a side's process: run ``work`` once a line, print how long it took."""
    for _ in sys.stdin:
        began, before = time.perf_counter(), _processor()
        work()
        print(f"seconds {time.perf_counter() - began:.4f} {_processor() - before:.4f}", flush=True)


def _processor() -> float:
    """Seconds of processor time of this process, of those that it has ended and of its workers."""
    living = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            living += sum(child.cpu_times()[:4])
    return sum(os.times()[:4]) + living


TRAINING = "--bs 32 --no-flip --min-scale 0.7 --threshold 0.8"


def demo_run(small: bool) -> Path:
    """The run folder, in the cache folder; ``small`` is one that learnt next to nothing."""
    from datasets.core.store import cache_root
    from learners.finetune import main

    run = cache_root() / "benchmarks" / ("digits-small" if small else "digits")
    if not (run / "model" / "config.json").is_file():
        data, size = ("demo:digits", "64") if not small else (_few(run.with_suffix(".csv")), "32")
        print(f"no model was named: fine-tuning one on {data} into {run}", file=sys.stderr)
        words = ["--data", data, "--size", size, "--epochs", str(int(not small))]
        words += ["--backbone", "test_resnet", "--weights", "none"] * small
        if main([*words, *TRAINING.split(), "--out", str(run), "--overwrite"]):
            raise SystemExit("the demo could not be trained, see above")
    return run


def demo_files(count: int, label: str = "known") -> list[str]:
    """Some of the digits that it was shown, or that it was not ("unknown")."""
    from datasets.sources.demos import write_demo

    frame, _ = write_demo("digits")
    strange = frame["label"].eq("unknown")
    return [
        str(path) for path in frame["path"][strange if label == "unknown" else ~strange][:count]
    ]


def _few(table: Path) -> str:
    from datasets.sources.demos import write_demo

    table.parent.mkdir(parents=True, exist_ok=True)
    write_demo("digits")[0].head(160).to_csv(table, index=False)
    return str(table)
