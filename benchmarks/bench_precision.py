"""Compares the rule for precision and memory format (`learners.training.speed`) with all four combinations.

A bare training step (forward, cross-entropy, backward) of ten families of timm on ready tensors, in
fp32 and bf16, channels-last and first, in turns, by processor time. The ratio is that of the rule's way
to the quickest one's: 1 is a right choice. Figures belong to the kind of processor, which is named.

    OMP_NUM_THREADS=1 python benchmarks/bench_precision.py
    python benchmarks/bench_precision.py --networks resnet50 convnext_tiny --size 224
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware
from learners.acceleration import keep_memory, let_waiting_threads_sleep

FAMILIES = [
    "resnet18", "densenet121", "hrnet_w18_small", "regnetx_002",  # dense (or grouped) convolutions
    "tf_efficientnet_lite0", "mobilenetv3_small_100", "convnext_atto",  # depthwise ones
    "mobilevit_xxs",  # depthwise ones and attention
    "vit_tiny_patch16_224", "mixer_s32_224",  # tokens
]  # fmt: skip


def step_of(network: Any, bs: int, size: int, half: bool, last: bool) -> Callable[[], None]:
    import torch
    from torch.nn import functional

    layout = torch.channels_last if last else torch.contiguous_format
    x, y = torch.randn(bs, 3, size, size), torch.zeros(bs, dtype=torch.long)

    def step() -> None:
        network.to(memory_format=layout)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = network(x.contiguous(memory_format=layout))
        functional.cross_entropy(logits.float(), y).backward()
        network.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--networks", nargs="+", default=FAMILIES)
    parser.add_argument("--size", type=int, default=160, help="224 where a network has no other")
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    settings = parse(parser, networks=["test_resnet", "test_efficientnet"], size=32, bs=2, rounds=1)
    let_waiting_threads_sleep()
    import timm
    import torch

    from learners.training.speed import usual_precision

    keep_memory()
    print(f"{software_and_hardware('timm')}; {torch.get_num_threads()} threads")
    print(f"{'pictures a second':22}  fp32 last  fp32 first  bf16 last  bf16 first  the rule")
    for name in settings.networks:
        fixed = timm.models.get_pretrained_cfg(name).fixed_input_size
        size = max(224, settings.size) if fixed else settings.size
        network = timm.create_model(name, num_classes=10).train()
        ways = {(half, last): step_of(network, settings.bs, size, half, last)
                for half in (False, True) for last in (True, False)}  # fmt: skip
        first: dict[tuple[bool, bool], float] = {}  # steps, which warm up
        times: dict[tuple[bool, bool], list[float]] = {way: [] for way in ways}
        for number in range(settings.rounds + 1):
            for way, step in ways.items():
                if number and first[way] > 3 * min(first.values()):
                    continue  # that has told
                began = time.process_time()
                step()
                seconds = time.process_time() - began
                if number:
                    times[way].append(seconds)
                else:
                    first[way] = seconds
        rates = {way: settings.bs / statistics.median(found or [first[way]])
                 for way, found in times.items()}  # fmt: skip
        chosen = usual_precision("cpu", network)
        ratio = max(rates.values()) / rates[chosen == "bf16", True]
        shown = "  ".join(f"{rate:10.1f}" for rate in rates.values())
        print(f"{name:22} {shown}  {chosen}: {ratio:.2f} of the quickest's time", flush=True)


if __name__ == "__main__":
    main()
