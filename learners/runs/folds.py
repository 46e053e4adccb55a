"""Cross-validation: a run for each fold, their mean and their spread, and going on after a stop.

The folder: ``fold-NAME/``, each a whole run folder with ``fold.json`` in it as soon as it is
finished; ``folds.csv`` and ``folds.json``, the figures of the finished folds with their mean and
spread, and ``report/index.html``, the same to look at; ``items.csv``, the fold of each item.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from datasets.core.cells import csv_text
from datasets.core.errors import SecondhandError
from datasets.core.files import write_beside
from datasets.items import check_splits, fold_names, folds_of, load_grouped, protocol_of
from learners.cli.flags import dump
from learners.cli.settings import FREE, Settings
from learners.files import jsonable, locked
from learners.model import load_bundle
from learners.report import folds_page
from learners.runs.finetuning import launch
from learners.runs.folder import clear, has_progress, is_empty, run_name, write_config
from learners.runs.warm_start import apply_warm_start
from learners.tasks.choose import choose_task

log = logging.getLogger(__name__)

DONE = "fold.json"
MARK = "folds.json"


@dataclass
class Folds:
    """A cross-validation.

    Attributes
    ----------
    runs : the settings of the run that tests each fold; it can be repeated alone with them.
    basis : what the figures rest on.
    done : the figures of the folds that are finished.
    """

    folder: Path
    runs: dict[str, Settings]
    protocol: str
    done: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """The folds that are still to be trained."""
        return [name for name in self.runs if name not in self.done]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each finished fold, and their mean and spread, as `summarise` has them."""
        return summarise({name: self.done[name] for name in self.runs if name in self.done})

    def place(self, name: str) -> Path:
        """The run folder of a fold."""
        return Path(self.runs[name].run.out or "")


def cross_validate(
    asked: Settings,
    typed: Mapping[str, Any] | None = None,
    *,
    command: str = "",
    log_to: Callable[[Path], object] = lambda file: None,
) -> Folds:
    """Train and test a network for each fold of ``--cv``, but for those that are finished.

    Every fold is checked to be possible before the first is trained. Ctrl-C ends the fold in
    training; the same settings go on from there.

    Parameters
    ----------
    typed : as in `launch`.
    log_to : called with the log file of what is about to begin.

    Raises
    ------
    SecondhandError : the folds cannot be made, or finished folds are there that were made with
        other settings or of other data.
    """
    settings, origin = apply_warm_start(asked, typed, network=False)
    choose_task(settings.data, origin).check(settings)
    items, protocol = _plan(settings)
    names = fold_names(items["fold"][items["fold"].ne("")])
    folder = settings.run.out or Path.cwd() / "runs" / f"{run_name(settings.data.sources)}-cv"
    each = {name: folder / f"fold-{safe}" for name, safe in _file_names(names).items()}
    runs = {name: settings.but(fold=name, out=each[name], overwrite=False) for name in names}
    folds = Folds(folder, runs, protocol)
    _check_place(folder, overwrite=settings.run.overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _take_up(folds, settings, items)
        write_config(folder, settings, command)
        write_beside(folder / "items.csv", csv_text(items).encode())
        _write(folds)
        try:
            for name in folds.runs:
                log_to(folder / "log.txt")
                _train(folds, name, typed, command, log_to)
        except KeyboardInterrupt:
            kept = ", ".join(folds.done) or "none"
            log.warning(
                "interrupted in fold %s (finished: %s). Give the same command again to continue",
                name,
                kept,
            )
        finally:
            log_to(folder / "log.txt")
            if not folds.done and not any(map(has_progress, each.values())):
                shutil.rmtree(folder, ignore_errors=True)
    return folds


def _train(
    folds: Folds,
    name: str,
    typed: Mapping[str, Any] | None,
    command: str,
    log_to: Callable[[Path], object],
) -> None:
    """Train and test a fold, unless it is done.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C, also where the run has kept its best epoch.
    """
    if name in folds.done:
        log.info("Fold %s is finished already", name)
        return
    log.info("Fold %s, %d of %d", name, list(folds.runs).index(name) + 1, len(folds.runs))
    settings, inside = folds.runs[name], folds.place(name)
    if has_progress(inside):
        settings = settings.but(resume=inside)
    else:
        shutil.rmtree(inside, ignore_errors=True)
    run = launch(settings, typed, command=command, log_to=log_to)
    if run.interrupted:
        raise KeyboardInterrupt
    folds.done[name] = _figures(inside, run.bundle.metrics)
    record = {"fold": name, "metrics": folds.done[name]}
    write_beside(inside / DONE, json.dumps(record, indent=1).encode())
    _write(folds)


def summarise(figures: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """A row for each fold, then their mean and their spread (n - 1; NaN for one fold).

    A figure that a fold does not have (accuracy of accepted items, where none was) is left out of
    the mean.
    """
    if not figures:
        return pd.DataFrame({"fold": []})
    table = pd.DataFrame.from_dict({k: dict(v) for k, v in figures.items()}, orient="index")
    counts = [name for name in table if str(name).endswith("_items")]
    over = table.drop(columns=counts)
    rows = pd.DataFrame({"mean": over.mean(), "spread": over.std(ddof=1)}).T
    joined = pd.concat([table, rows.reindex(columns=table.columns)])
    first = [name for name in joined if str(name).startswith("test_")]
    joined = joined[[*first, *(name for name in joined if name not in first)]]
    return joined.rename_axis("fold").reset_index()


def _plan(settings: Settings) -> tuple[pd.DataFrame, str]:
    """Each item's fold, and what the figures rest on.

    Raises SecondhandError if any fold could not be trained.
    """
    data, seed = settings.data, settings.train.seed
    table = load_grouped(data, settings.signal, seed)
    frame = table.frame
    assert data.cv is not None
    # Refuses data that bring a split of their own, before their folds are looked for.
    frame["fold"] = folds_of(frame, data, seed)
    check_splits(frame, data, seed)
    items = frame[["path", "label", "group", "fold", "start", "end", "gps"]]
    return items, protocol_of(table, frame, data)


def _file_names(names: Sequence[str]) -> dict[str, str]:
    """Names of folds that are names of files too, and different."""
    safe: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w.-]+", "_", name)[:60]
        count = 1
        while (plain if count == 1 else f"{plain}-{count}") in safe.values():
            count += 1
        safe[name] = plain if count == 1 else f"{plain}-{count}"
    return safe


def _check_place(folder: Path, *, overwrite: bool) -> None:
    """Raise SecondhandError where the folder is there and is none of ours."""
    if not folder.exists() or (folder.is_dir() and is_empty(folder)):
        return
    if overwrite and not (folder / "config.yaml").is_file():
        raise SecondhandError(
            f"--out {folder}: not a run folder (no config.yaml), so it is not overwritten; choose "
            "another"
        )
    if not overwrite and not (folder / MARK).is_file():
        raise SecondhandError(
            f"--out {folder}: is there already, and is no cross-validation that could go on; choose "
            "another, or give --overwrite"
        )


def _take_up(folds: Folds, settings: Settings, items: pd.DataFrame) -> None:
    """Take the folds that are finished for done; a folder without any begins empty."""
    folder, places = folds.folder, {name: folds.place(name) for name in folds.runs}
    begun = any(folder.glob(f"fold-*/{DONE}")) or any(map(has_progress, places.values()))
    if not begun or settings.run.overwrite:
        clear(folder)
        write_beside(folder / MARK, b"{}")
        return
    _check_same(folder, settings, items)
    for name, inside in places.items():
        if (inside / DONE).is_file():
            try:
                load_bundle(inside / "model")
                folds.done[name] = json.loads((inside / DONE).read_text())["metrics"]
            except (SecondhandError, ValueError, KeyError) as error:
                log.warning(
                    "fold %s is trained again, because its model cannot be read: %s", name, error
                )


def _check_same(folder: Path, settings: Settings, items: pd.DataFrame) -> None:
    """Raise SecondhandError where the finished folds are not what these settings would make."""
    remedy = "repeat those, choose another --out, or give --overwrite"
    then = yaml.safe_load((folder / "config.yaml").read_text())
    now = yaml.safe_load(dump(settings))
    other = [
        f"{key} {then.get(key)!r} there, {value!r} now"
        for key, value in now.items()
        if key not in (*FREE, "out", "overwrite") and then.get(key) != value
    ]
    if other:
        raise SecondhandError(
            f"--out {folder}: its finished folds were made with other settings "
            f"({'; '.join(other)}): {remedy}"
        )
    text = csv_text(items)
    if (folder / "items.csv").read_text() != text:
        raise SecondhandError(
            f"--out {folder}: the data have changed since its finished folds were made: {remedy}"
        )


def _figures(inside: Path, metrics: Mapping[str, Any]) -> dict[str, float]:
    """A fold's metrics, and how well its calibrated probabilities held on what it was tested on."""
    found = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    report = json.loads((inside / "report/report.json").read_text())
    # Of several labels an item the metrics have it already.
    calibrated = ("splits" in report and report["splits"]["test"]["calibration"]["after"]) or {}
    for name in ("nll", "brier", "ece"):
        if name in calibrated and calibrated[name]["value"] is not None:
            found[f"test_{name}"] = calibrated[name]["value"]
    return found


def _write(folds: Folds) -> None:
    """Write the figures so far; what cannot be averaged yet is left out."""
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
