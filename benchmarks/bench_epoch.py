"""Time of a training epoch compared with other training loops, in turns, on the same JPEG files.

ours     the learner as the command makes it, EMA included, from the second epoch on, for pictures were
         decoded before the first; its BatchNorms, stem and a third of its blocks are fixed, as behind a
         fitted head, where the peers train all layers (``--all-layers``: ours as well); with ``--files`` its
         ``--workers`` open the files in each epoch, as those of the peers do
timm     `create_dataset`, `create_loader` with its transforms, `create_optimizer_v2` (AdamW), `ModelEmaV3`
bare     ready tensors through ours' network in ours' mode, a loop of plain torch: no loader, no callbacks

All train the same network of timm, with batches of one size, of files that the script makes; each in a
process of its own; processor time includes workers. `embedded` is timm's `tf_efficientnet_lite0`.

    python benchmarks/bench_epoch.py --network embedded --size 160 --items 64 --rounds 3 --peers timm
"""

from __future__ import annotations

import argparse
import atexit
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import Side, compare, parse, serve, software_and_hardware
from datasets.core.part import Part
from learners.machine.acceleration import SLEEPING, keep_memory

CLASSES = ["a", "b", "c", "d"]
#: Folders that last as long as their side's process.
PASSING = ExitStack()
atexit.register(PASSING.close)


def make_pictures(folder: Path, count: int) -> None:
    """Noise over a colour, 320 x 240 JPEGs, a folder for each class."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        label = CLASSES[number % len(CLASSES)]
        (folder / label).mkdir(exist_ok=True)
        small = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        picture = Image.fromarray(small).resize((320, 240))
        picture.save(folder / label / f"{number:05}.jpg", quality=90)


def table(settings: argparse.Namespace) -> Any:
    """All files in split "train", and a few of them in "valid": a learner wants some."""
    import pandas as pd

    from datasets.steps.reading import load_table

    frame = load_table(str(settings.folder)).frame.assign(split="train")
    return pd.concat([frame, frame.iloc[:8].assign(split="valid")], ignore_index=True)


def our_network(settings: argparse.Namespace) -> tuple[Any, Any]:
    from learners.backbones.building import NetworkSpec, build

    spec = NetworkSpec(settings.network, len(CLASSES), settings.size)
    network, _, preprocessing = build(spec, pretrained=False)
    return network, preprocessing


def ours(settings: argparse.Namespace) -> Callable[[], object]:
    """As `learners.training.members` makes the learner."""
    keep_memory()  # before any thread is there, as the command
    from fastai.callback.core import Callback, CancelValidException

    from datasets.core.processes import kept_pools, renew_kept_pools
    from datasets.images.decoded import DecodedPictures, PictureOpener, keep_decoded
    from datasets.loaders.blocks import Augmentation, PictureBlock, dataloaders
    from learners.cli.settings import TrainSettings
    from learners.machine.acceleration import accelerate
    from learners.training import callbacks
    from learners.training.learner import make_learner, unfreeze_body

    class NoValidation(Callback):
        order = 99  # after those that prepare for one

        def before_validate(self) -> None:
            raise CancelValidException

    frame, (network, preprocessing) = table(settings), our_network(settings)
    train = TrainSettings(bs=settings.bs, ema=True, lr_mult=1.0 if settings.all_layers else None)
    folder = Path(PASSING.enter_context(tempfile.TemporaryDirectory()))
    store = None if settings.files else DecodedPictures(folder, max_bytes=2**32)
    block = PictureBlock(preprocessing, Augmentation(), store)
    parts = [
        [Part(path) for path in frame["path"][frame["split"].eq(name)]]
        for name in ("train", "valid")
    ]
    keep_decoded(PictureOpener(preprocessing, Augmentation().min_scale, store), *parts)
    workers = settings.workers if settings.files else 0
    if workers:
        PASSING.enter_context(kept_pools())
        renew_kept_pools(workers)
    dls = dataloaders(frame, block, CLASSES, bs=settings.bs, workers=workers, path=str(folder))
    dls.train.begin(0)
    precision = callbacks.mixed_precision("fp32", "cpu")
    cbs = [*precision, callbacks.Ema()]
    learn = make_learner(dls, network, preprocessing, train, cbs=cbs)
    accelerate(learn)
    unfreeze_body(learn, train)
    learn.add_cb(NoValidation())

    def epoch() -> None:
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(1, slice(1e-5, 1e-3))

    return epoch


def bare(settings: argparse.Namespace) -> Callable[[], object]:
    keep_memory()
    import torch
    from torch.nn import functional
    from torch.nn.modules.batchnorm import _BatchNorm

    from learners.backbones.building import parameter_groups

    network, _ = our_network(settings)
    network.train().to(memory_format=torch.channels_last)
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    if not settings.all_layers:
        for parameter in parameter_groups(network)[0]:
            parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, foreach=True)
    x = torch.randn(settings.bs, 3, settings.size, settings.size)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(len(CLASSES), (settings.bs,))

    def epoch() -> None:
        for _ in range(settings.items // settings.bs):
            functional.cross_entropy(network(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def timm_network(settings: argparse.Namespace) -> Any:
    import timm

    embedded = settings.network == "embedded"
    name = "tf_efficientnet_lite0" if embedded else settings.network
    fixed = timm.models.get_pretrained_cfg(name).fixed_input_size
    shape = {"img_size": settings.size} if fixed else {}
    return timm.create_model(name, num_classes=len(CLASSES), **shape)


def timm_pieces(settings: argparse.Namespace) -> Callable[[], object]:
    import torch
    from timm.data import create_dataset, create_loader
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    model = timm_network(settings).train().to(memory_format=torch.channels_last)
    loader = create_loader(
        create_dataset("", root=str(settings.folder)), (3, settings.size, settings.size),
        settings.bs, is_training=True, use_prefetcher=False, num_workers=settings.workers,
        persistent_workers=settings.workers > 0, device=torch.device("cpu"),
    )  # fmt: skip
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    ema = ModelEmaV3(model, decay=0.99)
    loss_of = torch.nn.CrossEntropyLoss()

    def epoch() -> None:
        for pictures, labels in loader:
            x = pictures.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            loss_of(model(x), labels).backward()
            optimizer.step()
            ema.update(model)

    return epoch


SIDES = {"ours": ours, "timm": timm_pieces, "bare": bare}
PEERS = list(SIDES)[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--items", type=int, default=96)
    parser.add_argument("--bs", type=int, default=16)
    parser.add_argument(
        "--workers", type=int, default=1, help="of the peers' loaders, and with --files of ours"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--all-layers", action="store_true", help="ours trains all of them, too")
    parser.add_argument("--files", action="store_true", help="ours opens them in each epoch, too")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    settings = parse(parser, items=16, size=32, bs=8, workers=0, rounds=1)
    if settings.side:
        serve(SIDES[settings.side](settings))
        return
    with tempfile.TemporaryDirectory() as passing:
        make_pictures(Path(passing), settings.items)
        words = [w for key in ("network", "size", "items", "bs", "workers")
                 for w in (f"--{key}", str(getattr(settings, key)))]  # fmt: skip
        words += [
            "--folder",
            passing,
            *["--all-layers"] * settings.all_layers,
            *["--files"] * settings.files,
        ]
        sides = [Side(__file__, name, *words, **SLEEPING) for name in ("ours", *settings.peers)]
        compare(*sides, rounds=settings.rounds)
    print(software_and_hardware("timm", "fastai"))


if __name__ == "__main__":
    main()
