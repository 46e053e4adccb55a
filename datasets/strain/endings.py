"""How the names of strain files end."""

from __future__ import annotations

from datasets.core.address import member

#: Frames, whose C library ends the process at a damaged one.
GWF = ".gwf"
#: Suffix of the lists of files that `datasets.strain.frames` writes.
LIST = ".frames"
SUFFIXES = (".hdf5", ".h5", ".hdf", GWF, ".txt", ".txt.gz", LIST)


def is_strain(name: str) -> bool:
    """Whether a file is strain by its ending."""
    return member(name).lower().endswith(SUFFIXES)
