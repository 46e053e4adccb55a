"""Inputs of a network that are looked up by item, instead of files that are opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from datasets.core.errors import Rejected
from datasets.core.part import Part

if TYPE_CHECKING:
    import pandas as pd


class Lookup(Protocol):
    """Inputs by item: the embeddings of another network.

    Attributes
    ----------
    network, width : name of the network, and length of an embedding.
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
