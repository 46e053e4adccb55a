"""Writes the report of a run or an evaluation: ``index.html``, one file that needs no network, and the same
figures as ``report.json``. The texts are in ``templates``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from datasets.core.errors import Rejected
from datasets.core.files import write_beside
from datasets.core.part import Part
from datasets.items import describe
from datasets.items.facts import Lengths, Looks, NearDuplicates, Origin, Protocol, Seen, Sessions
from datasets.items.items import Items
from datasets.items.labels import UNKNOWN
from datasets.kinds.base import KINDS
from learners.files.jsonable import jsonable
from learners.files.names import (
    PathShortener,
    data_name,
    last_part,
    shared_command,
    shared_provenance,
)
from learners.inference.predictor import Predictor
from learners.machine.hardware import software_and_hardware
from learners.model.bundle import Bundle
from learners.report import plots
from learners.report.galleries import Pictures
from learners.report.templates import render
from learners.report.verdict import estimate_verdict

#: Files whose header is read for the facts, spread evenly over the table.
SAMPLED = 200
SPLITS = ("train", "valid", "calibration", "test")


class Material(NamedTuple):
    """Inputs of a report's sections beside the predictions.

    Attributes
    ----------
    table : the item table.
    pictures : renders the files.
    epochs : rows of history.csv; None for an evaluation.
    kept : the kept weights, as ``checkpoint/best.json`` has them; None where that is not known.
    range_test : of ``--lr auto``, as ``checkpoint/lr_find.json`` has it; None without one.
    """

    table: Items
    pictures: Pictures
    epochs: pd.DataFrame | None
    kept: dict[str, Any] | None = None
    range_test: dict[str, Any] | None = None

    @property
    def predictor(self) -> Predictor:
        return self.pictures.predictor

    @property
    def curves(self) -> list[Markup]:
        """The plots of the training."""
        if self.epochs is None or self.epochs.empty:
            return []
        return plots.curves(self.epochs, self.kept)

    @property
    def rates(self) -> list[Markup]:
        """The plot of the range test of the learning rate."""
        return [] if self.range_test is None else [plots.range_test(self.range_test)]


class Sections(NamedTuple):
    """Content of a report, from the task.

    Attributes
    ----------
    template : file name of the page's template.
    figures : for report.json and the page: ``verdict``, ``data`` with the table of items, and others.
    page : values that only the page needs: plots, pictures.
    notices : sentences for the top of the page, after the run's own.
    """

    template: str
    figures: dict[str, Any]
    page: dict[str, Any]
    notices: list[str]


def write_report(
    folder: Path,
    predictor: Predictor,
    table: Items,
    sections: Callable[[Material], Sections],
    *,
    history: Path | None = None,
    notices: Sequence[str] = (),
    checks: Sequence[str] = (),
    command: str = "",
) -> Path:
    """Write the report of a training run, or of an evaluation.

    Parameters
    ----------
    folder : created if missing.
    table : the items that were predicted.
    sections : makes the content: `class_sections` or `label_sections`.
    history : history.csv of a training run, for the curves; None for an evaluation.
    notices : sentences for the top of the page.
    checks : results of the evaluation, one sentence each; folded below the verdict.
    command : the command line of an evaluation.

    Returns
    -------
    Path of ``index.html``; ``report.json`` beside it holds the same figures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bundle = predictor.bundle
    epochs = None if history is None else pd.read_csv(history)
    pictures = Pictures(predictor)
    test = _of_checkpoint(history, "lr_find.json")
    content = sections(
        Material(table, pictures, epochs, _of_checkpoint(history, "best.json"), test)
    )
    page, drawn = content.page, dict[str, Any]()
    if (samples := bundle.preprocessing.samples) is not None:
        how = (table.get(Seen) or Seen()).how
        drawn = {"samples": describe.drawn_samples(samples, how)}
        page = {**page, "as_stored": pictures.pair(Part(path) for path in table.frame["path"])}
    done = "Evaluated" if history is None else "Trained"
    figures = {
        "title": f"{done} on {data_name(table.source)} (backbone {bundle.spec.backbone})",
        "protocol": protocol.text if (protocol := table.get(Protocol)) else "",
        "note": (table.get(Origin) or Origin()).note,
        "notices": [*notices, *bundle.rule.notes, *content.notices],
        "checks": checks,
        **content.figures,
        **drawn,
        "history": [] if epochs is None else epochs.to_dict("records"),
        **provenance(bundle, table, command if history is None else None),
    }
    return write_page(folder, content.template, table, figures, **page)


def write_estimate(
    folder: Path, bundle: Bundle, table: Items, figures: Mapping[str, Any], *, command: str = ""
) -> Path:
    """Write the report of files without labels, beside ``report.json`` as `write_report` does.

    Parameters
    ----------
    figures : ``notices``, the first about the accuracy to expect; ``expected``, of `learners.evaluation.domain_shift.expected_accuracy`; what
        `learners.evaluation.domain_shift.prediction_figures` counts; and ``bad_files``.
    """
    line, *notices = figures["notices"]
    accuracy = bundle.metrics.get("calibration_accuracy")
    verdict = estimate_verdict(jsonable(figures["expected"]), line, notices, accuracy)
    content = {
        "title": f"Unlabelled files of {last_part(table.source)} (backbone {bundle.spec.backbone})",
        **figures,
        "notices": notices,
        "verdict": verdict._asdict(),
        "data": facts(table),
        **provenance(bundle, table, command),
    }
    return write_page(folder, "estimate.html", table, content)


def provenance(bundle: Bundle, table: Items, command: str | None) -> dict[str, Any]:
    """The files left out, how the model was made, and where it was evaluated; ``command`` is None for a training."""
    evaluated = {}
    if command is not None:
        evaluated = {"command": shared_command(command, table.source), **software_and_hardware()}
    return {
        "left_out": [Rejected._asdict(one) for one in table.rejected],
        "provenance": shared_provenance(bundle.provenance),
        "evaluated": evaluated,
    }


def write_page(
    folder: Path, template: str, table: Items, content: Mapping[str, Any], **page: object
) -> Path:
    """Write ``report.json`` and the page with the same content, in which no path shows a folder of this disk.

    ``page`` are values that only the page needs.
    """
    paths = [rows["path"] for rows in (table.frame, table.unknown_items, table.background)]
    names = PathShortener(table.source, *paths, [path for path, _ in table.rejected])
    report = names.in_all(jsonable(content))
    text = json.dumps(report, indent=1, default=str, ensure_ascii=False, allow_nan=False)
    write_beside(folder / "report.json", f"{text}\n".encode())
    html = render("learners.report", template, report=report, **page)
    write_beside(folder / "index.html", html.encode())
    return folder / "index.html"


def _of_checkpoint(history: Path | None, name: str) -> dict[str, Any] | None:
    """A file of the checkpoint beside the history of a run; None where there is none."""
    if history is None or not (file := history.parent / "checkpoint" / name).is_file():
        return None
    return dict(json.loads(file.read_text(encoding="utf-8")))


def folds_page(
    title: str, table: pd.DataFrame, links: Mapping[str, str], missing: list[str], protocol: str
) -> str:
    """The page of a cross-validation: its protocol, its table, and links to the folds' reports."""
    counts = [name for name in table if str(name).endswith("_items")]
    figures = table.drop(columns=counts).set_index("fold").T
    rows = [{"figure": str(n).replace("_", " "), **row} for n, row in figures.iterrows()]
    page = {"figures": rows, "links": links, "missing": missing, "protocol": protocol}
    return render("learners.report", "folds.html", title=f"{title}, cross-validated", **page)


def class_counts(table: Items) -> pd.DataFrame:
    """Items of each class in each split, those of unknown classes in their own row, and the sums."""
    frame = table.frame.assign(split=table.frame["split"].replace("", "all"))
    if len(table.unknown_items):
        unknown = table.unknown_items.assign(label=UNKNOWN, split=UNKNOWN)
        frame = pd.concat([frame, unknown], ignore_index=True)  # pandas 3.0 needs distinct numbers
    counts = pd.crosstab(frame["label"].astype(str), frame["split"].astype(str))
    others = sorted({*counts.columns} - {*SPLITS, UNKNOWN})
    counts = counts[[name for name in (*SPLITS, *others, UNKNOWN) if name in counts]]
    counts = counts.sort_index(key=lambda names: names == UNKNOWN, kind="stable")
    counts["all"] = counts.sum(axis=1)
    counts.loc["sum"] = counts.sum(axis=0)
    return counts.rename_axis("class", axis=0).rename_axis(None, axis=1).reset_index()


def facts(table: Items) -> dict[str, str]:
    """Facts about the files by name: kind, number, formats, sizes or durations."""
    frame = pd.concat([table.frame, table.unknown_items])
    paths = list(dict.fromkeys(frame["path"]))
    about = {"kind": table.kind, "files": str(len(paths))}
    if len(frame) != len(paths):
        about["items"] = str(len(frame))
    endings = Counter(path.rsplit(".", 1)[-1].lower() for path in paths if "." in path)
    about["formats"] = ", ".join(f"{name} {count}" for name, count in endings.most_common(6))
    groups = frame["group"].loc[frame["group"].ne("")].nunique()
    duplicates, lengths = table.get(NearDuplicates), table.get(Lengths)
    if groups and not duplicates:
        about["groups"] = f"{groups}, each in one split"
    if len(table.background):
        learned = int(table.background["split"].eq("train").sum())
        rest = len(table.background) - learned
        about["background"] = f"{learned} files for training, {rest} for validation and calibration"
    if duplicates:
        about["near-duplicates"] = describe.near_duplicates(duplicates)
    if lengths and lengths.classes:
        about["lengths of clips"] = describe.lengths(lengths)
    if sessions := table.get(Sessions):
        about["capture sessions"] = describe.sessions(sessions)
    sampled = [paths[i] for i in np.unique(np.linspace(0, len(paths) - 1, SAMPLED).astype(int))]
    if not paths:
        return about
    sample = "" if len(sampled) == len(paths) else f" (of {len(sampled)} sampled files)"
    looks = table.get(Looks)
    facts = KINDS[table.kind].describe(sampled, looks.of if looks else {})
    for name in [*facts][:1]:  # the others say of how many files they are
        facts[name] += sample
    about |= facts
    return about
