"""The files of the picture cache: names, PNGs with their recipe."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from datasets.drawings.stamps import Stamp, digest_of, stamp_of
from datasets.errors import BadFile, SecondhandError
from datasets.files import write_beside

if TYPE_CHECKING:
    from PIL import Image

    from datasets.drawings.recipe import Recipe

log = logging.getLogger(__name__)


class Source(NamedTuple):
    """One picture to draw: a file, the span in seconds, or the moment (GPS time for strain)."""

    path: str
    start: float | None = None
    end: float | None = None
    at: float | None = None

    def span(self) -> str:
        """The span as it enters the picture's name; NaN, a table's empty cell, is no limit."""
        limits = (self.start, self.end, self.at)
        return json.dumps([None if x is None or x != x else float(x) for x in limits])


def key_of(digest: str, fingerprint: str, span: str) -> str:
    """The picture's name: SHA-256 (hex) of source, recipe and span."""
    return hashlib.sha256(f"{digest} {fingerprint} {span}".encode()).hexdigest()


def picture_path(root: Path, key: str) -> Path:
    """Where the picture of that name lies."""
    return root / key[:2] / f"{key}.png"


def failure_path(root: Path, key: str) -> Path:
    """Where the reason lies why there is no such picture."""
    return root / key[:2] / f"{key}.bad"


def encode(image: Image.Image, texts: dict[str, str]) -> bytes:
    """PNG bytes with text chunks.

    Huffman coding alone, at zlib's level 1: a quarter of the time of Pillow's default for a tenth
    more bytes on spectrograms (benchmarks/bench_render.py measures it).
    """
    from PIL import PngImagePlugin

    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name, text)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=info, compress_level=1, compress_type=2)
    return buffer.getvalue()


def add_file(root: Path, target: Path, data: bytes) -> None:
    """Write a file of the cache, through its folder ``tmp``, which `sweep` clears.

    Raises
    ------
    CacheError : there is no room, or it may not be written.
    """
    beside = root / "tmp"
    try:
        for folder in (beside, target.parent):
            folder.mkdir(parents=True, exist_ok=True)
        write_beside(target, data, place=beside, durable=False)
    except OSError as error:
        raise CacheError(
            f"the cache {root} cannot be written ({error.strerror}): free some room there, "
            "or choose another by --cache-dir or $SECONDHAND_CACHE"
        ) from None


class CacheError(SecondhandError):
    """The cache itself fails, and not the file that is to be drawn."""


class Outcome(NamedTuple):
    """What became of an item: a picture or a reason; and the source's hash, if it was read."""

    picture: Path | None = None
    added: int = 0  # bytes
    reason: str = ""
    stamp: Stamp | None = None
    digest: str = ""


def draw(root: Path, item: Source, recipe: Recipe, digest: str) -> tuple[Path, int]:
    """The picture's path, drawn unless it is there, and the bytes this has added.

    Raises
    ------
    BadFile : it cannot be drawn; the reason is stored under the picture's name.
    """
    span = item.span()
    text = recipe.to_json()
    key = key_of(digest, hashlib.sha256(text.encode()).hexdigest(), span)
    target = picture_path(root, key)
    if target.exists():
        return target, 0
    failed(root, item.path, key)
    start, end, at = json.loads(span)
    try:
        signal = recipe.read(item.path, start=start, end=end, at=at)
        image = recipe.image(signal)
    except BadFile as error:
        add_file(root, failure_path(root, key), error.reason.encode())
        raise
    texts = {
        "recipe": text,
        "source": digest,
        "span": span,
        "no signal": str(int(recipe.no_signal(signal))),
    }
    data = encode(image, texts)
    add_file(root, target, data)
    return target, len(data)


def draw_all(root: Path, recipe: Recipe, work: list[tuple[Source, str | None]]) -> list[Outcome]:
    """Draw items; no failure of one reaches the others."""
    return [_draw_one(root, recipe, item, digest) for item, digest in work]


def _draw_one(root: Path, recipe: Recipe, item: Source, digest: str | None) -> Outcome:
    stamp = None
    try:
        if digest is None:
            stamp, digest = stamp_of(item.path), digest_of(item.path)
        picture, added = draw(root, item, recipe, digest)
        return Outcome(picture, added, "", stamp, digest)
    except BadFile as error:
        return Outcome(reason=error.reason, stamp=stamp, digest=digest or "")
    except CacheError:
        raise
    except SecondhandError as error:
        return Outcome(reason=str(error))
    except OSError as error:
        if error.filename and Path(error.filename).is_relative_to(root):
            raise CacheError(f"the cache {root} cannot be written: {error}") from error
        return Outcome(reason=f"cannot be read: {error}")
    except Exception as error:
        log.exception("%s: unforeseen", item.path)
        return Outcome(reason=f"unforeseen {type(error).__name__}: {error}")


def failed(root: Path, path: str, key: str) -> None:
    """Raise the BadFile that was stored under this name, if one was."""
    with contextlib.suppress(FileNotFoundError):
        raise BadFile(path, failure_path(root, key).read_text(errors="replace"))


def is_whole(picture: Path) -> bool:
    from PIL import Image

    try:
        with Image.open(picture) as image:
            image.load()
            recipe, source, span = (str(image.info[name]) for name in ("recipe", "source", "span"))
    except (OSError, KeyError, ValueError, SyntaxError):
        return False
    return picture.stem == key_of(source, hashlib.sha256(recipe.encode()).hexdigest(), span)


def files(root: Path, suffix: str) -> Iterator[Path]:
    """Stored files of this kind, and nothing else that may lie in the folder."""
    for path in root.glob(f"[0-9a-f][0-9a-f]/*{suffix}"):
        if len(path.stem) == 64:
            yield path


def pictures(root: Path) -> Iterator[tuple[float, int, Path]]:
    """Stored pictures as (time of last use, bytes, path)."""
    for path in files(root, ".png"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            status = path.stat()
            yield status.st_mtime, status.st_size, path


def evict(root: Path, limit: int, since: float) -> int:
    """Remove the least recently used pictures down to `limit` bytes, none used since `since`.

    Returns
    -------
    The bytes that stay.
    """
    entries = sorted(pictures(root))
    total = sum(size for _, size, _ in entries)
    for used, size, path in entries:
        if total <= limit or used >= since:
            break
        path.unlink(missing_ok=True)
        total -= size
    return total


def sweep(root: Path, age: float) -> None:
    """Remove temporary files older than `age` s: what killed processes left."""
    for path in root.glob("tmp/*.part"):
        with contextlib.suppress(OSError):  # gone already, or in a store that is only read
            if time.time() - path.stat().st_mtime >= age:
                path.unlink()
