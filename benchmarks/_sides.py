"""Programs measured in turns: each in a process of its own, told over a pipe to go on."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import psutil

from benchmarks._record import spread


class Side:
    """One of them. Its process answers each line on standard input with seconds: by the clock, and
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


def compare(ours: Side, *peers: Side, rounds: int = 5) -> dict[str, Any]:
    """Alternate, the first round of each being a warm-up; print medians and each ratio's spread.

    Returns
    -------
    Figures for :func:`benchmarks._record.record`.
    """
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
    figures: dict[str, Any] = {
        f"{side.name}, {what} s": round(statistics.median(values), 3)
        for side in sides
        for what, values in (("clock", side.times), ("processor", side.work))
    }
    for peer in peers:
        for what, mine, theirs in (
            ("clock", ours.times, peer.times),
            ("processor", ours.work, peer.work),
        ):
            found = spread(mine, theirs)
            figures[f"ratio of {ours.name} to {peer.name}, {what}"] = found
            print(
                f"{ours.name} / {peer.name} by {what:9} {found[0]:.3f}  [{found[1]:.3f} to {found[2]:.3f}]"
            )
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    return figures


def serve(work: object) -> None:
    """The loop of a side's process: run ``work`` once a line, print how long it took."""
    for _ in sys.stdin:
        began, before = time.perf_counter(), _processor()
        work()  # type: ignore[operator]
        print(f"seconds {time.perf_counter() - began:.4f} {_processor() - before:.4f}", flush=True)


def _processor() -> float:
    """Seconds of processor time of this process, of those that it has ended and of its workers."""
    living = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            living += sum(child.cpu_times()[:4])
    return sum(os.times()[:4]) + living
