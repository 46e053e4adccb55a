"""Compares the rule for precision and memory format (`learners.training.speed`) with all four combinations.

A bare training step (forward, cross-entropy, backward) of ten families of timm on ready tensors, in
fp32 and bf16, channels-last and first, in turns, by processor time, or by the clock on a GPU. The ratio is
that of the rule's way to the quickest one's: 1 is a right choice. Figures belong to the kind of processor,
which is named. ``--compile`` adds the rule's way compiled, which is not among those compared.

    OMP_NUM_THREADS=1 python benchmarks/bench_precision.py
    python benchmarks/bench_precision.py --networks resnet50 convnext_tiny --size 224
    python benchmarks/bench_precision.py --device cuda --bs 64 --size 224 --rounds 20 --compile
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
from learners.machine.acceleration import keep_memory, let_waiting_threads_sleep

FAMILIES = [
    "resnet18", "densenet121", "hrnet_w18_small", "regnetx_002",  # dense (or grouped) convolutions
    "tf_efficientnet_lite0", "mobilenetv3_small_100", "convnext_atto",  # depthwise ones
    "mobilevit_xxs",  # depthwise ones and attention
    "vit_tiny_patch16_224", "mixer_s32_224",  # tokens
]  # fmt: skip


def step_of(
    network: Any, bs: int, size: int, half: bool, last: bool, device: str
) -> Callable[[], float]:
    """A training step, which returns its seconds."""
    import torch
    from torch.nn import functional

    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(bs, 3, size, size, device=device)
    y = torch.zeros(bs, dtype=torch.long, device=device)
    on_gpu = device != "cpu"
    clock = time.perf_counter if on_gpu else time.process_time

    def step() -> float:
        network.to(memory_format=layout)
        began = clock()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            logits = network(x.contiguous(memory_format=layout))
        functional.cross_entropy(logits.float(), y).backward()
        network.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        return clock() - began

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--networks", nargs="+", default=FAMILIES)
    parser.add_argument("--size", type=int, default=160, help="224 where a network has no other")
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true", help="time the rule's way compiled, too")
    settings = parse(parser, networks=["test_resnet", "test_efficientnet"], size=32, bs=2, rounds=1)
    let_waiting_threads_sleep()
    import timm
    import torch

    from learners.training.speed import usual_precision

    keep_memory()
    gpu = f"{torch.cuda.get_device_name()}, " if settings.device == "cuda" else ""
    print(f"{gpu}{software_and_hardware('timm')}; {torch.get_num_threads()} threads")
    print(f"{'pictures a second':22}  fp32 last  fp32 first  bf16 last  bf16 first  the rule")
    for name in settings.networks:
        fixed = timm.models.get_pretrained_cfg(name).fixed_input_size
        size = max(224, settings.size) if fixed else settings.size
        network = timm.create_model(name, num_classes=10).train().to(settings.device)
        ways = {(half, last): step_of(network, settings.bs, size, half, last, settings.device)
                for half in (False, True) for last in (True, False)}  # fmt: skip
        for step in ways.values():
            step()  # allocates, and chooses kernels on a GPU
        first: dict[tuple[bool, bool], float] = {}
        times: dict[tuple[bool, bool], list[float]] = {way: [] for way in ways}
        for number in range(settings.rounds + 1):
            for way, step in ways.items():
                if number and first[way] > 3 * min(first.values()):
                    continue  # that has told
                seconds = step()
                if number:
                    times[way].append(seconds)
                else:
                    first[way] = seconds
        rates = {way: settings.bs / statistics.median(found or [first[way]])
                 for way, found in times.items()}  # fmt: skip
        chosen = usual_precision(settings.device, network)
        ratio = max(rates.values()) / rates[chosen == "bf16", True]
        shown = "  ".join(f"{rate:10.1f}" for rate in rates.values())
        print(f"{name:22} {shown}  {chosen}: {ratio:.2f} of the quickest's time", flush=True)
        if settings.compile:
            network.compile()
            compiled = ways[chosen == "bf16", True]
            began = time.perf_counter()
            compiled()
            seconds = time.perf_counter() - began
            rate = settings.bs / statistics.median(compiled() for _ in range(settings.rounds))
            print(f"{'compiled':22} {rate:10.1f}, after {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
