"""Inputs of a network that are looked up by item, instead of files that are opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from datasets.core.errors import Rejected
from datasets.core.part import Part

if TYPE_CHECKING:
    import pandas as pd
    from fastai.data.block import TransformBlock


class Lookup(Protocol):
    """Inputs by item: what another network has computed of it.

    Attributes
    ----------
    network, width : name of the network, and length of an input.
    files : the files that they were read from.
    """

    network: str
    width: int
    files: list[str]

    def __len__(self) -> int: ...

    def __getitem__(self, item: Part) -> Any:
        """The input of an item. Raises BadFile if there is none that can be used."""

    def parts(self) -> list[Part]:
        """All items, in the order in which they were added."""

    def usable_rows(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Rejected]]:
        """The rows of an item table that have a usable input, and the others."""

    def content_keys(self, frame: pd.DataFrame) -> pd.Series:
        """A key for each row, which has a usable input, that is equal for equal inputs."""

    def read(self, files: Iterable[str], *, resolve: bool = False) -> list[Rejected]:
        """Add the inputs in files, labelled or not; return the files that cannot be read.

        Parameters
        ----------
        resolve : make the items' paths absolute, by the place of the file. Otherwise they stay as written.

        Raises
        ------
        SecondhandError : a file holds inputs of another network, or no file can be read.
        """

    def block(self) -> TransformBlock:
        """The DataBlock's block that looks them up: float32 [bs, width], as they are."""

    def decoder(self) -> Any:
        """What gives them to a network in the place of `learners.inference.decoding.Decoder`, with its interface."""
