"""Prepares the items of a run: the table with its splits, and the rendered spectrograms of signals."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from datasets.audio.settings import MelSettings
from datasets.cameras.recorded import clock_remarks, hold_out_later, named_groups, set_clock
from datasets.core.errors import SecondhandError
from datasets.items import describe
from datasets.items.background import as_one_class, items_of_no_class, load_background
from datasets.items.grouping import group_duplicates
from datasets.items.items import Items
from datasets.items.labels import MULTI, UNKNOWN
from datasets.items.lengths import telling_lengths
from datasets.items.rehearsal import (
    check_groups,
    earlier_items,
    mark_rehearsed,
    split,
    unchanged_items,
)
from datasets.items.rendering import infer_spectrogram, place_in_recordings, render_table
from datasets.items.settings import DataSettings, SignalSettings
from datasets.items.splits import (
    SPLITS,
    are_named,
    missing_split,
    split_remarks,
)
from datasets.items.table import load_table
from datasets.kinds.base import KINDS
from datasets.sources.base import ReadOptions
from datasets.spectrograms.settings import SpectrogramSettings

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """The prepared items of a run.

    Attributes
    ----------
    table : the item table.
    rows : the rows to train on: those of the table, or their windows for long recordings; and those of the
        background, labelled ``unknown``.
    spectrogram : the spectrogram settings; None for pictures and embeddings.
    """

    table: Items
    rows: pd.DataFrame
    spectrogram: SpectrogramSettings | None

    @property
    def labels(self) -> list[str]:
        """Labels that a network in training distinguishes: the classes, then the background if there is one."""
        return [*self.table.classes, *([UNKNOWN] if len(self.table.background) else [])]

    @property
    def windows(self) -> int:
        """Number of windows that the known items are cut into; each counts once, at however many places it is shown."""
        known = self.rows.loc[self.rows["label"].ne(UNKNOWN)]
        return known["place"].nunique() if "place" in known else len(known)


def read_items(data: DataSettings, signal: SignalSettings, seed: int) -> Items:
    """Read the item table, split it, and add the files of unknown classes and of the background.

    Raises
    ------
    SecondhandError : a setting does not suit the data, or nothing is left to train on.
    """
    table = load_grouped(data, signal, seed)
    if data.split_by is not None:
        hold_out_later(table)
    for line in clock_remarks(table, data):
        log.warning("%s", line)
    table.unsplit = table.frame
    for line in split_remarks(table.unsplit, None if data.cv else data.fold, data.cv):
        log.info("%s", line)
    table.frame, moved = split(table.unsplit, data, seed)
    table.rejected += moved
    if shared := describe.divided_groups(table.frame):
        log.warning(
            "validation and calibration share the group %s, so the figures may be too good. Add files of more groups",
            shared,
        )
    if data.background or len(table.background):
        load_background(table, data, signal, seed)
    if data.unknown:
        ood, bad = items_of_no_class(data.unknown, table, data, "--unknown")
        table.unknown_items = pd.concat([table.unknown_items, ood], ignore_index=True)
        table.rejected += bad
    return table


def render_items(
    table: Items,
    data: DataSettings,
    signal: SignalSettings,
    seed: int,
    trained_on: Mapping[str, Any] = MappingProxyType({}),
    spectrogram: SpectrogramSettings | None = None,
) -> Loaded:
    """Render the signals of a table from `read_items`, and log the table and what was left out.

    Items that cannot be rendered are left out of the table. If a split is empty then, or a class has no
    training item, the rest is split again; the spectrogram settings stay.

    Parameters
    ----------
    trained_on : spectrogram settings of the backbone's training (`learners.backbones.hub.read_mel`), which
        apply where ``signal`` leaves them open.
    spectrogram : spectrogram settings of a warm start. Default: inferred from the training files.

    Raises
    ------
    SecondhandError : nothing is left to train on.
    """
    rows, background, unsplit = table.frame, table.background, table.unsplit
    if KINDS[table.kind].settings is not None:
        if spectrogram is None:
            trained = table.frame.loc[table.frame["split"].eq("train")]
            trained_settings = trained_on if KINDS[table.kind].mel else {}
            spectrogram = infer_spectrogram(table.kind, trained, signal, trained_settings)
            if trained_settings:
                _log(describe.trained_settings(trained_settings, signal.for_kind(table.kind)))
        if isinstance(spectrogram, MelSettings):
            trained = table.frame.loc[table.frame["split"].eq("train")]
            _log(describe.frequencies(spectrogram, trained))
            if not table.multi_label:
                table.lengths = telling_lengths(trained, spectrogram.window)
                _log(describe.lengths_found(table.lengths))
        planned = table.frame
        rows, background = render_table(table, spectrogram, signal)
        if why := missing_split(table.frame, set(planned["split"])):
            _split_again(table, unsplit, planned, why, data, seed)
        rows = rows.assign(split=rows["item"].map(table.frame["split"])).dropna(subset="split")
        rows = rows.reset_index(drop=True)
        rows, rest = place_in_recordings(table, rows, spectrogram, data, signal, seed)
        background = pd.concat([background, rest], ignore_index=True)
        table.frame = table.frame.reset_index(drop=True)
    table.protocol = describe.describe_protocol(table, unsplit, data)
    _log(describe.overview(table, Loaded(table, rows, spectrogram).windows))
    if data.background or len(background):
        rows = pd.concat([rows, as_one_class(background, rows, data, seed)], ignore_index=True)
        if "place" in rows:
            alone = rows["place"].max() + 1 + np.arange(len(rows))
            rows["place"] = rows["place"].fillna(pd.Series(alone, rows.index)).astype(int)
    return Loaded(table, rows, spectrogram)


def load_grouped(data: DataSettings, signal: SignalSettings, seed: int = 0) -> Items:
    """Load the item table with its groups, including near-duplicates and capture sessions, without splits."""
    if not data.sources:
        raise SecondhandError(
            "--data is missing. Name a folder of class folders, a CSV file, or demo:digits"
        )
    earlier = earlier_items(data)
    before, changed = (None, []) if earlier is None else unchanged_items(earlier)
    options = ReadOptions(
        kind=data.kind,
        path_column=data.path_column,
        label_column=data.label_column,
        labels=data.labels or (MULTI if data.multi_label else None),
        warm_start=data.from_ is not None,
        settings=signal.given() | vars(signal) | vars(data),
    )
    table = load_table(data.sources, options, before=before)
    set_clock(table, data)
    table.rejected = changed + table.rejected
    if data.from_ and not earlier:
        log.warning(
            "--from %s: no items.csv beside it, or all of its files are missing, so the model may forget what it "
            "learnt from them. Restore items.csv and the files to train on them again",
            data.from_,
        )
    if data.rehearsal < 1 and not data.from_:
        raise SecondhandError(
            f"--rehearsal {data.rehearsal:g} has no effect without --from: add --from, or leave it out"
        )
    if earlier:
        mark_rehearsed(table, earlier, data, seed)
    if data.group_by:
        table.frame = named_groups(table, data)
        check_groups(table.frame, data)
    groups = table.frame["group"]
    sizes = groups.loc[are_named(groups)].value_counts()
    # Groups of one file keep nothing together.
    table.groups = len(sizes) if (sizes > 1).any() else 0
    group_duplicates(table, data, signal, seed)
    return table


def _log(lines: Iterable[describe.Line]) -> None:
    for level, line in lines:
        log.log(level, "%s", line)


def _split_again(
    table: Items,
    unsplit: pd.DataFrame,
    planned: pd.DataFrame,
    why: str,
    data: DataSettings,
    seed: int,
) -> None:
    """Split the items that could be rendered again; splits and folds that the data name stay.

    Parameters
    ----------
    unsplit, planned : the items before the first split and after it, with the index of the table.
    why : what the split of the rendered items lacks.

    Raises
    ------
    SecondhandError : a split that the data name, or a fold, would be empty.
    """
    lost_paths = set(planned["path"].drop(table.frame.index))
    reasons = [str(item) for item in table.rejected if item.path in lost_paths]
    cause = (
        f"{len(planned) - len(table.frame)} of {len(planned)} items could not be rendered "
        f"({'; '.join(reasons[:3])}{'; …' if len(reasons) > 3 else ''})"
    )
    renderable = unsplit.loc[table.frame.index].assign(label=table.frame["label"])
    try:
        named_splits = set(unsplit["split"]) & ({*SPLITS} if data.fold is None else {"test"})
        if emptied := sorted(named_splits - set(renderable["split"])):
            raise SecondhandError(f"no item is left in the data's own split {emptied[0]}")
        if data.cv is not None:  # the folds are those that all runs of the cross-validation have
            renderable, data = renderable.assign(fold=planned["fold"]), replace(data, cv="fold")
        table.frame, moved = split(renderable, data, seed)
    except SecondhandError as error:
        raise SecondhandError(
            f"{table.source}: {cause}, and {error}. Repair or replace those files"
        ) from None
    table.rejected += moved
    log.warning("%s, and %s, so the other items are split again", cause, why)
