"""What a backbone made of files, kept: of each file and backbone one vector.

Each lies in a file of its own, whose name is a hash of all that it follows from, so that another
split, another fold or some more files cost no more than what is new.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.core.store import CacheError, Store

#: A vector takes some kilobytes.
MAX_BYTES = 2**30


class KeptFeatures:
    """A bounded store of vectors, in the folder ``features`` of the cache; the least recently used
    go when the next one is opened.

    Parameters
    ----------
    root : the cache's folder, `datasets.spectrograms.pictures.cache_root()`.
    """

    def __init__(self, root: Path) -> None:
        self._kept = features_in(root)
        self._kept.sweep()
        self._kept.make_room(self._kept.max_bytes)
        self._writable = True

    def get(self, key: str) -> NDArray[np.float32] | None:
        """The vector of that name (SHA-256, hex); None where it is not there, or damaged."""
        file = self._kept.path_of(key)
        try:
            found = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        self._kept.touch(file)
        return found if found.dtype == np.float32 and found.ndim == 1 else None

    def add(self, key: str, vector: NDArray[np.float32]) -> None:
        """Keep a vector, float32 [width]; one that cannot be written is computed again."""
        content = io.BytesIO()
        np.save(content, vector)
        try:
            if self._writable:
                self._kept.add(key, content.getvalue())
        except CacheError:
            self._writable = False


def features_in(root: Path) -> Store:
    """The files of vectors in a cache folder."""
    return Store(root / "features", ".npy", MAX_BYTES)
