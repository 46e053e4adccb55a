"""The public sets: where their files lie, what they must hash to, and who reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets.public.download import RemoteFile
from datasets.public.layouts import (
    Reader,
    draw_gravityspy,
    read_esc50,
    read_gravityspy,
    read_imagenette,
    read_pets,
    read_urbansound8k,
)
from datasets.public.unpack import unpack


def _unpack_all(files: list[Path], folder: Path) -> None:
    for file in files:
        unpack(file, folder)


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A public data set.

    Attributes
    ----------
    what : a few words.
    gigabytes : to download.
    licence, citation : of the data.
    files : what is fetched.
    read : the folder it was unpacked into -> its item rows.
    unpack : the files -> that folder.
    """

    what: str
    gigabytes: float
    licence: str
    citation: str
    files: tuple[RemoteFile, ...]
    read: Reader
    unpack: Callable[[list[Path], Path], None] = _unpack_all

    @property
    def note(self) -> str:
        return f"{self.what}; {self.licence}; {self.citation}"


_PETS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data/"
_FASTAI = "https://s3.amazonaws.com/fast-ai-imageclas/"
_IMAGENETTE = "Apache-2.0, the photos under ImageNet's terms (research, not commerce)"
_GRAVITYSPY = "Zevin et al. 2017, arXiv 1611.04596"
_ESC50 = "33c8ce9eb2cf0b1c2f8bcf322eb349b6be34dbb6"

#: Hashes: pets and imagenette as in torchvision.datasets; urbansound8k as in soundata; esc50 as
#: recorded by others of this very commit (GitHub has packed it in two ways). Zenodo's own hashes of
#: gravityspy, and hashes of GWOSC's files, were not to be had: of the first the size is checked.
SETS: dict[str, PublicSet] = {
    "esc50": PublicSet(
        what="2000 clips of 50 everyday sounds in five official folds (--fold 1 to 5)",
        gigabytes=0.6,
        licence="CC BY-NC 3.0",
        citation="K. J. Piczak, ESC, ACM Multimedia 2015",
        files=(
            RemoteFile(
                url=f"https://github.com/karolpiczak/ESC-50/archive/{_ESC50}.zip",
                name="ESC-50.zip",
                hashes=(
                    "md5:071b44018315e034b2c6e8064543d19c",
                    "md5:629e8e9ebc1592bcceb06da6bec40275",
                ),
            ),
        ),
        read=read_esc50,
    ),
    "urbansound8k": PublicSet(
        what="8732 clips of ten urban sounds in ten official folds (--fold 1 to 10)",
        gigabytes=6.0,
        licence="CC BY-NC 4.0",
        citation="Salamon, Jacoby, Bello, ACM Multimedia 2014",
        files=(
            RemoteFile(
                url="https://zenodo.org/records/1203745/files/UrbanSound8K.tar.gz",
                name="UrbanSound8K.tar.gz",
                hashes=("md5:9aa69802bbf37fb986f71ec1483a196e",),
            ),
        ),
        read=read_urbansound8k,
    ),
    "pets": PublicSet(
        what="7349 photos of 37 breeds of cats and dogs, the official trainval and test lists",
        gigabytes=0.8,
        licence="CC BY-SA 4.0",
        citation="Parkhi et al., Cats and Dogs, CVPR 2012",
        files=(
            RemoteFile(
                url=f"{_PETS}images.tar.gz",
                name="images.tar.gz",
                hashes=("md5:5c4f3ee8e5d25df40f4fd59a7f44e54c",),
            ),
            RemoteFile(
                url=f"{_PETS}annotations.tar.gz",
                name="annotations.tar.gz",
                hashes=("md5:95a8c909bbe2e81eed6a22bccdf3f68f",),
            ),
        ),
        read=read_pets,
    ),
    "imagenette": PublicSet(
        what="13 000 photos of ten easy ImageNet classes at 320 px, official train and val",
        gigabytes=0.34,
        licence=_IMAGENETTE,
        citation="J. Howard, github.com/fastai/imagenette",
        files=(
            RemoteFile(
                url=f"{_FASTAI}imagenette2-320.tgz",
                name="imagenette2-320.tgz",
                hashes=("md5:3df6f0d01a2c9592104656642f5e78a3",),
            ),
        ),
        read=read_imagenette,
    ),
    "imagenette-160": PublicSet(
        what="13 000 photos of ten easy ImageNet classes at 160 px, official train and val",
        gigabytes=0.1,
        licence=_IMAGENETTE,
        citation="J. Howard, github.com/fastai/imagenette",
        files=(
            RemoteFile(
                url=f"{_FASTAI}imagenette2-160.tgz",
                name="imagenette2-160.tgz",
                hashes=("md5:e793b78cc4c9e9a4ccc0c1155377a412",),
            ),
        ),
        read=read_imagenette,
    ),
    "gravityspy": PublicSet(
        what="8500 glitches of 22 classes, views of 0.5, 2 and 4 s as channels (training set v1.0, "
        "the one of arXiv 2303.13917), official train, validation and test",
        gigabytes=3.3,
        licence="licence as stated at doi.org/10.5281/zenodo.1476156",
        citation=_GRAVITYSPY,
        files=(
            RemoteFile(
                url="https://zenodo.org/records/1476156/files/trainingset_v1d0_metadata.csv",
                name="trainingset_v1d0_metadata.csv",
                size=248_944,
            ),
            RemoteFile(
                url="https://zenodo.org/records/1476156/files/trainingsetv1d0.h5",
                name="trainingsetv1d0.h5",
                size=3_287_645_752,
            ),
        ),
        read=read_gravityspy,
        unpack=draw_gravityspy,
    ),
    "gravityspy-v1d1": PublicSet(
        what="7966 glitches of 22 classes, the training set updated (v1.1), drawn and split in the same way",
        gigabytes=3.1,
        licence="licence as stated at doi.org/10.5281/zenodo.1476551",
        citation=_GRAVITYSPY,
        files=(
            RemoteFile(
                url="https://zenodo.org/records/1476551/files/trainingset_v1d1_metadata.csv",
                name="trainingset_v1d1_metadata.csv",
            ),
            RemoteFile(
                url="https://zenodo.org/records/1476551/files/trainingsetv1d1.h5",
                name="trainingsetv1d1.h5",
            ),
        ),
        read=read_gravityspy,
        unpack=draw_gravityspy,
    ),
}
