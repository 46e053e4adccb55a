"""fastai's DataBlock pipelines for pictures and signals.

They differ only in the block that opens a file and in the augmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from fastai.data.block import CategoryBlock, DataBlock, MultiCategoryBlock, TransformBlock
from fastai.data.core import DataLoaders
from fastai.data.transforms import IndexSplitter, IntToFloatTensor, Normalize
from fastai.vision.augment import FlipItem
from fastai.vision.core import PILImage, TensorImage
from fasttransform import Transform

from datasets.core.errors import SecondhandError
from datasets.images import DecodedPictures, PictureOpener, Preprocessing
from datasets.items import targets_of
from datasets.loaders.augment import Lighting, TrainCrop, spectrogram_tfms
from datasets.loaders.seeded import SeededDL
from datasets.spectrograms import ItemRow, item_rows

if TYPE_CHECKING:
    from datasets.spectrograms import PictureCache, SpectrogramSettings


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training pictures.

    Parameters
    ----------
    min_scale : smallest part of the picture's area that a random crop keeps, in (0, 1].
    flip : mirror half of the pictures left to right. Off where left and right differ: text, digits.
    lighting : largest change of brightness and contrast, 0 (none) to 1.
    """

    min_scale: float = 0.35
    flip: bool = True
    lighting: float = 0.2


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


class DecodedPicture(PILImage):
    """A picture at the network's size, with the pixels of prediction."""


class OpenPicture(Transform):
    """Opens a path as an upright RGB picture, with the same reader as prediction.

    A validation picture has its final size; a training picture is large enough for a crop.
    """

    def __init__(self, prepared: PictureOpener) -> None:
        super().__init__()
        self.prepared = prepared

    def __call__(self, path: str, split_idx: int | None = None, **kwargs: Any) -> PILImage:
        if split_idx == 1:
            return DecodedPicture(self.prepared.open_for_validation(path))
        return PILImage(self.prepared.open_for_training(path))


def PictureBlock(
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    store: DecodedPictures | None = None,
) -> TransformBlock:
    """The block for pictures: opens, crops, mirrors, lights, and normalises for the backbone.

    With a ``store`` each file is decoded once; the pixels are the same without one.
    """
    resampling = preprocessing.resampling
    crop = TrainCrop(
        preprocessing.size, min_scale=augmentation.min_scale, resamples=(resampling, resampling)
    )
    return TransformBlock(
        type_tfms=[OpenPicture(PictureOpener(preprocessing, augmentation.min_scale, store))],
        item_tfms=[
            crop,
            *([FlipItem(p=0.5)] if augmentation.flip else []),
            *([Lighting(augmentation.lighting)] if augmentation.lighting else []),
        ],
        batch_tfms=[Normalised(preprocessing)],
    )


@dataclass(frozen=True)
class SignalAugmentation:
    """How much a training spectrogram is varied, 0 (not) to 2: `augment.spectrogram_tfms`. ``mixed`` :
    others may be laid underneath."""

    strength: float = 1.0
    mixed: bool = True


class OpenSpectrogram(Transform):
    """Item -> its picture out of the cache, drawn now if it is not there, at the network's size.

    The whole of it, in training as in validation.
    """

    def __init__(
        self,
        spectrogram: SpectrogramSettings,
        preprocessing: Preprocessing,
        cache: PictureCache,
        store: DecodedPictures | None,
    ) -> None:
        super().__init__()
        self.spectrogram, self.cache = spectrogram, cache
        self.prepared = PictureOpener(preprocessing, 1.0, store)

    def encodes(self, item: ItemRow) -> PILImage:
        drawing = self.cache.get(item.path, self.spectrogram, item.start, item.end, item.gps)
        return PILImage(self.prepared.open_spectrogram(drawing))


class SpectrogramBlock(TransformBlock):
    """The block for sound and strain: their pictures out of the cache, varied as signals vary.

    No flip, crop or change of light: time, frequency and level mean something in a spectrogram.

    Parameters
    ----------
    recipe : how a signal is drawn.
    preprocessing : with `squish`, for the edges of a spectrogram are data.
    augmentation : how much training pictures are varied, on the batch.
    cache : where pictures lie; `render_rows` fills it beforehand, in parallel.
    store : where their pixels lie at the network's size, so that each is decoded once.

    Raises
    ------
    SecondhandError : preprocessing that would cut the picture.
    """

    def __init__(
        self,
        spectrogram: SpectrogramSettings,
        preprocessing: Preprocessing,
        augmentation: SignalAugmentation,
        cache: PictureCache,
        store: DecodedPictures | None = None,
    ) -> None:
        if not preprocessing.squish:
            raise SecondhandError(
                "preprocessing for spectrograms needs squish=True: nothing is cut"
            )
        super().__init__(
            type_tfms=[OpenSpectrogram(spectrogram, preprocessing, cache, store)],
            batch_tfms=[
                IntToFloatTensor(),
                *spectrogram_tfms(
                    spectrogram, strength=augmentation.strength, mixed=augmentation.mixed
                ),
                Normalize.from_stats(preprocessing.mean, preprocessing.std, cuda=False),
            ],
        )


def _targets_of_item(classes: Sequence[str], item: ItemRow) -> list[float]:
    return targets_of(item.label, classes)


class Target(NamedTuple):
    """Training target: fastai's block, and the function that gets the target from an item."""

    block: TransformBlock
    of: Callable[[ItemRow], Any]


def class_target(classes: Sequence[str]) -> Target:
    """Target for one class per item: class number, int64 [bs]."""
    return Target(CategoryBlock(vocab=list(classes), sort=False), attrgetter("label"))


def label_targets(classes: Sequence[str]) -> Target:
    """Multi-label target (`datasets.items.targets_of`): float32 [bs, classes]."""
    block = MultiCategoryBlock(encoded=True, vocab=list(classes))
    return Target(block, partial(_targets_of_item, list(classes)))


def dataloaders(
    frame: pd.DataFrame,
    block: TransformBlock,
    classes: Sequence[str],
    *,
    target: Target | None = None,
    bs: int = 32,
    workers: int = 1,
    path: str = ".",
    device: str = "cpu",
) -> DataLoaders:
    """fastai DataLoaders over the rows whose split is train and valid.

    Parameters
    ----------
    frame : item table with path, label and split.
    block : the input's block; the target is a category out of ``classes``, in that order.
    target : what is learnt of an item instead, as `label_targets`.
    bs : batch size; a training set smaller than that is one batch.
    workers : processes that open and augment files; 0 does it in this one.
    path : folder that the learner writes to.

    Returns
    -------
    ``dls.train`` shuffled, its last smaller batch dropped; ``dls.valid`` in the table's order.
    Batches are float32 [bs, 3, size, size], normalised, and int64 [bs], or what ``target`` gives.
    """
    target = target or class_target(classes)
    rows = frame.loc[frame["split"].isin(["train", "valid"])]
    valid = np.flatnonzero(rows["split"].eq("valid"))
    datablock = DataBlock(
        blocks=(block, target.block),
        dl_type=SeededDL,
        # A picture is its path alone; of a signal also the span or the moment is needed.
        get_x=None if isinstance(block, SpectrogramBlock) else attrgetter("path"),
        get_y=target.of,
        splitter=IndexSplitter(valid.tolist()),
    )
    n_train = len(rows) - len(valid)
    return datablock.dataloaders(
        item_rows(rows),
        path=path,
        bs=max(1, min(bs, n_train)),
        # Validation keeps no activations for a backward pass.
        val_bs=2 * bs,
        num_workers=workers,
        device=device,
    )
