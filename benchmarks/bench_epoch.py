"""One unfrozen epoch, validation included: ours against plain fastai. Target: ratio <= 0.67.

The peer is what fastai's documentation teaches: ``ImageDataLoaders.from_df`` with
``Resize`` and ``aug_transforms``, ``vision_learner`` with its own head, ``fine_tune``'s second
phase; the same weights, size, batch size and files.

    python benchmarks/bench_epoch.py --data ../shared/data/pictures/known --size 160 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._sides import Side, compare, serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="demo:digits")
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--items", type=int, default=400, help="of the table, to keep it short")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--side", choices=["ours", "fastai"])
    settings = parser.parse_args()
    if settings.side:
        serve(_ours(settings) if settings.side == "ours" else _fastai(settings))
        return
    words = [w for key in ("data", "backbone", "size", "items", "precision")
             for w in (f"--{key}", str(getattr(settings, key)))]  # fmt: skip
    ours = Side(__file__, "ours", *words, OMP_WAIT_POLICY="PASSIVE")  # as the command sets it
    compare(ours, Side(__file__, "fastai", *words), settings.rounds)


def _table(settings: argparse.Namespace):  # type: ignore[no-untyped-def]
    from datasets.splits import assign_splits
    from datasets.table import load_table

    table = load_table(settings.data)
    frame, _ = assign_splits(table.frame)
    return frame.sample(min(settings.items, len(frame)), random_state=0), table.classes


def _network(settings: argparse.Namespace, n_classes: int):  # type: ignore[no-untyped-def]
    from learners.backbones import NetworkSpec, build

    spec = NetworkSpec(settings.backbone, n_classes, settings.size)
    network, _, preprocessing = build(spec, pretrained=settings.backbone == "embedded")
    return network, preprocessing


def _ours(settings: argparse.Namespace):  # type: ignore[no-untyped-def]
    from fastxtend.callback.channelslast import ChannelsLast

    from datasets.blocks import Augmentation, PictureBlock, dataloaders
    from learners import callbacks
    from learners.config import TrainSettings
    from learners.learner import make_learner

    frame, classes = _table(settings)
    network, preprocessing = _network(settings, len(classes))
    block = PictureBlock(preprocessing, Augmentation())
    workers = max(1, len(os.sched_getaffinity(0)) - 1)
    dls = dataloaders(frame, block, classes, workers=workers, path=tempfile.mkdtemp())
    precision = callbacks.resolve_precision(settings.precision, "cpu")
    cbs = [ChannelsLast(), *callbacks.mixed_precision(precision, "cpu")]
    learn = make_learner(dls, network, preprocessing, TrainSettings(), cbs=cbs)
    learn.unfreeze()
    return lambda: _epoch(learn)


def _fastai(settings: argparse.Namespace):  # type: ignore[no-untyped-def]
    from fastai.vision.all import ImageDataLoaders, Resize, aug_transforms, vision_learner
    from fastai.vision.learner import model_meta

    frame, classes = _table(settings)
    network, preprocessing = _network(settings, len(classes))
    frame = frame[frame.split.isin(["train", "valid"])].assign(valid=lambda f: f.split.eq("valid"))
    dls = ImageDataLoaders.from_df(
        frame, path="/", fn_col="path", label_col="label", valid_col="valid", bs=32,
        item_tfms=Resize(round(settings.size * 1.25)), batch_tfms=aug_transforms(size=settings.size),
    )  # fmt: skip

    def arch(pretrained: bool = True):  # type: ignore[no-untyped-def]
        return network[0]

    stats = ([*preprocessing.mean], [*preprocessing.std])
    from fastai.torch_core import params

    model_meta[arch] = {"cut": lambda body: body, "stats": stats,
                        "split": lambda model: [params(model[0]), params(model[1])]}  # fmt: skip
    learn = vision_learner(dls, arch)
    learn.unfreeze()
    return lambda: _epoch(learn)


def _epoch(learn) -> None:  # type: ignore[no-untyped-def]
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, slice(1e-5, 1e-3))


if __name__ == "__main__":
    main()
