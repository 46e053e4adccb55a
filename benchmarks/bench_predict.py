"""Prediction from files against the bare forward pass on ready tensors. Target: >= 0.9 of it.

bare calls the network as it is in torch, all threads on one batch, channels-last; ours answers with the
engine that it takes by itself, or with that of ``--engine``, opening of the files and judging included.
Both in float32, the same network and batch size, memory kept, in alternating rounds.

    python benchmarks/bench_predict.py runs/photos/model photos --count 1000 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import learners.console  # noqa: F401  (as the command does: waiting threads sleep)
from benchmarks._record import parse, record, spread


def main() -> None:
    import numpy as np
    import torch

    from benchmarks._demo import demo_files, demo_run
    from learners.predict import find_files
    from learners.prediction.predictor import Predictor

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="one of digits if not given")
    parser.add_argument("folder", nargs="?", help="of files; demo:digits if not given")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="auto")
    settings = parse(parser, count=8, bs=4, rounds=1)
    model = settings.model or demo_run(settings.small) / "model"
    predictor = Predictor(model, engine=settings.engine, tta=False)
    network = Predictor(model, engine="torch").network
    found = find_files([settings.folder]) if settings.folder else demo_files(400)
    files = list(islice(cycle(found), settings.count))
    ready = np.stack([predictor.open(file) for file in files[: settings.bs]])
    mean, std = predictor.bundle.preprocessing.mean, predictor.bundle.preprocessing.std
    x = torch.from_numpy(ready).float().div_(255)
    x = x.sub_(torch.tensor(mean).view(1, 3, 1, 1)).div_(torch.tensor(std).view(1, 3, 1, 1))
    x = x.contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def bare() -> None:
        for start in range(0, settings.count, settings.bs):
            network(x[: settings.count - start])

    def ours() -> None:
        assert len(list(predictor.predict(files, bs=settings.bs))) == settings.count

    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(settings.rounds + 1):
        for name, work in (("bare", bare), ("ours", ours)):
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    ratios = [b / o for b, o in zip(times["bare"][1:], times["ours"][1:], strict=True)]
    for name, values in times.items():
        print(f"{name:5} median {settings.count / statistics.median(values[1:]):.0f} pictures/s")
    print(
        f"ratio {statistics.median(ratios):.2f}  [{min(ratios):.2f} to {max(ratios):.2f}]  "
        f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
    )
    spec = predictor.bundle.spec
    what = f"prediction, {spec.backbone}, {spec.size} px, {predictor.engine}"
    record(what, {"ratio of ours to bare, clock": spread(times["ours"][1:], times["bare"][1:])})


if __name__ == "__main__":
    main()
