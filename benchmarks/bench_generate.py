"""Generation with the cache of keys and values against without it. Target: ratio < 1 from 64 tokens on.

The peer is the same `GPT.generate` with `cached=False`, which computes every past position anew for
each token. A GPT with GPT-2's layers at half its width; the tokens are checked to be the same.

    python benchmarks/bench_generate.py --tokens 16 64 128 256
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import learners.console  # noqa: F401  (as the commands do: waiting threads sleep)

# isort: split
import torch

from benchmarks._record import parse
from learners.scratch.gpt import GPT, GPTConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    settings = parse(parser, tokens=[8], width=48, depth=1, rounds=1)
    torch.manual_seed(0)
    config = GPTConfig(
        vocabulary=1000, context=512, width=settings.width, depth=settings.depth, heads=6
    )
    gpt = GPT(config).eval()
    prompt = torch.randint(1000, (1, 8))
    print(f"{sum(p.numel() for p in gpt.parameters()) / 1e6:.1f} M parameters, 8 tokens of prompt")
    for n in settings.tokens:
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(settings.rounds):
            for cached in (True, False):
                began = time.perf_counter()
                out = gpt.generate(
                    prompt, n, cached=cached, generator=torch.Generator().manual_seed(0)
                )
                times[cached].append(time.perf_counter() - began)
                assert out.shape == (1, 8 + n)
        ratios = [a / b for a, b in zip(times[True], times[False], strict=True)]
        print(
            f"{n:4} tokens: cached {statistics.median(times[True]):6.2f} s, "
            f"uncached {statistics.median(times[False]):6.2f} s, "
            f"ratio {statistics.median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}]"
        )


if __name__ == "__main__":
    main()
