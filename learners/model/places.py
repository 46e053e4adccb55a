"""Model folders by name: on a disk, or elsewhere, whose files are copied first."""

from __future__ import annotations

import os
from pathlib import Path

from datasets.core.folders import elsewhere
from learners.model.bundle import Bundle, load_bundle


def model_folder(name: str | os.PathLike[str]) -> Path:
    """Local path of a model folder; one that is elsewhere is copied to, or updated in, the cache.

    Raises
    ------
    SecondhandError : there is no such model elsewhere, or it cannot be had and never was here.
    """
    place = elsewhere(name)
    return Path(name) if place is None else place.model(str(name))


def load_model(name: str | os.PathLike[str], *, network: bool = True) -> Bundle:
    """Like `load_bundle`, for a folder that may be elsewhere."""
    return load_bundle(model_folder(name), network=network)
