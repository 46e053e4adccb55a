"""The report of a run or of an evaluation: ``index.html``, one file that needs no network, and the
same figures as JSON. The words stand in ``templates``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from datasets.core.errors import Rejected, SecondhandError
from datasets.core.files import write_beside
from datasets.items import UNKNOWN, ItemTable
from learners.files import (
    PathShortener,
    data_name,
    jsonable,
    last_part,
    shared_command,
    shared_provenance,
)
from learners.inference import Predictor
from learners.machine import software_and_hardware
from learners.model import Bundle
from learners.report import plots
from learners.report.galleries import Pictures
from learners.templates import render

#: Files that are looked into, spread evenly over the table.
LOOKED_AT = 200
SPLITS = ("train", "valid", "calibration", "test")


class Material(NamedTuple):
    """What the sections of a report are made of, beside the answers: the table of items, their names as
    they are shared, pictures of them, and the run's epochs."""

    table: ItemTable
    names: PathShortener
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
    items, strange = table.frame["path"], table.unknown_items["path"]
    names = PathShortener(
        table.source, items, strange, table.background["path"], [path for path, _ in table.rejected]
    )
    epochs = None if history is None else pd.read_csv(history)
    shown = sections(Material(table, names, Pictures(predictor), epochs))
    notes = bundle.confidence.notes if bundle.confidence else []
    left_out = shared(pd.DataFrame(table.rejected, columns=Rejected._fields), names)
    everything: dict[str, Any] = jsonable(
        {
            "title": title or f"{data_name(table.source)}: {bundle.spec.backbone}",
            "protocol": names(table.protocol),
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
        `learners.evaluation.prediction_figures` counts; and ``bad_files``.
    """
    names = PathShortener(table.source, table.frame["path"], [path for path, _ in table.rejected])
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
    return {"command": shared_command(command, table.source), **software_and_hardware()}


def _write_json(folder: Path, everything: Mapping[str, Any]) -> None:
    text = json.dumps(everything, indent=1, default=str, ensure_ascii=False, allow_nan=False)
    write_beside(folder / "report.json", f"{text}\n".encode())


def folds_page(
    title: str, table: pd.DataFrame, links: Mapping[str, str], missing: list[str], protocol: str
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
        protocol=protocol,
    )


def shared(rows: pd.DataFrame, names: PathShortener) -> pd.DataFrame:
    """Rows about files without the folders that they lie in; reasons may name files, too."""
    paths, reasons = rows["path"].map(names.file), {}
    if "reason" in rows:
        reasons = {"reason": rows["reason"].map(names)}
    return rows.assign(path=paths, **reasons)


def class_counts(table: ItemTable) -> pd.DataFrame:
    """Items of each class in each split, strangers in a row of their own, and their sums."""
    frame = table.frame.assign(split=table.frame["split"].replace("", "all"))
    if len(table.unknown_items):
        frame = pd.concat([frame, table.unknown_items.assign(label=UNKNOWN, split=UNKNOWN)])
    counts = pd.crosstab(frame["label"].astype(str), frame["split"].astype(str))
    others = sorted(name for name in counts.columns if name not in (*SPLITS, UNKNOWN))
    order = [name for name in (*SPLITS, *others, UNKNOWN) if name in counts.columns]
    counts = counts[order]
    if UNKNOWN in counts.index:
        counts = pd.concat([counts.drop(index=UNKNOWN), counts.loc[[UNKNOWN]]])
    counts["all"] = counts.sum(axis=1)
    counts.loc["sum"] = counts.sum(axis=0)
    return counts.rename_axis("class", axis=0).rename_axis(None, axis=1).reset_index()


def facts(table: ItemTable) -> dict[str, str]:
    """Sentences about the files: their kind, how many, sizes or durations, by name."""
    frame = pd.concat([table.frame, table.unknown_items])
    paths = list(dict.fromkeys(frame["path"]))
    found = {"kind": table.kind, "files": f"{len(paths)}, {len(frame)} items"}
    endings = Counter(path.rsplit(".", 1)[-1].lower() for path in paths if "." in path)
    found["formats"] = ", ".join(f"{name} {count}" for name, count in endings.most_common(6))
    groups = frame["group"].loc[frame["group"].ne("")].nunique()
    if groups:
        found["groups"] = f"{groups}, none of them split"
    if len(table.background):
        learned = int(table.background["split"].eq("train").sum())
        held = len(table.background) - learned
        found["background"] = f"{learned} files learnt as none of the classes, {held} held out"
    if table.near_duplicates:
        found["near-duplicates"] = table.near_duplicates
    if table.sessions:
        found["photos of one visit"] = table.sessions
    looked = [paths[i] for i in np.unique(np.linspace(0, len(paths) - 1, LOOKED_AT).astype(int))]
    if not paths:
        return found
    about = "" if len(looked) == len(paths) else f" (of {len(looked)} files looked into)"
    if table.kind == "picture":
        sizes = [size for path in looked if (size := _size(table, path))]
        if sizes:
            small, usual, large = np.quantile([min(size) for size in sizes], (0, 0.5, 1))
            found["short side"] = f"{small:.0f} to {large:.0f} pixels, median {usual:.0f}{about}"
            (width, height), count = Counter(sizes).most_common(1)[0]
            found["most common size"] = f"{width} x {height} pixels, {count} of {len(sizes)}"
    elif table.kind == "sound":
        from datasets import audio

        headers = []
        for path in looked:
            try:
                headers.append(audio.probe(path))
            except SecondhandError:  # gone or changed since
                continue
        if headers:
            short, usual, long = np.quantile([header.duration for header in headers], (0, 0.5, 1))
            found["duration"] = f"{short:.2f} to {long:.2f} s, median {usual:.2f}{about}"
            rates = Counter(header.rate for header in headers).most_common(4)
            found["rate"] = ", ".join(f"{rate} Hz in {count}" for rate, count in rates)
    return found


def _size(table: ItemTable, path: str) -> tuple[int, int] | None:
    """Width and height from the header alone; None where it is no picture any more."""
    from PIL import Image

    if path in table.picture_info:
        return table.picture_info[path].size
    try:
        with Image.open(path) as picture:
            return picture.size
    except Exception:  # a decoder fed with damaged bytes raises anything
        return None
