"""The report of a run or of an evaluation: ``index.html``, one file that needs no network, and the
same figures as JSON. The words stand in ``templates``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from datasets.core.errors import Rejected
from datasets.core.files import write_beside
from datasets.items import ItemTable
from learners.files import Names, data_name, jsonable, last_part, shared_command, shared_provenance
from learners.inference import Predictor
from learners.machine import surroundings
from learners.model import Bundle
from learners.report import plots
from learners.report.galleries import Pictures
from learners.report.summary import facts
from learners.templates import render


class Material(NamedTuple):
    """What the sections of a report are made of, beside the answers: the table of items, their names as
    they are shared, pictures of them, and the run's epochs."""

    table: ItemTable
    names: Names
    pictures: Pictures
    epochs: pd.DataFrame | None

    @property
    def predictor(self) -> Predictor:
        return self.pictures.predictor

    @property
    def curves(self) -> list[Markup]:
        """The plots of the training."""
        return [] if self.epochs is None or self.epochs.empty else plots.curves(self.epochs)


class Sections(NamedTuple):
    """What a task shows in a report.

    Attributes
    ----------
    template : the page.
    figures : of the task, for report.json and the page; ``data`` among them has the table of items.
    drawn : what only the page shows.
    notices : sentences that stand on top of the page, after the run's own.
    """

    template: str
    figures: dict[str, Any]
    drawn: dict[str, Any]
    notices: list[str]


def write_report(
    folder: Path,
    predictor: Predictor,
    table: ItemTable,
    sections: Callable[[Material], Sections],
    *,
    history: Path | None = None,
    title: str = "",
    checks: Sequence[str] = (),
    command: str = "",
) -> Path:
    """Write the report of a training run, or of an evaluation.

    Parameters
    ----------
    folder : made if it is not there.
    table : the items, as they were asked about.
    sections : of the answers, as the task shows them: `class_sections` or `label_sections`.
    history : the run's history.csv; without it there are no curves.
    title : by default the data's name and the backbone.
    checks : sentences that stand on top of the page.
    command : what was typed, where it was not the training.

    Returns
    -------
    Path of ``index.html``; ``report.json`` beside it holds the same figures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bundle = predictor.bundle
    items, strange = table.frame["path"], table.unknowns["path"]
    names = Names(
        table.source, items, strange, table.background["path"], [path for path, _ in table.rejected]
    )
    epochs = None if history is None else pd.read_csv(history)
    shown = sections(Material(table, names, Pictures(predictor), epochs))
    notes = bundle.confidence.notes if bundle.confidence else []
    left_out = shared(pd.DataFrame(table.rejected, columns=Rejected._fields), names)
    everything: dict[str, Any] = jsonable(
        {
            "title": title or f"{data_name(table.source)}: {bundle.spec.backbone}",
            "basis": names(table.basis),
            "notices": [*checks, *notes, *shown.notices],
            **shown.figures,
            "history": [] if epochs is None else epochs.to_dict("records"),
            "left_out": left_out.to_dict("records"),
            "provenance": shared_provenance(bundle.provenance),
            "evaluated": _made(command, table) if command or history is None else {},
        }
    )
    _write_json(folder, everything)
    note = names(table.note) if table.note else ""
    html = render("learners.report", shown.template, found=everything, note=note, **shown.drawn)
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
    left_out = shared(pd.DataFrame(table.rejected, columns=Rejected._fields), names)
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


def shared(rows: pd.DataFrame, names: Names) -> pd.DataFrame:
    """Rows about files without the folders that they lie in; reasons may name files, too."""
    paths, reasons = rows["path"].map(names.file), {}
    if "reason" in rows:
        reasons = {"reason": rows["reason"].map(names)}
    return rows.assign(path=paths, **reasons)
