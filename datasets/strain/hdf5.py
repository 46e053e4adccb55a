"""Strain in HDF5, in the layout of the Gravitational Wave Open Science Center.

Files come from strangers: known paths and hard links alone, nothing outside the file, shapes looked
at before anything is read, and no piece unpacked that has not been measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from datasets.errors import BadFile
from datasets.strain.source import MAX_SAMPLES, Floats, StrainFile, checked

_MAX_CHUNK = 1 << 27  # bytes of one chunk, unpacked
# Filters that are run: gzip, shuffle, checksum. Others load plug-ins, or grow without a limit.
_FILTERS = {1, 2, 3}
_GZIP, _GZIP_RATIO = 1, 1032  # the most that deflate can unpack a byte to


@contextmanager
def open_hdf5(path: Path) -> Iterator[StrainFile]:
    """Open a GWOSC HDF5 file: strain/Strain with Xspacing and Xstart, quality masks if there."""
    import h5py

    with _broken(path):
        file = h5py.File(path, "r")
    with file:
        with _broken(path):
            source = _gwosc(path, file)
        yield source


@contextmanager
def _broken(path: Path) -> Iterator[None]:
    """Whatever h5py raises for a broken file becomes BadFile."""
    try:
        yield
    except BadFile:
        raise
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, MemoryError) as error:
        raise BadFile(path, f"broken HDF5: {error}") from error
    except zlib.error as error:
        raise BadFile(path, f"broken HDF5: a piece cannot be unpacked: {error}") from error


def _gwosc(path: Path, file: Any) -> StrainFile:
    strain = _dataset(path, file, "strain/Strain")
    if strain.ndim != 1 or strain.dtype.kind not in "fiu":
        raise BadFile(path, f"strain/Strain is {strain.dtype} {strain.shape}, not a row of numbers")
    spacing = _number(path, strain, "Xspacing")
    if not 0 < spacing < float("inf"):
        raise BadFile(path, f"Xspacing is {spacing:g} s: the sampling rate is not known")
    start = _number(path, strain, "Xstart")
    samples = int(strain.shape[0])
    rate = checked(path, 1 / spacing, start, samples)

    def read(first: int, last: int) -> Floats:
        with _broken(path):
            _check_chunks(path, strain, first, last)
            values = np.asarray(strain[first:last], dtype=np.float64)
        return values

    def quality(t0: float, t1: float) -> dict[str, float]:
        with _broken(path):
            bits = _bits(path, file, "quality/simple/DQ", t0, t1)
            bits.update(_bits(path, file, "quality/injections/Inj", t0, t1))
        return bits

    detector = _dataset(path, file, "meta/Detector", optional=True)
    name = detector[()] if detector is not None and detector.shape == () else b""
    return StrainFile(rate, start, samples, _text(name)[:16], read, quality)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _dataset(path: Path, file: Any, name: str, *, optional: bool = False) -> Any:
    """The data set under a known name, by hard links alone, with its data inside this file."""
    import h5py

    node = file
    for part in name.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            if optional:
                return None
            raise BadFile(path, f"no {name}: not the HDF5 layout of GWOSC")
        if not isinstance(link, h5py.HardLink):
            raise BadFile(path, f"{name} is a {type(link).__name__}, which is not followed")
        node = node[part]
    if not isinstance(node, h5py.Dataset):
        raise BadFile(path, f"{name} is a {type(node).__name__}, not a data set")
    if node.is_virtual or node.external:
        raise BadFile(path, f"the data of {name} lie in other files, which are not opened")
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


def _number(path: Path, dataset: Any, name: str) -> float:
    attributes = dataset.attrs
    if name not in attributes:
        raise BadFile(path, f"{dataset.name} has no attribute {name}")
    described = attributes.get_id(name)
    if described.shape not in ((), (1,)) or described.dtype.kind not in "fiu":
        raise BadFile(path, f"the attribute {name} of {dataset.name} is not a number")
    return float(np.asarray(attributes[name]).reshape(()))


def _check_chunks(path: Path, dataset: Any, first: int, last: int) -> None:
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


def _bits(path: Path, file: Any, prefix: str, t0: float, t1: float) -> dict[str, float]:
    """Fraction of the seconds in t0..t1 in which each bit of a GWOSC mask is set."""
    mask = _dataset(path, file, f"{prefix}mask", optional=True)
    names = _dataset(path, file, f"{prefix}Shortnames", optional=True)
    if mask is None or names is None or mask.ndim != 1 or mask.dtype.kind not in "iu":
        return {}
    if names.ndim != 1 or not 0 < names.size <= 64 or names.dtype.itemsize > 256:
        return {}
    _check_chunks(path, mask, 0, mask.size)
    _check_chunks(path, names, 0, names.size)
    start, step = _number(path, mask, "Xstart"), _number(path, mask, "Xspacing")
    if not (step > 0 and np.isfinite([start, step]).all()):
        return {}
    low = int(np.clip((t0 - start) // step, 0, mask.size))
    high = int(np.clip(-((start - t1) // step), 0, mask.size))
    seconds = mask[low:high]
    labels = [_text(name) for name in names[:].tolist()]
    return {
        label: float((seconds >> bit & 1).mean()) if seconds.size else 0.0
        for bit, label in enumerate(labels)
    }
