"""What the report shows: of one class an item calibration, refusals and confusions; of several labels each
by itself, and all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from datasets.items import ItemTable, names_of
from datasets.spectrograms import source_of
from learners.evaluation import (
    LOW,
    OPEN_SET_SPLITS,
    Changes,
    Evaluation,
    all_figures,
    all_label_figures,
    hardest_items,
    is_copy,
    label_suspects,
)
from learners.files import PathShortener, jsonable
from learners.model import Bundle
from learners.report import plots
from learners.report.galleries import Pictures, changed, examples, mistakes, suspected, twinned
from learners.report.report import Material, Sections, class_counts, facts, shared
from learners.uncertainty import Confidence


def class_sections(
    material: Material, evaluation: Evaluation, *, twins: pd.DataFrame | None = None
) -> Sections:
    """Of the predictor's answers for what was held out; their tables stand under their titles.

    ``twins`` : near-duplicates across splits, as `learners.evaluation.near_duplicates` gives them;
    without it no names of training items are known.
    """
    judged, tables = evaluation.scored, evaluation.tables
    changes, curve = evaluation.changes, evaluation.curve
    table, names, pictures = material.table, material.names, material.pictures
    bundle = material.predictor.bundle
    found = all_figures(evaluation, bundle, scored=judged)
    hard = shared(hardest_items(evaluation, judged), names)
    suspects = shared(label_suspects(evaluation, judged, bundle.classes), names)
    same = judged.rows[is_copy(evaluation, bundle, judged)]
    if len(table.corrections):
        title = f"Corrected labels ({len(table.corrections)})"
        tables = {**tables, title: _corrected(table, names)}
    if bundle.confidence and bundle.confidence.cut.guarantees:
        tables = {
            "Each class's threshold": _guarantees(bundle.confidence, bundle.classes),
            **tables,
        }
    notes = {name: frame.attrs.get("note", "") for name, frame in tables.items()}
    known = evaluation.predictions.loc[~evaluation.predictions["split"].isin(OPEN_SET_SPLITS)]
    wrong = known.loc[known["best"].ne(known["truth"]) & known["best"].ne("")]
    refused = evaluation.predictions.loc[evaluation.predictions["best"].eq("")]
    refused = shared(refused[["path", "split", "reason"]], names)
    surest, worst = mistakes(pictures, evaluation, judged, wrong)
    figures = {
        **found,
        "before_after": None if changes is None else _compared(changes, names),
        "learning_curve": curve,
        "hardest": hard.to_dict("records"),
        "label_suspects": suspects.to_dict("records"),
        "copies_of_training_items": [
            names.file(path) for path in evaluation.predictions["path"].iloc[same]
        ],
        "near_duplicates": None if twins is None else _named(twins, evaluation, names),
        "data": {**facts(table), "items": class_counts(table).to_dict("records")},
        "tables": {name: frame.to_dict("records") for name, frame in tables.items()},
        "table_notes": notes,
        "not_judged": refused.to_dict("records"),
    }
    drawn = {
        "examples": examples(pictures, evaluation),
        "colours": plots.colours(len(bundle.classes)),
        "map": plots.embedding(
            evaluation.features, evaluation.predictions["truth"].tolist(), bundle.classes
        ),
        "confidence": bundle.confidence,
        "notes": notes,
        "known": len(known),
        "wrong": len(wrong),
        "surest": surest,
        "worst": worst,
        "no_map": pictures.no_map,
        "low": LOW,
        "spoilt": changed(pictures, changes, evaluation, "spoilt"),
        "mended": changed(pictures, changes, evaluation, "mended"),
        "confused": _confused(found["confusion"], bundle.classes),
        "suspects": suspected(pictures, suspects, evaluation),
        "twins": [] if twins is None else twinned(pictures, twins, evaluation),
        "learnt": [] if curve is None else plots.learning(jsonable(curve)),
        "curves": material.curves,
        **_drawn(found, bundle),
    }
    notices = _too_good(len(same), 0 if twins is None else len(twins), len(judged.rows))
    return Sections("report.html", figures, drawn, notices)


def _guarantees(confidence: Confidence, classes: Sequence[str]) -> pd.DataFrame:
    """What each class's threshold gave on the calibration items that were named so."""
    found = pd.DataFrame(
        {
            "class": name,
            "threshold": cut.value,
            "answered": cut.coverage,
            "right": cut.accuracy,
            "at least": cut.accuracy_low,
            "guaranteed": np.nan if cut.message else cut.target,
        }
        for name, cut in zip(classes, confidence.cut.guarantees, strict=True)
    )
    found.attrs["note"] = (
        "On the calibration items that were named so; without a promise at least is the most they "
        "show, at a risk of 5 %."
    )
    return found


def _confused(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> list[dict[str, Any]]:
    """What was most often taken for what."""
    wrong: list[dict[str, Any]] = [
        {"label": classes[t], "answered": classes[b], "times": count}
        for t, row in enumerate(counts)
        for b, count in enumerate(row)
        if count and t != b
    ]
    return sorted(wrong, key=lambda pair: -pair["times"])[:10]


def _drawn(found: Mapping[str, Any], bundle: Bundle) -> dict[str, Any]:
    """The plots; nothing where there is nothing to plot."""
    matrix, strange = np.array(found["confusion"]), found["unknown_classes"]
    errors = found["judged_on"] and found["splits"][found["judged_on"]]["calibration"]
    return {
        "judged": matrix.sum(),
        "matrix": plots.confusion(matrix, bundle.classes) if matrix.any() else None,
        "reliability": [
            plots.reliability(bins, when, errors[when]["ece"]["value"])
            for when, bins in (found["reliability"] or {}).items()
        ],
        "risk": found["risk_coverage"] and plots.risk_coverage(found["risk_coverage"]),
        "specific": found["tree"] and plots.specificity(found["tree"]["curves"]),
        "histogram": strange and plots.histogram(strange["histogram"], strange["score"]),
    }


def _too_good(same: int, alike: int, judged: int) -> list[str]:
    said = []
    if same:
        said.append(
            f"{same} of {judged} files are to the network the same as one that it was trained on: "
            "the figures here are too good by as much"
        )
    if alike:
        said.append(
            f"{alike} of {judged} held-out files look like a training file (see Near-duplicates): "
            "the figures here may be too good; --group-by keeps such files together"
        )
    return said


def _compared(changes: Changes, names: PathShortener) -> dict[str, Any]:
    answers = changes.changed.drop(columns="row")
    return {
        "message": changes.message,
        "subsets": changes.subsets.to_dict("records"),
        "classes": changes.classes.to_dict("records"),
        "answers": shared(answers, names).to_dict("records"),
    }


def _corrected(table: ItemTable, names: PathShortener) -> pd.DataFrame:
    """The labels that were replaced; what was trained on them before, learnt the others."""
    shown = table.corrections.rename(columns={"path": "file", "before": "labelled before"})
    for column in ("file", "by"):
        shown[column] = shown[column].map(names.file)
    columns = ["file", "span", "labelled before", "label", "by"]
    shown = shown[columns if shown["span"].any() else [*columns[:1], *columns[2:]]]
    shown.attrs["note"] = "Of several labels of one file the last counts."
    return shown


def _named(twins: pd.DataFrame, evaluation: Evaluation, names: PathShortener) -> list[Any]:
    rows = evaluation.predictions.iloc[twins["row"].to_numpy(int)]
    paths = [names.file(path) for path in rows["path"]]
    named = twins.assign(path=paths, split=rows["split"].to_numpy())
    named["train_path"] = named["train_path"].map(names.file)
    return named.drop(columns="row").to_dict("records")


def label_sections(material: Material, evaluation: Evaluation) -> Sections:
    """Of the predictor's answers for what was held out, each label by itself and all together."""
    table, pictures = material.table, material.pictures
    bundle = material.predictor.bundle
    found = all_label_figures(evaluation, evaluation.scored, bundle)
    paths = evaluation.predictions["path"]
    mistakes = [
        {**one, "file": material.names.file(paths.iloc[one["row"]])} for one in found["mistakes"]
    ]
    figures = {
        **found,
        "classes": bundle.classes,
        "mistakes": mistakes,
        "data": {**facts(table), "items": label_counts(table)},
    }
    panels = [
        drawn
        for row, curve in zip(found["labels"], found["curves"], strict=True)
        for drawn in _label_plots(row, curve)
    ]
    drawn = {
        "training": material.curves,
        "panels": panels[: 3 * plots.PANELS],
        "wrong": [_mistake(pictures, evaluation, one) for one in found["mistakes"]],
    }
    return Sections("labels.html", figures, drawn, [])


def label_counts(table: ItemTable) -> list[dict[str, Any]]:
    """Items with each label in each split, and those with none."""
    counts: Counter[tuple[str, str]] = Counter()
    for label, split in zip(table.frame["label"], table.frame["split"], strict=True):
        counts.update((name, split) for name in names_of(label) or ["none of them"])
    splits = [str(name) for name in table.frame["split"].unique()]
    return [
        {"label": name, **{split: counts[name, split] for split in splits}}
        for name in [*table.classes, "none of them"]
    ]


def _label_plots(row: Mapping[str, Any], curve: Mapping[str, Any]) -> list[Markup]:
    """Precision by recall with the threshold's point, ROC and reliability; nothing where it never
    occurs, or always."""
    if curve["reliability"] is None:
        return []
    name, at = row["label"], (row["recall"]["value"], row["precision"]["value"])
    said = f"Precision by recall of {name}, average precision {row['average_precision']:.3f}"
    with plots.panel(said) as (axes, out):
        axes.plot(curve["recall"], curve["precision"], color=plots.BLUE)
        if None not in at:
            axes.plot(*at, "o", color=plots.ORANGE, markersize=8, label="its threshold")
            axes.legend(loc="lower left")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.04))
        axes.set_title(plots.short(name), fontsize=10)
    with plots.panel(f"ROC of {name}, area under it {row['auroc']:.3f}") as (axes, roc):
        axes.plot(*curve["roc"], color=plots.BLUE)
        axes.set(xlabel="said of those without it", ylabel="recall", ylim=(0, 1.04))
        axes.set_title(plots.short(name), fontsize=10)
    bins = plots.reliability(curve["reliability"], plots.short(name), row["ece"])
    return [out(), roc(), bins]


def _mistake(pictures: Pictures, evaluation: Evaluation, one: Mapping[str, Any]) -> Any:
    row = evaluation.predictions.iloc[one["row"]].to_dict()
    there = "it is there" if one["present"] else "it is not there"
    said = (
        f"{one['label']} {100 * one['probability']:.0f} %, {there} · {row['truth'] or 'no label'}"
    )
    return pictures.figure(source_of(row), said, one["class_index"])
