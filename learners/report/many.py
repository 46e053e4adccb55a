"""The report of a model with several labels an item: ``index.html`` and the same figures as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from datasets.core.errors import Rejected
from datasets.core.files import write_beside
from datasets.items import ItemTable, names_of
from datasets.spectrograms import source_of
from learners.evaluation import Evaluation
from learners.files import Names, data_name, jsonable, shared_provenance
from learners.inference import Predictor
from learners.report import plots
from learners.report.galleries import Pictures
from learners.report.report import _made, _shared, _write_json
from learners.report.summary import facts
from learners.templates import render


def write_many_report(
    folder: Path,
    predictor: Predictor,
    evaluation: Evaluation,
    found: Mapping[str, Any],
    table: ItemTable,
    *,
    history: Path | None = None,
    checks: Sequence[str] = (),
    command: str = "",
) -> Path:
    """As `write_report`, of ``found``, which `learners.evaluation.many_figures` gave."""
    folder.mkdir(parents=True, exist_ok=True)
    bundle = predictor.bundle
    names = Names(
        table.source, table.frame["path"], table.unknowns["path"], [r.path for r in table.rejected]
    )
    epochs = None if history is None else pd.read_csv(history)
    left_out = _shared(pd.DataFrame(table.rejected, columns=Rejected._fields), names)
    notes = bundle.confidence.notes if bundle.confidence else []
    mistakes = [
        {**one, "file": names.file(evaluation.predictions["path"].iloc[one["row"]])}
        for one in found["mistakes"]
    ]
    everything: dict[str, Any] = jsonable(
        {
            "title": f"{data_name(table.source)}: {bundle.spec.backbone}",
            "basis": names(table.basis),
            "notices": [*checks, *notes],
            **found,
            "classes": bundle.classes,
            "mistakes": mistakes,
            "data": {**facts(table), "items": label_counts(table)},
            "left_out": left_out.to_dict("records"),
            "history": [] if epochs is None else epochs.to_dict("records"),
            "provenance": shared_provenance(bundle.provenance),
            "evaluated": _made(command, table) if command else {},
        }
    )
    _write_json(folder, everything)
    pictures = Pictures(predictor)
    html = render(
        "learners.report",
        "many.html",
        found=everything,
        note=names(table.note) if table.note else "",
        training=[] if epochs is None or epochs.empty else plots.curves(epochs),
        panels=[
            drawn
            for row, curve in list(zip(everything["labels"], found["curves"], strict=True))
            for drawn in _drawn(row, curve)
        ][: 3 * plots.PANELS],
        wrong=[_figure(pictures, evaluation, one) for one in found["mistakes"]],
    )
    write_beside(folder / "index.html", html.encode())
    return folder / "index.html"


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
