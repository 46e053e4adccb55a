"""Fine-tuning the attention layers of a ViT alone (`--train attention`, arXiv:2203.09795), beside all of it.

For each: the weights that learn, the memory of a training step (gradients and moments of AdamW, and what the forward pass
keeps for the backward pass), and the processor time of a step, in turns. Weights are random, because neither depends on
them.

    OMP_NUM_THREADS=1 python benchmarks/bench_attention.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware, spread
from learners.backbones.building import attention_groups, build, native_size, parameter_groups
from learners.backbones.spec import NetworkSpec


def network(backbone: str, *, attention: bool) -> tuple[nn.Sequential, list[nn.Parameter]]:
    """A network of ten classes, and its weights that learn."""
    torch.manual_seed(0)
    built, _, _ = build(NetworkSpec(backbone, 10, native_size(backbone)), pretrained=False)
    assert isinstance(built, nn.Sequential)
    taught = [*chain(*(attention_groups if attention else parameter_groups)(built))]
    ids = {id(parameter) for parameter in taught}
    for parameter in built.parameters():
        parameter.requires_grad_(id(parameter) in ids)
    return built.train(), taught


def kept(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Bytes that the forward pass keeps for the backward pass, without the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(model(x), y)
    del loss
    return sum(storages.values())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """Seconds of processor time of a training step."""
    start = time.process_time()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="vit_tiny_patch16_224")
    parser.add_argument("--bs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    options = parse(parser, backbone="test_vit", bs=2, rounds=2)
    print(software_and_hardware("timm"))
    size = native_size(options.backbone)
    x, y = torch.randn(options.bs, 3, size, size), torch.arange(options.bs) % 10
    times: dict[str, list[float]] = {}
    steps = {}
    for name in ("all", "attention"):
        model, taught = network(options.backbone, attention=name == "attention")
        count = sum(parameter.numel() for parameter in taught)
        activations = kept(model, x, y)
        print(
            f"{name:9} {count / 1e6:.2f} M weights learn; gradients and moments {12 * count / 2**20:.0f} MiB, "
            f"kept for the backward pass {activations / 2**20:.0f} MiB"
        )
        optimizer = torch.optim.AdamW(taught, lr=1e-4, fused=True)
        step(model, optimizer, x, y)
        steps[name], times[name] = (model, optimizer), []
    for _ in range(options.rounds):
        for name, (model, optimizer) in steps.items():
            times[name].append(step(model, optimizer, x, y))
    for name, seconds in times.items():
        print(f"{name:9} {statistics.median(seconds):.2f} s a step of {options.bs}")
    print("attention / all:", spread(times["attention"], times["all"]))


if __name__ == "__main__":
    main()
