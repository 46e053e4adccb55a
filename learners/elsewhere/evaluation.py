"""Evaluates a model on labelled files, and estimates its accuracy on files without labels.

The folder: ``index.html``, ``report.json``, ``predictions.csv`` and ``rejected.csv``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.core import progress
from datasets.core.address import as_path
from datasets.core.errors import Copy, Rejected, SecondhandError, counted
from datasets.core.files import folder_beside
from datasets.core.scanning import UNLISTED
from datasets.items.checks import drop_contradictions, drop_copies
from datasets.items.describe import summary
from datasets.items.facts import Inputs
from datasets.items.items import Items
from datasets.items.labels import MULTI, UNKNOWN, parse_names
from datasets.kinds.base import kind_of
from datasets.sources.base import ReadOptions
from datasets.steps.reading import load_table
from datasets.steps.unknown import load_unknown, load_unlabelled
from learners.cli.commands import EvaluateSettings
from learners.cli.result import BY_BODIES, find_confusions, is_cross_fitted, label_counts
from learners.evaluation.domain_shift import prediction_figures
from learners.evaluation.held_out import Evaluation, predict_held_out
from learners.evaluation.matching import label_columns, match_classes, match_labels
from learners.files.jsonable import jsonable
from learners.files.lock import check_replaceable
from learners.loading.predictor import load_predictor
from learners.model.bundle import Bundle
from learners.model.places import load_model
from learners.report.report import write_estimate, write_report
from learners.runs.folder import write_csv
from learners.tasks.choose import find_task

log = logging.getLogger(__name__)

HELD = "test"
MARK = "report.json"


@dataclass
class EvaluationResult:
    """Result of an evaluation.

    Attributes
    ----------
    folder : folder of the report.
    metrics : metrics by name, from 0 to 1.
    lines : sentences on the metrics.
    bad : files that could not be used: unreadable ones, and those that were left out before, without copies and
        files of other kinds.
    confusions : true class, predicted class and number of files, the most frequent first.
    labels : of a multi-label model, of `label_counts`.
    """

    folder: Path
    metrics: dict[str, Any]
    lines: list[str]
    bad: list[Rejected]
    confusions: list[tuple[str, str, int]] = field(default_factory=list)
    labels: list[tuple[str, int, int, int]] = field(default_factory=list)


def evaluate(settings: EvaluateSettings, *, command: str = "") -> EvaluationResult:
    """Predict labelled files and files of unknown classes with a model, and write a report.

    Raises
    ------
    SecondhandError : no label is a class of the model, one differs from a class only in case or
        spaces, there are no files, or ``out`` exists.
    """
    bundle = load_for_evaluation(settings)
    task = find_task(bundle)
    table, lines = items_of(bundle, settings)
    lookup = table.fact(Inputs).lookup
    predictor = load_predictor(bundle, **settings.computing, lookup=lookup)
    evaluation = predict_held_out(predictor, table)
    all_predictions = evaluation.predictions
    evaluation, rejected = _without_bad(evaluation)
    table = table.leaving_out(rejected)
    try:
        evaluation = task.measure(evaluation, bundle, bundle.rule, elsewhere=True)
    except SecondhandError as error:
        first = f". The first unreadable file: {': '.join(rejected[0])}" if rejected else ""
        raise SecondhandError(f"--data {settings.data}: {error}{first}") from None
    notices, lines = lines, lines + evaluation.lines
    bundle.metrics = {**evaluation.metrics, "bad_files": len(rejected)}
    sections = task.sections(evaluation)
    with (
        write_folder(settings, table, all_predictions) as folder,
        progress.step("Writing the report"),
    ):
        write_report(
            folder,
            predictor,
            table,
            sections,
            notices=notices,
            checks=evaluation.lines,
            command=command,
        )
    confusions = find_confusions(evaluation.predictions, evaluation.metrics)
    notes = lines + evaluation.notes
    bad = unusable(table)
    labels = label_counts(evaluation.figures)
    return EvaluationResult(as_path(settings.out), bundle.metrics, notes, bad, confusions, labels)


def estimate(settings: EvaluateSettings, *, command: str = "") -> EvaluationResult:
    """Predict files without labels with a model, and estimate its accuracy on them.

    Raises
    ------
    SecondhandError : there are no files, ``out`` exists, or the model is multi-label.
    """
    bundle = load_for_evaluation(settings)
    estimate_of = find_task(bundle).estimator(bundle, bundle.rule)
    kind = _kind(bundle, settings.kind)
    lookup = bundle.lookup()
    options = ReadOptions(
        kind=kind, path_column=settings.path_column, lookup=lookup, settings=settings.values
    )
    found = load_unlabelled(settings.data, options, "--data", check=False)
    frame, copies = drop_copies(found.frame, lookup=lookup)
    table = Items(frame, frame.iloc[:0], kind, settings.data)
    table = table.leaving_out([*found.rejected, *copies])
    if frame.empty:
        raise _no_files_error(table)
    log.info("Data: %s, %d files", settings.data, len(frame))
    predictor = load_predictor(bundle, **settings.computing, lookup=lookup)
    evaluation = predict_held_out(predictor, table)
    all_predictions = evaluation.predictions.drop(columns=["truth", "split"])
    evaluation, rejected_later = _without_bad(evaluation)
    table = table.leaving_out(rejected_later)
    if evaluation.predictions.empty:
        raise SecondhandError(
            f"--data {settings.data}: no file can be read. The first one: {': '.join(rejected_later[0])}"
        )
    expected, notes = estimate_of(evaluation)
    figures = prediction_figures(evaluation.predictions, bundle.classes)
    lines = [expected.line, *notes]
    content = {"notices": lines, "expected": expected, **figures, "bad_files": len(rejected_later)}
    with write_folder(settings, table, all_predictions) as folder:
        write_estimate(folder, bundle, table, content, command=command)
    metrics = {"expected_accuracy": expected.value, "accepted": figures["accepted"].value}
    return EvaluationResult(as_path(settings.out), jsonable(metrics), lines, unusable(table))


def unusable(table: Items) -> list[Rejected]:
    """The files that could not be used, and folders that could not be listed: see `EvaluationResult`."""
    return [
        item
        for item in table.rejected
        if item.reason == UNLISTED
        or (kind_of(item.path) == table.kind and not isinstance(item, Copy))
    ]


def load_for_evaluation(settings: EvaluateSettings) -> Bundle:
    """Load the model with the threshold and score of the settings; check that ``out`` may be written."""
    if not settings.data:
        raise SecondhandError("--data is missing. Give a folder, a table or files")
    check_replaceable(as_path(settings.out), overwrite=settings.overwrite, mark=MARK)
    bundle = load_model(settings.model)
    # Predictor and metrics use the same rule.
    return replace(
        bundle,
        rule=bundle.rule.but(
            threshold=settings.threshold, score=settings.score, keep_known=settings.keep_known
        ),
    )


@contextmanager
def write_folder(
    settings: EvaluateSettings, table: Items, all_predictions: pd.DataFrame
) -> Iterator[Path]:
    """A folder with the predictions and rejected files, which moves to ``out`` when the block ends."""
    if table.rejected:
        log.warning("%s", "\n".join(summary(table.rejected)))
    out = as_path(settings.out)
    check_replaceable(out, overwrite=settings.overwrite, mark=MARK)
    with folder_beside(out, replace=True) as folder:
        write_csv(folder / "predictions.csv", all_predictions)
        write_csv(folder / "rejected.csv", table.rejected, Rejected._fields)
        yield folder


def items_of(
    bundle: Bundle, settings: EvaluateSettings, *, each_label: bool = False
) -> tuple[Items, list[str]]:
    """Items in the split `HELD`, files of unknown classes, and notes on which items were used.

    ``each_label`` : a row for each of several labels of an item; otherwise items with several labels are left out,
    unless the model gives several.
    """
    kind, unknown = _kind(bundle, settings.kind), settings.unknown
    rule, columns = bundle.rule, None
    if not rule.exclusive:
        columns = label_columns(as_path(settings.data), settings.label_column, bundle.classes)
    options = ReadOptions(
        kind=kind,
        learned=False,
        path_column=settings.path_column,
        label_column=settings.label_column,
        labels=None if each_label and columns == MULTI else columns,
        lookup=bundle.lookup(),
        settings=(bundle.spectrogram or {}) | settings.values,
    )
    # Unreadable files get a prediction "bad file" instead of being left out.
    try:
        table = load_table(settings.data, options, check=False)
    except SecondhandError as error:
        folder = as_path(settings.data)
        if not folder.is_dir() or any(entry.is_dir() for entry in folder.iterdir()):
            raise
        raise SecondhandError(
            f"{error}; or, if the files have no labels, add --no-labels"
        ) from None
    if each_label:
        labels = table.frame["label"].map(parse_names)
        frame = table.frame.assign(label=labels).explode("label", ignore_index=True)
        table = replace(table, frame=frame.fillna({"label": ""}))
    else:
        items, contradictions = drop_contradictions(pd.concat([table.frame, table.unknown_items]))
        of_known = items["label"].ne(UNKNOWN)
        table = replace(
            table.leaving_out(contradictions),
            frame=items.loc[of_known].reset_index(drop=True),
            unknown_items=items.loc[~of_known].reset_index(drop=True),
        )
    if table.frame.empty and table.unknown_items.empty:
        raise _no_files_error(table)
    # It has also learnt from these.
    if is_cross_fitted(bundle.metrics, "calibration") or bundle.metrics.get(BY_BODIES):
        split = table.frame["split"]
        taught = split.mask(split.isin(["valid", "calibration"]), "train")
        table = replace(table, frame=table.frame.assign(split=taught))
    table, lines = _choose_split(table)
    if columns is None:
        groups = rule.names(bundle.classes)[len(bundle.classes) :]
        table, matched = match_classes(table, bundle.classes, groups)
    else:
        table, matched = match_labels(table, bundle.classes, columns)
    lines += matched
    if unknown:
        known_and_unknown = pd.concat([table.frame, table.unknown_items])
        options = replace(options, lookup=table.fact(Inputs).lookup)
        ood = load_unknown(unknown, options, known_and_unknown, check=False)
        unknown_items = pd.concat([table.unknown_items, ood.frame], ignore_index=True)
        table = replace(table.leaving_out(ood.rejected), unknown_items=unknown_items)
    table = replace(table, frame=table.frame.assign(split=HELD))
    log.info(
        "Data: %s, %d items of %d classes, %d of unknown classes",
        settings.data, len(table.frame), len(table.classes), len(table.unknown_items),
    )  # fmt: skip
    return table, lines


def _kind(bundle: Bundle, kind: str) -> str:
    """Kind of data of the model; raises SecondhandError if ``kind`` is another."""
    if kind not in ("auto", bundle.kind.name):
        raise SecondhandError(
            f"--kind {kind}: the model was trained on files of kind {bundle.kind}. Leave --kind out"
        )
    return bundle.kind.name


def _no_files_error(table: Items) -> SecondhandError:
    kind, rejected = table.kind, table.rejected
    kinds = sorted({kind_of(item.path) or "" for item in rejected} - {""})
    if kind in kinds:
        problem = f"no file of kind {kind} in it can be used"
        kinds.remove(kind)
    else:
        problem = f"no files of kind {kind}, which this model needs"
    return SecondhandError(
        f"--data {table.source}: {problem}"
        + (f"; these are of kind {' and '.join(kinds)}" if kinds else "")
        + (f". The first file left out: {': '.join(rejected[0])}" if rejected else "")
    )


def _choose_split(table: Items) -> tuple[Items, list[str]]:
    """The test split if the data have one, else all but the training split; and notes."""
    split = table.frame["split"]
    if split.eq("").all():
        return table, []
    test, train = split.eq("test"), split.eq("train")
    if test.any():
        mask, name = test, "its split 'test'"
    elif not train.all():
        mask, name = ~train, "all but its split 'train'"
    else:
        note = "All of these files are in the split 'train', so the results may be too good"
        return table, [note]
    dropped = int((~mask).sum())
    table = replace(table, frame=table.frame.loc[mask].reset_index(drop=True))
    return table, [f"Evaluated on {name}: {counted(len(table.frame), 'item')}; {dropped} not used"]


def _without_bad(evaluation: Evaluation) -> tuple[Evaluation, list[Rejected]]:
    """The evaluation without unreadable files, and these files; silent files stay."""
    bad = evaluation.predictions["reason"].map(attrgetter("failed")).astype(bool)
    bad_rows = evaluation.predictions.loc[bad, ["path", "reason"]].itertuples(index=False)
    return evaluation.where(~bad.to_numpy()), [
        Rejected(str(path), str(reason)) for path, reason in bad_rows
    ]
