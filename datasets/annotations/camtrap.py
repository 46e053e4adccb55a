"""A data package of camera traps or recorders (Camtrap DP 1.0, https://camtrap-dp.tdwg.org) -> rows.

``media.csv`` names the files, ``observations.csv`` what is in them; what is of one deployment is one
group. An observation of an event is one of all media of its deployment within its times, unless
those have observations of their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pandas as pd

from datasets.core.cells import file_named, read_cells, read_text
from datasets.core.errors import BadFile, Rejected, SecondhandError, quoted
from datasets.core.scanning import kind_of

PACKAGE = "datapackage.json"
_MEDIA = ("mediaID", "deploymentID", "timestamp", "filePath")
_OBSERVATIONS = ("deploymentID", "mediaID", "eventStart", "eventEnd", "observationType", "scientificName")  # fmt: skip
#: Observations that are their own label; an animal's is its name.
_TYPES = ("human", "vehicle", "blank")


def read_package(
    folder: Path, label_column: str | None
) -> tuple[pd.DataFrame, list[Rejected], str]:
    """Rows with path, label, group, start and end; those left out; a word on who labelled them.

    Parameters
    ----------
    label_column : of ``observations.csv``; ``scientificName`` if not given, or the type of what is
        no animal.

    Raises
    ------
    SecondhandError : a table or a column is missing.
    """
    media = _table(folder, "media", _MEDIA)
    columns = (*_OBSERVATIONS, *([label_column] if label_column else []))
    observations = _table(folder, "observations", columns)
    if label_column:
        label = observations[label_column]
    else:
        type_label = observations["observationType"].where(
            observations["observationType"].isin(_TYPES), ""
        )
        label = observations["scientificName"].where(
            observations["scientificName"].ne(""), type_label
        )
    observations = observations.assign(label=label, row=observations.index + 2)
    twice = media["mediaID"].duplicated()
    rejected = [
        Rejected(file, f"media.csv has mediaID {quoted(name)} twice")
        for file, name in zip(media["filePath"][twice], media["mediaID"][twice], strict=True)
    ]
    media = media.loc[~twice]
    of_media = media.merge(observations.drop(columns="deploymentID"), on="mediaID")
    rows = pd.concat([of_media, _of_events(observations, media)], ignore_index=True)
    unnamed = observations["mediaID"].ne("") & ~observations["mediaID"].isin(media["mediaID"])
    rejected += [
        Rejected(f"{folder / 'observations.csv'}, row {row}", f"no medium {quoted(name)}")
        for row, name in zip(
            observations["row"][unnamed], observations["mediaID"][unnamed], strict=True
        )
    ]
    rejected += [
        Rejected(file, "no observation of it")
        for file in media["filePath"][~media["mediaID"].isin(rows["mediaID"])]
    ]
    is_address = rows["filePath"].str.startswith("file://")
    online = rows["filePath"].str.contains("://", regex=False) & ~is_address
    nameless = ~online & rows["label"].eq("")
    reasons = {"at an address, not in the package: fetch it": online, "no label": nameless}
    for reason, selected in reasons.items():
        rejected += [Rejected(file, reason) for file in rows["filePath"][selected].unique()]
    rows = rows.loc[~online & ~nameless]
    if rows.empty:
        first = f"; the first left out: {': '.join(rejected[0])}" if rejected else ""
        raise SecondhandError(f"--data {folder}: no labelled medium in the package{first}")
    paths = {cell: _file(folder, cell) for cell in rows["filePath"].unique()}
    rows = rows.assign(path=rows["filePath"].map(paths), group=rows["deploymentID"])
    sound = rows["path"].map(kind_of).eq("sound")
    rows = rows.assign(**_spans(rows.where(sound)))
    machine = int(rows.get("classificationMethod", pd.Series(dtype=str)).eq("machine").sum())
    note = f"{machine} of {len(rows)} labels are a machine's" if machine else ""
    return rows[["path", "label", "group", "start", "end"]], rejected, note


def _table(folder: Path, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """One of the package's tables, whose file the package names; with columns that may be empty."""
    package = folder / PACKAGE
    try:
        resources = json.loads(read_text(package))["resources"]
        paths = {str(one["name"]): one.get("path") for one in resources}  # or it has its data here
    except (ValueError, LookupError, TypeError) as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(package, "no data package: no list of resources with names") from None
    file = paths.get(name)
    if not isinstance(file, str) or "://" in file:
        raise BadFile(
            package, f"no resource {name!r} with the path of one file: not Camtrap DP 1.0"
        )
    cells = read_cells(folder / file)
    if missing := [column for column in columns if column not in cells]:
        has = ", ".join(map(str, cells.columns[:40]))
        raise BadFile(folder / file, f"no column {', '.join(missing)}; it has {has}")
    return cells.apply(lambda column: column.str.strip())


def _file(folder: Path, cell: str) -> str:
    """The file of a path below the package, or of a ``file://`` address."""
    address = cell.startswith("file://")
    return url2pathname(urlsplit(cell).path) if address else file_named(folder, cell)


def _of_events(observations: pd.DataFrame, media: pd.DataFrame) -> pd.DataFrame:
    """Observations of no single medium, with those taken within their times."""
    events = observations.loc[observations["mediaID"].eq("")].drop(columns="mediaID")
    free = media.loc[~media["mediaID"].isin(observations["mediaID"])]
    rows = free.merge(events, on="deploymentID")
    timestamp, begin, end = (_times(rows[name]) for name in ("timestamp", "eventStart", "eventEnd"))
    return rows.loc[(begin <= timestamp) & (timestamp <= end)]


def _times(cells: pd.Series) -> pd.Series:
    return pd.to_datetime(cells, errors="coerce", utc=True, format="ISO8601")


def _spans(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Seconds in a medium that an observation is of: its event's where that begins within; NaN for all
    of it."""
    timestamp = _times(rows["timestamp"])
    start, end = (
        (_times(rows[f"event{n}"]) - timestamp).dt.total_seconds() for n in ("Start", "End")
    )
    inside = (start >= 0) & (end > start)
    return {"start": start.where(inside), "end": end.where(inside)}
