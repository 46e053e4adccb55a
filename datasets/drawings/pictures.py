"""A store of rendered pictures, named by what is in them.

The name of a picture is a hash of the sound or strain file's bytes, the span and the recipe's
fingerprint: a renamed or copied file is found again, a changed file or recipe never is. Pictures
are PNG files that carry their recipe; they are written beside and renamed, so that several
processes may share a store and a killed one leaves no half of a picture.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.drawings import store as _store
from datasets.drawings.stamps import Sources, digest_of, hash_shared, stamp_of
from datasets.drawings.store import Outcome, Source, draw, draw_all, failed, key_of, picture_path
from datasets.errors import BadFile, Rejected, SecondhandError
from datasets.processes import CRASHED, in_parallel

if TYPE_CHECKING:
    from datasets.drawings.cluster import Cluster
    from datasets.drawings.recipe import Recipe

__all__ = ["PictureCache", "Source", "cache_root", "no_signal"]

log = logging.getLogger(__name__)

MAX_BYTES = 20 * 2**30
STALE = 600.0  # seconds; a temporary file older than this was left by a killed process
CHUNK = 16  # pictures that a worker draws before it reports
POOL_FROM = 48  # fewer pictures are drawn before workers have started


class PictureCache:
    """Rendered pictures on disk.

    Parameters
    ----------
    root : the folder; made when the first picture is stored. None: `cache_root()`.
    max_bytes : beyond this the least recently used pictures go. None: 20 GiB. Pictures that this
        object has handed out stay, even if they alone are more.
    trust_mtime : take a file whose path and stamp (size, times of change, inode) are known as
        unchanged. False hashes every file every time.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        trust_mtime: bool = True,
    ) -> None:
        self.root = Path(root) if root is not None else cache_root()
        self.max_bytes = MAX_BYTES if max_bytes is None else max_bytes
        if self.max_bytes <= 0:
            raise SecondhandError(f"max_bytes={max_bytes}: must be above 0")
        self.trust_mtime = trust_mtime
        self._started = time.time()
        self._sources = Sources(self.root / "sources.jsonl")
        self._sources.refresh()
        self._bytes: int | None = None  # in the store; counted when first needed
        self._warned = False

    def get(
        self,
        path: str | os.PathLike[str],
        recipe: Recipe,
        start: float | None = None,
        end: float | None = None,
        at: float | None = None,
    ) -> Path:
        """The picture of a file, drawn now if it is not there.

        Raises
        ------
        BadFile : it cannot be drawn; remembered until the file changes.
        """
        item = Source(os.fspath(path), start, end, at)
        found, digest = self._find(item, recipe.fingerprint())
        if found:
            return found
        stamp = stamp_of(item.path)
        digest = digest or digest_of(item.path)
        self._sources.add(item.path, stamp, digest)
        picture, added = draw(self.root, item, recipe, digest)
        self._touch(picture)
        self._grow(added)
        return picture

    def render_all(
        self,
        items: Iterable[Source | str | os.PathLike[str]],
        recipe: Recipe,
        *,
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        cluster: Cluster | None = None,
    ) -> tuple[list[Path | None], list[Rejected]]:
        """Pictures of many files, drawn in parallel where they are not there yet.

        Parameters
        ----------
        items : paths, or `Source`s with a span or a moment.
        workers : processes; None for one a core.
        progress : called with (done, all) as the pictures come.
        cluster : whose workers draw, instead of processes here.

        Returns
        -------
        paths : one an item, in their order; None where the item was left out.
        rejected : the items left out, in their order, and why.
        """
        if workers is not None and workers < 1:
            raise SecondhandError(f"workers={workers}: must be at least 1")
        wanted = [item if isinstance(item, Source) else Source(os.fspath(item)) for item in items]
        outcomes, digests, missing = dict[int, Outcome](), dict[str, str](), list[int]()
        fingerprint = recipe.fingerprint()
        self._sources.refresh()
        _store.sweep(self.root, STALE)
        for index, item in enumerate(wanted):
            try:
                found, digest = self._find(item, fingerprint)
            except BadFile as error:
                outcomes[index] = Outcome(reason=error.reason)
                continue
            if found:
                outcomes[index] = Outcome(found)
            else:
                missing.append(index)
                if digest:
                    digests[item.path] = digest
        for path, stamp, digest in hash_shared((wanted[i].path for i in missing), digests):
            self._sources.add(path, stamp, digest)
            digests[path] = digest
        done = len(outcomes)
        if progress:
            progress(done, len(wanted))
        chunks = [missing[first : first + CHUNK] for first in range(0, len(missing), CHUNK)]
        work = [[(wanted[i], digests.get(wanted[i].path)) for i in chunk] for chunk in chunks]
        if cluster is not None:
            drawn = cluster.draw(self.root, recipe, work)
        else:
            count = 1 if len(missing) < POOL_FROM else workers
            task = partial(draw_all, self.root, recipe)
            drawn = in_parallel(task, work, count, Outcome(reason=CRASHED))
        for number, answers in drawn:
            for index, outcome in zip(chunks[number], answers, strict=True):
                outcomes[index] = outcome
                if outcome.stamp:
                    self._sources.add(wanted[index].path, outcome.stamp, outcome.digest)
                self._grow(outcome.added)
            done += len(answers)
            if progress:
                progress(done, len(wanted))
        ordered = [outcomes[index] for index in range(len(wanted))]
        rejected = [
            Rejected(item.path, outcome.reason)
            for item, outcome in zip(wanted, ordered, strict=True)
            if outcome.picture is None
        ]
        return [outcome.picture for outcome in ordered], rejected

    def clear(self) -> int:
        """Remove every picture, failure and hash; the number of pictures removed."""
        removed = 0
        for path in [*_store.files(self.root, ".png"), *_store.files(self.root, ".bad")]:
            removed += path.suffix == ".png"
            path.unlink(missing_ok=True)
        self._sources.path.unlink(missing_ok=True)
        self._sources = Sources(self._sources.path)
        _store.sweep(self.root, 0.0)
        self._bytes = None
        return removed

    def verify(self) -> tuple[int, list[Path]]:
        """Decode every picture and recompute its name; those that fail are removed.

        Returns
        -------
        The number of pictures that are right, and the paths of those that were not.
        """
        right, wrong = 0, []
        for path in _store.files(self.root, ".png"):
            if _store.is_whole(path):
                right += 1
            else:
                wrong.append(path)
                path.unlink(missing_ok=True)
        _store.sweep(self.root, STALE)
        return right, wrong

    def info(self) -> dict[str, str | int]:
        """Where the store is and what is in it: pictures, bytes, limit, failures."""
        sizes = [size for _, size, _ in _store.pictures(self.root)]
        return {
            "root": str(self.root),
            "pictures": len(sizes),
            "bytes": sum(sizes),
            "limit": self.max_bytes,
            "failures": sum(1 for _ in _store.files(self.root, ".bad")),
        }

    def _find(self, item: Source, fingerprint: str) -> tuple[Path | None, str | None]:
        """The stored picture and the file's hash, as far as they are known without reading it."""
        stamp = stamp_of(item.path)
        digest = self._sources.get(item.path, stamp) if self.trust_mtime else None
        if digest is None:
            return None, None
        key = key_of(digest, fingerprint, item.span())
        picture = picture_path(self.root, key)
        if self._touch(picture):
            return picture, digest
        failed(self.root, item.path, key)
        return None, digest

    def _touch(self, picture: Path) -> bool:
        """Note that a picture is in use; False if it is not there."""
        try:
            if os.stat(picture).st_mtime < self._started:
                os.utime(picture)
        except OSError:  # it is not there, or in a store that may only be read
            return picture.is_file()
        return True

    def _grow(self, added: int) -> None:
        """Count what was stored, and let the least recently used go when it is too much."""
        if not added:
            return
        if self._bytes is None:
            self._bytes = sum(size for _, size, _ in _store.pictures(self.root))
        else:
            self._bytes += added
        if self._bytes <= self.max_bytes:
            return
        self._bytes = _store.evict(self.root, int(0.9 * self.max_bytes), self._started)
        if self._bytes > self.max_bytes and not self._warned:
            self._warned = True
            log.warning(
                "the pictures in use take more than the cache's limit of %d bytes: raise it",
                self.max_bytes,
            )


def cache_root() -> Path:
    """Folder for what can be made again: $SECONDHAND_CACHE, else the user's cache folder."""
    if given := os.environ.get("SECONDHAND_CACHE"):
        return Path(given)
    import pooch

    return Path(pooch.os_cache("secondhand"))


def no_signal(picture: str | os.PathLike[str]) -> bool:
    """Whether a stored picture was drawn from a signal too quiet to be judged."""
    with open(picture, "rb") as file:  # Pillow's parser takes four times as long
        return b"tEXtno signal\x001" in file.read(8192)  # texts lie before the pixels
