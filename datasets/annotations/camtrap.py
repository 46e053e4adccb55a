"""Reads data packages of camera traps or recorders (Camtrap DP 1.0, https://camtrap-dp.tdwg.org) as items.

``media.csv`` names the files, and ``observations.csv`` says what they show. A deployment is a group. An
event-based observation labels all media of its deployment within its times, except for media with their own
observations.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pandas as pd

from datasets.core.cells import file_named, read_cells, read_text
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.scanning import PACKAGE, kind_of

_MEDIA = ("mediaID", "deploymentID", "timestamp", "filePath")
_OBSERVATIONS = ("deploymentID", "mediaID", "eventStart", "eventEnd", "observationType", "scientificName")  # fmt: skip
#: Types of observation that are labels; the label of an animal is its name.
_TYPES = ("human", "vehicle", "blank")


def read_package(
    folder: Path, label_column: str | None
) -> tuple[pd.DataFrame, list[Rejected], str]:
    """Read a package: rows with path, label, group, start and end (s), deployment and time; rejected files; and a
    note.

    The note says how many labels a machine made; "" for none.

    Parameters
    ----------
    label_column : column of labels in ``observations.csv``. Default: ``scientificName``, or the type of
        observation if it is not of an animal.

    Raises
    ------
    SecondhandError : a table or a column is missing, or there is no labelled file.
    """
    media = _table(folder, "media", _MEDIA)
    needed = (*_OBSERVATIONS, *([label_column] if label_column else []))
    observations = _table(folder, "observations", needed)
    if label_column:
        label = observations[label_column]
    else:
        kind, name = observations["observationType"], observations["scientificName"]
        label = name.where(name.ne(""), kind.where(kind.isin(_TYPES), ""))
    observations = observations.assign(label=label, row=observations.index + 2)
    twice = media["mediaID"].duplicated()
    rejected = [
        Rejected(file, f"media.csv has the mediaID {quoted(name)} twice")
        for file, name in media.loc[twice, ["filePath", "mediaID"]].itertuples(index=False)
    ]
    media = media.loc[~twice]
    of_media = media.merge(observations.drop(columns="deploymentID"), on="mediaID")
    rows = pd.concat([of_media, _of_events(observations, media)], ignore_index=True)
    unnamed = observations["mediaID"].ne("") & ~observations["mediaID"].isin(media["mediaID"])
    table = folder / "observations.csv"
    rejected += [
        Rejected(f"{table}, row {row}", f"media.csv has no mediaID {quoted(name)}")
        for row, name in observations.loc[unnamed, ["row", "mediaID"]].itertuples(index=False)
    ]
    rejected += [
        Rejected(file, "no observation")
        for file in media["filePath"][~media["mediaID"].isin(rows["mediaID"])]
    ]
    is_address = rows["filePath"].str.startswith("file://")
    online = rows["filePath"].str.contains("://", regex=False) & ~is_address
    nameless = ~online & rows["label"].eq("")
    reasons = {"online, not in the package: download it": online, "no label": nameless}
    for reason, selected in reasons.items():
        rejected += [Rejected(file, reason) for file in rows["filePath"][selected].unique()]
    rows = rows.loc[~online & ~nameless]
    if rows.empty:
        raise SecondhandError(
            f"--data {folder}: no labelled file in the package{first_left_out(rejected)}"
        )
    paths = {cell: _file(folder, cell) for cell in rows["filePath"].unique()}
    rows = rows.assign(
        path=rows["filePath"].map(paths),
        group=rows["deploymentID"],
        deployment=rows["deploymentID"],
        time=rows["timestamp"],
    )
    sound = rows["path"].map(kind_of).eq("sound")
    rows = rows.assign(**_spans(rows.where(sound)))
    machine = int(rows.get("classificationMethod", pd.Series(dtype=str)).eq("machine").sum())
    note = f"{machine} of {len(rows)} labels were made by a machine" if machine else ""
    columns = ["path", "label", "group", "start", "end", "deployment", "time"]
    return rows[columns], rejected, note


def _table(folder: Path, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Read a table of the package, with all cells as text; BadFile if it or one of the columns is missing."""
    package = folder / PACKAGE
    try:
        resources = json.loads(read_text(package))["resources"]
        paths = {str(one["name"]): one.get("path") for one in resources}  # None for inline data
    except (ValueError, LookupError, TypeError) as error:
        if isinstance(error, BadFile):
            raise
        reason = "not a data package: it has no list of resources with names"
        raise BadFile(package, reason) from None
    file = paths.get(name)
    if not isinstance(file, str) or "://" in file:
        raise BadFile(
            package, f"no resource {name!r} with the path of a file, so it is not Camtrap DP 1.0"
        )
    cells = read_cells(folder / file)
    if missing := [column for column in columns if column not in cells]:
        has = ", ".join(map(str, cells.columns[:40]))
        raise BadFile(folder / file, f"no column {', '.join(missing)}. It has {has}")
    return cells.apply(lambda column: column.str.strip())


def _file(folder: Path, cell: str) -> str:
    """Absolute path of a file, from a path relative to the package or a ``file://`` address."""
    address = cell.startswith("file://")
    return url2pathname(urlsplit(cell).path) if address else file_named(folder, cell)


def _of_events(observations: pd.DataFrame, media: pd.DataFrame) -> pd.DataFrame:
    """Event-based observations, one row for each medium within their times."""
    events = observations.loc[observations["mediaID"].eq("")].drop(columns="mediaID")
    free = media.loc[~media["mediaID"].isin(observations["mediaID"])]
    rows = free.merge(events, on="deploymentID")
    timestamp, begin, end = (_times(rows[name]) for name in ("timestamp", "eventStart", "eventEnd"))
    return rows.loc[(begin <= timestamp) & (timestamp <= end)]


def _times(cells: pd.Series) -> pd.Series:
    return pd.to_datetime(cells, errors="coerce", utc=True, format="ISO8601")


def _spans(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Start and end of each observation in its medium (s); NaN if the event does not begin inside the medium."""
    timestamp = _times(rows["timestamp"])
    start, end = (
        (_times(rows[f"event{n}"]) - timestamp).dt.total_seconds() for n in ("Start", "End")
    )
    inside = (start >= 0) & (end > start)
    return {"start": start.where(inside), "end": end.where(inside)}
