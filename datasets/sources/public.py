"""Public data sets: addresses, hashes and readers.

They are downloaded on first use and unpacked into ``sets/NAME/files`` of the cache folder. Each reader takes that folder
and returns its items as a table with ``path``, ``label``, and the publisher's ``group``, ``split``, ``fold`` and ``gps``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import BadFile
from datasets.core.files import folder_beside
from datasets.core.store import cache_root
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source, read_source
from datasets.sources.download import RemoteFile, fetch_file, require_space, unpack
from datasets.sources.idx import write_pictures
from datasets.strain.formats import find_dataset
from datasets.tables.cells import read_cells

log = logging.getLogger(__name__)

#: Q-scans of a glitch, by duration, that become the red, green and blue channels (arXiv 2303.13917).
DURATIONS = ("0.5.png", "2.0.png", "4.0.png")
PIXELS = (140, 170)  # height and width of each Q-scan
SPLITS = {"train": "train", "validation": "valid", "test": "test"}

#: Class names of Imagenette's folders, which are WordNet numbers.
WORDNET = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def _read_table(pattern: str) -> Callable[[Path], Rows]:
    """A reader of a publisher's table, which is one of those in `datasets.sources.programs`, or of ours."""
    return lambda folder: read_source(str(_only(folder, pattern)), ReadOptions())


def read_pets(folder: Path) -> Rows:
    """Read ``annotations/trainval.txt`` and ``test.txt``; the first word of a line is the picture."""
    import pandas as pd

    rows = []
    for name, split in (("trainval", "train"), ("test", "test")):
        list_file = folder / "annotations" / f"{name}.txt"
        try:
            lines = list_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = f"cannot be read ({error}): delete the folder {folder} to download the set again"
            raise BadFile(list_file, why) from None
        for line in lines:
            if words := line.split():
                # Abyssinian_100: the breed, then the number.
                breed = words[0].rpartition("_")[0].replace("_", " ")
                path = str(folder / "images" / f"{words[0]}.jpg")
                rows.append({"path": path, "label": breed, "split": split})
    return Rows(pd.DataFrame(rows), [])


def read_imagenette(folder: Path) -> Rows:
    """Read the folders ``train`` and ``val``, each with ten folders named by WordNet numbers."""
    rows = read_source(str(_only(folder, "*/train").parent), ReadOptions(learned=False))
    return rows._replace(frame=rows.frame.replace({"label": WORDNET}))


def render_gravityspy(files: list[Path], folder: Path) -> None:
    """Write one picture per glitch of Gravity Spy's HDF5 file, with the Q-scans of 0.5, 2 and 4 s as channels.

    ``LABEL/SPLIT/ID/0.5.png`` etc. in the HDF5 file are grey values [1, 140, 170], floats from 0 to 1. The list
    of glitches is a CSV file (``gravityspy_id,label,sample_type``, in later versions also ``event_time``).
    """
    import h5py
    import pandas as pd
    from PIL import Image

    table = next(file for file in files if file.suffix == ".csv")
    store = next(file for file in files if file.suffix == ".h5")
    listed = read_cells(table)
    if missing := {"gravityspy_id", "label", "sample_type"} - {*listed}:
        has = ", ".join(map(str, listed))
        raise BadFile(table, f"no column {', '.join(sorted(missing))}. It has {has}")
    listed = listed.drop_duplicates("gravityspy_id")
    rows = []
    with h5py.File(store, "r") as source:
        for index, glitch in listed.iterrows():
            label, split, name = glitch["label"], glitch["sample_type"], glitch["gravityspy_id"]
            if split not in SPLITS:
                raise BadFile(
                    table, f"unknown sample_type {split!r} (must be one of {', '.join(SPLITS)})"
                )
            if any(not word.replace("_", "").replace("-", "").isalnum() for word in (label, name)):
                raise BadFile(
                    table,
                    f"the label {label!r} or the id {name!r} has characters other than letters, digits, _ and -",
                )
            planes = [
                _read_plane(store, source, f"{label}/{split}/{name}/{duration}")
                for duration in DURATIONS
            ]
            path = Path("pictures", label, f"{name}.png")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.stack(planes, axis=-1)).save(folder / path, compress_level=3)
            gps = listed.at[index, "event_time"] if "event_time" in listed else ""
            row = {"path": path.as_posix(), "label": label, "split": SPLITS[split], "gps": gps}
            rows.append(row)
    pd.DataFrame(rows).to_csv(folder / "items.csv", index=False)


def _read_plane(path: Path, source: Any, name: str) -> NDArray[np.uint8]:
    """One Q-scan, uint8 [height, width]; found by `find_dataset`."""
    node = find_dataset(path, source, name, layout="the layout of Gravity Spy's training set")
    if node.shape not in ((1, *PIXELS), PIXELS) or node.dtype.kind not in "fu":
        raise BadFile(
            path,
            f"{name} has type {node.dtype} and shape {node.shape} instead of grey values of shape {(1, *PIXELS)}",
        )
    value = np.asarray(node[()]).reshape(PIXELS)
    if value.dtype == np.uint8:
        return value
    if not (np.isfinite(value).all() and value.min() >= 0 and value.max() <= 1):
        raise BadFile(path, f"{name} has grey values outside 0 to 1")
    return np.rint(value * 255).astype(np.uint8)


def _only(folder: Path, pattern: str) -> Path:
    """The only match of a pattern in ``folder``, also without the first folder, which some archives have."""
    matches = sorted(folder.glob(pattern)) or sorted(folder.glob(pattern.removeprefix("*/")))
    if len(matches) != 1:
        raise BadFile(
            folder,
            f"has {len(matches)} matches of {pattern} instead of one: delete the folder to download the set again",
        )
    return matches[0]


def _unpack_all(files: list[Path], folder: Path) -> None:
    for file in files:
        unpack(file, folder)


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A public data set.

    Attributes
    ----------
    note : description, licence and citation.
    gigabytes : size of the download.
    files : files to download.
    read : reads the items from the folder of the unpacked set.
    unpack : unpacks the downloaded files into that folder.
    """

    note: str
    gigabytes: float
    files: tuple[RemoteFile, ...]
    read: Callable[[Path], Rows]
    unpack: Callable[[list[Path], Path], None] = _unpack_all


def _file(url: str, *md5: str, name: str = "", size: int | None = None) -> RemoteFile:
    hashes = tuple(f"md5:{digest}" for digest in md5)
    return RemoteFile(url=url, name=name or url.rpartition("/")[2], hashes=hashes, size=size)


def _imagenette(pixels: int, gigabytes: float, md5: str) -> PublicSet:
    return PublicSet(
        note=f"13 000 photos of ten easy ImageNet classes at {pixels} px, official train and val; "
        "Apache-2.0, the photos under ImageNet's terms (research, not commerce); "
        "J. Howard, github.com/fastai/imagenette",
        gigabytes=gigabytes,
        files=(_file(f"https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-{pixels}.tgz", md5),),
        read=read_imagenette,
    )


def _gravityspy(
    description: str,
    gigabytes: float,
    record: int,
    version: str,
    sizes: tuple[int | None, int | None],
) -> PublicSet:
    names = (f"trainingset_{version}_metadata.csv", f"trainingset{version}.h5")
    base = f"https://zenodo.org/records/{record}/files"
    return PublicSet(
        note=f"{description}; licence as stated at doi.org/10.5281/zenodo.{record}; "
        "Zevin et al. 2017, arXiv 1611.04596",
        gigabytes=gigabytes,
        files=tuple(
            _file(f"{base}/{name}", size=size) for name, size in zip(names, sizes, strict=True)
        ),
        read=_read_table("items.csv"),
        unpack=render_gravityspy,
    )


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_PETS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data"
_ESC50 = "33c8ce9eb2cf0b1c2f8bcf322eb349b6be34dbb6"

#: Sources of the hashes: torchvision.datasets for mnist, pets and imagenette, soundata for urbansound8k, and other
#: projects for this commit of esc50 (which GitHub has packed in two ways). There are no published hashes of
#: gravityspy, whose size is checked instead, and of GWOSC's files.
SETS: dict[str, PublicSet] = {
    "esc50": PublicSet(
        note="2000 clips of 50 everyday sounds in five official folds (--fold 1 to 5); "
        "CC BY-NC 3.0; K. J. Piczak, ESC, ACM Multimedia 2015",
        gigabytes=0.6,
        files=(
            _file(
                f"https://github.com/karolpiczak/ESC-50/archive/{_ESC50}.zip",
                "071b44018315e034b2c6e8064543d19c",
                "629e8e9ebc1592bcceb06da6bec40275",
                name="ESC-50.zip",
            ),
        ),
        read=_read_table("*/meta/esc50.csv"),
    ),
    "urbansound8k": PublicSet(
        note="8732 clips of ten urban sounds in ten official folds (--fold 1 to 10); "
        "CC BY-NC 4.0; Salamon, Jacoby, Bello, ACM Multimedia 2014",
        gigabytes=6.0,
        files=(
            _file(
                "https://zenodo.org/records/1203745/files/UrbanSound8K.tar.gz",
                "9aa69802bbf37fb986f71ec1483a196e",
            ),
        ),
        read=_read_table("*/metadata/UrbanSound8K.csv"),
    ),
    "pets": PublicSet(
        note="7349 photos of 37 breeds of cats and dogs, the official trainval and test lists; "
        "CC BY-SA 4.0; Parkhi et al., Cats and Dogs, CVPR 2012",
        gigabytes=0.8,
        files=(
            _file(f"{_PETS}/images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c"),
            _file(f"{_PETS}/annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f"),
        ),
        read=read_pets,
    ),
    "mnist": PublicSet(
        note="70 000 handwritten digits at 28 px, official train and test; CC BY-SA 3.0; "
        "LeCun, Bottou, Bengio, Haffner, Proc. IEEE 86, 1998",
        gigabytes=0.012,
        files=tuple(
            _file(f"{_MNIST}/{name}-ubyte.gz", md5)
            for name, md5 in {
                "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
            }.items()
        ),
        read=_read_table("items.csv"),
        unpack=write_pictures,
    ),
    "imagenette": _imagenette(320, 0.34, "3df6f0d01a2c9592104656642f5e78a3"),
    "imagenette-160": _imagenette(160, 0.1, "e793b78cc4c9e9a4ccc0c1155377a412"),
    "gravityspy": _gravityspy(
        "8500 glitches of 22 classes, Q-scans of 0.5, 2 and 4 s as channels (training set v1.0, "
        "the one of arXiv 2303.13917), official train, validation and test",
        3.3, 1476156, "v1d0", (248_944, 3_287_645_752),
    ),
    "gravityspy-v1d1": _gravityspy(
        "7966 glitches of 22 classes, the updated training set (v1.1), rendered and split in the same way",
        3.1, 1476551, "v1d1", (None, None),
    ),
}  # fmt: skip


def fetch(name: str) -> Path:
    """Folder of a public set, which is downloaded and unpacked on first use.

    Raises
    ------
    SecondhandError : there is no network or no disk space, or a hash or archive is wrong.
    """
    folder = cache_root() / "sets" / name / "files"
    if folder.is_dir():
        return folder
    public = SETS[name]
    log.info("%s: downloading %.2g GB; %s", name, public.gigabytes, public.note)
    folder.parent.mkdir(parents=True, exist_ok=True)
    require_space(folder.parent, 1e9 * public.gigabytes, name)
    fetched = [fetch_file(file, folder.parent) for file in public.files]
    downloads = [path for path, downloaded in fetched if downloaded]
    try:
        with folder_beside(folder, replace=False) as beside:
            public.unpack([path for path, _ in fetched], beside)
    except BadFile:
        _remove(downloads)  # otherwise the damaged files would be used, and fail, again
        raise
    _remove(downloads)
    return folder


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _read(path: Path, options: ReadOptions) -> Rows:
    public = SETS[str(path)]
    return public.read(fetch(str(path)))._replace(note=public.note)


SOURCES.add(
    Source(
        name="public",
        order=90,  # a file or folder of this name precedes it
        claims=lambda path, options: str(path) in SETS and not path.exists(),
        read=_read,
        names=tuple(SETS),
    )
)
