"""A model judged on labelled files it may never have seen, and its confidence checked on them; and the
accuracy to expect on files that nobody has labelled.

The folder: ``index.html``, ``report.json``, ``predictions.csv`` and ``rejected.csv``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.core import progress
from datasets.core.errors import Rejected, SecondhandError
from datasets.core.files import folder_beside
from datasets.core.scanning import kind_of
from datasets.items import (
    ItemTable,
    drop_copies,
    load_table,
    load_unknown,
    load_unlabelled,
    summary,
)
from learners.cli.result import confusions_of
from learners.cli.settings import EvaluateSettings
from learners.evaluation import (
    Evaluation,
    expected_accuracy,
    predict_held_out,
    prediction_figures,
    score_items,
)
from learners.files import check_replaceable, jsonable
from learners.inference import Predictor
from learners.model import Bundle, load_model
from learners.report import write_estimate, write_report
from learners.runs.folder import write_csv
from learners.tasks.base import Task
from learners.tasks.choose import task_of
from learners.tasks.single import copied

log = logging.getLogger(__name__)

HELD = "test"
MARK = "report.json"


@dataclass
class EvaluationResult:
    """Where it was written, the figures (0 to 1), what to know about them, and the bad files."""

    folder: Path
    metrics: dict[str, Any]
    lines: list[str]
    bad: list[Rejected]
    confusions: list[tuple[str, str, int]] = field(default_factory=list)


def evaluate(asked: EvaluateSettings, *, command: str = "") -> EvaluationResult:
    """Answer labelled files and strangers with a model, and report how it did.

    Raises
    ------
    SecondhandError : no label is a class of the model, one differs from a class only in case or
        spaces, there is nothing to judge, or ``out`` is there.
    """
    bundle = _opened(asked)
    task = task_of(bundle)
    table, lines = _items(bundle, task, asked)
    predictor = Predictor(bundle, device=asked.device)
    evaluation = predict_held_out(predictor, table, asked.bs, workers=asked.workers)
    everything = evaluation.predictions
    evaluation, bad = _without_bad(evaluation)
    table.rejected += bad
    try:
        evaluation = task.calibration_check(evaluation, bundle)
    except SecondhandError as error:
        first = f"; the first: {': '.join(bad[0])}" if bad else ""
        raise SecondhandError(f"--data {asked.data}: {error}{first}") from None
    notices, lines = lines, lines + evaluation.lines
    bundle.metrics = {**evaluation.metrics, "bad_files": len(bad)}
    sections = task.sections(evaluation)
    with _written(asked, table, everything) as folder, progress.step("Writing the report"):
        write_report(
            folder,
            predictor,
            table,
            sections,
            notices=notices,
            checks=evaluation.lines,
            command=command,
        )
    confusions = confusions_of(evaluation.predictions, evaluation.metrics)
    notes = lines + evaluation.notes
    return EvaluationResult(Path(asked.out), bundle.metrics, notes, bad, confusions)


def estimate(asked: EvaluateSettings, *, command: str = "") -> EvaluationResult:
    """Answer files without labels with a model, and say what accuracy to expect there.

    Raises
    ------
    SecondhandError : there is no file to answer, strangers are named beside them, or ``out`` is there.
    """
    if asked.unknown:
        raise SecondhandError(
            f"--unknown {asked.unknown} beside --no-labels: strangers are measured beside labelled "
            "files; leave one of the two out"
        )
    if asked.strain:
        raise SecondhandError(
            f"--strain {asked.strain} beside --no-labels: triggers without labels are answered by "
            "learners.predict --triggers"
        )
    if asked.label_column:
        raise SecondhandError(
            f"--label-column {asked.label_column} beside --no-labels: no labels are read; leave one of "
            "the two out"
        )
    bundle = _opened(asked)
    task_of(bundle).check_unlabelled()
    confidence = bundle.decider
    own = _kind(bundle, asked.kind)
    frame, rejected = load_unlabelled(asked.data, own, "--data", check=False)
    frame, copies = drop_copies(frame)
    table = ItemTable(frame, frame.iloc[:0], own, asked.data, rejected + copies)
    if frame.empty:
        raise _nothing(table)
    log.info("Data: %s, %d files", asked.data, len(frame))
    predictor = Predictor(bundle, device=asked.device)
    evaluation = predict_held_out(predictor, table, asked.bs, workers=asked.workers)
    everything = evaluation.predictions.drop(columns=["truth", "split"])
    evaluation, bad = _without_bad(evaluation)
    table.rejected += bad
    if evaluation.predictions.empty:
        raise SecondhandError(
            f"--data {asked.data}: no file could be read; the first: {': '.join(bad[0])}"
        )
    refused = confidence.distance.alpha, confidence.distance.mild
    expected = expected_accuracy(bundle.metrics, evaluation.predictions, *refused)
    tree = confidence.tree
    counted = prediction_figures(
        evaluation.predictions, bundle.classes if tree is None else tree.names
    )
    copied_files = copied(evaluation, score_items(evaluation, bundle), bundle)
    lines = [expected.line, *confidence.notes, *copied_files]
    found = {"notices": lines, "expected": expected, **counted, "bad_files": len(bad)}
    with _written(asked, table, everything) as folder:
        write_estimate(folder, bundle, table, found, command=command)
    metrics = {"expected_accuracy": expected.value, "accepted": counted["accepted"]["value"]}
    return EvaluationResult(Path(asked.out), jsonable(metrics), lines, bad)


def _opened(asked: EvaluateSettings) -> Bundle:
    """The model, with its confidence as asked for; a report that is there may be replaced."""
    if not asked.data:
        raise SecondhandError("--data is missing: name labelled files, a folder or a table")
    check_replaceable(Path(asked.out), overwrite=asked.overwrite, mark=MARK)
    bundle = load_model(asked.model)
    # For all to use: the predictor and the figures.
    bundle.confidence = bundle.decider.with_overrides(asked.threshold, asked.score)
    return bundle


@contextmanager
def _written(asked: EvaluateSettings, table: ItemTable, everything: pd.DataFrame) -> Iterator[Path]:
    """The folder with answers and rejected files in it, put in place when the block ends."""
    if table.rejected:
        log.warning("%s", "\n".join(summary(table.rejected)))
    out = Path(asked.out)
    check_replaceable(out, overwrite=asked.overwrite, mark=MARK)
    with folder_beside(out, replace=True) as folder:
        write_csv(folder / "predictions.csv", everything)
        write_csv(folder / "rejected.csv", table.rejected, Rejected._fields)
        yield folder


def _items(bundle: Bundle, task: Task, asked: EvaluateSettings) -> tuple[ItemTable, list[str]]:
    """The items, all in the split `HELD` or strangers; and what to know about the choice."""
    own, unknown = _kind(bundle, asked.kind), asked.unknown
    columns = task.label_columns(Path(asked.data), asked.label_column, bundle.classes)
    # Bad files are answered as such, not left out beforehand.
    table = load_table(
        asked.data,
        kind=own,
        check=False,
        learned=False,
        label_column=asked.label_column,
        strain=asked.strain,
        together=(bundle.spectrogram or {}).get("together"),
        labels=columns,
    )
    if table.frame.empty and table.unknown_items.empty:
        raise _nothing(table)
    lines = _choose_part(table)
    lines += task.match_labels(table, bundle.classes, columns)
    if unknown:
        there = pd.concat([table.frame, table.unknown_items])
        ood, rejected = load_unknown(unknown, own, there, check=False)
        table.unknown_items = pd.concat([table.unknown_items, ood], ignore_index=True)
        table.rejected += rejected
    table.frame = table.frame.assign(split=HELD)
    log.info(
        "Data: %s, %d items of %d classes, %d of unknown classes",
        asked.data, len(table.frame), len(table.classes), len(table.unknown_items),
    )  # fmt: skip
    return table, lines


def _kind(bundle: Bundle, kind: str) -> str:
    """What the model judges; an error where another ``kind`` was asked for."""
    own = "picture" if bundle.spectrogram is None else str(bundle.spectrogram.get("kind", kind))
    if kind not in ("auto", own):
        raise SecondhandError(f"--kind {kind}: this model judges files of kind {own}")
    return own


def _nothing(table: ItemTable) -> SecondhandError:
    kind, rejected = table.kind, table.rejected
    kinds = sorted({kind_of(item.path) or "" for item in rejected} - {""})
    return SecondhandError(
        f"--data {table.source}: no {kind} in it, and this model judges files of kind {kind}"
        + (f"; its files are of kind {' and '.join(kinds)}" if kinds else "")
        + (f". The first left out: {': '.join(rejected[0])}" if rejected else "")
    )


def _choose_part(table: ItemTable) -> list[str]:
    """Keep what the model may be judged by, of data that say so; as a line to read."""
    split = table.frame["split"]
    if split.eq("").all():
        return []
    test, train = split.eq("test"), split.eq("train")
    if test.any():
        kept, name = test, "its part 'test'"
    elif not train.all():
        kept, name = ~train, "all but its part 'train'"
    else:
        return ["all of these files are called training data: the figures may be too good"]
    dropped = int((~kept).sum())
    table.frame = table.frame.loc[kept].reset_index(drop=True)
    return [f"judged on {name}: {len(table.frame)} items; {dropped} are left alone"]


def _without_bad(evaluation: Evaluation) -> tuple[Evaluation, list[Rejected]]:
    """Without the files that cannot be read, and those. Silence is a file like others."""
    bad = evaluation.predictions["reason"].map(attrgetter("unanswered")).astype(bool)
    left = evaluation.predictions.loc[bad, ["path", "reason"]].itertuples(index=False)
    return evaluation.where(~bad.to_numpy()), [
        Rejected(str(path), str(reason)) for path, reason in left
    ]
