"""Content of a report: of single-label models confusions, refusals and calibration; of multi-label models
each label by itself and all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from datasets.core.program import installed_commands
from datasets.items.describe import NO_LABEL, split_counts
from datasets.items.facts import Corrections
from datasets.items.items import Items
from learners.cli.result import answers_at, counts_of, judge, most_confused, part_name
from learners.evaluation.figures import ScoredItems
from learners.evaluation.held_out import Evaluation
from learners.evaluation.suspects import LOW, hardest_items, is_copy, label_suspects
from learners.report import plots
from learners.report.galleries import (
    examples,
    gallery,
    mistakes,
    refused_although_right,
)
from learners.report.report import Material, Sections, class_counts, facts
from learners.report.report_sections import SECTIONS as ADDED
from learners.report.verdict import label_verdict, verdict
from learners.rule.operating_points import OperatingPoints
from learners.rule.rule import Rule


def class_sections(
    material: Material, evaluation: Evaluation, *, duplicates: pd.DataFrame | None = None
) -> Sections:
    """Sections of a single-label model's report.

    Parameters
    ----------
    duplicates : near-duplicates across splits, of `learners.evaluation.suspects.near_duplicates`; None where the
        names of the training files are not known.
    """
    scored: ScoredItems = evaluation.scored
    rule, tables = scored.rule, evaluation.tables
    table, pictures = material.table, material.pictures
    bundle = material.predictor.bundle
    measured = evaluation.figures
    hard = hardest_items(evaluation, scored)
    suspects = label_suspects(evaluation, scored, bundle.classes)
    same = scored.rows[is_copy(evaluation, bundle, scored)]
    if (corrections := table.get(Corrections)) and len(corrections.frame):
        tables = {**tables, "Corrected labels": _corrected(corrections)}
    known, wrong = evaluation.known, mistakes(evaluation, scored, bundle.classes)
    unpredicted = evaluation.predictions.loc[evaluation.predictions["best"].eq("")]
    surest = gallery(pictures, evaluation, wrong)
    figures = {
        **measured,
        **{name: one.figures(evaluation) for name, one in ADDED.items()},
        "hardest": hard.to_dict("records"),
        "label_suspects": suspects.to_dict("records"),
        "copies_of_training_items": evaluation.predictions["path"].iloc[same].tolist(),
        "operating_points": evaluation.metrics.get("operating_points"),
        "near_duplicates": None if duplicates is None else _duplicate_rows(duplicates, evaluation),
        "data": {**facts(table), "items": class_counts(table).to_dict("records")},
        "tables": {name: frame.to_dict("records") for name, frame in tables.items()},
        "not_predicted": unpredicted[["path", "split", "reason"]].to_dict("records"),
    }
    notices = _too_good(len(same), 0 if duplicates is None else len(duplicates), len(scored.rows))
    checks = evaluation.metrics.get("calibration_check", [])
    problems = [*rule.notes, *notices]
    figures["verdict"] = verdict(measured, checks, problems, len(same))._asdict()
    split = measured["headline"]["split"]
    cross_fitted = evaluation.folds is not None
    part = partial(part_name, cross_fitted=cross_fitted)
    page = {
        "part": part,
        "cross_fitted": cross_fitted,
        "judge": judge(measured["metrics"]),
        "parts_of_known": _parts_of_known(evaluation, part),
        "counts": split and counts_of(measured["metrics"], split),
        "examples": examples(pictures, evaluation),
        "colours": plots.colours(len(bundle.classes)),
        # Features of several bodies are in no common space.
        "map": None
        if evaluation.by_body
        else plots.embedding(
            evaluation.features, evaluation.predictions["truth"].tolist(), bundle.classes
        ),
        "own_rule": rule,
        "known": len(known),
        "wrong": len(wrong),
        "surest": surest,
        "no_map": pictures.no_map,
        "low": LOW,
        "added": [(one.question, one.page(evaluation, pictures)) for one in ADDED.values()],
        "confused": [
            dict(zip(("label", "predicted", "times"), pair, strict=True))
            for pair in most_confused(known, 10)
        ],
        "worst_first": sorted(
            (row for row in measured["classes"] if row["items"]),
            key=lambda row: row["right"] / row["items"],
        ),
        "refused_right": gallery(pictures, evaluation, refused_although_right(evaluation)),
        "rules": OperatingPoints.read(evaluation.metrics),
        "answers_at": answers_at,
        "adjust": installed_commands("python -m learners.adjust"),
        "suspects": gallery(pictures, evaluation, suspects),
        "curves": material.curves,
        "rates": material.rates,
        **_plots(measured, bundle.classes, rule, part),
    }
    return Sections("report.html", figures, page, notices)


def _parts_of_known(evaluation: Evaluation, part: Callable[[str], str]) -> str:
    """Names of the parts of the files of known classes, as in "calibration and test"."""
    parts = sorted(part(str(name)) for name in evaluation.known["split"].unique())
    return " and ".join(", ".join(parts).rsplit(", ", 1))


def _plots(
    measured: Mapping[str, Any], classes: Sequence[str], rule: Rule, part: Callable[[str], str]
) -> dict[str, Any]:
    """The plots; None or empty where there is nothing to plot."""
    matrix, unknown = np.array(measured["answers"]), measured["unknown_classes"]
    refused = matrix[:, -1].sum()
    wrong = matrix.sum() - np.trace(matrix) - refused
    title = f"Confusion matrix of {matrix.sum()} files: {wrong} answered wrong, {refused} refused"
    main = measured["evaluated_split"]
    errors = main and measured["splits"][main]["calibration"]
    return {
        "scored": matrix.sum(),
        "refused": refused,
        "answered_wrong": wrong,
        "matrix": plots.confusion(matrix, classes, title) if matrix.any() else None,
        "reliability": [
            plots.reliability(bins, f"{when} calibration", errors[when]["ece"]["value"])
            for when, bins in (measured["reliability"] or {}).items()
        ],
        "risk": measured["risk_coverage"]
        and plots.risk_coverage(measured["risk_coverage"], f"{part(main)} files"),
        "histogram": unknown
        and plots.histogram(
            unknown["histogram"],
            unknown["score"],
            rule.floor.by_score.get(unknown["score"]),
        ),
    }


def _too_good(copies: int, near_duplicates: int, files: int) -> list[str]:
    """Notices on files that look like training files."""
    notices = []
    if copies:
        notices.append(
            f"{copies} of {files} files are copies of training files as far as the network can tell, so the "
            "figures here are too good"
        )
    if near_duplicates:
        notices.append(
            f"{near_duplicates} of {files} files look to the network like a training file, although their "
            "thumbnails differ, so the figures may be slightly too good (see Which files look wrong?). "
            "--group-by keeps such files in one split"
        )
    return notices


def _corrected(corrections: Corrections) -> pd.DataFrame:
    """The labels that were corrected since an earlier training."""
    rows = corrections.frame.rename(columns={"path": "file", "before": "labelled before"})
    columns = ["file", "span", "labelled before", "label", "by"]
    return rows[columns] if rows["span"].any() else rows[columns].drop(columns="span")


def _duplicate_rows(duplicates: pd.DataFrame, evaluation: Evaluation) -> list[Any]:
    rows = evaluation.predictions.iloc[duplicates["row"].to_numpy(int)]
    named = duplicates.assign(path=rows["path"].to_numpy(), split=rows["split"].to_numpy())
    return named.drop(columns="row").to_dict("records")


def label_sections(material: Material, evaluation: Evaluation) -> Sections:
    """Sections of a multi-label model's report."""
    table, pictures = material.table, material.pictures
    bundle = material.predictor.bundle
    measured = evaluation.figures
    part = partial(part_name, cross_fitted=evaluation.folds is not None)
    paths = evaluation.predictions["path"]
    wrong = [{**one, "file": paths.iloc[one["row"]]} for one in measured["mistakes"]]
    figures = {
        **measured,
        "verdict": label_verdict(measured, bundle.rule.notes)._asdict(),
        "classes": bundle.classes,
        "mistakes": wrong,
        "data": {**facts(table), "items": _label_counts(table)},
    }
    shown = pd.DataFrame(
        {**one, "truth": evaluation.predictions["truth"].iloc[one["row"]]} for one in wrong
    )
    panels = [
        plot
        for row, curve in zip(measured["labels"], measured["curves"], strict=True)
        for plot in _label_plots(row, curve)
    ]
    page = {
        "part": part,
        "parts_of_known": _parts_of_known(evaluation, part),
        "cross_fitted": evaluation.folds is not None,
        "training": material.curves,
        "rates": material.rates,
        "panels": panels[: 3 * plots.PANELS],
        "wrong": gallery(pictures, evaluation, shown),
    }
    return Sections("labels.html", figures, page, [])


def _label_counts(table: Items) -> list[dict[str, Any]]:
    """Files with each label in each split, and those without a label."""
    splits = [str(name) for name in table.frame["split"].unique()]
    counts = split_counts(table)[splits].to_numpy().tolist()
    names = [*table.classes, NO_LABEL]
    return [
        {"label": name, **dict(zip(splits, row, strict=True))}
        for name, row in zip(names, counts, strict=True)
    ]


def _label_plots(row: Mapping[str, Any], curve: Mapping[str, Any]) -> list[Markup]:
    """Precision by recall with the threshold's point, ROC and reliability; none for a label that no file or
    every file has."""
    if curve["reliability"] is None:
        return []
    name, point = row["label"], (row["recall"]["value"], row["precision"]["value"])
    title = f"Precision by recall of {name}, average precision {row['average_precision']:.3f}"
    with plots.panel(title) as (axes, svg):
        axes.plot(curve["recall"], curve["precision"], color=plots.BLUE)
        if None not in point:
            axes.plot(*point, "o", color=plots.ORANGE, markersize=8, label="its threshold")
            axes.legend(loc="lower left")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.04))
        axes.set_title(plots.short(name), fontsize=10)
    with plots.panel(f"ROC of {name}, area under it {row['auroc']:.3f}") as (axes, roc):
        axes.plot(*curve["roc"], color=plots.BLUE)
        axes.set(xlabel="false positive rate", ylabel="recall", ylim=(0, 1.04))
        axes.set_title(plots.short(name), fontsize=10)
    bins = plots.reliability(curve["reliability"], plots.short(name), row["ece"])
    return [svg(), roc(), bins]
