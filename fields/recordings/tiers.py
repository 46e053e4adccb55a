"""Tiers: the rows of labels above each other in one file, of which ``--tier`` names the one that is meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets.core.errors import BadFile, SecondhandError, quoted
from datasets.core.scanning import walk
from datasets.sources.base import ReadOptions
from fields.recordings import tracks
from fields.recordings.tracks import ParsedSelection

ENDINGS = (".textgrid", ".eaf")
#: Tiers that a message names.
_NAMED = 40


class Tier(NamedTuple):
    """A tier: its name, its spans, and whether they are all points by its nature."""

    name: str
    spans: list[ParsedSelection]
    of_points: bool = False


def chosen_spans(path: Path, tiers: Sequence[Tier], options: ReadOptions) -> list[ParsedSelection]:
    """Spans of the tier that the setting ``tier`` names, else of the only one; one of points has none to offer.

    Raises
    ------
    BadFile : there is no such tier, or several of its name.
    SecondhandError : there are several, and none is named.
    """
    name = options.settings.get("tier")
    found = [one for one in tiers if one.name == name or (name is None and not one.of_points)]
    has = f"It has {', '.join(quoted(one.name) for one in tiers[:_NAMED]) or 'none'}"
    has += " …" if len(tiers) > _NAMED else ""
    if len(found) > 1 and name is None:
        raise SecondhandError(
            f"{path}: several tiers. {has}. Name the one that has the labels with --tier"
        )
    if len(found) != 1:
        which = "of spans" if name is None else f"called {quoted(name)}"
        raise BadFile(path, f"{len(found) or 'no'} tier{'s' * bool(found)} {which}. {has}")
    return found[0].spans


def label(text: str | None) -> str:
    """The label in a text, which may have several lines."""
    return " ".join((text or "").split())


def _check(paths: Sequence[Path], options: ReadOptions) -> None:
    """Raise SecondhandError if a tier is named and none of the sources has tiers."""
    name = options.settings.get("tier")
    if name is None:
        return
    files = (file for path in paths for file in (walk(path, []) if path.is_dir() else (str(path),)))
    if not any(file.lower().endswith(ENDINGS) for file in files):
        raise SecondhandError(
            f"--tier {name}: --data {' + '.join(map(str, paths))} has no file with tiers ({' '.join(ENDINGS)}). Leave "
            "--tier out"
        )


def add_format(
    name: str, order: int, ending: str, reads: str, read_tiers: Callable[[Path], list[Tier]]
) -> None:
    """Register a format whose files, with this ending, have the tiers that ``read_tiers`` reads."""

    def parse(path: Path, options: ReadOptions) -> list[ParsedSelection]:
        return chosen_spans(path, read_tiers(path), options)

    tracks.add_format(name, order, ending, reads, parse, check=_check)
