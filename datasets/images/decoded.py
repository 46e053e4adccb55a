"""Cache of decoded pictures, so that only the first epoch decodes them.

Each file holds a header line with the size, then uint8 RGB pixels, and is memory-mapped. Its name is a
hash of the source (path and state) and of the processing, so a replaced source is decoded again, even
during a run. So is a file whose length does not match its header.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import mmap
import shutil
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import PIL
from PIL import Image

from datasets.core import processes
from datasets.core.address import absolute, read_ahead
from datasets.core.errors import BadFile
from datasets.core.file_state import QuickState
from datasets.core.part import AnyPath, FileOrPart, Part, as_part
from datasets.core.processes import in_parallel, init_background_worker
from datasets.core.shared import Shared
from datasets.core.store import PIXELS, CacheError, Store
from datasets.images.boxes import crop_name, open_part
from datasets.images.opening import Preprocessing
from datasets.images.standalone import fit

log = logging.getLogger(__name__)

MAGIC = b"secondhand pixels 2"
HEAD = 64  # bytes before the pixels
#: Largest ratio of the sides of a random crop, fastai's.
RATIO = 4 / 3
CHUNK = 16  # pictures handed to a process at a time


class DecodedPictures:
    """Decoded pictures, in the `Store` of a folder.

    The least recently used pictures are removed when a run begins and needs space, never during a run:
    pictures beyond the limit are decoded each time. Concurrent runs count separately.

    Parameters
    ----------
    root, max_bytes : as in `Store`; at most half of the free disk space is used.
    expected : bytes that the run is expected to add.

    Raises
    ------
    SecondhandError : ``max_bytes`` is not above 0.
    """

    def __init__(self, root: AnyPath | None = None, *, max_bytes: int, expected: int = 0) -> None:
        self.store = Store(root, max_bytes)
        self.store.sweep()
        total = sum(self.store.sizes())
        self.max_bytes = min(max_bytes, total + _free(self.store.root) // 2)
        if total + expected > self.max_bytes:
            total = self.store.make_room(self.max_bytes - expected)
        #: Whether the expected bytes fit.
        self.fits = total + expected <= self.max_bytes
        self._shared = Shared() if processes.FORKS else None
        self._own = 0
        self.bytes = total

    @property
    def bytes(self) -> int:
        """Bytes in the store, as this process and its workers count them: two simultaneous additions may lose the count of
        one picture."""
        if self._shared is None:
            return self._own
        number = bytearray(8)
        try:
            self._shared.read_into(number)
        except OSError:  # on another machine: a copy there adds nothing
            return self.max_bytes
        return int.from_bytes(number, "little")

    @bytes.setter
    def bytes(self, count: int) -> None:
        self._own = count
        if self._shared is not None:
            with contextlib.suppress(OSError):
                self._shared.write(count.to_bytes(8, "little"))

    def get(self, path: str, variant: str, make: Callable[[], Image.Image]) -> Image.Image:
        """RGB picture of a file, from the store or made by ``make``.

        Parameters
        ----------
        variant : identifies the processing that ``make`` does.

        Raises
        ------
        BadFile : raised by ``make``.
        """
        try:
            state = QuickState.read(path)
        except BadFile:
            return make()  # raises the error with its reason
        source = f"{absolute(path)}\n{' '.join(map(str, state))}"
        return self._get(source, variant, make, keep=state.settled)

    def get_spectrogram(
        self, spectrogram: Path, variant: str, make: Callable[[], Image.Image]
    ) -> Image.Image:
        """As `get`, for a file of the `PictureCache`, whose name identifies its content."""
        return self._get(spectrogram.name, variant, make, keep=True)

    def _get(
        self, source: str, variant: str, make: Callable[[], Image.Image], *, keep: bool
    ) -> Image.Image:
        key = hashlib.sha256(f"{source}\n{variant}\nPillow {PIL.__version__}".encode()).hexdigest()
        picture_in_store = self._read(self.store.path_of(key, PIXELS))
        if picture_in_store is not None:
            return picture_in_store
        picture = make()
        if keep and self.bytes + 3 * picture.width * picture.height <= self.max_bytes:
            self._write(key, picture)
        return picture

    def recount(self) -> None:
        """Recount the stored bytes after many processes have added some."""
        self.bytes = sum(self.store.sizes())

    def __getstate__(self) -> dict[str, Any]:
        # Where nothing is shared, a copy does not count for others: it adds pictures only if all that are expected fit.
        return {**self.__dict__, "_own": self._own if self.fits else self.max_bytes}

    def _read(self, file: Path) -> Image.Image | None:
        try:
            with (
                open(file, "rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                width, height = _size(content[:HEAD])
                if len(content) != HEAD + 3 * width * height:
                    return None
                self.store.touch(file)
                with memoryview(content) as pixels, pixels[HEAD:] as only:
                    return Image.frombytes("RGB", (width, height), only)
        except (OSError, ValueError):  # missing or truncated
            return None

    def _write(self, key: str, picture: Image.Image) -> None:
        data = _head(picture.width, picture.height) + picture.tobytes()
        try:
            self.store.add(key, PIXELS, data)
        except CacheError as error:  # also a full disk: training works without the cache
            log.warning("decoded pictures are no longer cached, so training is slower: %s", error)
            self.bytes = self.max_bytes
            return
        self.bytes += len(data)


class PictureOpener:
    """Opens pictures for training and for validation, with or without a store.

    A training picture is randomly cropped afterwards. It is stored at a size at which the narrowest crop
    still has the pixels of the network's input, so that nothing is upscaled. A validation picture is
    stored in its final form, :meth:`Preprocessing.fit` of the file, exactly as in prediction.

    Parameters
    ----------
    min_scale : smallest fraction of the area that a crop keeps.
    allow_truncated : as in `open_picture`.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        min_scale: float,
        store: DecodedPictures | None,
        allow_truncated: bool = False,
    ) -> None:
        self.preprocessing, self.store = preprocessing, store
        self.allow_truncated = allow_truncated
        narrowest = math.sqrt(min_scale / RATIO)
        self.side = min(math.ceil(preprocessing.size / narrowest), preprocessing.needs)
        p = preprocessing
        size = p.size if p.width is None else "{} x {}".format(*p.shape)
        self.samples = "" if p.samples is None else f" {p.samples}"
        how = f"{p.interpolation} {p.resize} {p.mean} {p.needs}{self.samples}"
        self.fitted, self.larger = f"fit {size} {p.crop} {how}", f"short side {self.side} {how}"

    def bytes_for(self, train: int, others: int) -> int:
        """Estimated bytes of this many pictures, assuming large photos."""
        fitted = math.prod(self.preprocessing.shape)
        return 3 * (round(train * self.side**2 * 1.4) + (train + others) * fitted)

    def open_for_training(self, file: FileOrPart) -> Image.Image:
        return self._through(as_part(file), self.larger, self._scaled_down, self._decode)

    def open_for_validation(self, file: FileOrPart) -> Image.Image:
        return self._through(as_part(file), self.fitted, self.preprocessing.fit, self._decode)

    def open_for_page(self, part: Part, side: int) -> Image.Image:
        """The part of a picture, scaled down while its short side keeps at least ``side`` pixels."""
        decode = partial(self._decode, at_least=side)
        return self._through(
            part, f"at least {side}{self.samples}", lambda picture: picture, decode
        )

    def open_spectrogram(self, path: Path) -> Image.Image:
        """Open a cached spectrogram as the input of the network."""

        def make() -> Image.Image:
            with Image.open(path) as picture:
                return self.preprocessing.fit(picture.convert("RGB"))

        variant = f"spectrogram {self.fitted}"
        return make() if self.store is None else self.store.get_spectrogram(path, variant, make)

    def keep(self, part: Part, training: bool) -> None:
        """Put a part of a picture into the store. A training picture is stored for validation, too: the head is
        fitted on that form."""
        decode = cache(self._decode)
        if training:
            self._through(part, self.larger, self._scaled_down, decode)
        self._through(part, self.fitted, self.preprocessing.fit, decode)

    def _through(
        self,
        part: Part,
        variant: str,
        make: Callable[[Image.Image], Image.Image],
        decode: Callable[[Part], Image.Image],
    ) -> Image.Image:
        if self.store is None:
            return make(decode(part))
        name = variant + crop_name(part)
        return self.store.get(part.path, name, lambda: make(decode(part)))

    def _decode(self, part: Part, at_least: int | None = None) -> Image.Image:
        needs, samples = self.preprocessing.needs, self.preprocessing.samples
        return open_part(
            part,
            at_least=needs if at_least is None else at_least,
            allow_truncated=self.allow_truncated,
            samples=samples,
        )

    def _scaled_down(self, picture: Image.Image) -> Image.Image:
        p = self.preprocessing
        if p.resize != "crop":  # crops are cut from the whole picture made square
            return fit(picture, {**p.to_dict(), "size": min(self.side, max(picture.size))})
        short = min(picture.size)
        if short <= 1.1 * self.side:  # not worth a second resampling
            return picture
        size = [round(length * self.side / short) for length in picture.size]
        return picture.resize((size[0], size[1]), p.resampling)


def keep_decoded(prepared: PictureOpener, train: Sequence[Part], others: Sequence[Part]) -> None:
    """Decode pictures into the store on all cores before a training.

    Training then needs no loader processes, which are forked for every epoch and slow it down by copied
    memory pages. Unreadable files are reported later, by the loader.

    Parameters
    ----------
    train, others : pictures, or parts of some, put into the store by `PictureOpener.keep`; without a store nothing is
        done.
    """
    if prepared.store is None:
        return
    files = [(part, True) for part in train] + [(part, False) for part in others]
    chunks = [files[start : start + CHUNK] for start in range(0, len(files), CHUNK)]
    for _ in in_parallel(partial(_open_all, prepared), chunks, None, None, init_background_worker):
        pass
    prepared.store.recount()


def _open_all(prepared: PictureOpener, files: list[tuple[Part, bool]]) -> list[None]:
    for part, training in read_ahead(files, lambda file: file[0].path):
        with contextlib.suppress(BadFile):
            prepared.keep(part, training)
    return [None] * len(files)


def _free(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _head(width: int, height: int) -> bytes:
    return MAGIC + f" {width} {height} ".encode().ljust(HEAD - len(MAGIC) - 1) + b"\n"


def _size(head: bytes) -> tuple[int, int]:
    """Width and height in a header line; raises ValueError for any other line."""
    if not head.startswith(MAGIC) or len(head) != HEAD:
        raise ValueError("not the header of decoded pixels")
    width, height = head[len(MAGIC) :].split()
    return int(width), int(height)
