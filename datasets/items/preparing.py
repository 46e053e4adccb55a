"""Prepares the items of a run: the table with its splits, and the rendered spectrograms of signals."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from datasets.audio.band import BAND_COLUMNS, are_outside, hertz, labelled_band, show_band
from datasets.audio.decode import ULTRASOUND
from datasets.audio.recorders import time_expansion
from datasets.audio.settings import MelSettings, window_of
from datasets.core.errors import Rejected, SecondhandError, counted, one_line
from datasets.images.exif import GAP_MINUTES, capture_sessions
from datasets.images.opening import open_picture
from datasets.items.clock import Clock
from datasets.items.deployments import read_deployments
from datasets.items.duplicates import find_clusters, sessions_with_duplicates, thumbnails_of
from datasets.items.labels import MULTI, UNKNOWN, drop_small_classes, label_counts
from datasets.items.places import Spans, as_in_predictions, rest_of_recordings, vary_places
from datasets.items.recorded import BY_DEPLOYMENT, add_deployments, hold_out_later
from datasets.items.rehearsal import (
    background_file,
    check_groups,
    check_splits,
    earlier_items,
    is_rehearsed,
    mark_rehearsed,
    split,
    unchanged_items,
)
from datasets.items.settings import DataSettings, SignalSettings
from datasets.items.splits import (
    DETECTED_GROUP,
    SPLITS,
    are_named,
    groups_from_names,
    missing_split,
    split_remarks,
)
from datasets.items.table import ItemTable, load_table, load_unknown, summary
from datasets.sources.base import ReadOptions
from datasets.spectrogram_kinds import SPECTROGRAM_KINDS
from datasets.spectrograms.pictures import PictureCache, source_of
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.spectrograms.windows import cut_windows, render_rows

log = logging.getLogger(__name__)

#: Least numbers of items and of files of a background from which each split gets one.
LEAST_BACKGROUND, LEAST_BACKGROUND_FILES = 5, 3
#: Cells of the column ``complete`` that say that all calls of a recording are labelled.
COMPLETE = ("1", "1.0", "true", "yes")
DOMAIN_SHIFT_NOTE = "expect lower accuracy at other sites"


class Loaded(NamedTuple):
    """The prepared items of a run.

    Attributes
    ----------
    table : the item table.
    rows : the rows to train on: those of the table, or their windows for long recordings; and those of the
        background, labelled ``unknown``.
    spectrogram : the spectrogram settings; None for pictures and embeddings.
    """

    table: ItemTable
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


def read_items(data: DataSettings, signal: SignalSettings, seed: int) -> ItemTable:
    """Read the item table, split it, and add the files of unknown classes and of the background.

    Raises
    ------
    SecondhandError : a setting does not suit the data, or nothing is left to train on.
    """
    table = load_grouped(data, signal, seed)
    if data.split_by is not None:
        hold_out_later(table)
    if data.split_by or data.group_by == BY_DEPLOYMENT:
        for line in table.clock.remarks():
            log.warning("%s", line)
    table.unsplit = table.frame
    for line in split_remarks(table.unsplit, None if data.cv else data.fold, data.cv):
        log.info("%s", line)
    table.frame, moved = split(table.unsplit, data, seed)
    table.rejected += moved
    if shared := _divided_groups(table.frame):
        log.warning(
            "validation and calibration share the group %s, so the figures may be too good. Add files of more groups",
            shared,
        )
    if data.background:
        _load_background(table, data, signal, seed)
    if data.unknown:
        ood, bad = _load_unknown(data.unknown, table, data, "--unknown")
        table.unknown_items = pd.concat([table.unknown_items, ood], ignore_index=True)
        table.rejected += bad
    return table


def render_items(
    table: ItemTable,
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
    trained_on : spectrogram settings of the backbone's training (`learners.backbones.hub.mel_of`), which
        apply where ``signal`` leaves them open.
    spectrogram : spectrogram settings of a warm start. Default: inferred from the training files.

    Raises
    ------
    SecondhandError : nothing is left to train on.
    """
    rows, background, unsplit = table.frame, table.background, table.unsplit
    if table.kind in SPECTROGRAM_KINDS:
        if spectrogram is None:
            trained = table.frame.loc[table.frame["split"].eq("train")]
            trained_settings = trained_on if table.kind == "sound" else {}
            spectrogram = infer_spectrogram(table.kind, trained, signal, trained_settings)
            if trained_settings:
                _log_trained_settings(trained_settings, signal)
        if isinstance(spectrogram, MelSettings):
            _log_frequencies(spectrogram, table.frame.loc[table.frame["split"].eq("train")])
        planned = table.frame
        rows, background = _render_items(table, spectrogram, signal)
        if why := missing_split(table.frame, set(planned["split"])):
            _split_again(table, unsplit, planned, why, data, seed)
        rows = rows.assign(split=rows["item"].map(table.frame["split"])).dropna(subset="split")
        rows = rows.reset_index(drop=True)
        rows, rest = _place_in_recordings(table, rows, spectrogram, data, signal, seed)
        background = pd.concat([background, rest], ignore_index=True)
        table.frame = table.frame.reset_index(drop=True)
    table.protocol = protocol_of(table, unsplit, data)
    _log_table(table, Loaded(table, rows, spectrogram).windows)
    if data.background or len(background):
        rows = pd.concat([rows, _as_one_class(background, rows, data, seed)], ignore_index=True)
        if "place" in rows:
            alone = rows["place"].max() + 1 + np.arange(len(rows))
            rows["place"] = rows["place"].fillna(pd.Series(alone, rows.index)).astype(int)
    return Loaded(table, rows, spectrogram)


def _place_in_recordings(
    table: ItemTable,
    rows: pd.DataFrame,
    spectrogram: SpectrogramSettings,
    data: DataSettings,
    signal: SignalSettings,
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Render the training rows at other places, and windows of the rest of completely labelled recordings.

    Returns
    -------
    The rows, and the windows without a call, which are added to the background of the table, too; items of a
    multi-label table, which have no label, are among its rows instead.

    Raises
    ------
    SecondhandError : a class has no training row left, or ``--labelled-completely`` is for recordings with spans.
    """
    spans, exclusive, cache = Spans(table.spans), not table.multi_label, picture_cache(signal)
    varied = vary_places(
        rows, spans, spectrogram, overlap=signal.overlap, exclusive=exclusive, seed=seed
    )
    for row in varied.crowded.to_dict("records"):
        span = f"{row['start']:g} to {row['end']:g} s"
        reason = (
            f"{span}: each window around it holds a call of another class, so it is not trained on"
        )
        table.rejected.append(Rejected(row["path"], reason))
    if beside := varied.moved + len(varied.crowded):
        log.info(
            "Calls of another class in the window around %s: %d are trained on in windows without them, %d have no such "
            "window and are left out of training",
            counted(beside, "training span"), varied.moved, len(varied.crowded),
        )  # fmt: skip
    if why := missing_split(varied.rows):
        raise SecondhandError(
            f"{table.source}: {why}, because each of its windows holds a call of another class. Train a multi-label "
            "model (--labels multi), or use a shorter window (--spectrogram)"
        )
    if not exclusive:
        shown = as_in_predictions(table.frame, spectrogram, overlap=signal.overlap)
        table.frame = table.frame.assign(label=spans.labels_of(shown, spectrogram, table.classes))
    rows, _ = render_rows(varied.rows, spectrogram, cache)
    complete = table.frame[["start", "end"]].notna().any(axis=1)
    if data.labelled_completely and not complete.any():
        raise SecondhandError(
            f"--labelled-completely: {table.source} names no calls with start and end in recordings. Leave it out"
        )
    complete &= data.labelled_completely | table.frame["complete"].str.lower().isin(COMPLETE)
    table.frame = table.frame.assign(complete=np.where(complete, "1", ""))
    places = rows.drop_duplicates("place")
    classes = len(table.classes)
    most = {
        str(name): -(-count // classes) for name, count in places["split"].value_counts().items()
    }
    rest = rest_of_recordings(
        table.frame.loc[complete], spans, spectrogram, overlap=signal.overlap, most=most, seed=seed
    )
    rest, _ = render_rows(rest, spectrogram, cache)
    if rest.empty:
        return rows, rest
    if exclusive:
        table.background = pd.concat([table.background, rest], ignore_index=True)
        return rows, rest
    rest = rest.assign(label="")
    first = table.frame.index.max() + 1
    items = np.arange(first, first + len(rest))
    table.frame = pd.concat([table.frame, rest.set_index(items)])
    new = rest.assign(item=items, place=rows["place"].max() + 1 + np.arange(len(rest)))
    return pd.concat([rows, new], ignore_index=True), rest.iloc[:0]


def _load_unknown(
    source: str, table: ItemTable, data: DataSettings, flag: str
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Items of a ``source`` of no known class, as `load_unknown`, without copies of those in the table."""
    return load_unknown(
        source,
        ReadOptions(kind=table.kind, vectors=table.vectors, settings=vars(data)),
        pd.concat([table.frame, table.unknown_items, table.background]),
        flag=flag,
        picture_info=table.picture_info,
    )


def _load_background(
    table: ItemTable, data: DataSettings, signal: SignalSettings, seed: int
) -> None:
    """Add the files of ``--background`` to the table, with a split of their own.

    The splits and folds of the known items do not change. There is no test split: held-out background
    files do not affect the metrics of known classes.
    """
    source = str(data.background)
    if data.unknown and os.path.abspath(source) == os.path.abspath(data.unknown):
        raise SecondhandError(
            f"--background {source} is --unknown, too, but files that were trained on cannot measure how unknown "
            "classes are refused. Name other files for one of the two"
        )
    frame, bad = _load_unknown(source, table, data, "--background")
    if data.from_ is not None and Path(source) == background_file(data.from_):
        learnt, changed = unchanged_items(Path(source))
        split_of = dict(learnt[["path", "split"]].to_numpy())
        frame = frame.loc[frame["path"].isin(split_of)]
        frame = frame.assign(split=frame["path"].map(split_of)).reset_index(drop=True)
        bad += changed
    apart, background_data = replace(table, frame=frame), replace(data, cv=None, fold=None)
    if data.group_by:
        try:
            frame = apart.frame = _named_groups(frame, data, table.clock)
        except SecondhandError as error:  # background files may be named in another way
            log.warning(
                "--background %s: each file is a group by itself, because %s", source, error
            )
    try:
        if data.near_duplicates == "keep-together" and table.kind != "embedding":
            _group_duplicates(apart, background_data, signal, seed)
        table.background, moved = split(apart.frame, background_data, seed)
    except SecondhandError as error:
        count, files, why = len(apart.frame), apart.frame["path"].nunique(), str(error)
        if count < LEAST_BACKGROUND or files < LEAST_BACKGROUND_FILES:
            why = (
                f"{counted(count, 'item')} of {counted(files, 'file')} cannot be divided into training, "
                f"validation and calibration. At least {LEAST_BACKGROUND} items of {LEAST_BACKGROUND_FILES} files are "
                "needed: add other files or recordings"
            )
        raise SecondhandError(f"--background {source}: {why}") from None
    table.rejected += bad + moved


def _as_one_class(
    background: pd.DataFrame, rows: pd.DataFrame, data: DataSettings, seed: int
) -> pd.DataFrame:
    """Background files for training: all of its train split, and of its valid split at most as many as a
    class has there on average, because validation selects the epoch."""
    trained, valid = (background.loc[background["split"].eq(name)] for name in ("train", "valid"))
    if trained.empty:
        where = f"--background {data.background}" if data.background else "--labelled-completely"
        raise SecondhandError(
            f"{where}: no training item without a call is left. Add files; the list of files left out says why"
        )
    most = max(1, rows["split"].eq("valid").sum() // rows["label"].nunique())
    return pd.concat([trained, valid.sample(min(most, len(valid)), random_state=seed)])


def load_grouped(data: DataSettings, signal: SignalSettings, seed: int = 0) -> ItemTable:
    """Load the item table with its groups, including near-duplicates and capture sessions, without splits."""
    if not data.sources:
        raise SecondhandError(
            "--data is missing. Name a folder of class folders, a CSV file, or demo:digits"
        )
    earlier = earlier_items(data)
    before, changed = (None, []) if earlier is None else unchanged_items(earlier)
    options = ReadOptions(
        kind=data.kind,
        label_column=data.label_column,
        labels=data.labels or (MULTI if data.multi_label else None),
        warm_start=data.from_ is not None,
        settings=signal.given() | vars(signal) | vars(data),
    )
    table = load_table(data.sources, options, before=before)
    deployments = None if data.deployments is None else read_deployments(data.deployments)
    table = replace(table, clock=Clock(deployments))
    named = table.frame.loc[table.frame["sequence"].ne("")]
    table.clock.sequences = dict(zip(named["path"], named["sequence"], strict=True))
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
        table.frame = _named_groups(table.frame, data, table.clock)
        check_groups(table.frame, data)
    groups = table.frame["group"]
    sizes = groups.loc[are_named(groups)].value_counts()
    # Groups of one file keep nothing together.
    table.groups = len(sizes) if (sizes > 1).any() else 0
    if data.near_duplicates == "keep-together" and table.kind != "embedding":
        _group_duplicates(table, data, signal, seed)
    return table


def _named_groups(frame: pd.DataFrame, data: DataSettings, clock: Clock) -> pd.DataFrame:
    """The table with the groups of ``--group-by``."""
    if data.group_by == BY_DEPLOYMENT:
        return add_deployments(frame, clock)
    return frame.assign(group=groups_from_names(frame["path"], str(data.group_by)))


def picture_cache(signal: SignalSettings) -> PictureCache:
    """Cache of the rendered spectrograms."""
    return PictureCache(signal.cache_dir, max_bytes=int(signal.cache_limit * 2**30))


def _group_duplicates(
    table: ItemTable, data: DataSettings, signal: SignalSettings, seed: int
) -> None:
    """Give each cluster of near-duplicates a group, if the split is random.

    Groups that the data name stay: a cluster never merges two of them, because one pair of near-duplicates
    would then merge two speakers. Files without a group join the group in their cluster if it has exactly
    one; otherwise they get a new group. Splits and folds that the data name stay, too. If the data name no
    groups, capture sessions of photos become groups as well (`_group_sessions`).
    """
    frame, old = table.frame, is_rehearsed(table.frame)
    names_folds = data.cv is not None and not str(data.cv).strip().isdecimal()
    if (data.cv is None and data.fold is not None) or names_folds:
        return
    if frame["split"][~old].isin(["valid", "calibration"]).any():
        return
    free = frame["split"].isin(["", "train"]) | old
    if not (free & frame["group"].eq("")).any():
        return
    began = time.monotonic()
    rows, thumbnails = _thumbnails(table, frame.loc[free].reset_index(drop=True), signal)
    duplicates = find_clusters(
        thumbnails,
        pd.factorize(rows["path"])[0].astype(np.int64),
        rows["label"].str.partition("|")[0].to_numpy(str),  # the first of several labels
    )
    of_path = dict(zip(rows["path"], duplicates.number, strict=True))
    number = frame["path"].map(of_path).where(free, -1).fillna(-1).astype(int)
    groups_in = frame.loc[frame["group"].ne("")].groupby(number)["group"].unique()
    first = _next_number(frame["group"])
    for cluster in range(len(duplicates.sizes)):
        groups = groups_in.get(cluster, [])
        name = groups[0] if len(groups) == 1 else f"near-duplicates {first + cluster}"
        frame.loc[number.eq(cluster) & frame["group"].eq(""), "group"] = name
    table.near_duplicates = str(duplicates)
    log.debug("near-duplicates: %s (%.1f s)", duplicates, time.monotonic() - began)
    if len(duplicates.sizes):
        log.info("Near-duplicates stay in one split: %s", duplicates)
    if duplicates.ungrouped:
        count, sizes = len(duplicates.ungrouped), ", ".join(map(str, duplicates.ungrouped[:5]))
        message = (
            f"not kept together: {counted(count, 'cluster')} of {sizes} files, "
            f"{'each of ' * (count > 1)}which holds more than half of a class"
        )
        table.near_duplicates += f"; {message}"
        log.warning(
            "near-duplicates %s, so the figures may be too good. Name groups with --group-by, or add other files",
            message,
        )
    if table.kind == "picture" and not table.groups:
        _group_sessions(table, free, number, data, seed)


def _group_sessions(
    table: ItemTable, free: pd.Series, clusters: pd.Series, data: DataSettings, seed: int
) -> None:
    """Give the photos of each capture session (by EXIF, else a sequence that the data name) and their near-duplicates
    one group.

    If the table cannot be split then, because there are too few sessions, no groups are set. The log says
    which.
    """
    photos = table.frame.loc[free]
    session = capture_sessions([table.picture_info[path].capture_time for path in photos["path"]])
    named = (session < 0) & photos["sequence"].ne("").to_numpy()
    named &= photos["sequence"].where(named).duplicated(keep=False).to_numpy()
    session[named] = session.max(initial=-1) + 1 + pd.factorize(photos["sequence"][named])[0]
    if not (in_one := session >= 0).any():
        return
    number = sessions_with_duplicates(
        session, clusters[free].to_numpy(np.int64), photos["label"].to_numpy(str)
    )
    grouped_rows, ungrouped = number >= 0, in_one & (number < 0)
    why = "a session holds more than half of a class"
    grouped = table.frame.copy()
    first = _next_number(photos["group"])
    grouped.loc[photos.index[grouped_rows], "group"] = [
        f"session {first + n}" for n in number[grouped_rows]
    ]
    try:
        check_splits(grouped, data, seed)
        table.frame = grouped
    except SecondhandError as error:
        grouped_rows, ungrouped, why = in_one & False, in_one, f"no split is possible ({error})"
    messages = [_session_count(grouped_rows, number)] if grouped_rows.any() else []
    if ungrouped.any():
        messages.append(
            f"not kept together: {_session_count(ungrouped, session)}, because {why}, so the figures may be too good"
        )
    table.sessions = "; ".join(messages)
    log.log(
        logging.WARNING if ungrouped.any() else logging.INFO,
        "Capture sessions (photos that one camera took less than %d minutes apart)%s: %s",
        GAP_MINUTES, "" if ungrouped.any() else " stay in one split", table.sessions,
    )  # fmt: skip


def _next_number(groups: pd.Series) -> int:
    """First free number for a new group; an earlier run may have numbered some already."""
    numbers = groups.str.extract(DETECTED_GROUP, expand=False).dropna()
    return 1 + max(map(int, numbers), default=0)


def _session_count(rows: np.ndarray, numbers: np.ndarray) -> str:
    """Text with the number of files and of capture sessions; a session has at least two files."""
    return f"{rows.sum()} files in {counted(len(set(numbers[rows])), 'session')}"


def _thumbnails(
    table: ItemTable, frame: pd.DataFrame, signal: SignalSettings
) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of the items, or of the windows of long recordings, and their thumbnails."""
    if table.kind == "picture":
        return frame, np.array([table.picture_info[path].thumbnail for path in frame["path"]])
    # Inferred from all files, because there is no training split yet; mostly the settings of training.
    spectrogram, cache = infer_spectrogram(table.kind, frame, signal), picture_cache(signal)
    rows, _ = cut_windows(frame, spectrogram, overlap=signal.overlap)
    rows, _ = render_rows(rows, spectrogram, cache)
    sources = [source_of(row) for row in rows.to_dict("records")]
    return rows, thumbnails_of(
        sources,
        lambda item: open_picture(cache.get(item.path, spectrogram, item.start, item.end, item.at)),
    )


def infer_spectrogram(
    kind: str,
    frame: pd.DataFrame,
    signal: SignalSettings,
    trained_settings: Mapping[str, Any] = MappingProxyType({}),
) -> SpectrogramSettings:
    """Spectrogram settings of ``signal``, else those of the backbone's training, else inferred from the items."""
    settings = {**trained_settings, **signal.of(kind)}
    spans = frame["end"] - frame["start"]
    if kind == "sound" and spans.notna().all():  # the items are these, not their files
        settings.setdefault("window", window_of(spans.tolist()))
    spectrogram = SPECTROGRAM_KINDS[kind].infer(frame["path"], **settings)
    if isinstance(spectrogram, MelSettings) and (band := labelled_band(*_limits(frame))):
        return show_band(spectrogram, band, settings)
    return spectrogram


def _limits(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The lowest and the highest frequency of each label in Hz, NaN if not given."""
    nothing = pd.Series(np.nan, frame.index)
    low, high = (frame.get(name, nothing) for name in BAND_COLUMNS)
    return low, high


def _log_frequencies(spectrogram: MelSettings, frame: pd.DataFrame) -> None:
    """Say which frequencies are shown where that is not the usual, which labels are outside, and what is slowed."""
    low, high = _limits(frame)
    shown = f"the pictures show {hertz(spectrogram.fmin)} to {hertz(spectrogram.fmax)}"
    band = labelled_band(low, high)
    if band or spectrogram.rate > ULTRASOUND:
        why = f"labels up to {hertz(band.high)}" if band else f"a rate of {hertz(spectrogram.rate)}"
        log.info("Frequencies: %s (%s); --spectrogram with fmin and fmax changes it", shown, why)
    if number := int((outside := are_outside(spectrogram, low, high)).sum()):
        path, first, last = (
            frame["path"][outside].iloc[0],
            low[outside].iloc[0],
            high[outside].iloc[0],
        )
        log.warning(
            "%s reach out of the frequencies that %s, such as %s to %s of %s. Choose fmin and fmax with "
            "--spectrogram; at %s at most %s can be shown",
            f"{number} of {counted(len(frame), 'label')}", shown, hertz(first), hertz(last), path,
            hertz(spectrogram.rate), hertz(spectrogram.rate / 2),
        )  # fmt: skip
    expanded = {
        path: factor for path in frame["path"].unique() if (factor := time_expansion(path)) > 1
    }
    if expanded:
        path, factor = next(iter(expanded.items()))
        count, files = len(expanded), frame["path"].nunique()
        mixed = (
            ". The others are not: one call has two pictures. Expand all or none"
            if count < files
            else ""
        )
        log.log(
            logging.WARNING if mixed else logging.INFO,
            "Slowed recordings (time expansion): %d of %d, such as %s, %d times. Frequencies and times are those of the "
            "slowed sound%s",
            count, files, path, factor, mixed,
        )  # fmt: skip


def _log_trained_settings(trained_settings: Mapping[str, Any], signal: SignalSettings) -> None:
    chosen = signal.of("sound")
    adopted = [f"{name} {value}" for name, value in trained_settings.items() if name not in chosen]
    log.debug("spectrogram settings of the backbone's training: %s", ", ".join(adopted))
    changed = [
        f"{name} {chosen[name]} instead of {value}"
        for name, value in trained_settings.items()
        if name in chosen
    ]
    if changed:
        log.warning(
            "spectrogram settings differ from the backbone's training: %s. Leave them out to use those of the "
            "backbone",
            ", ".join(changed),
        )


def _render_items(
    table: ItemTable, spectrogram: SpectrogramSettings, signal: SignalSettings
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Render all items; returns the windows of the known items and those of the background with their splits.

    Items that cannot be rendered are left out, and then classes with too few items. The column ``item`` of
    a window is the index of its item in the table.
    """
    cache = picture_cache(signal)
    windows: dict[str, pd.DataFrame] = {}
    for name in ("frame", "unknown_items", "background"):
        frame = getattr(table, name)
        rows, bad = cut_windows(frame, spectrogram, overlap=signal.overlap)
        rows, failed = render_rows(rows, spectrogram, cache)
        setattr(table, name, frame.iloc[sorted(rows["item"].unique())])
        table.rejected += bad + failed
        windows[name] = rows.assign(item=frame.index[rows["item"]])
    table.unknown_items = table.unknown_items.reset_index(drop=True)
    table.frame, few = drop_small_classes(
        table.frame, table.source, table.rejected, multi_label=table.multi_label
    )
    table.rejected += few
    known_windows = windows["frame"]
    known_windows = known_windows.loc[known_windows["item"].isin(table.frame.index)]
    known_windows = known_windows.assign(label=known_windows["item"].map(table.frame["label"]))
    return known_windows, windows["background"].drop(columns="item")


def _split_again(
    table: ItemTable,
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


#: Largest number of classes that the logged table lists by name.
LISTED = 12


def _log_table(table: ItemTable, windows: int) -> None:
    """Log the data as a table: classes by splits, unknown classes, background, what was left out."""
    for line in described(table, windows):
        log.info("%s", line)
    if table.multi_label:
        log.debug("items of each label: %s", label_counts(table.frame["label"]))
    if table.note:
        log.info("%s", table.note)
    if lines := summary(table.rejected):
        log.warning("%s", "\n".join(lines))


def described(table: ItemTable, windows: int = 0) -> list[str]:
    """Lines of a small table of the items: a row for each class, a column for each split.

    Parameters
    ----------
    windows : number of windows of the items; shown if there are more windows than items.
    """
    frame, extra = table.frame, []
    splits = [name for name in SPLITS if frame["split"].eq(name).any()]
    unit = "files" if frame["path"].is_unique else "items"
    cut_into = f", cut into {windows} windows" if windows > len(frame) else ""
    old = int(is_rehearsed(frame).sum())
    origin = f" ({len(frame) - old} new, {old} of the earlier run)" if old else ""
    classes = f"{len(table.classes)} classes{cut_into}"
    head = f"Data: {table.source}, {len(frame)} {unit}{origin} of {classes}"
    counts = pd.crosstab(frame["label"], frame["split"])
    if table.multi_label or len(counts) > LISTED:
        sizes = frame["label"].value_counts()
        if not table.multi_label:
            extra.append(f"Smallest class: {sizes.index[-1]}, {sizes.iloc[-1]} {unit}")
        counts = counts.iloc[:0]
    counts = counts.reindex(columns=splits, fill_value=0)
    counts.loc["all"] = [int(frame["split"].eq(name).sum()) for name in splits]
    counts[unit] = counts.sum(axis=1)
    counts = counts.rename(columns={"valid": "validation", "train": "training"})
    lines = counts.rename_axis(index=None, columns=None).to_string().splitlines()
    if len(table.unknown_items):
        extra.append(f"Unknown classes: {len(table.unknown_items)} {unit}, never trained on")
    if len(table.background):
        learnt = table.background["split"].eq("train").sum()
        extra.append(f"Background: {len(table.background)} {unit}, {learnt} of them for training")
    return [head, *(f"  {line}" for line in [*lines, *extra])]


def protocol_of(table: ItemTable, unsplit: pd.DataFrame, data: DataSettings) -> str:
    """Describe the evaluation protocol, as the text after "the figures rest on".

    Parameters
    ----------
    table : the table after the split.
    unsplit : its rows before the split.
    data : the settings; ``cv`` without ``fold`` means all folds together.
    """
    old = is_rehearsed(unsplit)
    if old.any():
        if old.all():
            return "the splits of the earlier run"
        new = protocol_of(table, unsplit.loc[~old], data)
        return f"the splits of the earlier run, and for new items on {new}"
    frame, named_splits = table.frame, set(unsplit["split"]) - {""}
    if data.cv is not None:
        folds = frame["fold"].loc[frame["fold"].ne("")].nunique()
        kind = "group" if str(data.cv) == "group" else "fold"
        fold_text = (
            f"{kind} {data.fold} of {folds}" if data.fold is not None else f"{folds} {kind}s"
        )
        if kind == "group":
            each = "" if data.fold is not None else "each "
            return f"{fold_text}, {each}left out of training"
        if str(data.cv) == "fold":
            return f"{fold_text}, as named in the data"
        return _random_protocol(table, f"{fold_text}, drawn at random")
    if table.learnt_until:
        return _random_protocol(
            replace(table, groups=0),  # the same sites are recorded earlier and later
            f"files recorded after {table.learnt_until}; trained on files until then, tested on later ones",
        )
    if data.fold is not None:
        folds = unsplit["fold"].loc[unsplit["fold"].ne("")].nunique()
        beside = " beside the data's own test split" if "test" in named_splits else ""
        return f"fold {data.fold} of {folds}, as named in the data{beside}"
    if {"valid", "calibration"} & named_splits:
        return f"the splits that the data name ({', '.join(sorted(named_splits))})"
    if "test" in named_splits:
        return _random_protocol(
            table, "the test split that the data name, and for the other files on a random split"
        )
    if table.groups and are_named(frame["group"]).all():
        held_out = frame["group"].loc[frame["split"].ne("train")].nunique()
        by_group = (
            f"groups that were not in training ({held_out} of {table.groups}), drawn at random"
        )
        return _random_protocol(table, by_group, by_group=True)
    return _random_protocol(table, f"a random split of {len(table.classes)} classes")


def _divided_groups(frame: pd.DataFrame) -> str:
    """Names of the groups in two splits, which are validation and calibration; "" for none."""
    named = frame.loc[are_named(frame["group"])]
    splits = named.groupby("group")["split"].nunique()
    names = [one_line(name) for name in splits.index[splits > 1]]
    return ", ".join([*names[:5], *(["…"] if len(names) > 5 else [])])


def _random_protocol(table: ItemTable, protocol: str, *, by_group: bool = False) -> str:
    """Describe a random split: what was kept together, and a note on domain shift if there are no groups."""
    texts = [protocol]
    shared = _divided_groups(table.frame) if table.groups else ""
    if table.groups and not by_group:
        exception = f", except {shared}, which validation and calibration share" if shared else ""
        texts.append(f"each of {table.groups} groups stays in one split{exception}")
    elif shared:
        texts.append(f"validation and calibration share {shared}")
    for name, grouping in (
        ("near-duplicates", table.near_duplicates),
        ("capture sessions", table.sessions),
    ):
        if grouping and grouping[0].isdecimal():
            texts.append(f"{name} kept together: {grouping}")
        elif grouping and grouping != "none found":
            texts.append(f"{name}: {grouping}")
    return "; ".join([*texts, *([] if table.groups else [DOMAIN_SHIFT_NOTE])])
