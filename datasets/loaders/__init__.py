"""Item table -> fastai's DataLoaders: the DataBlock pipelines and what training does to a picture."""

from datasets.loaders.blocks import (
    Augmentation,
    PictureBlock,
    SignalAugmentation,
    SpectrogramBlock,
    Target,
    class_target,
    dataloaders,
    label_targets,
)
from datasets.loaders.seeded import Repeatable, seed_of
