"""Rows of numbers in a file, of which only those that are asked for take memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class StoredRows:
    """Rows float32 [n, width] in a file without a name, which ends with this object, however the process ends."""

    def __init__(self, folder: Path) -> None:
        self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (it lasts as long as the rows)
        self.shape = (0, 0)

    def __len__(self) -> int:
        return self.shape[0]

    def append(self, rows: NDArray[np.float32]) -> None:
        self.file.seek(0, 2)
        self.file.write(np.ascontiguousarray(rows, np.float32).data)
        self.file.flush()
        self.shape = (len(self) + len(rows), rows.shape[1])

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        # Mapped anew each time: pages of a map that stays open count as memory of the process.
        rows = np.memmap(self.file, np.float32, "r", shape=self.shape)
        return np.asarray(rows[numbers])
