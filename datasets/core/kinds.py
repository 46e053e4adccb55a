"""Which files are pictures, sounds or strain: told by the ending of the name, in one place."""

from __future__ import annotations

import os

SUFFIXES = {
    "picture": (
        ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm",
        ".heic", ".heif", ".avif",
    ),
    "sound": (
        ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".w64", ".rf64", ".m4a",
    ),
    "strain": (".hdf5", ".h5", ".hdf", ".gwf", ".txt", ".txt.gz", ".together"),
}  # fmt: skip
SIGNALS = ("sound", "strain")


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """Kind of a file by its ending, None where no reader knows it.

    Examples
    --------
    >>> kind_of("a.JPG"), kind_of("b.flac"), kind_of("c.gwf"), kind_of("notes.pdf")
    ('picture', 'sound', 'strain', None)
    """
    name = os.fspath(path).lower()
    return next((kind for kind, ends in SUFFIXES.items() if name.endswith(ends)), None)


def signal_kind(path: str | os.PathLike[str]) -> str | None:
    """ "sound" or "strain" by the ending of the name; None for anything else."""
    kind = kind_of(path)
    return kind if kind in SIGNALS else None
