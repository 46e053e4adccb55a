"""An epoch, validation included: ours against plain fastai, and against what the network alone takes.

fastai is what its documentation teaches: ``ImageDataLoaders.from_df`` with ``Resize`` and
``aug_transforms``, ``vision_learner`` with its own head; the same weights, size, batch size and
files. bare is the ceiling: the same network in the same mode as ours, a loop over ready tensors in
plain torch, no loader, no callbacks. Targets: ours / fastai at most 0.55, bare / ours at least 0.92.

    python benchmarks/bench_epoch.py --data ../shared/data/pictures/known --size 160 --rounds 5
    python benchmarks/bench_epoch.py --data ../shared/data/pictures/known --size 160 --frozen

With ``--frozen`` it is a frozen epoch, ours from the second one on: its features lie ready. Target:
at most 1/8 of fastai's.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse, record
from benchmarks._sides import Side, compare, serve
from learners.machine import SLEEPING

BS = 32
#: Folders that last as long as their side's process.
PASSING = ExitStack()
atexit.register(PASSING.close)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", default="demo:digits")
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--items", type=int, default=400, help="of the table, to keep it short")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--side", choices=["ours", "fastai", "bare"])
    settings = parse(parser, backbone="test_resnet", size=32, items=100, rounds=1)
    if Path(settings.data).exists():
        settings.data = str(Path(settings.data).resolve())  # fastai's side looks from the root
    sides: dict[str, Callable[[argparse.Namespace], Callable[[], object]]] = {
        "ours": _frozen if settings.frozen else _ours,
        "fastai": _fastai,
        "bare": _bare,
    }
    if settings.side:
        serve(sides[settings.side](settings))
        return
    names = ("data", "backbone", "size", "items", "precision")
    words = [w for key in names for w in (f"--{key}", str(getattr(settings, key)))]
    words += ["--frozen"] * settings.frozen
    ours = Side(__file__, "ours", *words, **SLEEPING)
    peers = [Side(__file__, "fastai", *words)]
    if not settings.frozen:
        peers.append(Side(__file__, "bare", *words, **SLEEPING))
    found = compare(ours, *peers, rounds=settings.rounds)
    frozen = "frozen " if settings.frozen else ""
    record(f"{frozen}epoch, {settings.backbone}, {settings.size} px", found)


def _table(settings: argparse.Namespace) -> tuple[Any, list[str]]:
    from datasets.tables.splits import assign_splits
    from datasets.tables.table import load_table

    table = load_table(settings.data)
    frame, _ = assign_splits(table.frame)
    return frame.sample(min(settings.items, len(frame)), random_state=0), table.classes


def _network(settings: argparse.Namespace, n_classes: int) -> tuple[Any, Any]:
    from learners.networks.backbones import NetworkSpec, build

    spec = NetworkSpec(settings.backbone, n_classes, settings.size, "linear")
    network, _, preprocessing = build(spec, pretrained=settings.backbone == "embedded")
    return network, preprocessing


def learner(
    frame: Any, classes: list[str], network: Any, preprocessing: Any, settings: Any, precision: str
) -> Any:
    """As `learners.training.members` makes it, for these ``TrainSettings``."""
    from fastxtend.callback.channelslast import ChannelsLast

    from datasets.drawings.decoded import DecodedPictures, Prepared, keep
    from datasets.loaders.blocks import Augmentation, PictureBlock, dataloaders
    from learners.machine import keep_memory
    from learners.training import callbacks
    from learners.training.learner import make_learner
    from learners.training.parts import Parts
    from learners.training.speed import resolve_precision

    keep_memory()
    folder = Path(PASSING.enter_context(tempfile.TemporaryDirectory()))
    store = DecodedPictures(folder, max_bytes=2**32)
    block = PictureBlock(preprocessing, Augmentation(), store)
    parts = [frame["path"][frame["split"].eq(name)].tolist() for name in ("train", "valid")]
    keep(Prepared(preprocessing, Augmentation().min_scale, store), *parts)
    dls = dataloaders(frame, block, classes, bs=settings.bs, workers=0, path=str(folder))
    precision = resolve_precision(precision, "cpu", network)
    cbs = [
        ChannelsLast(),
        *callbacks.mixed_precision(precision, "cpu"),
        *([callbacks.Ema()] if settings.ema else []),
        Parts(),
    ]
    return make_learner(dls, network, preprocessing, settings, cbs=cbs)


def _learner(settings: argparse.Namespace) -> Any:
    from learners.settings import TrainSettings

    frame, classes = _table(settings)
    network, preprocessing = _network(settings, len(classes))
    return learner(frame, classes, network, preprocessing, TrainSettings(bs=BS), settings.precision)


def _ours(settings: argparse.Namespace) -> Callable[[], None]:
    from learners.settings import TrainSettings
    from learners.training.learner import thaw

    learn = _learner(settings)
    thaw(learn, TrainSettings())
    return lambda: _epoch(learn)


def _frozen(settings: argparse.Namespace) -> Callable[[], None]:
    """One fit of very many frozen epochs; each round takes the next. The first one pays."""
    import threading

    from fastai.callback.core import Callback

    from learners.training.frozen import frozen_features

    learn = _learner(settings)
    learn.freeze()
    begin, done = threading.Semaphore(0), threading.Semaphore(0)

    class Turns(Callback):
        def before_epoch(self) -> None:
            begin.acquire()

        def after_epoch(self) -> None:
            done.release()

    def train() -> None:
        try:
            with learn.no_bar(), learn.no_logging(), frozen_features(learn, 2, 10_000):
                learn.fit_one_cycle(10_000, 1e-3, cbs=[Turns()])
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # else the rounds wait for a thread that is no more

    threading.Thread(target=train, daemon=True).start()

    def epoch() -> None:
        begin.release()
        done.acquire()

    return epoch


def _bare(settings: argparse.Namespace) -> Callable[[], None]:
    """Ready tensors of as many pictures through the same network, as ours runs it."""
    import torch
    from torch.nn import functional

    from learners.machine import keep_memory
    from learners.networks import parameter_groups
    from learners.training.speed import resolve_precision

    keep_memory()
    frame, classes = _table(settings)
    network, _ = _network(settings, len(classes))
    network.to(memory_format=torch.channels_last)
    for parameter in parameter_groups(network)[0]:
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, foreach=True)
    train, valid = (int(frame["split"].eq(name).sum()) for name in ("train", "valid"))
    shape = (2 * BS, 3, settings.size, settings.size)
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    y = torch.randint(len(classes), (2 * BS,))
    half = resolve_precision(settings.precision, "cpu", network) == "bf16"

    def forward(n: int) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return network(x[:n])

    def sizes(n: int, bs: int, last: bool) -> Iterator[int]:
        yield from [bs] * (n // bs)
        if last and n % bs:
            yield n % bs

    def epoch() -> None:
        network.train()
        for n in sizes(train, BS, False):
            functional.cross_entropy(forward(n).float(), y[:n]).backward()
            optimizer.step()
            optimizer.zero_grad()
        network.eval()
        with torch.no_grad():
            for n in sizes(valid, 2 * BS, True):
                functional.cross_entropy(forward(n).float(), y[:n]).item()

    return epoch


def _fastai(settings: argparse.Namespace) -> Callable[[], None]:
    from fastai.torch_core import params
    from fastai.vision.all import ImageDataLoaders, Resize, aug_transforms, vision_learner
    from fastai.vision.learner import model_meta

    frame, classes = _table(settings)
    network, preprocessing = _network(settings, len(classes))
    frame = frame[frame.split.isin(["train", "valid"])].assign(valid=lambda f: f.split.eq("valid"))
    dls = ImageDataLoaders.from_df(
        frame, path="/", fn_col="path", label_col="label", valid_col="valid", bs=BS,
        item_tfms=Resize(round(settings.size * 1.25)), batch_tfms=aug_transforms(size=settings.size),
    )  # fmt: skip

    def arch(pretrained: bool = True) -> Any:
        return network[0]

    stats = ([*preprocessing.mean], [*preprocessing.std])
    model_meta[arch] = {"cut": lambda body: body, "stats": stats,
                        "split": lambda model: [params(model[0]), params(model[1])]}  # fmt: skip
    learn = vision_learner(dls, arch)
    if not settings.frozen:
        learn.unfreeze()
    return lambda: _epoch(learn)


def _epoch(learn: Any) -> None:
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, slice(1e-5, 1e-3))


if __name__ == "__main__":
    main()
