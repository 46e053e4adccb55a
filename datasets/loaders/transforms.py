"""What training does to a picture, as fastai transforms made for little work an item."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from fastai.vision.augment import RandomResizedCrop, RandTransform
from fastai.vision.core import PILImage, TensorImage
from fasttransform import Transform

from datasets.pictures import Preprocessing

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, Pillow's


class TrainCrop(RandomResizedCrop):
    """fastai's random crop, cut and scaled in one step; validation sees what prediction sees."""

    split_idx = 0

    def encodes(self, picture: PILImage) -> PILImage:
        (left, top), (width, height) = self.tl, self.cp_size
        box = (left, top, left + width, top + height)
        return PILImage(picture.resize(self.final_size, self.mode, box=box))


class Lighting(RandTransform):
    """Brightness and contrast, each by a factor drawn from [1 - change, 1 + change].

    What Pillow's ImageEnhance does, one after the other, by one look into a table. On uint8 pictures
    in the workers: fastai's own runs on the float batch in the training process, where on a CPU it
    takes time from the network.
    """

    split_idx, order = 0, 4

    def __init__(self, change: float) -> None:
        super().__init__(p=1.0 if change else 0.0)
        self.change = change

    def before_call(self, b: Any, split_idx: int) -> None:
        super().before_call(b, split_idx)
        low, high = 1 - self.change, 1 + self.change
        self.brightness, self.contrast = random.uniform(low, high), random.uniform(low, high)

    def encodes(self, picture: PILImage) -> PILImage:
        lit = (np.arange(256) * self.brightness).clip(0, 255)
        counts = np.reshape(picture.histogram(), (3, 256))
        # The mean brightness after the first step, about which the second one stretches.
        grey = round(float(LUMA @ counts @ lit / (picture.width * picture.height)))
        table = (grey + (lit - grey) * self.contrast).clip(0, 255).astype(np.uint8)
        return PILImage(picture.point(3 * table.tolist()))


class Normalised(Transform):
    """uint8 batch -> float32, (x / 255 - mean) / std: the predictor's arithmetic, to the last bit.

    In place, where fastai's two transforms make four batches.
    """

    order = 10

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.mean, self.std = (
            torch.tensor(values).view(1, 3, 1, 1)
            for values in (preprocessing.mean, preprocessing.std)
        )

    def encodes(self, x: TensorImage) -> torch.Tensor:
        # Not a TensorImage any more: each operation of the network would pay for its being one.
        mean, std = self.mean.to(x.device), self.std.to(x.device)
        return x.as_subclass(torch.Tensor).float().div_(255).sub_(mean).div_(std)
