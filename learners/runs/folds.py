"""Cross-validation: a run per fold, the mean and standard deviation of their metrics, and resuming.

The folder holds ``fold-NAME/``, each a run folder with ``fold.json`` once it is finished; ``folds.csv``,
``folds.json`` and ``report/index.html`` with the metrics of the finished folds; and ``items.csv`` with the
fold of each item.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from datasets.core.errors import SecondhandError
from datasets.core.files import write_beside
from datasets.core.part import PART_COLUMNS
from datasets.items.describe import describe_protocol
from datasets.items.splits import fold_names
from datasets.steps.base import Asked
from datasets.steps.reading import load_grouped
from datasets.steps.split import check_splits, folds_of
from datasets.tables.cells import csv_text
from learners.cli.flags import dump
from learners.cli.settings import Settings
from learners.files.jsonable import jsonable
from learners.files.lock import locked
from learners.model.bundle import load_bundle
from learners.report.report import folds_page
from learners.runs.finetuning import launch
from learners.runs.folder import (
    check_overwritten,
    empty_folder,
    has_progress,
    is_empty,
    read_run_settings,
    run_name,
    write_config,
)
from learners.runs.resolve import resolve
from learners.runs.warm_start import inherited, start_from
from learners.tasks.choose import check_task

log = logging.getLogger(__name__)

DONE = "fold.json"
MARK = "folds.json"


@dataclass
class Folds:
    """A cross-validation.

    Attributes
    ----------
    runs : settings of each fold's run, by fold name.
    protocol : sentence on the evaluation protocol.
    done : metrics of the finished folds, by fold name.
    """

    folder: Path
    runs: dict[str, Settings]
    protocol: str
    done: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """Names of the folds that are not finished."""
        return [name for name in self.runs if name not in self.done]

    @property
    def table(self) -> pd.DataFrame:
        """Metrics of the finished folds with mean and standard deviation, see `summarise`."""
        return summarise({name: self.done[name] for name in self.runs if name in self.done})

    def place(self, name: str) -> Path:
        """Run folder of a fold."""
        return Path(self.runs[name].run.out or "")


def cross_validate(
    asked: Settings,
    *,
    command: str = "",
    log_to: Callable[[Path], object] = lambda file: None,
) -> Folds:
    """Train and test a network for each unfinished fold of ``--cv``.

    All folds are checked before the first is trained. After Ctrl-C the same settings resume.

    Parameters
    ----------
    asked : as in `prepare`.
    log_to : called with the log file of each part.

    Raises
    ------
    SecondhandError : the folds cannot be made, or the folder has finished folds with other settings or
        data.
    """
    asked, origin = start_from(asked, network=False)
    settings = resolve(asked, inherited(asked, origin))
    check_task(settings, origin)
    items, protocol = _plan(settings)
    names = fold_names(items["fold"][items["fold"].ne("")])
    folder = settings.run.out or Path.cwd() / "runs" / f"{run_name(settings.data.sources)}-cv"
    fold_folders = {name: folder / f"fold-{safe}" for name, safe in _file_names(names).items()}
    runs = {name: asked.but(fold=name, out=fold_folders[name], overwrite=False) for name in names}
    folds = Folds(folder, runs, protocol)
    _check_place(folder, overwrite=settings.run.overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _resume_folds(folds, settings, items)
        write_config(folder, settings, command)
        write_beside(folder / "items.csv", csv_text(items).encode())
        _write(folds)
        try:
            for name in folds.runs:
                log_to(folder / "log.txt")
                _train(folds, name, command, log_to)
        except KeyboardInterrupt:
            finished = ", ".join(folds.done) or "none"
            log.warning(
                "Interrupted in fold %s (finished: %s). Run the same command again to continue",
                name,
                finished,
            )
        finally:
            log_to(folder / "log.txt")
            if not folds.done and not any(map(has_progress, fold_folders.values())):
                shutil.rmtree(folder, ignore_errors=True)
    return folds


def _train(
    folds: Folds,
    name: str,
    command: str,
    log_to: Callable[[Path], object],
) -> None:
    """Train and test a fold, unless it is finished.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C, even if the run has kept its best epoch.
    """
    if name in folds.done:
        log.info("Fold %s is finished already", name)
        return
    log.info("Fold %s, %d of %d", name, list(folds.runs).index(name) + 1, len(folds.runs))
    settings, fold_folder = folds.runs[name], folds.place(name)
    if has_progress(fold_folder):
        given = settings.given()
        settings = read_run_settings(
            fold_folder, {n: given[n] for n in settings.free if n in given}
        )
    else:
        shutil.rmtree(fold_folder, ignore_errors=True)
    run = launch(settings, command=command, log_to=log_to)
    if run.interrupted:
        raise KeyboardInterrupt
    folds.done[name] = _figures(fold_folder, run.bundle.metrics)
    record = {"fold": name, "metrics": folds.done[name]}
    write_beside(fold_folder / DONE, json.dumps(record, indent=1).encode())
    _write(folds)


def summarise(figures: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Table with a row per fold, their mean, and their standard deviation (n - 1; NaN for one fold).

    The mean skips folds without the metric, such as the accuracy of answers where a fold answers nothing.
    """
    if not figures:
        return pd.DataFrame({"fold": []})
    table = pd.DataFrame.from_dict({k: dict(v) for k, v in figures.items()}, orient="index")
    counts = [name for name in table if str(name).endswith("_items")]
    metrics = table.drop(columns=counts)
    rows = pd.DataFrame({"mean": metrics.mean(), "spread": metrics.std(ddof=1)}).T
    summary = pd.concat([table, rows.reindex(columns=table.columns)])
    test_columns = [name for name in summary if str(name).startswith("test_")]
    summary = summary[[*test_columns, *(name for name in summary if name not in test_columns)]]
    return summary.rename_axis("fold").reset_index()


def _plan(settings: Settings) -> tuple[pd.DataFrame, str]:
    """Items with their folds, and the sentence on the evaluation protocol.

    Raises
    ------
    SecondhandError : a fold cannot be trained.
    """
    asked = Asked.by(*settings.sections.values(), seed=settings.train.seed)
    table = load_grouped(asked)
    # Raises for data with their own split.
    frame = table.frame.assign(fold=folds_of(table.frame, asked))
    check_splits(frame, asked)
    items = frame[["path", "label", "group", "fold", *PART_COLUMNS]]
    return items, describe_protocol(replace(table, frame=frame), frame, settings.splits)


def _file_names(names: Sequence[str]) -> dict[str, str]:
    """Unique file name for each fold name."""
    safe: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^\w.-]+", "_", name)[:60]
        choices = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        safe[name] = next(choice for choice in choices if choice not in safe.values())
    return safe


def _check_place(folder: Path, *, overwrite: bool) -> None:
    """Raise SecondhandError if the folder exists and must not be used."""
    if not folder.exists() or (folder.is_dir() and is_empty(folder)):
        return
    if overwrite:
        check_overwritten(folder)
    elif not (folder / MARK).is_file():
        raise SecondhandError(
            f"--out {folder} already exists and is not a cross-validation to continue. Choose another folder or give "
            "--overwrite"
        )


def _resume_folds(folds: Folds, settings: Settings, items: pd.DataFrame) -> None:
    """Read the finished folds; empty a folder that has none."""
    folder, places = folds.folder, {name: folds.place(name) for name in folds.runs}
    has_folds = any(folder.glob(f"fold-*/{DONE}")) or any(map(has_progress, places.values()))
    if not has_folds or settings.run.overwrite:
        empty_folder(folder)
        write_beside(folder / MARK, b"{}")
        return
    _check_same(folder, settings, items)
    for name, fold_folder in places.items():
        if (fold_folder / DONE).is_file():
            try:
                load_bundle(fold_folder / "model")
                folds.done[name] = json.loads((fold_folder / DONE).read_text())["metrics"]
            except (SecondhandError, ValueError, KeyError) as error:
                log.warning(
                    "Fold %s is trained again, because its model cannot be read: %s", name, error
                )


def _check_same(folder: Path, settings: Settings, items: pd.DataFrame) -> None:
    """Raise SecondhandError if the finished folds have other settings or data."""
    remedy = "Use the same settings and data, choose another --out, or give --overwrite"
    earlier = yaml.safe_load((folder / "config.yaml").read_text())
    current = yaml.safe_load(dump(settings))
    differences = [
        f"{key} was {earlier.get(key)!r} and is now {value!r}"
        for key, value in current.items()
        if key not in (*settings.free, "out", "overwrite") and earlier.get(key) != value
    ]
    if differences:
        raise SecondhandError(
            f"--out {folder}: its finished folds were trained with other settings ({'; '.join(differences)}). {remedy}"
        )
    text = csv_text(items)
    if (folder / "items.csv").read_text() != text:
        raise SecondhandError(
            f"--out {folder}: the data have changed since its finished folds were trained. {remedy}"
        )


def _figures(fold_folder: Path, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of a fold, with NLL, Brier score and ECE of its calibrated probabilities on the test items."""
    figures = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    report = json.loads((fold_folder / "report/report.json").read_text())
    # The metrics of multi-label models contain them already.
    calibrated = ("splits" in report and report["splits"]["test"]["calibration"]["after"]) or {}
    for name in ("nll", "brier", "ece"):
        if name in calibrated and calibrated[name]["value"] is not None:
            figures[f"test_{name}"] = calibrated[name]["value"]
    return figures


def _write(folds: Folds) -> None:
    """Write the metrics of the finished folds."""
    folder, table, missing, protocol = folds.folder, folds.table, folds.missing, folds.protocol
    rows = jsonable({row.pop("fold"): row for row in table.to_dict("records")})
    record = {
        "mean": rows.pop("mean", {}),
        "spread": rows.pop("spread", {}),
        "folds": rows,
        "missing": missing,
        "protocol": protocol,
    }
    write_beside(folder / "folds.csv", csv_text(table, float_format="%.6f").encode())
    write_beside(folder / MARK, (json.dumps(record, indent=1) + "\n").encode())
    (folder / "report").mkdir(exist_ok=True)
    links = {
        name: f"../{folds.place(name).name}/report/index.html"
        for name in folds.runs
        if name in folds.done
    }
    page = folds_page(folder.name, table, links, missing, protocol)
    write_beside(folder / "report/index.html", page.encode())
