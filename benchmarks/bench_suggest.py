"""Accuracy with labels chosen by `secondhand suggest`, compared with labels chosen at random.

The features are a pretrained backbone's, frozen, as `learners.finetune --epochs 0` has them. Of each class
the labels of `--start` files are known; in each of `--rounds` rounds `--each` more are asked for, and the
probe is fitted anew. Accuracy is that on a third of the files, which are never asked for. The files are
the same for both ways of asking, and so are the first labels; each seed draws others. Prints a table for
each set, and draws it into `--plot`:

    python benchmarks/bench_suggest.py --data photos             # a folder or a table, as for
    python benchmarks/bench_suggest.py --data photos --data ESC-10=sounds/items.csv  # learners.finetune

Then the time to choose `--n` of `--rank` files by features drawn at random, as a part of the time in which
a model answers so many files of the first set; and the time in which `secondhand search` finds the nearest of
`--search` embeddings of 1280 features, drawn at random and kept in a file:

    python benchmarks/bench_suggest.py --search 1000000 --rank 0      # that alone; 2.6 GB of disk
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware
from datasets.audio.settings import MelSettings
from datasets.steps.reading import load_table
from fields.loop import embeddings
from fields.loop.embeddings import Embeddings
from fields.loop.teaching import choose_diverse, margin_uncertainty
from learners.backbones.building import build
from learners.backbones.spec import NetworkSpec
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.rule.numbers.arrays import softmax
from learners.training.probe import fit_probe

WAYS = ("suggested", "at random")


class Set:
    """Files, their classes, what the head is given of them, and what they are compared by."""

    def __init__(self, data: str, words: argparse.Namespace) -> None:
        name, said, source = data.partition("=")
        self.name, source = (name, source) if said else (Path(data).stem.split(":")[-1], data)
        table = load_table(source)
        frame = table.frame.sample(frac=1, random_state=0).head(words.items or len(table.frame))
        self.files = list(frame["path"])
        names, self.labels = np.unique(frame["label"], return_inverse=True)
        spectrogram = MelSettings.infer(self.files) if table.kind == "sound" else None
        network, spec, preprocessing = build(
            NetworkSpec(words.backbone, len(names), words.size), pretrained=not words.small
        )
        bundle = Bundle(
            built=network.eval(), spec=spec, classes=list(names), overlap=0.0,
            preprocessing=replace(
                preprocessing, resize="crop" if spectrogram is None else "squash"
            ),
            spectrogram=None if spectrogram is None else spectrogram.to_dict(),
        )  # fmt: skip
        self.predictor = Predictor(bundle)
        began = time.perf_counter()
        list(self.predictor.predict(self.files))
        self.seconds = (time.perf_counter() - began) / len(self.files)  # to answer one
        # The same pass once more, for what goes into the head beside the features.
        self.predictor.ask = partial(_into_the_head, network)
        opened = list(self.predictor.open_all(self.files))
        batches = (np.stack(opened[at : at + 32]) for at in range(0, len(opened), 32))
        each = [self.predictor.forward(batch) for batch in batches]
        self.inputs, self.features = map(np.concatenate, zip(*each, strict=True))
        self.predictor.close()

    def accuracies(self, way: str, seed: int, words: argparse.Namespace) -> list[float]:
        """On the files kept apart: with the first labels, and after each round."""
        rng = np.random.default_rng(seed)
        own = [rng.permutation(np.flatnonzero(self.labels == n)) for n in np.unique(self.labels)]
        apart = np.concatenate([rows[: len(rows) // 3] for rows in own])
        known = [row for rows in own for row in rows[len(rows) // 3 :][: words.start]]
        found = []
        for _ in range(words.rounds + 1):
            head = fit_probe(
                torch.from_numpy(self.inputs[known]),
                torch.from_numpy(self.labels[known]),
                len(own),
            )
            logits = self.inputs @ head.weight.numpy().T + head.bias.numpy()
            found.append(float((logits[apart].argmax(1) == self.labels[apart]).mean()))
            rest = np.setdiff1d(np.arange(len(self.labels)), [*apart, *known])
            if way == "at random":
                requested = rng.permutation(len(rest))[: words.each]
            else:
                unsure = margin_uncertainty(softmax(logits[rest]))
                requested = choose_diverse(unsure, self.features[rest], words.each)
            known += list(rest[requested])
        return found


def _into_the_head(network: nn.Sequential, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    maps = network[0](x)
    pooled = maps.mean((2, 3))
    return pooled, pooled[:, : getattr(network[0], "last", pooled.shape[1])]


def fewer(labels: list[int], suggested: list[float], drawn: list[float]) -> float:
    """How many of the labels asked for the suggested ones do without, at the accuracy that the drawn
    ones come to; between rounds by a straight line."""
    enough = next((n for n, value in enumerate(suggested) if value >= drawn[-1]), None)
    if enough is None:
        return float("nan")
    before = max(enough - 1, 0)
    rise = suggested[enough] - suggested[before]
    part = (drawn[-1] - suggested[before]) / rise if rise > 0 else 1.0
    needed = labels[before] + part * (labels[enough] - labels[before])
    return 1 - (needed - labels[0]) / (labels[-1] - labels[0])


def search(out: Path, rows: int, rounds: int = 5, width: int = 1280) -> None:
    """How long one search takes, the first reading the file from the disk, and in how much memory."""
    import pyarrow as pa

    kept = Embeddings.__new__(Embeddings)  # of no model: what is timed asks none
    kept.file, kept.model = out / f"{rows}.parquet", "0" * 64
    rng = np.random.default_rng(0)
    schema = embeddings._schema(2 * width)

    def drawn(first: int) -> pa.Table:
        count = min(embeddings.ROWS, rows - first)
        vectors = rng.standard_normal((count, width), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cells = [row.tobytes() for row in vectors.astype("<f2")]
        paths = [f"/pool/{n % 1000:04d}/picture_{n:08d}.jpg" for n in range(first, first + count)]
        columns = {"path": paths, "embedding": cells, "network": [kept.model] * count}
        arrays = [pa.array(columns.get(f.name, [None] * count), f.type) for f in schema]
        return pa.table(arrays, schema=schema)

    tables = (drawn(first) for first in range(0, rows, embeddings.ROWS))
    embeddings._write(kept.file, tables, schema)
    query, before, times = rng.standard_normal((1, width)), _memory(), []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        assert len(kept.nearest(query, top=20)) == 20
        times.append(time.perf_counter() - began)
    print(
        f"{rows} rows of {width} searched in {statistics.median(times[1:]):.2f} s, the first time "
        f"{times[0]:.2f} s, in {_memory() - before:.2f} GB of memory more"
    )


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def draw(file: Path, labels: dict[str, list[int]], means: dict[str, dict[str, np.ndarray]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, each = pyplot.subplots(
        1, len(means), figsize=(4.6 * len(means), 3.4), layout="constrained", squeeze=False
    )
    for axes, (name, ways) in zip(each[0], means.items(), strict=True):
        for way, colour in zip(WAYS, ("#3b82f6", "#f07b16"), strict=True):
            middle, spread = ways[way].mean(axis=0), ways[way].std(axis=0)
            axes.plot(labels[name], middle, "o-", color=colour, label=way)
            axes.fill_between(
                labels[name], middle - spread, middle + spread, color=colour, alpha=0.15
            )
        axes.set(title=name, xlabel="labels", ylabel="accuracy on files kept apart")
        axes.spines[["top", "right"]].set_visible(False)
    each[0][0].legend(frameon=False, loc="lower right")
    figure.savefig(file, dpi=120)
    print(file)


def suggestions(words: argparse.Namespace) -> None:
    sets = [Set(data, words) for data in words.data or ["demo:digits"]]
    means: dict[str, dict[str, np.ndarray]] = {}
    labels: dict[str, list[int]] = {}
    for one in sets:
        first = words.start * len(np.unique(one.labels))
        steps = labels[one.name] = [first + n * words.each for n in range(words.rounds + 1)]
        means[one.name] = {
            way: np.array([one.accuracies(way, seed, words) for seed in range(words.seeds)])
            for way in WAYS
        }
        print(f"{one.name:12}{'labels':>12}", *(f"{n:>7}" for n in steps))
        for way, rows in means[one.name].items():
            print(f"{'':12}{way:>12}", *(f"{value:7.3f}" for value in rows.mean(axis=0)))
        suggested, drawn = (means[one.name][way] for way in WAYS)
        gain = suggested[:, -1] - drawn[:, -1]
        saved = fewer(steps, list(suggested.mean(axis=0)), list(drawn.mean(axis=0)))
        spread = f"{100 * gain.min():+.1f} to {100 * gain.max():+.1f} over {words.seeds} seeds"
        print(f"{'':12}{100 * gain.mean():+.1f} points at the end ({spread});")
        if saved == saved:
            print(
                f"{'':12}as good as random with {100 * saved:.0f} % fewer of the labels asked for"
            )
    draw(words.plot, labels, means)

    rng = np.random.default_rng(0)
    features = rng.standard_normal((words.rank, sets[0].features.shape[1])).astype(np.float32)
    began = time.perf_counter()
    choose_diverse(rng.random(words.rank), features, words.n)
    chosen = time.perf_counter() - began
    ratio = chosen / (sets[0].seconds * words.rank)
    print(
        f"{words.n} of {words.rank} chosen in {chosen:.2f} s: {100 * ratio:.2f} % of the time to answer "
        f"them, {1000 * sets[0].seconds:.1f} ms each"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", action="append", help="a set; may be given several times")
    parser.add_argument("--start", type=int, default=5, help="labels of each class")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--each", type=int, default=20, help="labels a round")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--items", type=int, help="of each set, to keep it short; all of them")
    parser.add_argument("--rank", type=int, default=10_000)
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--search", type=int, default=0, help="so many embeddings")
    parser.add_argument("--plot", type=Path, default=Path("suggest.png"))
    words = parse(
        parser, data=["demo:digits"], start=2, rounds=2, each=8, seeds=1, size=32, items=90,
        backbone="test_resnet", rank=200, n=5, search=20_000,
    )  # fmt: skip
    if words.rank:
        suggestions(words)
    if words.search:
        with tempfile.TemporaryDirectory() as folder:
            search(Path(folder), words.search)
    print(software_and_hardware("timm", "pyarrow"))


if __name__ == "__main__":
    main()
