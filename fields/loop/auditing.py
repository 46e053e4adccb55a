"""The table of an audit: files drawn to be labelled, with what the estimate of the accuracy needs.

A row is a file, or a window of a long recording. Its columns:

``path, label``
    the file, and the label to fill in: a class, ``unknown``, or the name of a class that the model lacks.
``start, end``, or ``gps``
    the part of a recording in seconds, or the GPS time of strain.
``guess, answer, probability``
    the most probable class, the class answered or ``unknown``, and its calibrated probability.
``stratum, files, expected``
    number and count of the strata ("3 of 12"), number of files of this one, and their mean probability
    (`learners.evaluation.stratified`).
``drawn``
    digest of the model and the row without the label, by which rows that were not drawn are found.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from datasets.core.address import split
from datasets.core.errors import Rejected, SecondhandError, quoted
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN, clean_label, spelling_key
from datasets.kinds.base import Kind
from datasets.sources.beside import Below, Found
from datasets.tables.cells import read_cells, with_points
from fields.loop.teaching import Pool
from learners.evaluation.stratified import Stratum, draw
from learners.model.bundle import model_digest
from learners.rule.numbers.arrays import Floats, Mask

_OF_PREDICTION = ("guess", "answer", "probability", "stratum", "files", "expected")
_NUMBERS = ("start", "end", "gps", "probability", "files", "expected")


def columns_of(kind: Kind) -> tuple[str, ...]:
    """Columns of the table for a kind of data."""
    return ("path", "label", *kind.times, *_OF_PREDICTION, "drawn")


@dataclass
class Audit:
    """The drawn files as rows of the table, in random order, their parts, and the number of files answered."""

    rows: list[dict[str, object]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    answered: int = 0


def draw_audit(pool: Pool, model: str | os.PathLike[str], *, n: int = 50) -> Audit:
    """Predict files and draw those whose labels tell most about the model's accuracy on all of them.

    Parameters
    ----------
    model : folder of the predictor's model.
    n : number of files, or windows of long recordings, to draw.

    Raises
    ------
    SecondhandError : the model is multi-label, or ``n`` is below 2.
    """
    if not pool.predictor.rule.exclusive:
        raise SecondhandError(
            "This is a multi-label model, and a file of an audit gets one label. Use learners.evaluate with a "
            "labelled table"
        )
    if n < 2:
        raise SecondhandError(f"--n {n}: expected at least 2")
    audit, predicted = Audit(), list[tuple[Part, str, str, float]]()
    for window in pool:
        answer = window.prediction
        predicted.append((answer.part, answer.best, answer.label, answer.sure))
    if not predicted:
        return audit
    parts, guesses, answers, probabilities = zip(*predicted, strict=True)
    p, answered = np.array(probabilities), np.array(answers) != UNKNOWN
    stratum, drawn = draw(answered, p, guesses, n)
    digest, count = model_digest(os.fspath(model)), int(stratum.max()) + 1
    sizes = np.bincount(stratum)
    expected = np.bincount(stratum, p) / sizes
    for i in drawn:
        part, k = parts[i], int(stratum[i])
        cells: dict[str, object] = {
            "path": part.path, "label": "", "start": part.start, "end": part.end,
            "gps": part.at, "guess": guesses[i], "answer": answers[i], "probability": float(p[i]),
            "stratum": f"{k + 1} of {count}", "files": int(sizes[k]), "expected": float(expected[k]),
        }  # fmt: skip
        cells = {name: cells[name] for name in columns_of(pool.predictor.kind)[:-1]}
        audit.rows.append(cells | {"drawn": _digest(digest, cells)})
        audit.parts.append(part)
    audit.answered = int(answered.sum())
    return audit


@dataclass
class AuditTable:
    """A table of `draw_audit` as it was read.

    Attributes
    ----------
    rows : the drawn rows, all cells as text; ``path`` is as written.
    rejected : rows that were not drawn, and repeated ones.
    names : ``path`` of all drawn rows, also of those that ``rows`` lack.
    """

    file: Path
    rows: list[dict[str, str]]
    rejected: list[Rejected]
    names: Sequence[str]

    @cached_property
    def _found(self) -> dict[str, Found]:
        return Below(self.file.absolute().parent).locate(self.names)

    @property
    def parts(self) -> list[Part]:
        """The files, or parts of them, to open; of one that is not found where it would be."""
        return [
            Part.from_row(row)._replace(path=self._found[row["path"]].path) for row in self.rows
        ]

    @property
    def not_found(self) -> list[Rejected]:
        """The rows whose files are not there, or may be one of several."""
        found = ((row["path"], self._found[row["path"]].reason) for row in self.rows)
        return [Rejected(path, reason) for path, reason in found if reason]


def read_audit(file: Path, model: str | os.PathLike[str]) -> AuditTable:
    """Read a table of `draw_audit`, filled in or not.

    Raises
    ------
    SecondhandError : it is no such table, it was drawn for another model, or all rows of a stratum are missing.
    """
    table = read_cells(file)
    if missing := [n for n in ("path", "label", *_OF_PREDICTION, "drawn") if n not in table]:
        raise SecondhandError(
            f"{file}: no column {missing[0]!r}, so it is not a table that secondhand audit drew"
        )
    table = table.assign(**{name: with_points(table[name]) for name in _NUMBERS if name in table})
    digest, rejected = model_digest(os.fspath(model)), list[Rejected]()
    rows: dict[str, dict[str, str]] = {}
    for number, cells in enumerate(table.to_dict("records"), start=2):
        row = {str(name): str(cell) for name, cell in cells.items()}
        drawn = _digest(digest, row) == row["drawn"]
        if drawn and row["drawn"] not in rows:
            rows[row["drawn"]] = row
        else:
            why = "is listed twice" if drawn else "was not drawn by this audit"
            rejected.append(Rejected(row["path"], f"{why} (row {number} of {file.name})"))
    if not rows:
        raise SecondhandError(
            f"{file} was not drawn for the model {model}, or its columns were edited. Name the model that drew it, or "
            "draw anew"
        )
    there = {_stratum(row) for row in rows.values()}
    count = int(next(iter(rows.values()))["stratum"].split()[-1])
    if gone := sorted({*range(1, count + 1)} - there):
        raise SecondhandError(
            f"{file}: all rows of stratum {gone[0]} are missing, so some files of the site are not represented. Restore "
            "them (without a label if you have none), or draw anew"
        )
    drawn_rows = [*rows.values()]
    return AuditTable(file, drawn_rows, rejected, [row["path"] for row in drawn_rows])


def _stratum(row: Mapping[str, str]) -> int:
    return int(row["stratum"].split()[0])


@dataclass(frozen=True)
class AuditLabels:
    """The labelled rows of an audit.

    Attributes
    ----------
    table : the rows with a label, ``label`` cleaned.
    known : bool [n], whether the label is a class of the model.
    right : bool [n], whether the answer is right; of refused files, whether the most probable class is.
    answered : bool [n].
    weights : [n], number of files that each row stands for.
    strata : all strata with their labels.
    """

    table: AuditTable
    known: Mask
    right: Mask
    answered: Mask
    weights: Floats
    strata: list[Stratum]


def labels_of(
    audit: AuditTable, classes: Sequence[str], ancestors: Mapping[str, Sequence[str]]
) -> AuditLabels:
    """The labelled rows of an audit. A label that is no class is that of an unknown class.

    ``ancestors`` are the groups above each class, which are right answers for it.

    Raises
    ------
    SecondhandError : no row has a label; a label differs from a class only in case or spaces, or is a group above the
        classes.
    """
    similar = {spelling_key(name): name for name in classes}
    above = {group for groups in ancestors.values() for group in groups}
    rows = [row | {"label": clean_label(row["label"])} for row in audit.rows]
    for row in rows:
        where, label = f"{audit.file}: {row['path']}", row["label"]
        if label in above:
            raise SecondhandError(
                f"{where} has the label {quoted(label)}, a group above the classes. Give the class"
            )
        name = similar.get(spelling_key(label), label)
        if name != label:
            raise SecondhandError(
                f"{where} has the label {quoted(label)}, but the class of the model is {quoted(name)}. Correct it"
            )
    labelled = [row for row in rows if row["label"]]
    if not labelled:
        raise SecondhandError(
            f"{audit.file}: no row has a label yet. Fill in the column label, or label on the page: "
            f"secondhand app MODEL --label {audit.file}"
        )
    truths, answers, guesses = (
        np.array([row[name] for row in labelled]) for name in ("label", "answer", "guess")
    )
    answered = answers != UNKNOWN
    holds = [
        answer in (truth, *ancestors.get(truth, ()))
        for answer, truth in zip(answers, truths, strict=True)
    ]
    right = np.where(answered, holds, guesses == truths)
    number = np.array([_stratum(row) for row in labelled])
    by_stratum = {_stratum(row): row for row in rows}
    strata = []
    for k, row in sorted(by_stratum.items()):
        files, expected = int(float(row["files"])), float(row["expected"])
        strata.append(Stratum(row["answer"] != UNKNOWN, files, expected, right[number == k]))
    labels = np.bincount(number, minlength=max(by_stratum) + 1)
    weights = np.array([int(float(row["files"])) for row in labelled]) / labels[number]
    known = np.isin(truths, classes)
    return AuditLabels(replace(audit, rows=labelled), known, right, answered, weights, strata)


def _digest(model: str, row: Mapping[str, object]) -> str:
    """Digest of a model and a row, without its label and folder, whatever program wrote the numbers."""
    cells = {"path": split(str(row["path"]).replace("\\", "/"))[1]}
    for name in ("start", "end", "gps", *_OF_PREDICTION):
        cell = row.get(name)
        if cell is None or cell == "":
            continue
        try:
            cells[name] = f"{float(str(cell)):.6f}" if name in _NUMBERS else str(cell)
        except ValueError:
            cells[name] = str(cell)
    return hashlib.sha256(f"{model} {sorted(cells.items())}".encode()).hexdigest()[:12]
