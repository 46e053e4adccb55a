"""The embeddings of a run, by item."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import BadFile, Rejected, SecondhandError, quoted
from datasets.core.part import Part, parts_of
from fields.embeddings.reading import UNNAMED, EmbeddingsFile

if TYPE_CHECKING:
    import pandas as pd


Floats = NDArray[np.float32]
_MISSING = "has no embedding in the files given"


@dataclass
class Vectors:
    """Embeddings of one network, by item. It takes the place of opening a file.

    Parameters
    ----------
    network, width : name of the network and length of an embedding; those of the first file if not given.
    origin : where they come from, for messages.

    Attributes
    ----------
    files : the files that were added.
    """

    network: str = ""
    width: int = 0
    origin: str = ""
    files: list[str] = field(default_factory=list)
    _of: dict[Part, Floats | str] = field(default_factory=dict)  # or what is wrong with it

    def __len__(self) -> int:
        return len(self._of)

    def add(
        self, file: Path, content: EmbeddingsFile, rows: pd.DataFrame
    ) -> tuple[pd.DataFrame, list[Rejected]]:
        """Add the embeddings of a file; return the rows that have a usable one, and the others.

        Parameters
        ----------
        rows : path, and where there are any start, end and gps, of the rows to add; the index is the row number.

        Raises
        ------
        SecondhandError : they are of another network, or of another width, than those here.
        """
        self._check(file, content.network, content.values.shape[1])
        self.files.append(str(file))
        rejected: dict[int, Rejected] = {}
        for number, item in zip(rows.index, parts_of(rows), strict=True):
            vector, wrong = content.values[number], ""
            if np.isnan(vector).all():
                wrong = "no embedding"
            elif not np.isfinite(vector).all():
                wrong = "its embedding has NaN or infinite values"
            kept = self._of.setdefault(_key(item), wrong or vector)
            if not wrong and kept is not vector and not np.array_equal(kept, vector):
                wrong = "another embedding of the same path and time"
            if wrong:
                rejected[number] = Rejected(item.path, f"{wrong} (row {number + 2} of {file.name})")
        return rows.drop(index=[*rejected]), [*rejected.values()]

    def __getitem__(self, item: Part) -> Floats:
        """The embedding of an item, float32 [width]. Raises BadFile if there is none that can be used."""
        vector = self._of.get(_key(item), _MISSING)
        if isinstance(vector, str):
            raise BadFile(item.path, vector)
        return vector

    def parts(self) -> list[Part]:
        """All items, in the order in which they were added."""
        return [*self._of]

    def usable_rows(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Rejected]]:
        """The rows of an item table that have a usable embedding, and the others."""
        found = [self._of.get(_key(item), _MISSING) for item in parts_of(frame)]
        usable = np.array([not isinstance(vector, str) for vector in found], bool)
        rejected = [
            Rejected(path, wrong)
            for path, wrong in zip(frame["path"], found, strict=True)
            if isinstance(wrong, str)
        ]
        return frame.loc[usable].reset_index(drop=True), rejected

    def content_keys(self, frame: pd.DataFrame) -> pd.Series:
        """A key for each row, which has a usable embedding, that is equal for equal embeddings."""
        import pandas as pd

        items = parts_of(frame)
        keys = [hashlib.blake2b(self[item].tobytes(), digest_size=16).hexdigest() for item in items]
        return pd.Series(keys, frame.index, dtype=object)

    def _check(self, file: Path, network: str, width: int) -> None:
        if not network.isprintable() or len(network) > 100:
            raise BadFile(
                file,
                f"the network's name {quoted(network)} is not one printable line of at most 100 letters",
            )
        if not self.width:
            self.network, self.width, self.origin = network, width, str(file)
        if (network, width) != (self.network, self.width):
            unnamed = UNNAMED in (network, self.network) and network != self.network
            remedy = ", and name it in all files (docs/formats-of-embeddings.md)" if unnamed else ""
            raise SecondhandError(
                f"{file} holds embeddings of {_named(network, width)}, but {self.origin} those of "
                f"{_named(self.network, self.width)}. Give embeddings of one network{remedy}"
            )


def _named(network: str, width: int) -> str:
    """The network in words, such as "perch_v2 (width 1536)"."""
    return f"{'an unnamed network' if network == UNNAMED else network} (width {width})"


def _key(item: Part) -> Part:
    """The item to milliseconds, because programs may round times when they save a table."""
    start, end, at = (None if t is None else round(t, 3) for t in (item.start, item.end, item.at))
    return Part(item.path, start, end, at)
