"""Two programs measured in turns: each in a process of its own, told over a pipe to go on."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time


class Side:
    """One of the two. Its process answers each line on standard input with a number of seconds."""

    def __init__(self, script: str, name: str, *arguments: str, **environment: str) -> None:
        self.name = name
        self.times: list[float] = []
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
        return float(line.split()[1])


def compare(ours: Side, peer: Side, rounds: int) -> None:
    """Alternate, the first round of each being a warm-up; print medians and the ratio's spread."""
    for side in (ours, peer):
        side.go()
    ratios = []
    for _ in range(rounds):
        for side in (ours, peer):
            side.times.append(side.go())
        ratios.append(ours.times[-1] / peer.times[-1])
    for side in (ours, peer):
        print(f"{side.name:8} median {statistics.median(side.times):.2f} s of {rounds}")
        side.process.terminate()
        side.process.wait()
    print(
        f"ratio    {statistics.median(ratios):.2f}  [{min(ratios):.2f} to {max(ratios):.2f}]  "
        f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
    )


def serve(work: object) -> None:
    """The loop of a side's process: run ``work`` once a line, print how long it took."""
    for _ in sys.stdin:
        began = time.perf_counter()
        work()  # type: ignore[operator]
        print(f"seconds {time.perf_counter() - began:.4f}", flush=True)
