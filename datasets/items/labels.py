"""Cleans and validates labels, and joins the labels of multi-label items.

The item table stores several labels as one text, ``Bird|Rain``: sorted names with ``|`` between them. A
name after ``?`` is unknown for this item (it may be there or not). An empty text means that no label
applies. People write `NOTHING` for an item that shows none of the classes, because an empty cell of a table that is
filled in is not labelled yet.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from datasets.core.address import as_path
from datasets.core.errors import Rejected, SecondhandError, counted, quoted

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

MAX_LABEL = 200
#: Number of files that a class needs: one for training, one for validation.
FEWEST = 2
#: Value of ``--labels`` for joined labels.
MULTI = "multi"
#: Separator of several labels; prefix of a label that is unknown for an item.
JOIN, NOT_KNOWN = "|", "?"
UNKNOWN = "unknown"  # reserved in any case for unknown classes
#: Label of an item that shows none of the classes, in any case of its letters. It has this meaning where items may have
#: several labels, or where there is a background class; elsewhere it is a class like any other.
NOTHING = "none"
#: What separates several labels in a table that people fill in.
WRITTEN_JOINS = re.compile(r"[;|]")


def clean_label(label: str) -> str:
    """Normalise the label in a folder name or cell: Unicode NFC, without surrounding spaces.

    "nan", "None" and "NA" are ordinary labels; only an empty cell is no label. NFC makes the two ways to
    write "é" equal.

    Examples
    --------
    >>> clean_label(" Blue tit "), clean_label("nan"), clean_label("Unknown")
    ('Blue tit', 'nan', 'unknown')
    """
    label = unicodedata.normalize("NFC", label).strip()
    return UNKNOWN if label.casefold() == UNKNOWN else label


def label_error(label: str, *, multi_label: bool = False) -> str:
    """Why a cleaned label cannot be the name of a class, as a predicate ("is empty"); "" if it can.

    ``multi_label`` : an item may have several labels, joined by `JOIN`.
    """
    if not label:
        return "is empty"
    if len(label) > MAX_LABEL:
        return f"has {len(label):,} characters (at most {MAX_LABEL})"
    if not label.isprintable():
        return "contains a line break or another unprintable character"
    if JOIN in label and not multi_label:
        return f"contains {JOIN}, which separates the labels of a multi-label item"
    return ""


def split_labels(label: str) -> list[str]:
    """Names in a label, unknown ones with their ``?``; [""] if there is none."""
    return [name for name in label.split(JOIN) if name] or [""]


def parse_names(label: str) -> list[str]:
    """Names in a label that apply to the item."""
    return [name for name in split_labels(label) if name and not name.startswith(NOT_KNOWN)]


def spelling_key(label: str) -> str:
    """A key that is equal for labels that differ in case or spaces only."""
    return unicodedata.normalize("NFC", "".join(label.split()).casefold())


def encode_targets(label: str, classes: Sequence[str]) -> list[float]:
    """Target of each class: 1 if the label applies, 0 if not, NaN if that is unknown."""
    names = {*split_labels(label)}
    return [
        1.0 if name in names else float("nan") if NOT_KNOWN + name in names else 0.0
        for name in classes
    ]


def join_labels(names: Iterable[str], not_known: Iterable[str] = ()) -> str:
    """Join the names of an item's labels into one text."""
    return JOIN.join([*sorted({*names}), *sorted(NOT_KNOWN + name for name in {*not_known})])


def joined_by(labels: Iterable[str], *, several: bool = False) -> tuple[str, str]:
    """What separates the names in labels that are combinations of a few names, and the first such label; "" if they
    are not.

    They are if there are fewer names than labels, which have one name or more, and nearly all names in a combination
    are in another label, too. Where an item may have ``several``, a comma or semicolon between names is enough, of which
    one is in another label.

    Examples
    --------
    >>> joined_by(["fox", "grass", "fox grass"]), joined_by(["red fox", "arctic fox", "deer"])
    ((' ', 'fox grass'), ('', ''))
    """
    distinct = {*labels} - {""}
    for separator in ",; ":
        names = {label: {*map(str.strip, label.split(separator))} - {""} for label in distinct}
        joined = sorted(label for label in distinct if len(names[label]) > 1)
        uses = Counter(name for some in names.values() for name in some)
        shared = sum(all(uses[name] > 1 for name in names[label]) for label in joined)
        varied = len({*map(len, names.values())}) > 1
        if several and separator != " " and joined and max(uses.values()) > 1:
            return separator, joined[0]
        if joined and varied and len(uses) < len(distinct) and shared >= 0.9 * len(joined):
            return separator, joined[0]
    return "", ""


def is_nothing(label: str) -> bool:
    """Whether a label is `NOTHING`.

    Examples
    --------
    >>> is_nothing(" None "), is_nothing("none of these")
    (True, False)
    """
    return label.strip().casefold() == NOTHING


def written_names(label: str) -> list[str]:
    """The cleaned names in a cell that a person filled in, each once, in their order.

    Examples
    --------
    >>> written_names(" fox; red deer;fox ")
    ['fox', 'red deer']
    """
    names = map(clean_label, WRITTEN_JOINS.split(label))
    return [*dict.fromkeys(name for name in names if name)]


def canonical_label(label: str, *, nothing: bool = True) -> str:
    """Bring a label as a person wrote it into the form of the item table, where several may be joined.

    ``nothing`` : `NOTHING` is no class, but an item without a label.

    Raises
    ------
    SecondhandError : `UNKNOWN` or `NOTHING` is combined with another label.
    """
    texts = [text.strip() for text in label.split(JOIN)]
    present = {clean_label(text) for text in texts if text and not text.startswith(NOT_KNOWN)}
    alone = {name for name in present if name == UNKNOWN or (nothing and is_nothing(name))}
    if alone and len(present) > 1:
        name = min(alone)
        meaning = "nothing of the classes is there" if is_nothing(name) else "none of the classes"
        raise SecondhandError(
            f"label {quoted(label)}: {name} means {meaning}, so it cannot be combined with other labels: remove it or "
            "the others"
        )
    open_ = {clean_label(text[1:]) for text in texts if text.startswith(NOT_KNOWN)}
    if nothing:
        present, open_ = (
            {name for name in names if not is_nothing(name)} for names in (present, open_)
        )
    return join_labels(present, open_ - present - {""})


def label_counts(labels: Iterable[str]) -> str:
    """Text with the number of items of each label, and of items without a label."""
    counts = Counter(name for label in labels for name in parse_names(label) or ["none of them"])
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def check_classes(
    frame: pd.DataFrame,
    source: str,
    stated: Mapping[str, str],
    *,
    learned: bool = True,
    multi_label: bool = False,
) -> None:
    """Raise SecondhandError for invalid labels and for labels that differ in case or spaces only.

    With ``learned``, joined labels are invalid unless ``multi_label``; then each name is checked. ``stated`` : as in
    `datasets.items.items.Items`.
    """
    counts = Counter(name for names in _names(frame, multi_label) for name in names)
    same = {UNKNOWN: [UNKNOWN]}
    for label in counts:
        same.setdefault(spelling_key(label), []).append(label)
        if fault := label_error(label, multi_label=multi_label or not learned):
            also = ", or use --labels multi" if not label_error(label, multi_label=True) else ""
            where = f". It is that of {stated[label]}" if label in stated else ""
            raise SecondhandError(
                f"{source}: the label {quoted(label)} {fault}: rename it{also}{where}"
            )
    similar = next((labels for labels in same.values() if len(labels) > 1), None)
    if similar:
        sizes = {n: counted(counts[n], "file") for n in similar}
        sizes[UNKNOWN] = "reserved"
        names = " and ".join(f"{quoted(label)} ({sizes[label]})" for label in sorted(similar))
        where = " and ".join(
            f"{quoted(n)} is that of {stated[n]}" for n in sorted(similar) if n in stated
        )
        raise SecondhandError(
            f"{source}: the labels {names} differ only in case or spaces: merge or rename them. {where}"
        )


def drop_small_classes(
    frame: pd.DataFrame, source: str, rejected: Sequence[Rejected], *, multi_label: bool = False
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Drop classes with fewer than `FEWEST` files, with a warning; the index is kept.

    With ``multi_label`` an item keeps its other labels. ``rejected`` : the files rejected so far, for the
    error message.

    Raises
    ------
    SecondhandError : fewer than two classes remain.
    """
    of_rows = _names(frame, multi_label)
    counts = Counter(name for names in of_rows for name in names)
    small = sorted(label for label, count in counts.items() if count < FEWEST)
    if len(counts) - len(small) < 2:
        if len(counts) > 1:
            sizes = [f"{quoted(label)} has {counts[label]}" for label in small[:3]]
            sizes += ["…"] if len(small) > 3 else []
            problem = (
                f"at least two classes need {FEWEST} usable files each, one for training and one for validation, but "
                f"{', '.join(sizes)}"
            )
        else:
            found = "".join(f"only the class {label!r}" for label in counts) or "no usable file"
            problem = f"{found}, but at least two classes are needed"
        left_out = (
            f". {counted(len(rejected), 'item')} left out, the first: {rejected[0]}"
            if rejected
            else ""
        )
        remedy = "Name further sources with --data, or continue from a model and its training files with --from"
        if as_path(source).is_dir():
            remedy = f"If the folder is one level too high or too low, name the one that holds the class folders. {remedy}"
        inside = next((as_path(source) / label for label in counts), as_path(source))
        if len(counts) == 1 and inside.is_dir():
            folders = sorted(quoted(entry.name) for entry in inside.iterdir() if entry.is_dir())
            if len(folders) > 1:
                remedy = f"If the classes are {', '.join(folders[:3])}{' …' if folders[3:] else ''}: --data {inside}"
        raise SecondhandError(f"{source}: {problem}. {remedy}{left_out}")
    if not small:
        return frame, []
    examples = ", ".join(f"{quoted(label)} ({_too_few(counts[label])})" for label in small[:5])
    examples += f" and {len(small) - 5} more" if len(small) > 5 else ""
    log.warning(
        "%s: classes with too few files, left out: %s. Add files to them and train again", source, examples,
    )  # fmt: skip
    if multi_label:
        labels = [
            JOIN.join(
                name for name in split_labels(label) if name.removeprefix(NOT_KNOWN) not in small
            )
            for label in frame["label"]
        ]
        return frame.assign(label=labels), []
    bad = frame["label"].isin(small)
    return frame.loc[~bad], [
        Rejected(path, f"its class {quoted(label)} has {_too_few(counts[label])}")
        for path, label in frame.loc[bad, ["path", "label"]].itertuples(index=False)
    ]


def _names(frame: pd.DataFrame, multi_label: bool) -> list[list[str]]:
    return [parse_names(label) if multi_label else [label] for label in frame["label"]]


def _too_few(count: int) -> str:
    return f"{counted(count, 'usable file')}; a class needs {FEWEST}, one for training and one for validation"
