"""Growth: processor time and memory against files, classes and the length of a recording.

No peer: the peer is a straight line. Each point is a process of its own. It prints the seconds of
a core of each stage (a busy machine hardly changes them) and the peak of the process's memory, with
the exponent of the power law through the points; what grows worse than linear is named. A plot goes
to benchmarks/growth.png.

files     sounds of a tenth of a second, drawn at 32 px, one process: reading the table, splitting,
          drawing into an empty cache, finding all of it again, answering an eighth of them
classes   4000 items, 64 features: fitting the confidence, deciding
seconds   one recording at 8 kHz: drawn window by window, then answered by a small network

    python benchmarks/bench_growth.py           # about 2 minutes of a core
    python benchmarks/bench_growth.py --full    # 100 000 files, 1000 classes, two hours
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # before numpy is loaded

import numpy as np

from benchmarks._record import parse, record, results_path

RATE = 8000
#: As it is, with --full, with --small.
SIZES = {
    "files": ([500, 2000, 8000], [1000, 10_000, 100_000], [8, 16, 32]),
    "classes": ([10, 100, 1000], [10, 100, 1000], [2, 4, 8]),
    "seconds": ([5, 60, 600], [5, 60, 600, 7200], [2, 4, 8]),
}
WORSE = 1.15  # an exponent above this is said
Stages = dict[str, float]


@contextmanager
def stage(stages: Stages, name: str) -> Iterator[None]:
    """Seconds of a core, children's included."""
    began = _used()
    yield
    stages[name] = _used() - began


def _used() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


def write_sound(path: Path, values: np.ndarray) -> None:
    """16-bit mono WAV, by hand: a library's writer takes longer than all that is measured."""
    data = (values * 32767).astype("<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    head = b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVE" + form
    path.write_bytes(head + b"data" + struct.pack("<I", len(data)) + data)


def small_model(folder: Path, recipe: Any) -> Any:
    import torch

    from learners.model.bundle import Bundle
    from learners.networks.backbones import NetworkSpec, build
    from learners.prediction.predictor import Predictor

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, spec, preprocessing = build(NetworkSpec("test_resnet", 4, size=32), pretrained=False)
    return Predictor(
        Bundle(network.eval(), spec, list("abcd"), preprocessing, recipe=recipe.to_dict())
    )


def files(count: int, folder: Path, stages: Stages) -> None:
    from datasets.drawings.pictures import PictureCache
    from datasets.drawings.store import SETTLED
    from datasets.sound.recipe import AudioRecipe
    from datasets.tables.splits import assign_splits
    from datasets.tables.table import load_table

    rng = np.random.default_rng(0)
    lines = ["path,label"]
    for number in range(count):
        path = folder / f"{number % 100:02}" / f"{number:06}.wav"
        path.parent.mkdir(exist_ok=True)
        write_sound(path, rng.uniform(-0.5, 0.5, RATE // 10))
        lines.append(f"{path},{'abcd'[number % 4]}")
    table = folder / "items.csv"
    table.write_text("\n".join(lines) + "\n")
    time.sleep(SETTLED)  # hashes of files just written are not kept
    with stage(stages, "table"):
        frame = load_table(str(table)).frame
    with stage(stages, "split"):
        frame, _ = assign_splits(frame)
    recipe = AudioRecipe(rate=RATE, window=0.1, size=(32, 32))
    paths = list(frame.path)
    for name in ("draw", "find again"):
        with stage(stages, name):
            PictureCache(folder / "cache").render_all(paths, recipe, workers=1)
    model = small_model(folder, recipe)
    with stage(stages, "predict 1/8"):
        answered = sum(1 for _ in model.predict(paths[::8], workers=1))
    assert len(paths) == count
    assert answered == len(paths[::8])


def classes(count: int, folder: Path, stages: Stages) -> None:
    from learners.confidence import Confidence, Items

    rng = np.random.default_rng(0)
    labels = np.arange(4000) % count
    logits = rng.standard_normal((4000, count))
    logits[np.arange(4000), labels] += 4
    features = rng.standard_normal((4000, 64)).astype(np.float32)
    with stage(stages, "fit"):
        confidence = Confidence.fit(
            Items(logits, labels, features),
            Items(logits, labels, rng.standard_normal((4000, 64)).astype(np.float32)),
        )
    with stage(stages, "decide"):
        confidence.decide(logits, features)


def seconds(count: int, folder: Path, stages: Stages) -> None:
    from datasets.drawings.pictures import PictureCache, Source
    from datasets.sound.recipe import AudioRecipe

    path = folder / "long.wav"
    rng = np.random.default_rng(0)
    write_sound(path, np.tile(rng.uniform(-0.5, 0.5, RATE), count))
    recipe = AudioRecipe(rate=RATE, window=1.0, size=(32, 32))
    with stage(stages, "draw"):
        items = [Source(str(path), *span) for span in recipe.spans(path)]
        PictureCache(folder / "cache").render_all(items, recipe, workers=1)
    model = small_model(folder, recipe)
    with stage(stages, "predict"):
        (answer,) = model.predict([path], workers=1)
    assert count <= len(answer.windows) <= 2 * count


def point(axis: str, size: int) -> dict[str, Any]:
    """The stages' seconds and the peak of memory in bytes, by a process of its own."""
    ran = subprocess.run(
        [sys.executable, __file__, "--point", axis, str(size)], stdout=subprocess.PIPE, check=True
    )
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def measured(axis: str, size: int) -> dict[str, Any]:
    work = {"files": files, "classes": classes, "seconds": seconds}[axis]
    stages: Stages = {}
    with tempfile.TemporaryDirectory() as passing:
        work(size, Path(passing), stages)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"stages": stages, "bytes": peak}


def exponent(sizes: list[int], values: list[float]) -> float:
    """Of the power law through the points, once what does not grow is taken off: n -> a + b n^k.

    By the last two steps: (t3 - t2) / (t2 - t1) against the sizes'. The start, as imports and
    compiled filters, would else hide what is to come.
    """
    early, late = values[-2] - values[-3], values[-1] - values[-2]
    if early <= 0 or late <= 0:
        return 0.0
    best = (0.0, np.inf)
    for k in np.linspace(0.05, 3, 60):
        steps = np.diff(np.asarray(sizes[-3:], float) ** k)
        miss = abs(np.log(late / early) - np.log(steps[1] / steps[0]))
        best = min(best, (float(k), float(miss)), key=lambda pair: pair[1])
    return best[0]


def draw(found: dict[str, Any], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter

    figure, axes = pyplot.subplots(2, len(found), figsize=(12, 7), layout="constrained")
    for column, (axis, (sizes, points)) in enumerate(found.items()):
        for name in points[0]["stages"]:
            axes[0, column].loglog(sizes, [p["stages"][name] for p in points], "o-", label=name)
        axes[0, column].set(title=axis, ylabel="seconds of a core")
        axes[0, column].legend()
        axes[1, column].semilogx(sizes, [p["bytes"] / 2**20 for p in points], "o-")
        axes[1, column].set(xlabel=axis, ylabel="MiB at the peak", ylim=0)
        for row in (0, 1):
            axes[row, column].set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes[row, column].xaxis.set_minor_formatter(NullFormatter())
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--axes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--out", type=Path, default=results_path().with_name("growth.png"))
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    settings = parse(parser)
    if settings.point:
        print(json.dumps(measured(settings.point[0], int(settings.point[1]))))
        return
    # Small, all in this process: importing takes far longer than what is measured.
    one = measured if settings.small else point
    found: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for axis in settings.axes:
        sizes = SIZES[axis][2 if settings.small else settings.full]
        points = []
        for size in sizes:
            points.append(one(axis, size))
            row = "  ".join(f"{name} {value:.2f}" for name, value in points[-1]["stages"].items())
            print(f"{axis} {size:7}  {row}  {points[-1]['bytes'] / 2**20:.0f} MiB", flush=True)
        found[axis] = sizes, points
        curves = {name: [p["stages"][name] for p in points] for name in points[0]["stages"]}
        curves["memory"] = [p["bytes"] for p in points]
        for name, values in curves.items():
            power = exponent(sizes, values)
            small = name != "memory" and values[-1] - values[0] < 0.1
            worse = power > WORSE and not small
            print(f"  {name}: n^{power:.2f}{', WORSE THAN LINEAR' if worse else ''}")
            kept[f"{axis} {name} exponent"] = power
    if len(found) > 1:
        draw(found, settings.out)
        print(settings.out)
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    record("growth", kept)


if __name__ == "__main__":
    main()
