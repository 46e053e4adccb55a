"""Augmentations as fastai transforms: of single pictures, and of batches of spectrograms.

Spectrograms are [batch, 3, height, width] from 0 to 1. They are varied as recordings of one sound vary: in
time, speed, loudness, frequency response, background and missing parts. There are no flips, rotation, warp,
zoom along frequency or hue, because these would turn a rising call into a falling one, or change the pitch.
Random numbers come from torch's global generator on the CPU, so that one seed gives the same batches on every
device.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from fastai.vision.augment import RandomResizedCrop, RandTransform
from fastai.vision.core import PILImage, TensorImage
from torch import Tensor

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as in Pillow


def beside(values: Tensor, x: Tensor) -> Tensor:
    """Values, drawn on the CPU, on the device of a batch.

    The copy to a GPU is from pinned memory and queued: any other would wait until the GPU has done what it has to do.
    """
    if x.is_cuda:
        return values.pin_memory().to(x.device, non_blocking=True)
    return values.to(x.device)


class TrainCrop(RandomResizedCrop):
    """fastai's random crop, cut and resized in one step; validation uses the pixels of prediction."""

    split_idx = 0

    def encodes(self, picture: PILImage) -> PILImage:
        (x, y), (width, height) = self.tl, self.cp_size
        box = (x, y, x + width, y + height)
        return PILImage(picture.resize(self.final_size, self.mode, box=box))


class Lighting(RandTransform):
    """Change brightness and contrast, each by a random factor from [1 - change, 1 + change].

    The result equals Pillow's ImageEnhance, computed with one lookup table. It runs on uint8 pictures in the
    workers; fastai's version runs on the float batch in the training process and slows a CPU down.
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
        # The contrast is stretched around the mean brightness after the first step.
        grey = round(float(LUMA @ counts @ lit / (picture.width * picture.height)))
        table = (grey + (lit - grey) * self.contrast).clip(0, 255).astype(np.uint8)
        return PILImage(picture.point(3 * table.tolist()))


class _Augmentation(RandTransform):
    """Base class: augments a fraction ``p`` of the pictures of a training batch, each at random.

    Augmentations in dB suit the colours "grey" and "windows", whose levels are proportional to dB, but not
    colour maps or PCEN. ``range_db`` is `MelSettings.range_db`, the dB from black to white.
    """

    order = 50  # after IntToFloatTensor (10), before Normalize (99)
    split_idx = 0

    def __init__(self, p: float) -> None:
        super().__init__(p=1.0)  # fastai's p applies to the whole batch, this p to each picture
        self.part = p

    def chosen(self, x: Tensor) -> Tensor:
        """Random mask of the pictures to augment, bool [batch, 1, 1, 1]."""
        return beside((torch.rand(len(x)) < self.part).view(-1, 1, 1, 1), x)

    def encodes(self, x: TensorImage) -> TensorImage:
        return torch.where(self.chosen(x), self.vary(x), x)

    def vary(self, x: Tensor) -> Tensor:
        """Augment all pictures of the batch."""
        raise NotImplementedError


class TimeShift(_Augmentation):
    """Shift the picture cyclically along time.

    ``limit`` : largest shift, as a fraction of the width, 0 to 1.
    """

    def __init__(self, limit: float = 0.25, *, p: float = 0.75) -> None:
        super().__init__(p)
        self.limit = limit

    def vary(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        shift = torch.round(_uniform(len(x), -1, 1) * self.limit * width).long()
        columns = (torch.arange(width) - shift.view(-1, 1)) % width
        index = beside(columns, x)[:, None, None, :].expand(x.shape)
        return torch.gather(x, 3, index)


class Gain(_Augmentation):
    """Change the loudness by at most ``limit_db``, which shifts the brightness."""

    def __init__(self, limit_db: float = 6.0, *, range_db: float = 80.0, p: float = 0.75) -> None:
        super().__init__(p)
        self.limit = limit_db / range_db

    def vary(self, x: Tensor) -> Tensor:
        gain = (_uniform(len(x), -1, 1) * self.limit).view(-1, 1, 1, 1)
        return (x + beside(gain.to(x.dtype), x)).clamp(0, 1)


class BackgroundMix(_Augmentation):
    """Mix another recording of the batch into each one as background; the label stays.

    ``snr_db`` : range of the signal-to-noise ratio in dB.
    """

    def __init__(
        self, *, snr_db: tuple[float, float] = (10.0, 30.0), range_db: float = 80.0, p: float = 0.5
    ) -> None:
        super().__init__(p)
        self.snr, self.range = snr_db, range_db

    def vary(self, x: Tensor) -> Tensor:
        background = x.roll(int(torch.randint(1, max(len(x), 2), ())), 0)  # never itself
        snr = (_uniform(len(x), *self.snr) / self.range).view(-1, 1, 1, 1).to(x.dtype)
        snr = beside(snr, x)
        bels = self.range / 10
        # Black is the floor, not zero power, so only the background's power above it is added.
        above = 10 ** ((background - 1) * bels) - 10**-bels
        power = 10 ** ((x - 1) * bels) + above * 10 ** (-snr * bels)
        return (torch.log10(power) / bels + 1).clamp(0, 1)


class SpecAugment(_Augmentation):
    """Mask frequency bands and times with the picture's mean (Park et al., arXiv 1904.08779, section 2).

    A frequency mask has f ~ U[0, F] rows and a time mask t ~ U[0, T] columns, at random positions; there are
    ``count`` of each. ``frequency`` and ``time`` are F and T as fractions of height and width. The time warp
    of the paper is left out, because it mattered least there.
    """

    def __init__(
        self, frequency: float = 0.15, time: float = 0.2, *, count: int = 2, p: float = 0.75
    ) -> None:
        super().__init__(p)
        self.frequency, self.time, self.count = frequency, time, count

    def vary(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        covered = torch.zeros(batch, 1, height, width, dtype=torch.bool)
        for _ in range(self.count):
            covered |= _mask(batch, height, self.frequency).view(batch, 1, height, 1)
            covered |= _mask(batch, width, self.time).view(batch, 1, 1, width)
        return torch.where(beside(covered, x), x.mean(dim=(2, 3), keepdim=True), x)


class TimeScale(_Augmentation):
    """Change the speed: stretch or compress time around a random column; frequencies stay.

    Factors are log-uniform between 1 / (1 + ``limit``) and 1 + ``limit``, with ``limit`` from 0 to 1. After
    compression the first and last columns are repeated at the ends.
    """

    def __init__(self, limit: float = 0.25, *, p: float = 0.75) -> None:
        super().__init__(p)
        self.limit = limit

    def vary(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        factor = (1 + self.limit) ** _uniform(len(x), -1, 1)
        still = torch.rand(len(x)) * (width - 1)  # the column that stays where it is
        place = still[:, None] + (torch.arange(width) - still[:, None]) / factor[:, None]
        place = place.clamp(0, width - 1)
        lower = place.floor().clamp(max=max(width - 2, 0))
        weight = beside((place - lower).to(x.dtype), x)[:, None, None, :]
        index = beside(lower.long(), x)[:, None, None, :].expand(x.shape)
        first, second = (torch.gather(x, 3, (index + i).clamp(max=width - 1)) for i in (0, 1))
        return first + (second - first) * weight


class Equaliser(_Augmentation):
    """Apply a gain that varies smoothly with frequency, as another voice, room or microphone would.

    It follows the linear type of FilterAugment (Nam et al., arXiv 2110.03282): random gains within
    ±``limit_db`` at ``knots`` (at least 2) evenly spaced frequencies, interpolated in dB.
    """

    def __init__(
        self, limit_db: float = 9.0, *, range_db: float = 80.0, knots: int = 5, p: float = 0.75
    ) -> None:
        super().__init__(p)
        self.limit, self.knots = limit_db / range_db, knots

    def vary(self, x: Tensor) -> Tensor:
        gains = _uniform(len(x) * self.knots, -1, 1).view(len(x), 1, self.knots) * self.limit
        curve = torch.nn.functional.interpolate(
            gains, size=x.shape[2], mode="linear", align_corners=True
        )
        return (x + beside(curve[..., None].to(x.dtype), x)).clamp(0, 1)


def _uniform(count: int, low: float, high: float) -> Tensor:
    return torch.rand(count) * (high - low) + low


def _mask(batch: int, length: int, longest: float) -> Tensor:
    """Mask with one run of True per row, of length U[0, longest] · ``length``: bool [batch, length]."""
    size = _uniform(batch, 0, longest) * length
    first = torch.rand(batch) * (length - size)
    place = torch.arange(length)
    return (place >= first.round().view(-1, 1)) & (place < (first + size).round().view(-1, 1))
