"""What the report shows where an item has several labels: each by itself, and all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from datasets.items import ItemTable, names_of
from datasets.spectrograms import source_of
from learners.evaluation import Evaluation, all_label_figures
from learners.report import plots
from learners.report.galleries import Pictures
from learners.report.report import Material, Sections
from learners.report.summary import facts


def label_sections(material: Material, evaluation: Evaluation) -> Sections:
    """Of the predictor's answers for what was held out, each label by itself and all together."""
    table, pictures = material.table, material.pictures
    bundle = material.predictor.bundle
    found = all_label_figures(evaluation, evaluation.judged, bundle)
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
        for drawn in _drawn(row, curve)
    ]
    drawn = {
        "training": material.curves,
        "panels": panels[: 3 * plots.PANELS],
        "wrong": [_figure(pictures, evaluation, one) for one in found["mistakes"]],
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


def _drawn(row: Mapping[str, Any], curve: Mapping[str, Any]) -> list[Markup]:
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


def _figure(pictures: Pictures, evaluation: Evaluation, one: Mapping[str, Any]) -> Any:
    row = evaluation.predictions.iloc[one["row"]].to_dict()
    there = "it is there" if one["there"] else "it is not there"
    said = (
        f"{one['label']} {100 * one['probability']:.0f} %, {there} · {row['truth'] or 'no label'}"
    )
    return pictures.figure(source_of(row), said, one["class_index"])
