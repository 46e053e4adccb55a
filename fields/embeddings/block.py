"""The DataBlock's block for inputs that are looked up instead of files being opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from fastai.data.block import TransformBlock
from fasttransform import Transform

from datasets.loaders.blocks import LabelledItem

if TYPE_CHECKING:
    from datasets.kinds.lookup import Lookup


class LookUp(Transform):
    """Looks up the input of an item."""

    def __init__(self, lookup: Lookup) -> None:
        super().__init__()
        self.lookup = lookup

    def encodes(self, item: LabelledItem) -> torch.Tensor:
        return torch.from_numpy(self.lookup[item.part])


class LookupBlock(TransformBlock):
    """Block for embeddings, float32 [bs, width], as they are."""

    def __init__(self, lookup: Lookup) -> None:
        super().__init__(type_tfms=[LookUp(lookup)])
