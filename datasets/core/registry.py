"""Registries: things of one group by name, each in a file of its own, and those of other packages."""

from __future__ import annotations

import logging
import pkgutil
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Protocol, TypeVar

from datasets.core.errors import SecondhandError, did_you_mean


class Named(Protocol):
    """Something with a name; that of a registered thing is a word of the command line."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)
#: Package of the fields, each of which is a package in it.
FIELDS = "fields"

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())


def of_fields(group: str) -> Iterator[str]:
    """Names of the modules and packages of a name in the fields that are here."""
    try:
        folders = import_module(FIELDS).__path__
    except ModuleNotFoundError:
        return
    for field in pkgutil.iter_modules(folders):
        name = f"{FIELDS}.{field.name}.{group}"
        try:
            found = find_spec(name)
        except ModuleNotFoundError:  # its folder is left out
            continue
        if found is not None:
            yield name


def _import_all(name: str) -> None:
    """Import a module and, of a package, all modules in it."""
    module = import_module(name)
    for inside in pkgutil.iter_modules(getattr(module, "__path__", [])):
        import_module(f"{name}.{inside.name}")


def left_out(word: str) -> str:
    """That a word of a command is for a field that is not here, as the reason of an error; "" if it is for none."""
    try:
        reads: Mapping[str, str] = import_module(FIELDS).READS
    except (ModuleNotFoundError, AttributeError):
        return ""
    for field, pattern in reads.items():
        if re.match(pattern, word) and find_spec(f"{FIELDS}.{field}") is None:
            return f"is read by the field {field}, which is not installed (the folder {FIELDS}/{field})"
    return ""


class Registry(Mapping[str, T]):
    """The things of a group by name, in alphabetical order.

    The modules of a package of this program register theirs by `add` and are imported when a name is first looked up. So are
    those of the fields that are named after the group (`fields`).
    Packages of others name theirs as entry points of the group ``secondhand.NAME``, which are looked for when a name is
    not ours; one that cannot be imported is left out with a warning, and one cannot replace what is registered already.

    Parameters
    ----------
    package : package of this program, such as ``learners.outputs``. The last word is the name of the group.
    """

    def __init__(self, package: str) -> None:
        self.package, self.group = package, package.rpartition(".")[2]
        self._things: dict[str, T] = {}
        self._packages: dict[str, str] = {}
        self._has_ours = self._has_others = False

    def add(self, thing: T) -> T:
        """Register a thing; raises SecondhandError if its name is taken."""
        if thing.name in self._things:
            raise SecondhandError(f"{self.package}: {thing.name!r} is registered already")
        self._things[thing.name] = thing
        return thing

    def __getitem__(self, name: str) -> T:
        ours = self.ours()
        return ours[name] if name in ours else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())

    def find(self, name: str, flag: str) -> T:
        """The thing of a name; raises SecondhandError naming the ``flag`` if there is none."""
        if problem := self.problem(name):
            raise SecondhandError(f"{flag} {name}: {problem}")
        return self[name]

    def problem(self, name: str) -> str:
        """What a name must be, and the nearest one; "" if something has this name."""
        if name in self:
            return ""
        return f"must be one of {', '.join(self)}.{did_you_mean(name, self)}"

    def ours(self) -> dict[str, T]:
        """What is registered already: the things of this program, and of other packages once they were looked for."""
        if not self._has_ours:
            self._has_ours = True  # before the imports, which may look up names themselves
            _import_all(self.package)
            for module in of_fields(self.group):
                _import_all(module)
        return self._things

    def in_turn(self) -> Iterator[list[T]]:
        """The things of this program, then those of other packages, which are looked for only if nobody stopped before."""
        yield [thing for name, thing in self.ours().items() if not self.package_of(name)]
        yield [thing for name, thing in self._all().items() if self.package_of(name)]

    def package_of(self, name: str) -> str:
        """Name of the package that a thing comes from; "" for those of this program."""
        return self._packages.get(name, "")

    def _all(self) -> dict[str, T]:
        self.ours()
        if not self._has_others:
            self._has_others = True
            for point in entry_points(group=f"secondhand.{self.group}"):
                try:
                    thing = self.add(point.load())
                    self._packages[thing.name] = point.dist.name if point.dist else point.module
                except Exception as error:  # of another's package: anything
                    log.warning("%s of %s is left out: %s", point.name, point.value, error)
        return self._things
