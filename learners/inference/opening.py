"""A file -> a network's input: what prediction hands to processes that a decoder may end."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from datasets.core.errors import BadFile, SecondhandError
from datasets.images import Preprocessing, open_picture, pixels
from datasets.spectrograms import Recipe, Source
from learners.inference.answers import NO_SIGNAL
from learners.uncertainty import Reason

Asked = str | os.PathLike[str] | Source
Opened = npt.NDArray[np.uint8] | BadFile | Reason


def as_source(asked: Asked, at: float | None = None) -> Source:
    """A file, a table's row or a source; ``at`` is for what names no moment itself."""
    if isinstance(asked, Source):
        # A table's empty cells are NaN.
        times = (None if t is None or t != t else t for t in asked[1:])
        return Source(asked.path, *times)
    return Source(os.fspath(asked), at=at)


@dataclass(frozen=True)
class Opener:
    """The network's input before normalisation, uint8 [3, size, size], or what is wrong; and the
    moment of it: as it was asked for, or the one that was found in strain."""

    preprocessing: Preprocessing
    recipe: Recipe | None

    def __call__(self, source: Source) -> tuple[Opened, float | None]:
        path, start, end, at = source
        try:
            if self.recipe is None:
                picture = open_picture(path, at_least=self.preprocessing.needs)
            else:
                signal = self.recipe.read(path, start=start, end=end, at=at)
                if at is None:
                    at = self.recipe.moment(signal)
                if self.recipe.no_signal(signal):
                    return NO_SIGNAL, at
                picture = self.recipe.image(signal).convert("RGB")
            return pixels(self.preprocessing.fit(picture)), at
        except BadFile as error:
            return error, at
        except SecondhandError as error:  # the file is fine, the span asked for is not
            return BadFile(path, str(error)), at


@dataclass(frozen=True)
class Cutter:
    """The windows of a long recording; else what was asked, as of a moment."""

    recipe: Recipe
    overlap: float

    def __call__(self, source: Source) -> list[Source]:
        path, start, end, at = source
        if at is not None:
            return [source]
        try:
            spans = self.recipe.spans(path, start=start, end=end, overlap=self.overlap)
        except BadFile:  # it is opened once more, and answered with what is wrong
            return [source]
        return [Source(path, *span) for span in spans]
