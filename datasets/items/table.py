"""Reads a folder, CSV, Parquet, ``demo:NAME``, embeddings or public set into one item table; lists rejected files.

The columns are ``path, label, group, split, fold, deployment, time, sequence, complete`` (str, "" if unknown; time in
ISO 8601; complete is "1" if all calls of the recording are labelled), ``start, end, gps`` (float seconds, NaN if not
given), ``low_hz, high_hz`` (only where labels have frequency limits) and ``x, y, width, height`` of a box (fractions of
the picture, NaN for all of it). Rows with the reserved label ``unknown`` are of unknown classes: no network is
trained on them; they measure what a model refuses. Labels are normalised (`clean_label`), paths absolute.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from datasets.audio.band import BAND_COLUMNS
from datasets.core.cells import (
    ENDINGS,
    MISSING,
    SHORTEST_SPAN,
    file_named,
    read_cells,
    span_error,
    with_points,
)
from datasets.core.errors import BadFile, Rejected, SecondhandError, counted, first_left_out, quoted
from datasets.core.part import PART_COLUMNS, Box
from datasets.core.recorded import SEQUENCES
from datasets.core.scanning import (
    LINK_LOOP,
    SUFFIXES,
    SYSTEM,
    absolute_path,
    files_below,
    is_link_loop,
    is_user_file,
    kind_of,
    walk,
)
from datasets.embeddings.reading import has_embeddings, read_embeddings
from datasets.embeddings.vectors import Vectors
from datasets.images.boxes import box_in_picture
from datasets.items.checks import (
    CLUSTER_COLUMNS,
    CORRECTION_COLUMNS,
    LABELLED,
    NOT_CORRECTED,
    PAGE_COLUMNS,
    PART_COLUMNS_OF,
    PREDICTION_COLUMNS,
    PictureInfo,
    apply_corrections,
    corrected_by_hand,
    drop_copies,
    name_clusters,
    span_text,
    usable_rows,
)
from datasets.items.clock import Clock
from datasets.items.facts import NearDuplicates, Sessions
from datasets.items.labels import (
    JOIN,
    MULTI,
    NOT_KNOWN,
    UNKNOWN,
    canonical_label,
    check_classes,
    clean_label,
    drop_small_classes,
    join_labels,
    names_of,
    without_nocall,
)

log = logging.getLogger(__name__)

TEXT_COLUMNS = (
    "path", "label", "group", "split", "fold", "deployment", "time", "sequence", "complete",
)  # fmt: skip
#: Largest number of files of one kind beside another that a message names.
NAMED = 3
#: Largest share of .txt files, which could be strain, that are notes beside the data.
MOST_NOTES = 0.05
_SPLIT_NAMES = {
    "train": "train", "training": "train",
    "valid": "valid", "val": "valid", "validation": "valid",
    "calibration": "calibration",
    "test": "test", "testing": "test",
}  # fmt: skip
#: Values of a cell in a table with one column per class.
_CELLS = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0}


class _Labels(NamedTuple):
    """Where the labels of a table are.

    ``label`` : label of all rows, instead of the file's.
    ``column`` : name of the column of labels; default "label".
    ``required`` : the file must have the ``column``; otherwise "label" replaces a missing one.
    ``classes`` : not None for multi-label tables; the names of the class columns, if there are any.
    """

    label: str = ""
    column: str | None = None
    classes: Sequence[str] | None = None
    required: bool = False


_OF_FILE = _Labels()


@dataclass
class ItemTable:
    """The items of a run.

    Attributes
    ----------
    frame : items of the classes, one row each.
    unknown_items : items labelled ``unknown``, which are not trained on.
    background : files of the background (negative) class, labelled ``unknown``, with their splits.
    rejected : files that were left out, and why.
    kind : "picture", "sound", "strain" or "embedding".
    source : what the user named; several sources are joined by " + ".
    multi_label : an item may have several labels, or none (see `datasets.items.labels`).
    picture_info : what the check of each picture has read, by path.
    vectors : the embeddings of all items, which no file is opened for; empty for other kinds.
    corrections : labels that a later source or row has replaced (`CORRECTION_COLUMNS`).
    note : origin of the data, such as "SIMULATED sounds"; "" for the user's own.
    near_duplicates, sessions : near-duplicates, and capture sessions of photos; None if they were not searched for.
    groups : number of groups that the data or ``--group-by`` name.
    unsplit : ``frame`` before it was split.
    spans : path, label, start and end (s) of all labelled items, also of those that are left out.
    clock : finds time and place of the files.
    learnt_until : with ``--split-by time``, when the last file that is not for testing was recorded; else "".
    protocol : the evaluation protocol, as clauses joined by "; "; "" before `render_items`.
    """

    frame: pd.DataFrame
    unknown_items: pd.DataFrame
    kind: str
    source: str
    rejected: list[Rejected] = field(default_factory=list)
    note: str = ""
    near_duplicates: NearDuplicates | None = None
    sessions: Sessions | None = None
    groups: int = 0
    clock: Clock = field(default_factory=Clock)
    learnt_until: str = ""
    protocol: str = ""
    corrections: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=[*CORRECTION_COLUMNS])
    )
    background: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame({"path": [], "split": []})
    )
    multi_label: bool = False
    picture_info: dict[str, PictureInfo] = field(default_factory=dict)
    vectors: Vectors = field(default_factory=Vectors)
    unsplit: pd.DataFrame = field(default_factory=pd.DataFrame)
    spans: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["path", "label", "start", "end"])
    )

    def __post_init__(self) -> None:
        self.clock.checked = self.picture_info

    @property
    def classes(self) -> list[str]:
        """The classes, sorted: the order of a network's outputs."""
        labels = self.frame["label"].unique()
        return sorted(
            {name for label in labels for name in names_of(label)} if self.multi_label else labels
        )


def load_table(
    data: str | os.PathLike[str] | Sequence[str],
    *,
    kind: str = "auto",
    check: bool = True,
    learned: bool = True,
    label_column: str | None = None,
    strain: str | None = None,
    channel: str = "",
    context: float = 32.0,
    labels: str | Sequence[str] | None = None,
    before: pd.DataFrame | None = None,
    warm_start: bool = False,
    vectors: Vectors | None = None,
    min_box_confidence: float | None = None,
) -> ItemTable:
    """Read the item table that ``--data`` names.

    Parameters
    ----------
    data : one source or several. If two sources label the same content, the later one counts
        (`datasets.items.checks.apply_corrections`). A source is one of

        - a folder with one folder per class, or with ``train`` and ``valid`` (and ``calibration``,
          ``test``), each of which is such a folder;
        - a ``.csv``, ``.tsv`` or ``.parquet`` file with the columns path (relative to the file) and label,
          and optionally group, split, fold, deployment, time, sequence, for signals start and end (s), and for strain gps (s);
        - annotations that `datasets.annotations` reads;
        - embeddings that `datasets.embeddings` reads, or a folder with one folder of such files per class. Their
          labels may also come from a table among the other sources;
        - ``demo:NAME``, or a public set of `datasets.catalog`, which is downloaded unless a folder or file
          has its name.
    kind : a kind of `ItemTable`, or "auto" for the most common kind of the files.
    check : open each file, as in `usable_rows`. Otherwise bad files stay in the table.
    learned : the items are for training. Otherwise they are for evaluation: labels are used as they are, one class,
        or one file of a class, is enough, and a span may have a row for each of several classes.
    label_column : name of the column of labels in tables; None for the usual names. Of several sources, and in a
        ``warm_start``, tables without it use the column label.
    strain : for a table of triggers, the folder, pattern or LAL cache of the strain files; for
        demo:glitches, the file, folder or pattern of strain to inject the events into.
    channel, context : for triggers, as in `datasets.annotations.triggers.items_of_triggers`.
    labels : for multi-label items, "multi" if the column of labels holds names joined by ``|``, or the names
        of the 0/1 columns, one per class. None: one label per item.
    before : rows of an earlier run from `read_rows`; they precede the other sources.
    warm_start : the label column may be inherited from the model that the run continues from.
    vectors : takes the embeddings; others than its own network's are an error.
    min_box_confidence : least confidence of a box, as in `datasets.annotations.megadetector.read_detections`.

    Returns
    -------
    The table, without splits except for those that the data name.

    Raises
    ------
    SecondhandError : there is no usable file, a column is missing, fewer than two classes have enough
        files, labels differ only in case or spaces, or a time is not a number.
    """
    from datasets.annotations.triggers import has_triggers

    sources = [os.fspath(data)] if isinstance(data, str | os.PathLike) else [*data]
    source = " + ".join(sources)
    if strain and not any(one == "demo:glitches" or has_triggers(Path(one)) for one in sources):
        raise SecondhandError(
            f"--strain {strain}: --data {source} is neither a table of triggers nor demo:glitches. Name one of "
            "them, or leave --strain out"
        )
    multi_label = labels is not None
    classes = labels.split(",") if isinstance(labels, str) else labels
    of_table = _Labels(
        column=label_column,
        classes=() if labels == MULTI else classes,
        required=len(sources) == 1 and not warm_start,
    )
    if multi_label and strain:
        raise SecondhandError(
            f"--labels cannot be combined with --strain {strain}, because a trigger has one label. Leave one of "
            "them out"
        )
    rows = [] if before is None else [before]
    names = [*(["the earlier run"] * len(rows)), *sources]
    rejected, notes = [], []
    vectors = Vectors() if vectors is None else vectors
    for one in sources:
        if multi_label:
            _check_source(one)
        frame, bad, note = _read_source(
            one,
            of_table,
            strain=strain,
            of_triggers={"channel": channel, "context": context},
            learned=learned,
            vectors=vectors,
            alone=len(sources) == 1,
            min_box_confidence=min_box_confidence,
        )
        if multi_label:
            frame = frame.assign(label=frame["label"].map(canonical_label))
            _check_not_predicted(frame, one, learned=learned)
        frame, nothing = without_nocall(frame, learned=learned, multi_label=multi_label)
        bad += nothing
        if learned:
            frame, predicted = corrected_by_hand(frame, one)
            bad += predicted
        rows.append(frame)
        rejected += bad
        notes.append(note)
    if vectors or kind == "embedding":
        _check_embeddings(vectors, kind, source)
        kind = "embedding"
    elif kind == "auto":
        kind = _most_common_kind((path for frame in rows for path in frame["path"]), source)
    elif kind not in SUFFIXES:
        raise SecondhandError(
            f"invalid settings: --kind {kind!r} (must be auto, {', '.join(SUFFIXES)})"
        )
    for number, one in enumerate(names):
        timed, bad = with_parts(rows[number], kind, one)
        if learned or multi_label:
            _check_repeated_rows(timed, one, multi_label=multi_label)
        when = timed[LABELLED].to_numpy() if LABELLED in timed else ""
        rows[number] = with_columns(timed).assign(source=number, **{LABELLED: when})
        rejected += bad
    frame = pd.concat(rows, ignore_index=True)
    picture_info: dict[str, PictureInfo] = {}
    frame, bad = usable_rows(frame, kind, picture_info, check=check, vectors=vectors)
    rejected += bad
    empty = [one for n, one in enumerate(names) if n not in set(frame["source"]) and one in sources]
    if learned and len(names) > 1 and empty and not vectors:
        raise SecondhandError(
            f"--data {empty[0]}: no usable {kind} file in it{first_left_out(bad)}"
        )
    corrections = frame.iloc[:0]
    if learned:
        frame, corrections, copies = apply_corrections(frame, vectors)
        rejected += copies
    spans = frame[["path", "label", "start", "end"]]
    frame, copies = drop_copies(frame, vectors=vectors, several_labels=not learned)
    rejected += copies
    frame = frame.drop(columns=["source", LABELLED], errors="ignore")
    ood = frame["label"].eq(UNKNOWN)
    known_items = frame.loc[~ood]
    if not source.startswith("gwosc:"):  # an event is for prediction, not for training
        check_classes(known_items, source, learned=learned, multi_label=multi_label)
        if learned:
            known_items, few = drop_small_classes(
                known_items, source, rejected, multi_label=multi_label
            )
            rejected += few
    return ItemTable(
        frame=known_items.reset_index(drop=True),
        unknown_items=frame.loc[ood].reset_index(drop=True),
        kind=kind,
        source=source,
        multi_label=multi_label,
        rejected=rejected,
        note="; ".join(filter(None, notes)),
        corrections=corrections,
        background=frame.iloc[:0],
        picture_info=picture_info,
        vectors=vectors,
        spans=spans,
    )


def load_unknown(
    source: str | os.PathLike[str],
    kind: str,
    known_items: pd.DataFrame,
    *,
    flag: str = "--unknown",
    check: bool = True,
    picture_info: dict[str, PictureInfo] | None = None,
    vectors: Vectors | None = None,
    min_box_confidence: float | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Item table of the files that ``flag`` names, with the label ``unknown``.

    Files of ``--unknown`` are of unknown classes and only measure refusals; files of ``--background`` are
    trained on as the background (negative) class.

    Parameters
    ----------
    source : a folder (the names of its subfolders are ignored), a table with the column ``path``, or
        ``demo:NAME``.
    kind : kind of the known items.
    known_items : the items of the run with their splits; copies of them are dropped.
    flag : flag to name in errors.
    check, picture_info : as in `usable_rows`.
    vectors : embeddings of the known items, to which those of these items are added.
    min_box_confidence : as in `load_table`.

    Returns
    -------
    The table, and the files left out.

    Raises
    ------
    SecondhandError : there is no such folder or file, or no usable file in it.
    """
    frame, rejected = load_unlabelled(
        source,
        kind,
        flag,
        check=check,
        picture_info=picture_info,
        vectors=vectors,
        min_box_confidence=min_box_confidence,
    )
    frame, copies = drop_copies(frame, known_items, vectors)
    rejected += copies
    if frame.empty:
        summary = f" ({len(rejected)} left out, the first: {rejected[0]})" if rejected else ""
        raise SecondhandError(
            f"{flag} {os.fspath(source)}: no usable {kind} file in it{summary}. Add {kind} files that belong to "
            f"none of the classes, or leave {flag} out"
        )
    return frame, rejected


def load_unlabelled(
    source: str | os.PathLike[str],
    kind: str,
    flag: str,
    *,
    check: bool = True,
    picture_info: dict[str, PictureInfo] | None = None,
    vectors: Vectors | None = None,
    min_box_confidence: float | None = None,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Item table of the files that ``flag`` names, with the label ``unknown``, and the rejected files.

    As `load_unknown`, but copies stay and the table may be empty.
    """
    name = os.fspath(source)
    if not name.startswith("demo:") and not os.path.exists(name):
        raise SecondhandError(f"{flag} {name}: there is no such folder or file")
    frame, rejected, _ = _read_source(
        name, _Labels(UNKNOWN), kind=kind, vectors=vectors, min_box_confidence=min_box_confidence
    )
    frame, short = with_parts(frame, kind, name)
    frame = with_columns(frame.assign(label=UNKNOWN, split=""))
    picture_info = {} if picture_info is None else picture_info
    frame, bad = usable_rows(frame, kind, picture_info, check=check, vectors=vectors)
    return frame, [*rejected, *short, *bad]


def items_of_run(file: Path) -> pd.DataFrame:
    """Rows of a run's ``items.csv``, including missing files."""
    return with_columns(read_rows(file)[0])


def summary(rejected: Sequence[Rejected]) -> list[str]:
    """Lines with the number of rejected files or parts of them, and the first ten with their reasons.

    Rows that `corrected_by_hand` leaves out do not count.
    """
    rejected = [item for item in rejected if item.reason != NOT_CORRECTED]
    lines = [f"{counted(len(rejected), 'item')} left out:"] if rejected else []
    lines += [f"  {item}" for item in rejected[:10]]
    if len(rejected) > 10:
        lines.append(f"  … and {len(rejected) - 10} more, all in rejected.csv")
    return lines


def _read_source(
    source: str,
    labels: _Labels,
    *,
    strain: str | None = None,
    of_triggers: Mapping[str, Any] | None = None,
    kind: str = "",
    learned: bool = False,
    vectors: Vectors | None = None,
    alone: bool = True,
    min_box_confidence: float | None = None,
) -> tuple[pd.DataFrame, list[Rejected], str]:
    """Rows of a demo, folder, file or public set, rejected files and a note; folders precede public sets.

    ``of_triggers`` : options of `datasets.annotations.triggers.items_of_triggers`.
    ``labels`` : if they name a label of all rows, a folder gives all its files of the ``kind``.
    ``learned`` : the rows are for training; warns if a folder seems to be the wrong source.
    ``vectors`` : takes the embeddings of a source that holds some; None if there can be none.
    ``alone`` : there is no other source. Embeddings without a label are an error only then.
    """
    from datasets import catalog
    from datasets.annotations.megadetector import is_detections, items_of_detections
    from datasets.annotations.tracks import is_annotated, read_annotations
    from datasets.annotations.triggers import has_triggers, items_of_triggers

    public, path = catalog.is_name(source), Path(source)
    if source.startswith("demo:"):
        from datasets.sources.demos import write_demo

        noise = strain if source == "demo:glitches" else None
        frame, note = write_demo(source.removeprefix("demo:"), noise=noise)
        return frame, [], note
    if strain and has_triggers(path):
        frame, rejected = items_of_triggers(path, strain, labels.column, **(of_triggers or {}))
        return _normalise_splits(frame, path), rejected, ""
    if path.exists():
        kind_of_path = "folder" if path.is_dir() else "file"
        note = f"the local {kind_of_path} {source}, not the public set of this name"
        note = note if public else ""
        if vectors is not None and has_embeddings(path):
            return *_read_embedded(path, labels, vectors, alone=alone), note
        if vectors is not None and path.is_dir() and _is_of_embeddings(path):
            return *_read_embedded_folder(path, labels.label, vectors), note
        if is_detections(path):
            return *items_of_detections(path, min_box_confidence, labels.label), note
        if is_annotated(path):
            return read_annotations(path, labels.column)
        if path.is_dir() and labels.label:
            files, rejected = files_below(path)  # other kinds of file, such as notes, are ignored
            matching = [file for file in files if kind_of(file) == kind]
            return pd.DataFrame({"path": pd.Series(matching, dtype=str)}), rejected, note
        if path.is_dir():
            return *_scan_folder(path, learned=learned), note
        return *read_rows(path, labels), note
    if public:
        frame, note = catalog.load(source)
        return frame, [], note
    raise SecondhandError(
        f"--data {source}: there is no such folder or file, and no such public set. The public sets are "
        f"{catalog.names()}"
    )


def _scan_folder(root: Path, *, learned: bool) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows of the class folders in a folder, or in its split folders, and the rejected files."""
    rows: list[dict[str, str]] = []
    rejected: list[Rejected] = []
    splits = {f: _SPLIT_NAMES.get(f.name.lower(), "") for f in _entries(root) if f.is_dir()}
    if "train" in splits.values() and {"valid", "test"} & {*splits.values()}:
        rejected += [
            Rejected(str(folder), "not read, because it is not one of the split folders")
            for folder, split in splits.items()
            if not split
        ]
        splits = {folder: split for folder, split in splits.items() if split}
    else:
        splits = {root: ""}
    from datasets.annotations.megadetector import has_detections

    class_files: dict[Path, list[str]] = {}
    for folder, split in splits.items():
        hidden = [one for one in sorted(folder.iterdir()) if one.is_dir() and not is_user_file(one)]
        rejected += [Rejected(str(one), SYSTEM) for one in hidden]
        for entry in _entries(folder):
            if is_link_loop(entry):
                rejected.append(Rejected(str(entry), LINK_LOOP))
            elif not entry.is_dir():
                if not _names_labels(entry):
                    reason = "not in a class folder"
                    if learned and entry.suffix.lower() in (".csv", ".tsv"):
                        try:
                            read_rows(entry)
                        except SecondhandError as error:
                            reason += f", and not read as a table of labels: {error}"
                    rejected.append(Rejected(str(entry), reason))
                    if learned and has_detections(entry):
                        log.warning(
                            "%s has the boxes of a detector, but the whole photos are used, because --data names their "
                            "folder. To train on what is in the boxes: --data %s", entry, entry,
                        )  # fmt: skip
                elif learned:
                    _warn_of_unused_table(entry)
            elif not entry.name.strip():
                rejected.append(Rejected(str(entry), "a folder with an empty name is no class"))
            else:
                files, bad = files_below(entry)
                if learned and not files and not bad:
                    log.warning(
                        "--data %s: class folder %s has no files", folder, quoted(entry.name)
                    )
                rows += [{"path": file, "label": entry.name, "split": split} for file in files]
                rejected += bad
                class_files[entry] = files
    if not rows:
        raise _no_class_folder(root)
    if learned:
        _warn_of_nested_classes(root, class_files)
    return pd.DataFrame(rows), rejected


#: Endings of tables that are not read, or only if a detector wrote them.
_OTHER_TABLES = (".csv.gz", ".tsv.gz", ".json", ".jsonl", ".xlsx", ".xls", ".ods", ".xml", ".ddb")


def _no_class_folder(root: Path) -> SecondhandError:
    """Error for a folder without class folders; it suggests a table in it before the folder above."""
    files = [entry for entry in _entries(root) if entry.is_file()]
    above = root.absolute().parent
    kinds = {kind_of(file) for file in files} - {None}
    # Files of text may be strain.
    endings = (*ENDINGS, *_OTHER_TABLES, *([".txt"] if kinds - {"strain"} else []))
    tables = [file for file in files if file.name.lower().endswith(endings)]
    tables = sorted(tables, key=lambda file: not _names_labels(file))
    one_class = any(
        file.parent != root.absolute() and is_user_file(file.parent) and kind_of(file) in kinds
        for file in above.glob("*/*")
    )
    if tables:
        try:
            _read_source(str(tables[0]), _OF_FILE)
            remedy = f"Name the table in it: --data {tables[0]}"
        except SecondhandError as error:
            remedy = f"Are the labels in {tables[0].name}? {error}"
            if one_class:
                remedy += f". If {root.name} is one class, name the folder above it: --data {above}"
    elif one_class:
        remedy = f"It looks like the folder of one class. Name the folder above it: --data {above}"
    else:
        remedy = "Put the files of each class into a folder of their own, or name a CSV file with the columns path,label"
        if "strain" in kinds:
            remedy += ", or name a table of triggers, and the strain with --strain"
    return SecondhandError(f"--data {root}: no class folder with files in it. {remedy}")


def _warn_of_nested_classes(root: Path, class_files: Mapping[Path, Sequence[str]]) -> None:
    """Warn if several folders in ``root``, or all of them, seem to hold class folders themselves.

    Files that are not of the most common kind do not count. ``class_files`` : the files of each class folder.
    """
    kinds = {file: kind_of(file) for files in class_files.values() for file in files}
    counts = Counter(filter(None, kinds.values()))
    common = max(counts, key=lambda kind: counts[kind], default="")
    nested: dict[Path, set[str]] = {}
    folders = 0  # that hold files of this kind
    for folder, files in class_files.items():
        below = [f[len(str(folder)) + 1 :] for f in files if kinds[f] == common]
        names = {path.rpartition(os.sep)[0].partition(os.sep)[0] for path in below}
        folders += bool(names)
        if "" not in names and len(names) > 1:
            nested[folder] = names
    if not nested or len(nested) < min(2, folders):
        return
    first = max(nested, key=lambda folder: len(nested[folder]))
    classes = sorted(nested[first])
    log.warning(
        "--data %s: the class folders %s contain no files themselves, only folders, so that all files below one "
        "of them are one class. If the classes are %s: --data %s",
        root,
        ", ".join(quoted(folder.name) for folder in list(nested)[:5]),
        ", ".join([*map(quoted, classes[:3]), *(["…"] if len(classes) > 3 else [])]),
        first,
    )


def _names_labels(file: Path) -> bool:
    """Whether a file is a table with the columns path and label."""
    if file.suffix.lower() not in ENDINGS:
        return False
    try:
        cells = read_cells(file)
        return all(_column(file, cells, name) for name in ("path", "label"))
    except SecondhandError:
        return False


def _warn_of_unused_table(file: Path) -> None:
    """Warn about an unused table of labels beside class folders, and of the groups, splits or folds in it."""
    cells = read_cells(file)
    columns = {name for name in TEXT_COLUMNS if _column(file, cells, name)}
    grouping_columns = sorted(columns & {"group", "split", "fold"})
    lost = ", and files are split at random and not by its " + " and ".join(grouping_columns)
    log.warning(
        "%s is not read, because --data names its folder; the folder names are the labels%s. To use it: --data %s%s",
        file, lost if grouping_columns else "", file, " --cv fold" if "fold" in grouping_columns else "",
    )  # fmt: skip


def _entries(folder: Path) -> list[Path]:
    return sorted(filter(is_user_file, folder.iterdir()))


def read_rows(
    path: Path,
    labels: _Labels = _OF_FILE,
    *,
    cells: pd.DataFrame | None = None,
    resolve: bool = True,
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows of a table file with absolute paths, and the rejected rows without a path or label.

    All cells are text, including times. The index is the row number in the file minus 2.

    ``cells`` : content of the file, if it has been read already.
    ``resolve`` : make paths absolute; otherwise they stay as written.
    """
    embedded, cells = cells, read_cells(path) if cells is None else cells
    label, label_column, classes, required = labels
    if classes:
        cells, label_column = _from_columns(path, cells, classes), None
    names = (
        *TEXT_COLUMNS,
        *PART_COLUMNS,
        *BAND_COLUMNS,
        *PREDICTION_COLUMNS,
        *CLUSTER_COLUMNS,
        "at",
        "branch",
    )
    column_of = {name: _column(path, cells, name) for name in names}
    sequences = (_column(path, cells, name) for name in SEQUENCES)
    column_of["sequence"] = next(filter(None, sequences), None)
    if label_column:
        named = _column(path, cells, label_column)
        if named is None and column_of["label"] and not required:
            named = column_of["label"]
            log.info("%s has no column %r: its column %s is used", path.name, label_column, named)
        column_of["label"] = named
    signals = column_of["path"] and cells[column_of["path"]].map(kind_of).eq("sound").any()
    if signals and not (column_of["start"] and column_of["end"]):
        column_of |= _span_columns(path, cells)
    if all(_column(path, cells, name) for name in PAGE_COLUMNS):
        column_of |= {LABELLED: column_of["time"], "time": None}
    frame = pd.DataFrame({name: cells[column] for name, column in column_of.items() if column})
    if label:
        frame["label"] = label
    missing = [name for name in ("path", "label") if name not in frame]
    missing = [(label_column or name) if name == "label" else name for name in missing]
    if missing:
        raise SecondhandError(
            f"{path}: no column {' and no column '.join(map(repr, missing))}. It has "
            f"{', '.join(map(quoted, cells.columns[:20])) or 'none'}, but needs path,label"
            f"[,group][,split][,fold][,start][,end][,gps][,x][,y][,width][,height]. {_other_columns(cells, missing)}"
        )
    for name in frame.columns.drop("path"):
        frame[name] = frame[name].str.normalize("NFC").str.strip()
    frame = name_clusters(frame, path.name)
    no_path = frame["path"].str.strip().eq("")
    rejected = [Rejected(f"{path}, row {row + 2}", "no path") for row in frame.index[no_path]]
    if embedded is None:
        online = frame["path"].str.match(r"\s*(?!(?i:file))[A-Za-z][A-Za-z0-9+.-]*://")
        rejected += [
            Rejected(cell, f"an address, not a file: download it (row {row + 2} of {path.name})")
            for row, cell in zip(frame.index[online], frame["path"][online], strict=True)
        ]
        no_path |= online
    no_label = ~no_path & frame["label"].eq("" if classes is None else NOT_KNOWN)
    reason = "no label" if classes is None else "all labels are empty"
    rejected += [
        Rejected(str(frame.at[row, "path"]), f"{reason} (row {row + 2} of {path.name})")
        for row in frame.index[no_label]
    ]
    frame = frame.loc[~no_path & ~no_label]
    if frame.empty:
        first = first_left_out(rejected, "row")
        raise SecondhandError(f"{path}: no row has both a path and a label{first}")
    if resolve:
        files = {cell: file_named(path.parent, cell) for cell in frame["path"].unique()}
        frame = frame.assign(path=frame["path"].map(files))
    return _normalise_splits(frame, path), rejected


def _other_columns(cells: pd.DataFrame, missing: Sequence[str]) -> str:
    """Sentences on the columns that may be the missing ones."""
    first = {str(name): cells[name][cells[name].ne("")].head(1) for name in cells}
    files = [quoted(name) for name, cell in first.items() if cell.map(kind_of).notna().any()]
    classes = [
        name for name in first
        if name.strip().lower() not in (*TEXT_COLUMNS, *PART_COLUMNS)
        and _CELLS.keys() & (values := {*cells[name].str.strip().str.lower()}) >= values - {""}
    ]  # fmt: skip
    sentences = []
    if "path" in missing:
        rename = f"If {' or '.join(files[:3])} names the files, rename it to path"
        sentences += [rename if files else "For a table of triggers, add --strain"]
    if "label" in missing and len(classes) > 1:
        flag = f"--labels {','.join(classes)[:300]}"
        sentences += [f"If {quoted(classes[0])} and others are classes, with 1 and 0, add {flag}"]
    if [*missing] != ["path"]:
        sentences += ["If another column holds the labels, add --label-column and its name"]
    return ". ".join(sentences)


def add_embeddings(
    files: Iterable[str], vectors: Vectors, *, resolve: bool = False
) -> list[Rejected]:
    """Add the embeddings of files, labelled or not, to ``vectors``; return the files that cannot be read.

    Parameters
    ----------
    resolve : make the items' paths absolute, by the place of the file. Otherwise they stay as written.

    Raises
    ------
    SecondhandError : a file holds embeddings of another network, or no file can be read.
    """
    rejected = []
    for file in files:
        try:
            if not has_embeddings(Path(file)):
                raise BadFile(file, f"holds no embeddings: {_NEEDED}")
            _read_embedded(Path(file), _Labels(UNKNOWN), vectors, alone=True, resolve=resolve)
        except BadFile as error:
            rejected.append(Rejected(file, error.reason))
    if not vectors:
        raise SecondhandError(f"{rejected[0]}. No other file with embeddings was named")
    return rejected


def _read_embedded(
    path: Path, labels: _Labels, vectors: Vectors, *, alone: bool, resolve: bool = True
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Labelled rows of a file of embeddings, and the rejected ones; all its embeddings are added to ``vectors``.

    Rows without a label are rejected if the file is ``alone``. Otherwise another source may name their labels.
    """
    content = read_embeddings(path)
    cells = content.cells
    if "gps" not in cells and "at" in cells:  # as `learners.search --embeddings` writes it
        cells = cells.rename(columns={"at": "gps"})
    rows, rejected = read_rows(path, _Labels(UNKNOWN), cells=cells, resolve=resolve)
    rows, short = with_parts(rows, "embedding", str(path))
    rows, unusable = vectors.add(path, content, rows)
    rejected += short + unusable
    if labels.label:
        return rows, rejected
    name = labels.column or "label"
    if not labels.classes and not (_column(path, cells, name) or _column(path, cells, "label")):
        if alone:
            raise SecondhandError(
                f"{path}: no column {name!r}, so its embeddings have no labels. Add the column, or name a table with "
                f"the columns path,label as well: --data {path} labels.csv"
            )
        return rows.iloc[:0], rejected
    labelled, unlabelled = read_rows(path, labels, cells=cells)
    listed = {item.path for item in rejected} if alone else {item.path for item in unlabelled}
    rejected += [item for item in unlabelled if item.path not in listed]
    return labelled.loc[labelled.index.intersection(rows.index)], rejected


def _is_of_embeddings(folder: Path) -> bool:
    """Whether the first files of a folder hold embeddings."""
    first = islice(filter(None, map(kind_of, walk(folder, []))), 100)
    return {name for name, _ in Counter(first).most_common(1)} == {"embedding"}


def _read_embedded_folder(
    folder: Path, label: str, vectors: Vectors
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows of the files of embeddings in a folder, labelled by class folder or with ``label``."""
    if label:
        files, rejected = files_below(folder)
        listed = pd.DataFrame({"path": files, "label": label, "split": ""})
    else:
        listed, rejected = _scan_folder(folder, learned=False)
    frames = []
    for file, name, split in listed[["path", "label", "split"]].itertuples(index=False):
        if kind_of(file) != "embedding":
            rejected.append(Rejected(file, "holds no embeddings"))
            continue
        try:
            rows, bad = _read_embedded(Path(file), _Labels(name), vectors, alone=True)
        except BadFile as error:
            rejected.append(Rejected(file, error.reason))
            continue
        frames.append(rows.assign(label=name, split=split))
        rejected += bad
    if not frames:
        raise SecondhandError(f"--data {folder}: no file of embeddings in it can be read")
    return pd.concat(frames, ignore_index=True), rejected


_NEEDED = (
    "a Parquet file needs the columns path and embedding (a list of numbers), an NPZ file the arrays path and "
    "embedding [n, width]"
)


def _check_embeddings(vectors: Vectors, kind: str, source: str) -> None:
    if not vectors:
        raise SecondhandError(f"--data {source}: no embeddings in it: {_NEEDED}")
    if kind not in ("auto", "embedding"):
        raise SecondhandError(
            f"--data {source} holds embeddings, not files of kind {kind}. Name files of that kind"
        )


def _normalise_splits(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Normalise the names in the column ``split``; SecondhandError for other values."""
    if "split" in frame:
        # The tables of a run use these words for unknown and background files.
        frame["split"] = frame["split"].str.lower().replace([UNKNOWN, "background"], "")
        wrong = sorted(set(frame["split"]) - {*_SPLIT_NAMES, ""})
        if wrong:
            raise SecondhandError(
                f"{path}: unknown split {quoted(wrong[0])} (must be train, valid, calibration, test or empty)"
            )
        frame["split"] = frame["split"].map(lambda name: _SPLIT_NAMES.get(name, ""))
    return frame


def _column(path: Path, cells: pd.DataFrame, name: str) -> str | None:
    """Find a column by name, else one that differs only in case and spaces; None if there is none."""
    alike = [column for column in cells.columns if str(column).strip().lower() == name.lower()]
    matches = [column for column in alike if column == name] or alike
    if len(matches) > 1:
        raise SecondhandError(
            f"{path}: {' and '.join(map(quoted, matches))} could both be the column {name!r}. Rename one of them"
        )
    return matches[0] if matches else None


def with_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the missing columns of an item table, order them, and normalise paths and labels.

    The frequency limits of labels stay, if there are any.
    """
    empty = dict.fromkeys(TEXT_COLUMNS, "") | dict.fromkeys(PART_COLUMNS, float("nan"))
    frame = frame.assign(**{name: value for name, value in empty.items() if name not in frame})
    frame["path"] = frame["path"].map(
        {path: absolute_path(path) for path in frame["path"].unique()}
    )
    frame["label"] = frame["label"].map({name: clean_label(name) for name in frame["label"]})
    band = [name for name in BAND_COLUMNS if name in frame]
    frame[band] = frame[band].apply(pd.to_numeric, errors="coerce")
    return frame[[*empty, *band]].reset_index(drop=True)


def with_parts(frame: pd.DataFrame, kind: str, source: str) -> tuple[pd.DataFrame, list[Rejected]]:
    """Convert the times, or boxes, of this kind of file to numbers; rows with too short spans and boxes outside of
    the picture are rejected.

    Raises
    ------
    SecondhandError : a value is not a number, or a start is not before its end; names the row.
    """
    time_columns = [name for name in PART_COLUMNS_OF[kind] if name in frame]
    if kind == "picture" and len(time_columns) < len(Box._fields):  # such as the size of the file
        time_columns = []
    unused = [name for name in PART_COLUMNS if name in frame and name not in time_columns]
    if filled := [name for name in unused if not frame[name].isin(["", np.nan]).all()]:
        log.info("%s: columns that are not used for %s files: %s", source, kind, ", ".join(filled))
    frame = frame.drop(columns=unused).assign(
        **{n: _seconds(frame[n], source) for n in time_columns}
    )
    if {"start", "end"} <= {*time_columns}:
        for row in frame.index[frame["start"] >= frame["end"]][:1]:
            start, end = frame.loc[row, ["start", "end"]]
            raise SecondhandError(
                f"{source}, row {row + 2}: start {start:g} is not before end {end:g}"
            )
        short = frame.index[(frame["end"] - frame["start"]).round(9) < SHORTEST_SPAN]
        rejected = [
            Rejected(str(path), f"{span_error(start, end)} (row {row + 2} of {Path(source).name})")
            for row, path, start, end in frame.loc[short, ["path", "start", "end"]].itertuples()
        ]
        return frame.drop(index=short), rejected
    return _with_boxes(frame, source) if "x" in time_columns else (frame, [])


def _with_boxes(frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows whose boxes lie in their pictures, cut at the edges, and the rejected rows; without a box a row is the
    whole picture."""
    columns, rejected, boxes = [*Box._fields], {}, {}
    given = frame[columns].notna().any(axis=1)
    for row, path, *values in frame.loc[given, ["path", *columns]].itertuples():
        try:
            boxes[row] = box_in_picture(values)
        except ValueError as error:
            where = f" (row {row + 2} of {Path(source).name})"
            rejected[row] = Rejected(str(path), f"{error}{where}")
    frame = frame.drop(index=[*rejected])
    if boxes:
        frame.loc[[*boxes], columns] = [[*box] for box in boxes.values()]
    return frame, [*rejected.values()]


def _seconds(cells: pd.Series, source: str) -> pd.Series:
    """Numbers, NaN for empty cells."""
    cells = cells.mask(cells.isin(MISSING), "")
    numbers = pd.to_numeric(with_points(cells).replace("", "nan"), errors="coerce").astype(float)
    unit = "" if cells.name in Box._fields else " of seconds"
    for row in cells.index[~np.isfinite(numbers) & cells.ne("") & cells.notna()][:1]:
        raise SecondhandError(
            f"{source}, row {row + 2}: {cells.name} {quoted(cells.at[row])} is not a number{unit}"
        )
    return numbers


def _most_common_kind(paths: Iterable[str], source: str) -> str:
    paths = [*paths]
    kinds = [kind_of(path) for path in paths]
    counts = Counter(filter(None, kinds))
    if not counts:
        endings = " ".join(suffix for ends in SUFFIXES.values() for suffix in ends)
        bare = next((path for path in paths if not Path(path).suffix), "")
        named = [*Path(bare).parent.glob(f"{glob.escape(Path(bare).name)}.*")] if bare else []
        remedy = f". {quoted(bare)} has no ending. Add it to the names" if bare else ""
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


def _from_columns(path: Path, cells: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Build the column ``label`` from one column per class: 1, 0, or empty for unknown.

    A row with only empty cells gets the label ``?``.

    Raises
    ------
    SecondhandError : a column is missing, a cell has another value, or a class name contains the separator.
    """
    columns = {}
    for name in names:
        if JOIN in name or name.startswith(NOT_KNOWN):
            raise SecondhandError(
                f"--labels: the class name {quoted(name)} contains {JOIN} or begins with {NOT_KNOWN}. Rename the "
                "column"
            )
        if name not in cells:
            existing = ", ".join(map(quoted, cells.columns[:20]))
            raise SecondhandError(f"{path}: no column {name!r} of --labels. It has {existing}")
        text = with_points(cells[name]).str.strip().str.lower()
        for row in cells.index[~text.isin([*_CELLS, ""])][:1]:
            raise SecondhandError(
                f"{path}, row {row + 2}: {name} is {quoted(cells.at[row, name])} (must be 1, 0 or empty)"
            )
        columns[name] = text.map(_CELLS)
    labels = [
        join_labels(
            [name for name, value in zip(names, row, strict=True) if value == 1],
            [name for name, value in zip(names, row, strict=True) if value != value],
        )
        if any(value == value for value in row)
        else NOT_KNOWN
        for row in zip(*columns.values(), strict=True)
    ]
    return cells.assign(label=labels)


def _check_source(source: str) -> None:
    """Raise SecondhandError for a source that cannot be multi-label."""
    from datasets.annotations.tracks import is_annotated

    if source != "demo:scenes" and (not Path(source).is_file() or is_annotated(Path(source))):
        raise SecondhandError(
            f"--labels with --data {source}: multi-label items need a table (CSV, TSV or Parquet). Name one, or "
            "leave --labels out"
        )


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
        part = span_text(dict.fromkeys(PART_COLUMNS, np.nan) | rows.iloc[0].to_dict())
        remedy = f"Write its labels into one row, joined by {JOIN}" if multi_label else "Keep one"
        times: list[str] = []
        with suppress(SecondhandError):
            times = [] if part else _time_columns(read_cells(Path(source)).columns)
        if times:
            remedy += (
                f", or, if each row is a part of the file, rename {' and '.join(map(quoted, times))} to start and "
                "end (seconds; the end is start plus duration)"
            )
        raise SecondhandError(
            f"{source}: {rows['path'].iloc[0]}{', ' if part else ''}{part} has two labels: {label!r} in row {one + 2} "
            f"and {other_label!r} in row {other + 2}. {remedy}"
        )


#: Words for start and end in the names of columns, which may add a unit: "Start (s)", start_time, startSec, onset_s,
#: "Begin Time (s)" (BirdNET-Analyzer, opensoundscape, DCASE, crowsetta, Raven).
_SPANS = (
    ("start", "end"), ("start", "stop"), ("begin", "end"), ("begin", "stop"), ("onset", "offset"), ("tmin", "tmax"),
)  # fmt: skip
_UNITS = {"time", "s", "sec", "secs", "second", "seconds"}
#: Words in the name of a column of times in a file.
_TIME_WORDS = {
    "start", "begin", "end", "stop", "onset", "offset", "duration", "starttime", "endtime", "begintime",
    "tmin", "tmax", "tstart", "tend",
}  # fmt: skip


def _time_columns(names: Iterable[object]) -> list[str]:
    """Names of columns that look like times in a file, such as ``offset_ms`` or ``BeginTime``."""
    return [name for name in map(str, names) if _TIME_WORDS & _words(name)]


def _words(name: object) -> set[str]:
    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name)).lower()
    return {*re.findall(r"[^\W_]+", text)}


def _span_columns(path: Path, cells: pd.DataFrame) -> dict[str, str | None]:
    """Columns of start and end of a table of recordings under another program's names.

    A warning names columns that only look like times.
    """
    for words in _SPANS:
        start, end = (
            min((n for n in map(str, cells) if _words(n) - _UNITS == {word}), key=len, default="")
            for word in words
        )
        if start and end:
            columns = [cells[name].mask(cells[name].isin(MISSING), "") for name in (start, end)]
            if all(
                (pd.to_numeric(with_points(c), errors="coerce").notna() | c.eq("")).all()
                for c in columns
            ):
                log.info("%s: the columns %s and %s are read as start and end", path, start, end)
                return {"start": start, "end": end}
    times = _time_columns(cells.columns.drop(["start", "end"], errors="ignore"))
    whole = set() if _column(path, cells, "start") else {"duration"}  # which a whole file has, too
    if {name.strip().lower() for name in times} - whole:
        log.warning(
            "%s: columns that look like times in the recordings are not read: %s. If each row is a part of its "
            "recording, call them start and end (seconds; the end is start plus duration)", path,
            ", ".join(map(quoted, times)),
        )  # fmt: skip
    return {}
