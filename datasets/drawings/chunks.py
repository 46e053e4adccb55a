"""A chunk of work on its way to a worker of a cluster, and what the worker makes of it."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import socket
import uuid
from collections.abc import Callable, Iterator
from os.path import exists
from pathlib import Path
from typing import Any, NamedTuple

from datasets.drawings.store import Item
from datasets.errors import SecondhandError


class Report(NamedTuple):
    """What a worker made of a chunk: an answer an item, or what keeps it from working."""

    answers: list[Any]
    worker: str
    wrong: str = ""


class Kind(NamedTuple):
    """What all chunks of a work have in common.

    Attributes
    ----------
    task : a function of a module that the workers have; gives one answer an item.
    path_of : the absolute path of an item's file, or None where items have none.
    marker : a file that the workers must see.
    renderer : the versions of this program, as far as pictures go.
    """

    task: Callable[[list[Any]], list[Any]]
    path_of: Callable[[Any], str] | None
    marker: Path | None
    renderer: tuple[int, int]

    def packed(self, chunk: list[Any], number: int | str) -> tuple[bytes, str]:
        """A chunk and its key, which is made from all of it.

        Pickled here, so that Dask looks for no graphs in it. Files that are not there for this
        process need not be there for the worker.
        """
        paths = [] if self.path_of is None else [self.path_of(item) for item in chunk]
        payload = pickle.dumps((self._replace(path_of=None), chunk, list(filter(exists, paths))))
        return payload, f"secondhand-{number}-{hashlib.sha256(payload).hexdigest()}"


def run_chunk(payload: bytes) -> Report:
    """The task, in the worker: one answer an item, or what is wrong with this worker."""
    from distributed import get_worker
    from threadpoolctl import threadpool_limits

    worker = f"{get_worker().address} on {socket.gethostname()}"
    kind, chunk, paths = pickle.loads(payload)
    if kind.renderer != renderer():
        return Report([], worker, "runs another version of this program; install the same")
    if kind.marker is not None and not kind.marker.exists():
        folder = kind.marker.parent
        return Report(
            [], worker, f"does not see the folder {folder} that is meant; name a shared one"
        )
    for path in paths:
        # Before the work, which would store the failure in a cache that others share.
        if not exists(path):
            wrong = f"does not see {path}; files must lie where all workers have them by this name"
            return Report([], worker, wrong)
    try:
        with threadpool_limits(1):
            return Report(kind.task(chunk), worker)
    except SecondhandError as error:
        return Report([], worker, f"says: {error}")


def renderer() -> tuple[int, int]:
    from datasets.drawings.recipe import PCEN_VERSION, RENDERER_VERSION

    return RENDERER_VERSION, PCEN_VERSION


def path_of_work(work: tuple[Item, str | None]) -> str:
    return work[0].path


@contextlib.contextmanager
def marked(folder: Path | None) -> Iterator[Path | None]:
    """A file in the folder for as long as the work takes, by which workers know it again."""
    if folder is None:
        yield None
        return
    marker = folder / f"{uuid.uuid4().hex}.shared"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        raise SecondhandError(f"the folder {folder} cannot be written: {error}") from error
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)
