"""One short epoch against timm's training-loop pieces and the transformers Trainer.

All train the same timm network, with batches of the same size of the same JPEG files, which the
script makes; cropping to `--size` and a flip included, validation not. Ours: the learner as the command
makes it, EMA included, from the second epoch on, for pictures were decoded before the first one; its
BatchNorms, stem and a third of its blocks are fixed, as behind a fitted head, where the peers train all
layers. timm's pieces: `create_dataset`, `create_loader` with its transforms, `create_optimizer_v2`
(AdamW), `ModelEmaV3`. The Trainer: a torch dataset with timm's transforms, its own AdamW, no EMA. Each
side is a process of its own, and they take turns; processor time includes workers. `embedded` is timm's
`tf_efficientnet_lite0` to the peers.

    python benchmarks/bench_peers.py                     # 96 pictures at 64 px, 3 rounds
    python benchmarks/bench_peers.py --items 400 --size 160 --rounds 5 --network resnet18
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse, record
from benchmarks._sides import Side, compare, serve
from learners.machine import SLEEPING, keep_memory

CLASSES = ["a", "b", "c", "d"]


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


def ours(settings: argparse.Namespace) -> Callable[[], object]:
    keep_memory()  # before any thread is there, as the command
    import pandas as pd
    from fastai.callback.core import Callback, CancelValidException

    from benchmarks.bench_epoch import learner
    from datasets.tables.table import load_table
    from learners.networks.backbones import NetworkSpec, build
    from learners.settings import TrainSettings
    from learners.training.learner import thaw

    class NoValidation(Callback):
        order = 99  # after those that prepare for one

        def before_validate(self) -> None:
            raise CancelValidException

    table = load_table(str(settings.folder))
    frame = table.frame.assign(split="train")
    frame = pd.concat([frame, frame.iloc[:8].assign(split="valid")], ignore_index=True)
    spec = NetworkSpec(settings.network, len(CLASSES), settings.size)
    network, _, preprocessing = build(spec, pretrained=False)
    train = TrainSettings(bs=settings.bs, ema=True)
    learn = learner(frame, table.classes, network, preprocessing, train, "fp32")
    thaw(learn, train)
    learn.add_cb(NoValidation())

    def epoch() -> None:
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(1, slice(1e-5, 1e-3))

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


def trainer(settings: argparse.Namespace) -> Callable[[], object]:
    # The Trainer takes any `datasets` for Hugging Face's, and this one has no `Dataset`.
    sys.modules["datasets"] = None  # type: ignore[assignment]
    import torch
    from timm.data import create_dataset, create_transform
    from transformers import Trainer, TrainingArguments

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = timm_network(settings)

        def forward(self, pixel_values: Any, labels: Any) -> dict[str, Any]:
            logits = self.model(pixel_values)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    transform = create_transform((3, settings.size, settings.size), is_training=True)
    dataset = create_dataset("", root=str(settings.folder), transform=transform)

    def together(rows: list[Any]) -> dict[str, Any]:
        return {
            "pixel_values": torch.stack([picture for picture, _ in rows]),
            "labels": torch.tensor([label for _, label in rows]),
        }

    model = Wrapped()
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), num_train_epochs=1, save_strategy="no", report_to=[],
        per_device_train_batch_size=settings.bs, dataloader_num_workers=settings.workers,
        dataloader_drop_last=True, use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip

    def epoch() -> None:
        Trainer(model, arguments, data_collator=together, train_dataset=dataset).train()

    return epoch


SIDES = {"ours": ours, "timm": timm_pieces, "trainer": trainer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--items", type=int, default=96)
    parser.add_argument("--bs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=["timm", "trainer"],
                        default=["timm", "trainer"])  # fmt: skip
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
        words += ["--folder", passing]
        sides = [Side(__file__, name, *words, **SLEEPING) for name in ("ours", *settings.peers)]
        found = compare(*sides, rounds=settings.rounds)
    record(f"peers, {settings.network}, {settings.size} px", found)


if __name__ == "__main__":
    main()
