"""HDF5 files of strangers: known paths and hard links alone, nothing outside the file, shapes looked
at before anything is read, and no piece unpacked that has not been measured."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from datasets.core.errors import BadFile

#: The most numbers of a data set: 4096 s at 16 384 Hz, the largest file of strain that is published.
MAX_SAMPLES = 1 << 26
_MAX_CHUNK = 1 << 27  # bytes of one chunk, unpacked
# Filters that are run: gzip, shuffle, checksum. Others load plug-ins, or grow without a limit.
_FILTERS = {1, 2, 3}
_GZIP, _GZIP_RATIO = 1, 1032  # the most that deflate can unpack a byte to


@contextmanager
def broken(path: Path) -> Iterator[None]:
    """Whatever h5py raises for a broken file becomes BadFile."""
    try:
        yield
    except BadFile:
        raise
    except (
        OSError, RuntimeError, ValueError, LookupError, TypeError, MemoryError, zlib.error,
    ) as error:  # fmt: skip
        raise BadFile(path, f"broken HDF5: {error}") from error


def linked(
    path: Path,
    file: Any,
    name: str,
    *,
    optional: bool = False,
    layout: str = "the HDF5 layout of GWOSC",
) -> Any:
    """The data set under a known name, by hard links alone, with its data inside this file.

    None where it is ``optional`` and not there.
    """
    import h5py

    node = file
    for part in name.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            if optional:
                return None
            raise BadFile(path, f"no {name}: not {layout}")
        if not isinstance(link, h5py.HardLink):
            raise BadFile(path, f"no {name}: it is a {type(link).__name__}, which is not followed")
        node = node[part]
    if not isinstance(node, h5py.Dataset):
        raise BadFile(path, f"{name} is a {type(node).__name__}, not a data set")
    if node.is_virtual or node.external:
        raise BadFile(path, f"the data of {name} lie in other files, which are not opened")
    return node


def numbers(path: Path, file: Any, name: str, *, optional: bool = False) -> Any:
    """A `linked` data set that is no larger, packed or not, than strain may be."""
    node = linked(path, file, name, optional=optional)
    if node is None:
        return None
    if node.shape is None or node.size > MAX_SAMPLES:
        raise BadFile(path, f"{name} claims the shape {node.shape}")
    plan = node.id.get_create_plist()
    filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
    if not set(filters) <= _FILTERS or filters.count(_GZIP) > 1:
        raise BadFile(path, f"{name} is packed by the HDF5 filters {filters}, which are not run")
    chunk = int(np.prod(node.chunks or ())) * node.dtype.itemsize
    if chunk > _MAX_CHUNK:
        raise BadFile(path, f"{name} is packed in pieces of {chunk >> 20} MiB")
    if node.size and node.id.get_storage_size() == 0:
        raise BadFile(path, f"{name} claims the shape {node.shape} and holds nothing")
    return node


def number(path: Path, dataset: Any, name: str) -> float:
    """An attribute."""
    attributes = dataset.attrs
    if name not in attributes:
        raise BadFile(path, f"{dataset.name} has no attribute {name}")
    described = attributes.get_id(name)
    if described.shape not in ((), (1,)) or described.dtype.kind not in "fiu":
        raise BadFile(path, f"the attribute {name} of {dataset.name} is not a number")
    return float(np.asarray(attributes[name]).reshape(()))


def check_chunks(path: Path, dataset: Any, first: int, last: int) -> None:
    """Chunks that are missing, or that unpack to more than they should, end here.

    HDF5 itself fills missing chunks with zeros, and unpacks gzip until it ends, however large.
    """
    if dataset.chunks is None:
        return
    step = dataset.chunks[0]
    size = step * dataset.dtype.itemsize
    for top in range(first // step * step, last, step):
        info = dataset.id.get_chunk_info_by_coord((top,))
        if info.byte_offset is None:
            raise BadFile(path, f"the samples {top} to {top + step} are missing from the file")
        if dataset.compression == "gzip" and info.size * _GZIP_RATIO > _MAX_CHUNK:
            mask, raw = dataset.id.read_direct_chunk((top,))
            unpacked = len(zlib.decompressobj().decompress(raw, size + 5)) if mask == 0 else 0
            if unpacked > size + 4:  # 4 bytes more where there is a checksum
                raise BadFile(path, f"a piece of {info.size} bytes unpacks to more than {size}")
