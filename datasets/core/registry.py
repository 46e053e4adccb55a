"""Registries: things of one group by name, each in a file of its own, and those of other packages."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, TypeVar

from datasets.core.errors import SecondhandError


class Named(Protocol):
    """Something with a name; that of a registered thing is a word of the command line."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)
log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())


class Registry(Mapping[str, T]):
    """The things of a group by name, in alphabetical order.

    The modules of a package of this program register theirs by `add` and are imported when a name is first looked up.
    Packages of others name theirs as entry points of the group ``secondhand.NAME``, which are looked for when a name is
    not ours; one that cannot be imported is left out with a warning, and one cannot replace what is registered already.

    Parameters
    ----------
    package : package of this program, such as ``learners.outputs``. The last word is the name of the group.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self._things: dict[str, T] = {}
        self._others: dict[str, T] = {}
        self._has_ours = self._has_others = False

    def add(self, thing: T) -> T:
        """Register a thing; raises SecondhandError if its name is taken."""
        self._check_free(thing)
        self._things[thing.name] = thing
        return thing

    def ours(self) -> Collection[T]:
        """What is of this program; other packages are not looked for."""
        return self._of_ours().values()

    def groups(self) -> Iterator[Collection[T]]:
        """What is of this program, then what is of other packages, which are not looked for before."""
        yield self.ours()
        yield self._of_others().values()

    def __getitem__(self, name: str) -> T:
        ours = self._of_ours()
        return ours[name] if name in ours else self._of_others()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._of_ours(), *self._of_others()]))

    def __len__(self) -> int:
        return len(self._of_ours()) + len(self._of_others())

    def _check_free(self, thing: T) -> None:
        if thing.name in self._things or thing.name in self._others:
            raise SecondhandError(f"{self.package}: {thing.name!r} is registered already")

    def _of_ours(self) -> dict[str, T]:
        if not self._has_ours:
            self._has_ours = True  # before the imports, which may look up names themselves
            for module in pkgutil.iter_modules(import_module(self.package).__path__):
                import_module(f"{self.package}.{module.name}")
        return self._things

    def _of_others(self) -> dict[str, T]:
        self._of_ours()
        if not self._has_others:
            self._has_others = True
            for point in entry_points(group=f"secondhand.{self.package.rpartition('.')[2]}"):
                try:
                    thing = point.load()
                    self._check_free(thing)
                    self._others[thing.name] = thing
                except Exception as error:  # of another's package: anything
                    log.warning("%s of %s is left out: %s", point.name, point.value, error)
        return self._others
