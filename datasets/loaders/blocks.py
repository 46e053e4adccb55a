"""fastai's DataBlock pipelines for pictures, signals and embeddings.

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
from datasets.core.part import Part, parts_of
from datasets.images.decoded import DecodedPictures, PictureOpener
from datasets.images.opening import Preprocessing
from datasets.items.labels import encode_targets
from datasets.loaders.augment import Lighting, TrainCrop
from datasets.loaders.seeded import SeededDL

if TYPE_CHECKING:
    from datasets.spectrograms.pictures import PictureCache
    from datasets.spectrograms.settings import SpectrogramSettings


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training pictures.

    Parameters
    ----------
    min_scale : smallest fraction of the picture's area that a random crop keeps, in (0, 1].
    flip : mirror half of the pictures horizontally. Not for text or digits.
    lighting : largest change of brightness and contrast, 0 (none) to 1.
    """

    min_scale: float = 0.35
    flip: bool = True
    lighting: float = 0.2


class LabelledItem(NamedTuple):
    """The input of the DataBlock, light enough to send to a DataLoader's worker."""

    part: Part
    label: str


def labelled_items(frame: pd.DataFrame) -> list[LabelledItem]:
    """The rows of an item table as the input of the DataBlock."""
    return [*map(LabelledItem, parts_of(frame), frame["label"])]


class Normalised(Transform):
    """Convert a uint8 batch to float32, (x / 255 - mean) / std, bit-identical to prediction.

    It works in place; fastai's two transforms allocate four batches.
    """

    order = 10
    # Moved with the loaders: a copy to the device for each batch would wait for it.
    parameters = ("mean", "std")

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.mean, self.std = (
            torch.tensor(values).view(1, 3, 1, 1)
            for values in (preprocessing.mean, preprocessing.std)
        )

    def encodes(self, x: TensorImage) -> torch.Tensor:
        # A plain tensor, because the subclass TensorImage slows every operation of the network down.
        mean, std = self.mean.to(x.device), self.std.to(x.device)
        return x.as_subclass(torch.Tensor).float().div_(255).sub_(mean).div_(std)


class DecodedPicture(PILImage):
    """A picture at the network's size, with the pixels of prediction."""


class OpenPicture(Transform):
    """Opens a picture, or its box, as an upright RGB picture, with the same reader as prediction.

    A validation picture has its final size; a training picture is large enough for a crop.
    """

    def __init__(self, prepared: PictureOpener) -> None:
        super().__init__()
        self.prepared = prepared

    def __call__(self, item: LabelledItem, split_idx: int | None = None, **kwargs: Any) -> PILImage:
        if split_idx == 1:
            return DecodedPicture(self.prepared.open_for_validation(item.part))
        return PILImage(self.prepared.open_for_training(item.part))


def PictureBlock(
    preprocessing: Preprocessing, augmentation: Augmentation, store: DecodedPictures | None = None
) -> TransformBlock:
    """Block for pictures: opens, crops, flips, changes the lighting, and normalises for the backbone.

    With a ``store`` each file is decoded only once, to the same pixels.
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
    """Augmentation of training spectrograms; ``strength`` (0 to 2) and ``mixed`` as in
    `datasets.spectrograms.settings.SpectrogramSettings.augmentations`."""

    strength: float = 1.0
    mixed: bool = True


class OpenSpectrogram(Transform):
    """Opens the spectrogram of an item at the network's size, in full; renders it if it is not cached."""

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

    def encodes(self, item: LabelledItem) -> PILImage:
        path = self.cache.get(item.part, self.spectrogram)
        return PILImage(self.prepared.open_spectrogram(path))


class SpectrogramBlock(TransformBlock):
    """Block for sound and strain: opens cached spectrograms, with the augmentations of signals.

    Spectrograms are not flipped, cropped or changed in lighting, because time, frequency and level have a
    meaning.

    Parameters
    ----------
    spectrogram : the spectrogram settings.
    preprocessing : must have ``resize`` "squash", because the edges of a spectrogram are data.
    augmentation : augmentation of training batches.
    cache : cache of spectrograms, which `render_rows` fills in parallel before training.
    store : cache of decoded pixels at the network's size, so that each file is decoded once.

    Raises
    ------
    SecondhandError : the preprocessing would crop the spectrogram.
    """

    def __init__(
        self,
        spectrogram: SpectrogramSettings,
        preprocessing: Preprocessing,
        augmentation: SignalAugmentation,
        cache: PictureCache,
        store: DecodedPictures | None = None,
    ) -> None:
        if preprocessing.resize != "squash":
            raise SecondhandError(
                "invalid preprocessing: spectrograms need resize 'squash', because they must not be cropped"
            )
        super().__init__(
            type_tfms=[OpenSpectrogram(spectrogram, preprocessing, cache, store)],
            batch_tfms=[
                IntToFloatTensor(),
                *spectrogram.augmentations(augmentation.strength, mixed=augmentation.mixed),
                Normalize.from_stats(preprocessing.mean, preprocessing.std, cuda=False),
            ],
        )


def _encode_item(classes: Sequence[str], item: LabelledItem) -> list[float]:
    return encode_targets(item.label, classes)


class Target(NamedTuple):
    """Training target: fastai's block, and the function that gets the target from an item."""

    block: TransformBlock
    get: Callable[[LabelledItem], Any]


def class_target(classes: Sequence[str]) -> Target:
    """Target for one class per item: class number, int64 [bs]."""
    return Target(CategoryBlock(vocab=list(classes), sort=False), attrgetter("label"))


def label_targets(classes: Sequence[str]) -> Target:
    """Multi-label target (`datasets.items.labels.encode_targets`): float32 [bs, classes]."""
    block = MultiCategoryBlock(encoded=True, vocab=list(classes))
    return Target(block, partial(_encode_item, list(classes)))


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
    """Build fastai DataLoaders from the rows of the splits train and valid.

    Parameters
    ----------
    frame : item table with path, label and split; of the training rows with the same number in the column ``place``,
        each epoch opens one.
    block : block of the input.
    classes : the classes, in the order of the network's outputs.
    target : training target; default: `class_target`.
    bs : batch size; a smaller training set is one batch.
    workers : number of processes that open and augment files; 0 for this process.
    path : folder that the learner writes to.

    Returns
    -------
    ``dls.train`` is shuffled and drops the last, smaller batch; ``dls.valid`` keeps the order of the table.
    Batches are float32 [bs, 3, size, size], normalised, or [bs, width] of embeddings; and targets, int64 [bs] by
    default.
    """
    target = target or class_target(classes)
    rows = frame.loc[frame["split"].isin(["train", "valid"])]
    valid = np.flatnonzero(rows["split"].eq("valid"))
    datablock = DataBlock(
        blocks=(block, target.block),
        dl_type=SeededDL,
        get_y=target.get,
        splitter=IndexSplitter(valid.tolist()),
    )
    places = rows["place"] if "place" in rows else pd.Series(np.arange(len(rows)), rows.index)
    trained = places.loc[rows["split"].eq("train")].tolist()
    n_train = len({*trained})
    dls = datablock.dataloaders(
        labelled_items(rows),
        path=path,
        bs=max(1, min(bs, n_train)),
        # Validation keeps no activations for a backward pass.
        val_bs=2 * bs,
        num_workers=workers,
        device=device,
    )
    if n_train < len(trained):
        dls.train.take_turns(trained)
    return dls
