"""Builds fastai DataLoaders from the item table, with the augmentations of training."""

from datasets.loaders.blocks import (
    Augmentation,
    PictureBlock,
    SignalAugmentation,
    SpectrogramBlock,
    Target,
    VectorBlock,
    class_target,
    dataloaders,
    label_targets,
)
from datasets.loaders.seeded import Repeatable, seed_of
