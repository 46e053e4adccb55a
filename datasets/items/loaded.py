"""The items of a run with what a network is trained on."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from datasets.images.settings import PictureSettings
from datasets.items.facts import Seen
from datasets.items.items import Items
from datasets.items.labels import UNKNOWN
from datasets.spectrograms.settings import SpectrogramSettings


class Loaded(NamedTuple):
    """The prepared items of a run.

    Attributes
    ----------
    table : the item table.
    rows : the rows to train on: those of the table, or their windows for long recordings; and those of the
        background, labelled ``unknown``.
    spectrogram : the spectrogram settings; None for pictures and embeddings.
    """

    table: Items
    rows: pd.DataFrame
    spectrogram: SpectrogramSettings | None

    @property
    def samples(self) -> PictureSettings | None:
        """How pictures that are not of 8 bits are drawn; None where there are none."""
        seen = self.table.get(Seen)
        return None if seen is None else seen.settings

    @property
    def has_background(self) -> bool:
        """Whether a network in training has a background class."""
        return len(self.table.background) > 0

    @property
    def labels(self) -> list[str]:
        """Labels that a network in training distinguishes: the classes, then the background if there is one."""
        return [*self.table.classes, *([UNKNOWN] if self.has_background else [])]

    @property
    def windows(self) -> int:
        """Number of windows that the known items are cut into; each counts once, at however many places it is shown."""
        known = self.rows.loc[self.rows["label"].ne(UNKNOWN)]
        return known["place"].nunique() if "place" in known else len(known)
