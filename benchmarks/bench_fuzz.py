"""Opens damaged files with every reader and counts faults: anything but a result or a named error.

The target is none. Each mutant is opened in a process that is watched: another exception,
a death, more than 10 s or 1 000 MB, a file changed outside the output folder, a process or a
connection is a fault, printed with the number that makes it again (``--kinds KIND --only NUMBER``).

    python benchmarks/bench_fuzz.py --count 5000 --seed 0          # make bench-fuzz
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse

# Readers are looked at, not networks: threads that fight for cores would look like hangs.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> int:
    from tests.fuzzing import Outcome, fuzz
    from tests.mutants import KINDS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", type=int, help="this number of each kind, and no other")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    settings = parse(parser, count=18, workers=1)

    def tell(outcome: Outcome) -> None:
        if outcome.verdict == "fault" or settings.only is not None:
            print(f"{outcome.kind} {outcome.number}: {outcome.verdict}: {outcome.detail}")

    began = time.monotonic()
    outcomes = fuzz(
        settings.count,
        settings.seed,
        kinds=settings.kinds,
        workers=settings.workers,
        only=settings.only,
        tell=tell,
    )
    print(f"{'kind':12} {'answers':>8} {'refused':>8} {'faults':>8} {'slowest':>9} {'memory':>9}")
    for kind in settings.kinds:
        own = [outcome for outcome in outcomes if outcome.kind == kind]
        counts = Counter(outcome.verdict for outcome in own)
        slowest = max((outcome.seconds for outcome in own), default=0.0)
        largest = max((outcome.megabytes for outcome in own), default=0.0)
        print(
            f"{kind:12} {counts['answer']:8} {counts['refused']:8} {counts['fault']:8} "
            f"{slowest:7.2f} s {largest:6.0f} MB"
        )
    faults = sum(outcome.verdict == "fault" for outcome in outcomes)
    print(
        f"{len(outcomes)} mutants of seed {settings.seed}, {faults} disallowed outcomes, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
