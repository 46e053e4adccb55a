"""The report of a run or of an evaluation: ``index.html``, one file that needs no network, and the
same figures as JSON. The words stand in ``templates``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from datasets.core.errors import Rejected
from datasets.core.files import write_beside
from datasets.items import ItemTable
from learners.evaluation import (
    LOW,
    STRANGE,
    Answered,
    Changes,
    Evaluation,
    all_figures,
    copies,
    hardest,
    label_suspects,
)
from learners.files import Names, data_name, jsonable, last_part, shared_command, shared_provenance
from learners.inference import Predictor
from learners.machine import surroundings
from learners.model import Bundle
from learners.report import plots
from learners.report.galleries import Pictures, changed, examples, mistakes, suspected, twinned
from learners.report.summary import class_counts, facts
from learners.templates import render
from learners.uncertainty import Confidence


def write_report(
    folder: Path,
    predictor: Predictor,
    answered: Answered,
    table: ItemTable,
    *,
    history: Path | None = None,
    title: str = "",
    checks: Sequence[str] = (),
    twins: pd.DataFrame | None = None,
    command: str = "",
) -> Path:
    """Write the report of a training run, or of an evaluation.

    Parameters
    ----------
    folder : made if it is not there.
    answered : the predictor's answers for what was held out; its tables stand under their titles.
    table : the items, as they were asked about.
    history : the run's history.csv; without it there are no curves.
    title : by default the data's name and the backbone.
    checks : sentences that stand on top of the page.
    twins : near-duplicates across splits, as `learners.evaluation.suspects.near_duplicates` gives them; without
        it no names of training items are known.
    command : what was typed, where it was not the training.

    Returns
    -------
    Path of ``index.html``; ``report.json`` beside it holds the same figures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bundle, (evaluation, judged, tables, changes, curve) = predictor.bundle, answered
    items, strange = table.frame["path"], table.unknowns["path"]
    names = Names(
        table.source, items, strange, table.background["path"], [path for path, _ in table.rejected]
    )
    found = all_figures(evaluation, bundle, judged=judged)
    epochs = None if history is None else pd.read_csv(history)
    hard = _shared(hardest(evaluation, judged), names)
    suspects = _shared(label_suspects(evaluation, judged, bundle.classes), names)
    same = judged.rows[copies(evaluation, bundle, judged)]
    alike = 0 if twins is None else len(twins)
    if len(table.corrections):
        tables = {
            **tables,
            f"Corrected labels ({len(table.corrections)})": _corrected(table, names),
        }
    if bundle.confidence and bundle.confidence.promises:
        tables = {"Each class's threshold": _promises(bundle.confidence, bundle.classes), **tables}
    notices = [*checks, *(bundle.confidence.notes if bundle.confidence else [])]
    notices += _too_good(len(same), alike, len(judged.rows))
    notes = {name: frame.attrs.get("note", "") for name, frame in tables.items()}
    counts, about = class_counts(table), facts(table)
    trained = shared_provenance(bundle.provenance)
    title = title or f"{data_name(table.source)}: {bundle.spec.backbone}"
    pictures = Pictures(predictor)
    known = evaluation.predictions.loc[~evaluation.predictions["split"].isin(STRANGE)]
    wrong = known.loc[known["best"].ne(known["truth"]) & known["best"].ne("")]
    refused = evaluation.predictions.loc[evaluation.predictions["best"].eq("")]
    refused = _shared(refused[["path", "split", "reason"]], names)
    left_out = _shared(pd.DataFrame(table.rejected, columns=Rejected._fields), names)
    made = _made(command, table) if command or history is None else {}
    everything: dict[str, Any] = jsonable(
        {
            "title": title,
            "basis": names(table.basis),
            "notices": notices,
            **found,
            "before_after": None if changes is None else _compared(changes, names),
            "learning_curve": curve,
            "history": [] if epochs is None else epochs.to_dict("records"),
            "hardest": hard.to_dict("records"),
            "label_suspects": suspects.to_dict("records"),
            "copies_of_training_items": [
                names.file(path) for path in evaluation.predictions["path"].iloc[same]
            ],
            "near_duplicates": None if twins is None else _named(twins, evaluation, names),
            "data": {**about, "items": counts.to_dict("records")},
            "left_out": left_out.to_dict("records"),
            "tables": {name: frame.to_dict("records") for name, frame in tables.items()},
            "table_notes": notes,
            "provenance": trained,
            "not_judged": refused.to_dict("records"),
            "evaluated": made,
        }
    )
    _write_json(folder, everything)
    surest, worst = mistakes(pictures, evaluation, judged, wrong)
    html = render(
        "learners.report",
        "report.html",
        found=everything,
        examples=examples(pictures, evaluation),
        colours=plots.colours(len(bundle.classes)),
        map=plots.embedding(
            evaluation.features, evaluation.predictions["truth"].tolist(), bundle.classes
        ),
        note=names(table.note) if table.note else "",
        confidence=bundle.confidence,
        notes=notes,
        known=len(known),
        wrong=len(wrong),
        surest=surest,
        worst=worst,
        no_map=pictures.no_map,
        low=LOW,
        spoilt=changed(pictures, changes, evaluation, "spoilt"),
        mended=changed(pictures, changes, evaluation, "mended"),
        confused=_confused(found["confusion"], bundle.classes),
        suspects=suspected(pictures, suspects, evaluation),
        twins=[] if twins is None else twinned(pictures, twins, evaluation),
        learnt=[] if curve is None else plots.learning(everything["learning_curve"]),
        **_drawn(found, bundle, epochs),
    )
    write_beside(folder / "index.html", html.encode())
    return folder / "index.html"


def write_estimate(
    folder: Path, bundle: Bundle, table: ItemTable, found: Mapping[str, Any], *, command: str = ""
) -> Path:
    """Write the report of files without labels, as `write_report` writes that of labelled ones.

    Parameters
    ----------
    found : ``notices``; ``expected``, of `learners.evaluation.expected_accuracy`; what
        `learners.evaluation.answer_figures` counts; and ``bad_files``.
    """
    names = Names(table.source, table.frame["path"], [path for path, _ in table.rejected])
    left_out = _shared(pd.DataFrame(table.rejected, columns=Rejected._fields), names)
    everything: dict[str, Any] = jsonable(
        {
            "title": f"{last_part(table.source)}, without labels: {bundle.spec.backbone}",
            **found,
            "data": facts(table),
            "left_out": left_out.to_dict("records"),
            "provenance": shared_provenance(bundle.provenance),
            "evaluated": _made(command, table),
        }
    )
    _write_json(folder, everything)
    html = render("learners.report", "estimate.html", found=everything)
    write_beside(folder / "index.html", html.encode())
    return folder / "index.html"


def _promises(confidence: Confidence, classes: Sequence[str]) -> pd.DataFrame:
    """What each class's threshold gave on the calibration items that were named so."""
    found = pd.DataFrame(
        {
            "class": name,
            "threshold": cut.value,
            "answered": cut.coverage,
            "right": cut.accuracy,
            "at least": cut.accuracy_low,
            "promised": np.nan if cut.message else cut.target,
        }
        for name, cut in zip(classes, confidence.promises, strict=True)
    )
    found.attrs["note"] = (
        "On the calibration items that were named so; without a promise at least is the most they "
        "show, at a risk of 5 %."
    )
    return found


def _made(command: str, table: ItemTable) -> dict[str, Any]:
    return {"command": shared_command(command, table.source), **surroundings()}


def _write_json(folder: Path, everything: Mapping[str, Any]) -> None:
    text = json.dumps(everything, indent=1, default=str, ensure_ascii=False, allow_nan=False)
    write_beside(folder / "report.json", f"{text}\n".encode())


def folds_page(
    title: str, table: pd.DataFrame, links: Mapping[str, str], missing: list[str], basis: str
) -> str:
    """The page of a cross-validation: what its figures rest on, its table, links to the folds' reports."""
    counts = [name for name in table if str(name).endswith("_items")]
    figures = table.drop(columns=counts).set_index("fold").T
    rows = [{"figure": str(n).replace("_", " "), **row} for n, row in figures.iterrows()]
    return render(
        "learners.report",
        "folds.html",
        title=f"{title}: folds",
        figures=rows,
        links=links,
        missing=missing,
        basis=basis,
    )


def _confused(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> list[dict[str, Any]]:
    """What was most often taken for what."""
    wrong: list[dict[str, Any]] = [
        {"label": classes[t], "answered": classes[b], "times": count}
        for t, row in enumerate(counts)
        for b, count in enumerate(row)
        if count and t != b
    ]
    return sorted(wrong, key=lambda pair: -pair["times"])[:10]


def _drawn(found: Mapping[str, Any], bundle: Bundle, epochs: pd.DataFrame | None) -> dict[str, Any]:
    """The plots; nothing where there is nothing to plot."""
    matrix, strange = np.array(found["confusion"]), found["strangers"]
    errors = found["judged_on"] and found["splits"][found["judged_on"]]["calibration"]
    return {
        "curves": [] if epochs is None or epochs.empty else plots.curves(epochs),
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


def _shared(rows: pd.DataFrame, names: Names) -> pd.DataFrame:
    """Rows about files without the folders that they lie in; reasons may name files, too."""
    paths, reasons = rows["path"].map(names.file), {}
    if "reason" in rows:
        reasons = {"reason": rows["reason"].map(names)}
    return rows.assign(path=paths, **reasons)


def _compared(changes: Changes, names: Names) -> dict[str, Any]:
    answers = changes.answers.drop(columns="row")
    return {
        "said": changes.said,
        "parts": changes.parts.to_dict("records"),
        "classes": changes.classes.to_dict("records"),
        "answers": _shared(answers, names).to_dict("records"),
    }


def _corrected(table: ItemTable, names: Names) -> pd.DataFrame:
    """The labels that were replaced; what was trained on them before, learnt the others."""
    shown = table.corrections.rename(columns={"path": "file", "before": "labelled before"})
    for column in ("file", "by"):
        shown[column] = shown[column].map(names.file)
    columns = ["file", "span", "labelled before", "label", "by"]
    shown = shown[columns if shown["span"].any() else [*columns[:1], *columns[2:]]]
    shown.attrs["note"] = "Of several labels of one file the last counts."
    return shown


def _named(twins: pd.DataFrame, evaluation: Evaluation, names: Names) -> list[Any]:
    rows = evaluation.predictions.iloc[twins["row"].to_numpy(int)]
    paths = [names.file(path) for path in rows["path"]]
    named = twins.assign(path=paths, split=rows["split"].to_numpy())
    named["train_path"] = named["train_path"].map(names.file)
    return named.drop(columns="row").to_dict("records")
