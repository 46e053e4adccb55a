"""What is left of an earlier run: its items, and what its model has learnt from."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from datasets.core.errors import BadFile, Rejected
from datasets.core.file_state import FILE_STATES, FileState, is_same, read_states
from datasets.items.columns import with_columns
from datasets.items.items import Items
from datasets.items.settings import WarmStartSettings
from datasets.sources.table import read_rows
from datasets.steps.base import Asked

log = logging.getLogger(__name__)

#: Why a file of an earlier run is left out.
CHANGED = "its content has changed since the earlier run"
#: File of a run whose head has learnt from the files of all splits but the test split, as JSON: the number of ``folds``,
#: whether the ``body`` has learnt from the training split, and whether each fold had ``bodies`` of its own: then the body has
#: learnt from all that the head has.
CROSS_FITTED = "cross_fit.json"


class Earlier(NamedTuple):
    """The run of ``--from``: its ``items.csv``, and the rows in it whose files have not changed since."""

    file: Path
    rows: pd.DataFrame


def read_earlier(items: Items, asked: Asked) -> Items:
    """Read the items of the run of ``--from``, which precede those of the sources; files that have changed are rejected."""
    model = asked.of(WarmStartSettings).from_
    if model is None:
        return items
    if (file := earlier_items(model)) is None:
        log.warning(
            "--from %s: no items.csv beside it, or all of its files are missing, so the model may forget what it "
            "learnt from them. Restore items.csv and the files to train on them again",
            model,
        )
        return items
    rows, changed = unchanged_items(file)
    return items.leaving_out(changed).knowing(Earlier(file, rows))


def earlier_items(model: Path) -> Path | None:
    """Path of the ``items.csv`` beside a model; None if it or all of its files are missing."""
    file = model.absolute().parent / "items.csv"
    has_files = file.is_file() and read_items(file)["path"].map(os.path.exists).any()
    return file if has_files else None


def background_file(model: Path) -> Path:
    """Path of the table of background files of a model's run; it exists if the run had a background."""
    return model.absolute().parent / "background.csv"


def read_items(file: Path) -> pd.DataFrame:
    """Rows of a run's ``items.csv``, including missing files."""
    return with_columns(read_rows(file)[0])


def unchanged_items(file: Path) -> tuple[pd.DataFrame, list[Rejected]]:
    """Rows of a run's table, without files whose content has changed since, and those files.

    Missing files are kept.
    """
    rows = read_items(file)
    try:
        states = read_states(file.parent)
    except (BadFile, OSError):
        states = {}
    if not states:
        log.warning(
            "%s is damaged or missing, so changes of the files in %s since then are not noticed. Restore it from "
            "a copy of the run",
            file.parent / FILE_STATES, file,
        )  # fmt: skip
    changed = [path for path in rows["path"].unique() if _has_new_content(states.get(path), path)]
    bad = [Rejected(path, CHANGED) for path in changed]
    return rows.loc[~rows["path"].isin(changed)], bad


def _has_new_content(before: FileState | None, path: str) -> bool:
    if before is None or is_same(before, path):
        return False
    now = FileState.read(path)
    return now is not None and now.content != before.content


def is_cross_fitted(run: Path) -> bool:
    """Whether the model in a run's folder has learnt from the files of all splits but the test split."""
    return (run / CROSS_FITTED).is_file()


def has_taught_body(run: Path) -> bool:
    """Whether the body of a cross-fitted model has learnt from the training split of its run; assumed of a damaged file."""
    try:
        return bool(json.loads((run / CROSS_FITTED).read_bytes())["body"])
    except (OSError, ValueError, KeyError, TypeError):
        return True


def are_all_learnt(run: Path) -> bool:
    """Whether body and head of the model in a run's folder have learnt from the files of all splits but the test split."""
    try:
        return bool(json.loads((run / CROSS_FITTED).read_bytes()).get("bodies"))
    except (OSError, ValueError, AttributeError):
        return False
