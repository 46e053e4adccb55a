"""ONNX Runtime, as the predictor asks it, against torch's eager forward pass. Target: >= 1.2.

eager is the network called as it is, in channels-last; "torch" is how the predictor calls it, a part
of the batch on each core. The same float32 network, ready inputs, the same number of threads,
alternating rounds. Random weights: the arithmetic takes as long with any.

    python benchmarks/bench_export.py --backbones embedded resnet18 vit_tiny_patch16_224 --bs 32
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import learners.console  # noqa: F401  (as the command does: waiting threads sleep)
from benchmarks._record import parse, record, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbones", nargs="+", default=["embedded", "resnet18"])
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--bs", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round, about")
    settings = parse(parser, backbones=["test_resnet"], size=64, bs=[1], rounds=1, seconds=0.05)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SECONDHAND_CACHE"] = folder
        for backbone in settings.backbones:
            compare(backbone, settings)


def compare(backbone: str, settings: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from learners.model.bundle import Bundle
    from learners.networks.backbones import NetworkSpec, build
    from learners.prediction.predictor import Predictor

    spec = NetworkSpec(backbone, 10, size=settings.size)
    network, spec, preprocessing = build(spec, pretrained=False)
    bundle = Bundle(network.eval(), spec, [str(n) for n in range(10)], preprocessing)
    sides = {engine: Predictor(bundle, device="cpu", engine=engine) for engine in ("torch", "onnx")}
    for bs in settings.bs:
        shape = (bs, 3, settings.size, settings.size)
        batch = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

        ready = torch.from_numpy(batch).float().div_(128).sub_(1)
        ready = ready.contiguous(memory_format=torch.channels_last)

        @torch.inference_mode()
        def eager(_: object, ready: torch.Tensor = ready) -> object:
            return sides["torch"].network(ready)

        ways = {"eager": eager, **{engine: side.forward for engine, side in sides.items()}}

        def seconds(way: str, repeats: int, batch: np.ndarray = batch, ways: Any = ways) -> float:
            began = time.perf_counter()
            for _ in range(repeats):
                ways[way](batch)
            return (time.perf_counter() - began) / repeats

        for way in ways:
            seconds(way, 2)
        repeats = max(1, round(settings.seconds / seconds("torch", 2)))
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(settings.rounds):
            for way in ways:
                times[way].append(seconds(way, repeats))
        ratios = [e / o for e, o in zip(times["eager"], times["onnx"], strict=True)]
        rates = "  ".join(f"{e} {bs / statistics.median(t):.0f}/s" for e, t in times.items())
        print(
            f"{backbone} {settings.size} px, batches of {bs}: {rates}  ratio "
            f"{statistics.median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}]  load "
            f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores",
            flush=True,
        )
        record(
            f"ONNX Runtime, {backbone}, {settings.size} px, batches of {bs}",
            {
                "ratio of onnx to eager, clock": spread(times["onnx"], times["eager"]),
                "ratio of torch to eager, clock": spread(times["torch"], times["eager"]),
            },
        )


if __name__ == "__main__":
    main()
