"""The report of a run or of an evaluation: ``index.html``, one file that needs no network, and the
same figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from datasets.errors import Rejected
from datasets.files import write_beside
from datasets.tables import UNKNOWN, ItemTable
from learners.evaluation import (
    Answered,
    Evaluation,
    all_figures,
    copies,
    hardest,
    label_suspects,
)
from learners.files import Names, jsonable, last_part, shared_command, shared_provenance
from learners.machine import surroundings
from learners.model import Bundle
from learners.prediction import Predictor
from learners.report import page as _page
from learners.report import plots as _plots
from learners.report.galleries import Pictures
from learners.report.sections import (
    calibration,
    classes,
    headline,
    label_gallery,
    mistakes,
    refusal,
    strangers,
    twin_gallery,
)
from learners.report.summary import class_counts, facts

SHOWN = 12  # pictures in a gallery
LISTED = 50  # rows in a list of files


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
    bundle, (evaluation, judged, tables) = predictor.bundle, answered
    items, strange = table.frame["path"], table.unknowns["path"]
    names = Names(table.source, items, strange, [path for path, _ in table.rejected])
    found = all_figures(evaluation, bundle, judged=judged)
    epochs = None if history is None else pd.read_csv(history)
    hard = _shared(hardest(evaluation, judged), names)
    suspects = _shared(label_suspects(evaluation, judged, bundle.classes), names)
    same = judged.rows[copies(evaluation, bundle, judged)]
    alike = 0 if twins is None else len(twins)
    notices = [*checks, *(bundle.confidence.notes if bundle.confidence else [])]
    notices += _too_good(len(same), alike, len(judged.rows))
    counts, about = class_counts(table), facts(table)
    trained = shared_provenance(bundle.provenance)
    title = title or f"{last_part(table.source)}: {bundle.spec.backbone}"
    pictures = Pictures(predictor)
    known = evaluation.predictions.loc[evaluation.predictions["split"].ne(UNKNOWN)]
    wrong = known.loc[known["best"].ne(known["truth"]) & known["best"].ne("")]
    refused = evaluation.predictions.loc[evaluation.predictions["best"].eq("")]
    refused = _shared(refused[["path", "split", "reason"]], names)
    left_out = _shared(pd.DataFrame(table.rejected, columns=Rejected._fields), names)
    made = (
        {"command": shared_command(command, table.source), **surroundings()}
        if command or history is None
        else {}
    )
    everything = {
        "title": title,
        "notices": notices,
        **found,
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
        "provenance": trained,
        "evaluated": made,
    }
    text = json.dumps(
        jsonable(everything), indent=1, default=str, ensure_ascii=False, allow_nan=False
    )
    write_beside(folder / "report.json", f"{text}\n".encode())

    mistaken = mistakes(pictures, evaluation, judged, wrong, SHOWN)
    sections = [
        ("Training", "" if epochs is None or epochs.empty else _training(bundle, epochs)),
        ("Confusion", classes(known, found["classes"], bundle.classes)),
        ("Calibration", calibration(found, bundle)),
        ("Accepted or unknown", refusal(found, bundle)),
        ("Strangers", strangers(found)),
        *((name, _page.table(frame)) for name, frame in tables.items()),
        (f"Mistakes ({len(wrong)} of {len(known)})", mistaken),
        ("Hardest files", _files(hard)),
        (f"Labels to look at ({len(suspects)})", label_gallery(pictures, suspects, evaluation, SHOWN)),
        (f"Near-duplicates ({max(alike, len(same))})", twin_gallery(pictures, twins, evaluation, len(same), SHOWN)),
        ("Data", _page.definitions(about) + _page.table(counts)),
        (f"Not judged ({len(refused)})", _listed(refused)),
        (f"Left out ({len(table.rejected)})", _listed(left_out)),
        ("How it came about", _made(trained, made)),
    ]  # fmt: skip
    note = f'<p class="soft">{_page.text(names(table.note))}</p>' if table.note else ""
    head = note + _page.notices(notices) + _page.tiles(headline(found))
    page = folder / "index.html"
    write_beside(page, _page.document(title, head, sections).encode())
    return page


def _training(bundle: Bundle, epochs: pd.DataFrame) -> str:
    kept = bundle.provenance.get("kept")
    said = f"<p>Kept {_page.text(str(kept))}.</p>" if kept else ""
    return said + _page.plots(_plots.curves(epochs))


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


def _named(twins: pd.DataFrame, evaluation: Evaluation, names: Names) -> list[Any]:
    rows = evaluation.predictions.iloc[twins["row"].to_numpy(int)]
    paths = [names.file(path) for path in rows["path"]]
    named = twins.assign(path=paths, split=rows["split"].to_numpy())
    named["train_path"] = named["train_path"].map(names.file)
    return named.drop(columns="row").to_dict("records")


def _files(hard: pd.DataFrame) -> str:
    if hard.empty:
        return ""
    names = {
        "path": "file",
        "truth": "label",
        "own": "label's probability",
        "best": "answered",
        "probability": "answer's probability",
        "reason": "refused as",
    }
    shown = hard.assign(path=[Path(path).name for path in hard["path"]])
    shown = shown[list(names)].rename(columns=names)
    return (
        "<p>The held-out files whose own label has the least probability, right or wrong.</p>"
        + _page.table(shown)
    )


def _listed(frame: pd.DataFrame) -> str:
    if frame.empty:
        return ""
    more = f"<p>… and {len(frame) - LISTED} more.</p>" if len(frame) > LISTED else ""
    return _page.table(frame.head(LISTED).replace({np.nan: ""})) + more


def _made(trained: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    then = _page.definitions(trained) if trained else "<p>Not recorded.</p>"
    if not made:
        return then
    now = _page.definitions({name: value for name, value in made.items() if value})
    return f"<h3>This evaluation</h3>{now}<h3>The model's training</h3>{then}"
