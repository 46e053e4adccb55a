"""Cache of rendered spectrograms, named by their content.

The name is a hash of the source file's bytes, the span and the fingerprint of the spectrogram settings: a
renamed or copied file is found again; a changed file or setting gives another name. The PNG files contain
their settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from datasets.core.address import absolute, read_ahead
from datasets.core.errors import BadFile, Rejected, SecondhandError, Unavailable
from datasets.core.file_state import QuickState
from datasets.core.hashes import Hashes, digest_of, hash_shared
from datasets.core.part import AnyPath, FileOrPart, Part, as_part
from datasets.core.processes import CRASHED, in_parallel
from datasets.core.store import FAILURE, MAX_BYTES, PICTURE, SOURCES, CacheError, Store

if TYPE_CHECKING:
    from PIL import Image

    from datasets.spectrograms.settings import SpectrogramSettings
    from datasets.spectrograms.workers import Workers

log = logging.getLogger(__name__)

CHUNK = 16  # pictures that a worker renders before it reports
POOL_FROM = 48  # rendering fewer pictures takes less time than starting workers


def span_of(part: Part) -> str:
    """Start, end and moment of a part as JSON, for the picture's name."""
    limits = (part.start, part.end, part.at)
    return json.dumps([None if limit is None else float(limit) for limit in limits])


def key_of(digest: str, fingerprint: str, span: str) -> str:
    """Name of a picture: SHA-256 (hex) of source, settings and span."""
    return hashlib.sha256(f"{digest} {fingerprint} {span}".encode()).hexdigest()


def encode(image: Image.Image, texts: dict[str, str]) -> bytes:
    """PNG bytes with text chunks.

    Huffman coding alone, at zlib's level 1: for spectrograms much faster than Pillow's default, and
    little larger (``benchmarks/bench_render.py``).
    """
    from PIL import PngImagePlugin

    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name, text)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=info, compress_level=1, compress_type=2)
    return buffer.getvalue()


class Outcome(NamedTuple):
    """Result of rendering an item: a picture or a reason, and the source's hash if it was read."""

    picture: Path | None = None
    added: int = 0  # bytes
    reason: str = ""
    state: QuickState | None = None
    digest: str = ""


def render_picture(
    root: Path, item: Part, spectrogram: SpectrogramSettings, digest: str
) -> tuple[Path, int]:
    """Render a picture unless it is cached; returns its path and the number of bytes added.

    Raises
    ------
    BadFile : it cannot be rendered; the reason is stored under the picture's name.
    """
    span = span_of(item)
    text = spectrogram.to_json()
    key = key_of(digest, hashlib.sha256(text.encode()).hexdigest(), span)
    store = Store(root)
    target = store.path_of(key, PICTURE)
    if store.touch(target):
        return target, 0
    raise_stored_failure(store, item.path, key)
    try:
        signal = spectrogram.read(item)
        image = spectrogram.image(signal)
    except Unavailable:  # the next time it may be there
        raise
    except BadFile as error:
        store.add(key, FAILURE, error.reason.encode())
        raise
    quiet, offset = str(int(spectrogram.no_signal(signal))), f"{spectrogram.offset(signal):.6f}"
    texts = {
        "spectrogram": text,
        "source": digest,
        "span": span,
        "no signal": quiet,
        "offset": offset,
    }
    data = encode(image, texts)
    return store.add(key, PICTURE, data), len(data)


def render_sources(
    root: Path, spectrogram: SpectrogramSettings, work: list[tuple[Part, str | None]]
) -> list[Outcome]:
    """Render items; a failure affects only its own item."""
    fetched = read_ahead(work, lambda one: one[0].path)
    return [_render_one(root, spectrogram, item, digest) for item, digest in fetched]


def _render_one(
    root: Path, spectrogram: SpectrogramSettings, item: Part, digest: str | None
) -> Outcome:
    state = None
    try:
        if digest is None:
            state, digest = QuickState.read(item.path), digest_of(item.path)
        picture, added = render_picture(root, item, spectrogram, digest)
        return Outcome(picture, added, "", state, digest)
    except BadFile as error:
        return Outcome(reason=error.reason, state=state, digest=digest or "")
    except CacheError:
        raise
    except SecondhandError as error:
        return Outcome(reason=str(error))
    except OSError as error:
        if error.filename and Path(error.filename).is_relative_to(root):
            raise CacheError(f"the cache {root} cannot be written: {error}") from error
        return Outcome(reason=f"cannot be read: {error}")
    except Exception as error:
        log.exception("%s: unexpected error", item.path)
        return Outcome(reason=f"unexpected {type(error).__name__}: {error}")


def raise_stored_failure(store: Store, path: str, key: str) -> None:
    """Raise the BadFile that is stored under this name, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        raise BadFile(path, store.path_of(key, FAILURE).read_text(errors="replace"))


def is_intact(picture: Path) -> bool:
    """Whether a picture can be decoded and its name matches the settings and source in it."""
    from PIL import Image

    try:
        with Image.open(picture) as image:
            image.load()
            spectrogram, source, span = (
                str(image.info[name]) for name in ("spectrogram", "source", "span")
            )
    except (OSError, KeyError, ValueError, SyntaxError):
        return False
    return picture.stem == key_of(source, hashlib.sha256(spectrogram.encode()).hexdigest(), span)


class PictureCache:
    """Rendered spectrograms, in the `Store` of a folder.

    Parameters
    ----------
    root, max_bytes : as in `Store`. Pictures that this object has returned stay, even above the limit.
    """

    def __init__(self, root: AnyPath | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        self.store = Store(root, max_bytes)
        self.root, self.sources = self.store.root, Hashes(self.store.root / SOURCES)
        self.sources.refresh()
        self._bytes: int | None = None  # in the store; counted when first needed
        self._warned = False

    def get(self, file: FileOrPart, spectrogram: SpectrogramSettings) -> Path:
        """Path of the picture of a file or a part of it, rendered now if it is not cached.

        Raises
        ------
        BadFile : it cannot be rendered; remembered until the file changes.
        """
        item = as_part(file)
        stored_picture, digest = self._find(item, spectrogram.fingerprint())
        if stored_picture:
            return stored_picture
        state = QuickState.read(item.path)
        digest = digest or digest_of(item.path)
        self.sources.add(item.path, state, digest)
        picture, added = render_picture(self.root, item, spectrogram, digest)
        self._grow(added)
        return picture

    def stored(self, item: Part, spectrogram: SpectrogramSettings) -> Path | None:
        """Cached picture of a file that has not changed since it was rendered; else None."""
        fingerprint = spectrogram.fingerprint()
        with contextlib.suppress(BadFile):  # reported when the file is read
            picture, digest = self._find(item, fingerprint)
            if digest is None:  # another process may have rendered it
                self.sources.refresh()
                picture, _ = self._find(item, fingerprint)
            return picture
        return None

    def render_all(
        self,
        items: Iterable[FileOrPart],
        spectrogram: SpectrogramSettings,
        *,
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        elsewhere: Workers | None = None,
    ) -> tuple[list[Path | None], list[Rejected]]:
        """Pictures of many files; those that are not cached are rendered in parallel.

        Parameters
        ----------
        items : files, or parts of signals.
        workers : number of processes; None for one per core.
        progress : called with (done, total) as pictures are finished.
        elsewhere : workers that render, instead of processes of this machine.

        Returns
        -------
        paths : one per item, in order; None for a rejected item.
        rejected : the rejected items, in order, with reasons.
        """
        if workers is not None and workers < 1:
            raise SecondhandError(f"invalid settings: --workers {workers} (must be 1 or more)")
        sources = [as_part(item) for item in items]
        outcomes, digests, missing = dict[int, Outcome](), dict[str, str](), list[int]()
        fingerprint = spectrogram.fingerprint()
        self.sources.refresh()
        self.store.sweep()
        for index, item in enumerate(sources):
            try:
                picture, digest = self._find(item, fingerprint)
            except BadFile as error:
                outcomes[index] = Outcome(reason=error.reason)
                continue
            if picture:
                outcomes[index] = Outcome(picture)
            else:
                missing.append(index)
                if digest:
                    digests[item.path] = digest
        for path, state, digest in hash_shared((sources[i].path for i in missing), digests):
            self.sources.add(path, state, digest)
            digests[path] = digest
        finished = len(outcomes)
        if progress:
            progress(finished, len(sources))
        chunks = [missing[first : first + CHUNK] for first in range(0, len(missing), CHUNK)]
        work = [[(sources[i], digests.get(sources[i].path)) for i in chunk] for chunk in chunks]
        crashed = Outcome(reason=CRASHED)
        if elsewhere is None:
            count = 1 if len(missing) < POOL_FROM else workers
            rendered = in_parallel(
                partial(render_sources, self.root, spectrogram), work, count, crashed
            )
        else:  # the working directory of the workers may be another
            root = Path(os.path.abspath(self.root))
            work = [
                [(item._replace(path=absolute(item.path)), digest) for item, digest in chunk]
                for chunk in work
            ]
            task = partial(render_sources, root, spectrogram)
            rendered = elsewhere.map_chunks(
                task, work, crashed, path_of=lambda one: one[0].path, folder=root
            )
        for number, chunk_outcomes in rendered:
            for index, outcome in zip(chunks[number], chunk_outcomes, strict=True):
                outcomes[index] = outcome
                if outcome.state:
                    self.sources.add(sources[index].path, outcome.state, outcome.digest)
                self._grow(outcome.added)
            finished += len(chunk_outcomes)
            if progress:
                progress(finished, len(sources))
        ordered = [outcomes[index] for index in range(len(sources))]
        rejected = [
            Rejected(item.path, outcome.reason)
            for item, outcome in zip(sources, ordered, strict=True)
            if outcome.picture is None
        ]
        return [outcome.picture for outcome in ordered], rejected

    def verify(self) -> tuple[int, list[Path]]:
        """Decode every picture and recompute its name; remove those that fail.

        Returns
        -------
        The number of intact pictures, and the paths of the removed ones.
        """
        intact, damaged = 0, []
        for path in self.store.files(PICTURE):
            if is_intact(path):
                intact += 1
            else:
                damaged.append(path)
                path.unlink(missing_ok=True)
        self.store.sweep()
        return intact, damaged

    def _find(self, item: Part, fingerprint: str) -> tuple[Path | None, str | None]:
        """Cached picture and hash of a file, as far as known without reading the file; else None."""
        digest = self.sources.get(item.path, QuickState.read(item.path))
        if digest is None:
            return None, None
        key = key_of(digest, fingerprint, span_of(item))
        picture = self.store.path_of(key, PICTURE)
        if self.store.touch(picture):
            return picture, digest
        raise_stored_failure(self.store, item.path, key)
        return None, digest

    def _grow(self, added: int) -> None:
        """Count the added bytes; above the limit remove the least recently used pictures."""
        if not added:
            return
        if self._bytes is None:
            self._bytes = sum(self.store.sizes())
        else:
            self._bytes += added
        if self._bytes <= self.store.max_bytes:
            return
        self._bytes = self.store.make_room(int(0.9 * self.store.max_bytes))
        if self._bytes > self.store.max_bytes and not self._warned:
            self._warned = True
            log.warning(
                "the spectrograms in use take more than the cache's limit of %d bytes and stay until the run "
                "ends: raise --cache-limit (GiB)",
                self.store.max_bytes,
            )


def no_signal(picture: str | os.PathLike[str]) -> bool:
    """Whether a cached picture shows a signal too quiet for a prediction."""
    return _read_text(picture, b"no signal") == b"1"


def read_offset(picture: str | os.PathLike[str]) -> float:
    """`SpectrogramSettings.offset` of the signal that a cached picture shows."""
    return float(_read_text(picture, b"offset") or "nan")


def _read_text(picture: str | os.PathLike[str], name: bytes) -> bytes:
    """A text chunk of a PNG. Text chunks precede the pixels, and Pillow's parser takes four times as long."""
    with open(picture, "rb") as file:
        head = file.read(8192)
    place = head.find(b"tEXt" + name + b"\0")
    if place < 4:
        return b""
    size = int.from_bytes(head[place - 4 : place], "big")
    return head[place + 4 : place + 4 + size].partition(b"\0")[2]
