"""Time to generate text with the cache of keys and values, as a part of the time without.

`learners.scratch.gpt.GPT` of random weights continues a prompt of 8 tokens, in turns with the cache and without. Both
give the same tokens. Prints medians and the spread of the ratios for each number of tokens:

    python benchmarks/bench_generate.py --tokens 16 64 256 --width 256 --depth 4
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware, spread
from learners.scratch.gpt import GPT, GPTConfig

PROMPT = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    settings = parse(parser, tokens=[16], width=32, depth=2, rounds=1)
    print(software_and_hardware())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = GPT(
        GPTConfig(
            vocabulary=1000,
            context=PROMPT + max(settings.tokens),
            width=settings.width,
            depth=settings.depth,
            heads=4,
        )
    )
    prompt = torch.randint(1000, (1, PROMPT))
    for tokens in settings.tokens:
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(settings.rounds + 1):
            texts = []
            for cached in (True, False):
                began = time.perf_counter()
                texts.append(network.generate(prompt, tokens, temperature=0, cached=cached))
                if number:  # the first round is a warm-up
                    times[cached].append(time.perf_counter() - began)
            assert torch.equal(*texts), "the cache changes the tokens"
        medians = [1000 * statistics.median(times[cached]) for cached in (True, False)]
        print(
            f"{tokens} tokens: cached {medians[0]:.0f} ms, uncached {medians[1]:.0f} ms, "
            f"cached / uncached {spread(times[True], times[False])}"
        )


if __name__ == "__main__":
    main()
