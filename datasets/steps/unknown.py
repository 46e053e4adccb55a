"""The step that reads the files of unknown classes, and how files without labels are read."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from datasets.core.address import exists, without_secrets
from datasets.core.errors import Rejected, SecondhandError
from datasets.items.checks import drop_copies, usable_rows
from datasets.items.columns import with_columns, with_parts
from datasets.items.facts import Inputs, Looks
from datasets.items.items import Items
from datasets.items.labels import UNKNOWN
from datasets.items.settings import ClassSettings
from datasets.kinds.base import PictureInfo
from datasets.sources.base import ReadOptions, read_source
from datasets.steps.base import Asked


class Unlabelled(NamedTuple):
    """Items with the label ``unknown``, the files left out, and what the check of pictures has read, by path."""

    frame: pd.DataFrame
    rejected: list[Rejected]
    looks: dict[str, PictureInfo]


def add_unknown(items: Items, asked: Asked) -> Items:
    """Add the files of ``--unknown``, which only measure what is refused."""
    source = asked.of(ClassSettings).unknown
    if not source:
        return items
    found, items = of_no_class(source, items, asked, "--unknown")
    frame = pd.concat([items.unknown_items, found], ignore_index=True)
    return replace(items, unknown_items=frame)


def of_no_class(source: str, items: Items, asked: Asked, flag: str) -> tuple[pd.DataFrame, Items]:
    """Items of a ``source`` of no known class, as `load_unknown`, without copies of the others; and these with what was
    left out and looked at."""
    options = ReadOptions(
        kind=items.kind, lookup=items.fact(Inputs).lookup, settings=asked.options.settings
    )
    known = pd.concat([items.frame, items.unknown_items, items.background])
    found = load_unknown(source, options, known, flag=flag)
    looks = Looks({**items.fact(Looks).of, **found.looks})
    return found.frame, items.leaving_out(found.rejected).knowing(looks)


def load_unknown(
    source: str | os.PathLike[str],
    options: ReadOptions,
    known_items: pd.DataFrame,
    *,
    flag: str = "--unknown",
    check: bool = True,
) -> Unlabelled:
    """Item table of the files that ``flag`` names, with the label ``unknown``.

    Files of ``--unknown`` are of unknown classes and only measure refusals; files of ``--background`` are
    trained on as the background (negative) class.

    Parameters
    ----------
    source : a folder (the names of its subfolders are ignored), a table with the column ``path``, or
        ``demo:NAME``.
    options : how it is read; their ``kind`` is that of the known items. What is looked up is added to their ``lookup``.
    known_items : the items of the run with their splits; copies of them are dropped.
    flag : flag to name in errors.
    check : as in `usable_rows`.

    Raises
    ------
    SecondhandError : there is no such folder or file, or no usable file in it.
    """
    found = load_unlabelled(source, options, flag, check=check)
    frame, copies = drop_copies(found.frame, known_items, options.lookup)
    rejected = [*found.rejected, *copies]
    if frame.empty:
        kind = options.kind
        summary = f" ({len(rejected)} left out, the first: {rejected[0]})" if rejected else ""
        raise SecondhandError(
            f"{flag} {os.fspath(source)}: no usable {kind} file in it{summary}. Add {kind} files that belong to "
            f"none of the classes, or leave {flag} out"
        )
    return Unlabelled(frame, rejected, found.looks)


def load_unlabelled(
    source: str | os.PathLike[str],
    options: ReadOptions,
    flag: str,
    *,
    check: bool = True,
) -> Unlabelled:
    """Item table of the files that ``flag`` names, with the label ``unknown``.

    As `load_unknown`, but copies stay and the table may be empty.
    """
    name, kind = without_secrets(str(source)), options.kind
    if not name.startswith("demo:") and not exists(name):
        raise SecondhandError(f"{flag} {name}: there is no such folder or file")
    options = replace(options, learned=False, alone=True)
    read = read_source(name, replace(options, label=UNKNOWN, label_column=None, labels=None))
    frame, short = with_parts(read.frame, kind, name)
    frame = with_columns(frame.assign(label=UNKNOWN, split=""))
    looks = dict[str, PictureInfo]()
    frame, bad = usable_rows(
        frame, kind, looks, check=check, lookup=options.lookup, settings=options.settings
    )
    return Unlabelled(frame, [*read.rejected, *short, *bad], looks)
