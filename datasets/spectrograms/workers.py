"""Who renders the pictures of a command, if not the processes of this machine: what fields add."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from datasets.cli.options import Checked
from datasets.core.registry import Registry

T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
    """Workers that are connected."""

    def map_chunks(
        self,
        task: Callable[[list[T]], list[R]],
        chunks: Sequence[list[T]],
        crashed: R,
        *,
        path_of: Callable[[T], str] | None = None,
        folder: Path | None = None,
    ) -> Iterator[tuple[int, list[R]]]:
        """Apply `task` to each chunk; yields (chunk number, results) as they are finished.

        Parameters
        ----------
        task : function of a module that the workers have; returns one result per item.
        chunks : lists of items.
        crashed : result of an item that kills its workers.
        path_of : returns the absolute path of an item's file; workers must see it if this process does.
        folder : folder that all workers must see and can write to; created if it does not exist.

        Raises
        ------
        SecondhandError : the work cannot be done there.
        """


@dataclass(kw_only=True)
class WorkersSettings(Checked):
    """A group of flags by which others render, which its docstring heads in the help.

    ``name`` : its name in the registry.
    """

    name: ClassVar[str]

    @property
    def chosen(self) -> bool:
        """Whether a call asks for these workers."""
        raise NotImplementedError

    def connected(self, processes: int | None) -> AbstractContextManager[Workers]:
        """The workers, for the length of a `with` block; ``processes`` is ``--workers``."""
        raise NotImplementedError


WORKERS: Registry[type[WorkersSettings]] = Registry("datasets.spectrograms.workers")
