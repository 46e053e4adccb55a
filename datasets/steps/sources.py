"""The step that reads one or several sources into one table."""

from __future__ import annotations

import glob
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from datasets.core.address import as_path, exists, is_address, without_secrets
from datasets.core.errors import BadFile, Rejected, SecondhandError, counted, quoted
from datasets.core.part import PART_COLUMNS, part_text
from datasets.core.recorded import distinct_sequences
from datasets.items.checks import LABELLED, PREDICTION_COLUMNS, corrected_by_hand
from datasets.items.columns import with_columns, with_parts
from datasets.items.facts import Inputs, Origin, Stated
from datasets.items.items import Items
from datasets.items.labels import (
    JOIN,
    NOTHING,
    canonical_label,
    clean_label,
    is_nothing,
    parse_names,
)
from datasets.kinds.base import KINDS, empty_lookup, kind_of, unopened_kind
from datasets.kinds.finding import named
from datasets.sources.base import ROW, SOURCES, TABLE, ReadOptions, Rows, read_source
from datasets.sources.birdnet import without_nocall
from datasets.sources.naming import time_columns
from datasets.steps.base import Asked
from datasets.steps.earlier import Earlier
from datasets.tables.cells import read_cells

log = logging.getLogger(__name__)

#: Largest number of files of one kind beside another that a message names.
NAMED = 3
#: Largest share of .txt files, which could be strain, that are notes beside the data.
MOST_NOTES = 0.05


class Sources(NamedTuple):
    """What the sources of a call are, for the steps that follow.

    Attributes
    ----------
    names : what the user named, one source each.
    of_rows : the source of each number in the column ``source``; the first may be the earlier run.
    learnable : False if one of them is only for prediction.
    rejected : number of files and rows that were left out until the sources were read.
    """

    names: tuple[str, ...]
    of_rows: tuple[str, ...]
    learnable: bool
    rejected: int


def read_sources(items: Items, asked: Asked) -> Items:
    """Read what ``--data`` names, behind the rows of the earlier run of ``--from``.

    A source is one of

    - a folder with one folder per class, or with ``train`` and ``valid`` (and ``calibration``, ``test``), each of which
      is such a folder;
    - a ``.csv``, ``.tsv`` or ``.parquet`` file with the columns path (relative to the file) and label, and optionally
      group, split, fold, deployment, time, sequence, for signals start and end (s), and for strain gps (s);
    - any other format of `datasets.sources`: labels of other programs, embeddings, ``demo:NAME``, or a public set, which
      is downloaded unless a folder or file has its name.

    The rows have columns more: ``source``, the number of their source, of which a larger one is later, and
    `datasets.items.checks.LABELLED`.

    Raises
    ------
    SecondhandError : a source cannot be read, a column is missing, or a time is not a number.
    """
    names = [file for name in map(without_secrets, asked.sources) for file in _matching(name)]
    source, earlier, options = " + ".join(names), items.get(Earlier), asked.options
    lookup = empty_lookup() if options.lookup is None else options.lookup
    options = replace(options, alone=len(names) == 1, lookup=lookup)
    for one in SOURCES.ours().values():
        one.check([*map(as_path, names)], options)
    names, read, unread = _read_each_labelled(names, options)
    rows = [*zip(names, (one.frame for one in read), strict=True)]
    if earlier is not None:
        rows.insert(0, ("the earlier run", earlier.rows))
    kind = _resolve_kind([frame for _, frame in rows], options, source)
    frame, cut = _joined(rows, kind, options)
    rejected = [*unread, *(one for some in read for one in some.rejected), *cut]
    items = replace(
        items.leaving_out(rejected),
        frame=_with_distinct_sequences(frame),
        kind=kind,
        source=source,
        multi_label=options.multi_label,
    )
    return items.knowing(
        Sources(
            tuple(names),
            tuple(name for name, _ in rows),
            all(one.learnable for one in read),
            len(items.rejected),
        ),
        Inputs(lookup),
        Origin("; ".join(one.note for one in read if one.note)),
        Stated(_stated(rows, multi_label=options.multi_label)),
    )


def _matching(name: str) -> list[str]:
    """What a name of ``--data`` stands for: the matches of a pattern, which an address is only with a ``*``."""
    return [name] if is_address(name) and "*" not in name else named(name)


def _read_each_labelled(
    sources: Sequence[str], options: ReadOptions
) -> tuple[list[str], list[Rows], list[Rejected]]:
    """The sources that can be read with their rows; and those left out because they are of a format of which there are
    others (`is_one_of_several`).

    Raises
    ------
    SecondhandError : a source cannot be read.
    """
    read, failed = dict[str, Rows](), dict[str, SecondhandError]()
    endings = tuple(end for one in SOURCES.ours().values() if one.several for end in one.endings)
    for name in sources:
        try:
            read[name] = _read_labelled(name, options)
        except SecondhandError as error:
            if not (name.lower().endswith(endings) and exists(name)):
                raise
            failed[name] = error
    unread = []
    for name, failure in failed.items():
        if not is_one_of_several(name, [*read], options):
            raise failure
        reason = failure.reason if isinstance(failure, BadFile) else str(failure)
        log.warning("--data %s is left out: %s", name, reason)
        unread.append(Rejected(name, reason))
    return [*read], [*read.values()], unread


def is_one_of_several(name: str, others: Sequence[str], options: ReadOptions) -> bool:
    """Whether a file, which may be broken, and one of the others are of a format of which several are given
    (`datasets.sources.base.Source`)."""
    return any(
        one.several
        and name.lower().endswith(one.endings)
        and any(one.claims(as_path(other), options) for other in others if other != name)
        for one in SOURCES.ours().values()
    )


def _with_distinct_sequences(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of several sources, in which one name of an event is one event."""
    named = frame.loc[frame["sequence"].ne("")]
    numbers = sorted(named["source"].unique())
    if len(numbers) < 2:
        return frame
    each = [named.loc[named["source"].eq(number)] for number in numbers]
    distinct = distinct_sequences([
        dict(zip(rows["path"], rows["sequence"], strict=True)) for rows in each
    ])  # fmt: skip
    frame = frame.copy()
    for rows, names in zip(each, distinct, strict=True):
        frame.loc[rows.index, "sequence"] = rows["path"].map(names)
    return frame


def _read_labelled(name: str, options: ReadOptions) -> Rows:
    """Rows of a source with clean labels: those of a person where a model's are among them."""
    rows = read_source(name, options)
    frame, learned, multi_label = rows.frame, options.learned, options.multi_label
    if multi_label:
        frame = frame.assign(label=_canonical(frame, name, options))
        _check_not_predicted(frame, name, learned=learned)
    frame, nothing = without_nocall(frame, learned=learned, multi_label=multi_label)
    frame, predicted = corrected_by_hand(frame, name) if learned else (frame, [])
    return rows._replace(frame=frame, rejected=[*rows.rejected, *nothing, *predicted])


def _canonical(frame: pd.DataFrame, source: str, options: ReadOptions) -> pd.Series:
    """The labels of items that may have several, in the form of the item table.

    Raises
    ------
    SecondhandError : a label contradicts itself; names its file.
    """
    # A column of this name is a class.
    nothing, canonical = not any(map(is_nothing, options.class_columns)), dict[str, str]()
    for path, label in frame[["path", "label"]].drop_duplicates("label").itertuples(index=False):
        try:
            canonical[label] = canonical_label(label, nothing=nothing)
        except SecondhandError as error:
            raise SecondhandError(f"{source}: {path}: {error}") from None
    if empty := sum(nothing and is_nothing(label) for label in frame["label"]):
        log.info(
            "%s: %s with the label %s: they have no label", source, counted(empty, "item"), NOTHING
        )
    return frame["label"].map(canonical)


def _joined(
    rows: Sequence[tuple[str, pd.DataFrame]], kind: str, options: ReadOptions
) -> tuple[pd.DataFrame, list[Rejected]]:
    """One table of the rows of all sources, each with the number of its source; and rejected rows."""
    frames, rejected = [], []
    for number, (name, frame) in enumerate(rows):
        frame, bad = with_parts(frame, kind, name)
        _check_repeated_rows(frame, name, multi_label=options.multi_label)
        when = frame[LABELLED].to_numpy() if LABELLED in frame else ""
        frames.append(with_columns(frame).assign(source=number, **{LABELLED: when}))
        rejected += bad
    return pd.concat(frames, ignore_index=True), rejected


def _stated(rows: Sequence[tuple[str, pd.DataFrame]], *, multi_label: bool) -> dict[str, str]:
    """Where each label of the sources is stated first: the file that has it, and its row in a table."""
    stated: dict[str, str] = {}
    for name, frame in rows:
        for row in frame.drop_duplicates("label").to_dict("records"):
            label, table = clean_label(str(row["label"])), row.get(TABLE)
            where = f"row {row[ROW]} of {as_path(name).name}" if ROW in row else ""
            if table is not None:
                of_several = multi_label and JOIN in label  # each on a line of its own
                line = "" if of_several else f"line {row[ROW]} of "
                where = f"{line}{as_path(table).name}"
            for one in parse_names(label) if multi_label else [label]:
                stated.setdefault(one, f"{row['path']} ({where})" if where else str(row["path"]))
    return stated


def _resolve_kind(rows: Sequence[pd.DataFrame], options: ReadOptions, source: str) -> str:
    """Kind of the items: that of the options, else the most common one.

    Raises
    ------
    SecondhandError : there is no such kind, or no item of it.
    """
    kind = options.kind
    if options.lookup and (unopened := unopened_kind()):
        if kind not in ("auto", unopened.name):
            raise SecondhandError(
                f"--data {source} holds items of kind {unopened}, not files of kind {kind}. Name files of that kind"
            )
        return unopened.name
    if kind == "auto":
        return _most_common_kind((path for frame in rows for path in frame["path"]), source)
    if kind not in KINDS:
        raise SecondhandError(
            f"invalid settings: --kind {kind!r} (must be auto, {', '.join(KINDS)})"
        )
    if not KINDS[kind].opened:
        raise SecondhandError(f"--data {source}: nothing of kind {kind} in it")
    return kind


def _most_common_kind(paths: Iterable[str], source: str) -> str:
    paths = [*paths]
    kinds = [kind_of(path) for path in paths]
    counts = Counter(filter(None, kinds))
    if not counts:
        endings = " ".join(suffix for kind in KINDS.values() for suffix in kind.suffixes)
        bare = as_path(next((path for path in paths if not as_path(path).suffix), ""))
        named = [*bare.parent.glob(f"{glob.escape(bare.name)}.*")] if bare.name else []
        remedy = f". {quoted(str(bare))} has no ending. Add it to the names" if bare.name else ""
        remedy += f", as in {named[0].name}" if named else ""
        raise SecondhandError(f"--data {source}: no file in a supported format ({endings}){remedy}")
    kind = counts.most_common(1)[0][0]
    others = [path for path, name in zip(paths, kinds, strict=True) if name not in (kind, None)]
    # The list of files left out names notes.
    notes = all(path.lower().endswith(".txt") for path in others)
    if others and not (notes and len(others) <= MOST_NOTES * len(paths)):
        numbers = []
        for name, n in counts.most_common():
            few = [path for path, k in zip(paths, kinds, strict=True) if k == name and n <= NAMED]
            files = ", ".join(os.path.join(*Path(path).parts[-2:]) for path in few)
            numbers.append(f"{n} {name}{': ' if few else ''}{files}")
        log.warning(
            "%s contains files of several kinds (%s): only the %s files are used. Choose another kind with --kind",
            source, "; ".join(numbers), kind,
        )  # fmt: skip
    return kind


def _check_not_predicted(frame: pd.DataFrame, source: str, *, learned: bool) -> None:
    """Raise SecondhandError for a table of predictions that is to be learnt: it does not show which of several
    labels was changed by hand."""
    if learned and {*PREDICTION_COLUMNS} <= {*frame.columns}:
        raise SecondhandError(
            f"--data {source}: these are predictions of a model. Check each label, and then delete the columns "
            f"{' and '.join(PREDICTION_COLUMNS)} to use all of them as labels"
        )


def _check_repeated_rows(frame: pd.DataFrame, source: str, *, multi_label: bool) -> None:
    """Raise SecondhandError if two rows of one item have different labels; the index is the row minus 2.

    Two calls may sound in one span, so its labels are no contradiction, but `drop_copies` leaves it out.
    """
    keys = [name for name in ("path", *PART_COLUMNS) if name in frame]
    labels = frame["label"].map(clean_label)
    if not multi_label and {"start", "end"} <= {*keys}:
        frame = frame.loc[frame["start"].isna() & frame["end"].isna()]
    for _, rows in frame.loc[frame.duplicated(keys, keep=False)].groupby(keys, dropna=False):
        distinct = labels[rows.index].drop_duplicates()
        if len(distinct) < 2:
            continue
        (one, other), (label, other_label) = distinct.index[:2], distinct[:2]
        part = part_text(dict.fromkeys(PART_COLUMNS, np.nan) | rows.iloc[0].to_dict())
        remedy = f"Write its labels into one row, joined by {JOIN}" if multi_label else "Keep one"
        times: list[str] = []
        with suppress(SecondhandError):
            times = [] if part else time_columns(read_cells(as_path(source)).columns)
        if times:
            remedy += (
                f", or, if each row is a part of the file, rename {' and '.join(map(quoted, times))} to start and "
                "end (seconds; the end is start plus duration)"
            )
        raise SecondhandError(
            f"{source}: {rows['path'].iloc[0]}{', ' if part else ''}{part} has two labels: {label!r} in row {one + 2} "
            f"and {other_label!r} in row {other + 2}. {remedy}"
        )
