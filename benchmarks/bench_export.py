"""ONNX Runtime against torch's eager forward pass, both as the predictor asks them. Target: >= 1.2.

The same float32 network, ready inputs, the same number of threads, alternating rounds. Random
weights: the arithmetic takes as long with any.

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

sys.path.insert(0, str(Path(__file__).parents[1]))
import learners._command  # noqa: F401  (as the command does: waiting threads sleep)
from benchmarks._record import record, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbones", nargs="+", default=["embedded", "resnet18"])
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--bs", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round, about")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SECONDHAND_CACHE"] = folder
        for backbone in settings.backbones:
            compare(backbone, settings)


def compare(backbone: str, settings: argparse.Namespace) -> None:
    import numpy as np

    from learners.backbones import NetworkSpec, build
    from learners.bundle import Bundle
    from learners.predictor import Predictor

    spec = NetworkSpec(backbone, 10, size=settings.size)
    network, spec, preprocessing = build(spec, pretrained=False)
    bundle = Bundle(network.eval(), spec, [str(n) for n in range(10)], preprocessing)
    sides = {engine: Predictor(bundle, device="cpu", engine=engine) for engine in ("torch", "onnx")}
    for bs in settings.bs:
        shape = (bs, 3, settings.size, settings.size)
        batch = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

        def seconds(engine: str, repeats: int, batch: np.ndarray = batch) -> float:
            began = time.perf_counter()
            for _ in range(repeats):
                sides[engine].forward(batch)
            return (time.perf_counter() - began) / repeats

        for engine in sides:
            seconds(engine, 2)
        repeats = max(1, round(settings.seconds / seconds("torch", 2)))
        times: dict[str, list[float]] = {engine: [] for engine in sides}
        for _ in range(settings.rounds):
            for engine in sides:
                times[engine].append(seconds(engine, repeats))
        ratios = [t / o for t, o in zip(times["torch"], times["onnx"], strict=True)]
        rates = "  ".join(f"{e} {bs / statistics.median(t):.0f}/s" for e, t in times.items())
        print(
            f"{backbone} {settings.size} px, batches of {bs}: {rates}  ratio "
            f"{statistics.median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}]  load "
            f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores",
            flush=True,
        )
        record(
            f"ONNX Runtime, {backbone}, {settings.size} px, batches of {bs}",
            {"ratio of onnx to torch, clock": spread(times["onnx"], times["torch"])},
        )


if __name__ == "__main__":
    main()
