"""Data packages of camera traps or recorders: Camtrap DP 1.0 (https://camtrap-dp.tdwg.org).

``media.csv`` names the files, and ``observations.csv`` says what they show. A deployment is a group. An
event-based observation labels all media of its deployment within its times, except for media with their own
observations. Media and events are compared only if both have times with a zone, or neither has.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd

from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.scanning import PACKAGE
from datasets.kinds.base import find_kind
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.sources.beside import Below
from datasets.sources.regions import one_label_each
from datasets.tables.cells import MISSING, read_csv, read_text

_MEDIA = ("mediaID", "deploymentID", "timestamp", "filePath")
_SPAN = ("eventStart", "eventEnd")
_OBSERVATIONS = ("deploymentID", "mediaID", "eventStart", "eventEnd", "observationType", "scientificName")  # fmt: skip
#: A version in the address of the profile.
_OLD = re.compile(r"/(0\.\d+[^/]*)(?:/|$)")
_ZONE = r"(?:[Zz]|[+-]\d\d(?::?\d\d)?)$"
#: Types of observation that are labels; the label of an animal is its name.
_TYPES = ("human", "vehicle", "blank")


def read_package(path: Path, options: ReadOptions) -> Rows:
    """Read a package: rows with path, label, group, start and end (s), deployment, time and sequence (the event).

    Photos with several labels are left out, because an item has one. Spans of several labels have a row for each. The
    note says how many labels a machine made.

    Parameters
    ----------
    path : its folder, or the file that describes it.
    options : their ``label_column`` is one of ``observations.csv``. Default: ``scientificName``, or the type of
        observation if it is not of an animal.

    Raises
    ------
    SecondhandError : a table or a column is missing, or there is no labelled file.
    """
    folder = path if path.is_dir() else path.parent
    label_column = options.label_column
    media = _table(folder, "media", _MEDIA)
    needed = (*_OBSERVATIONS, *([label_column] if label_column else []))
    observations = _table(folder, "observations", needed)
    if label_column:
        label = observations[label_column]
    else:
        kind, name = observations["observationType"], observations["scientificName"]
        label = name.where(name.ne(""), kind.where(kind.isin(_TYPES), ""))
    observations = observations.assign(label=label)
    nameless = media["mediaID"].eq("")  # as the observations of events
    rejected = _rejected(media.loc[nameless], "row", "no mediaID of {filePath}")
    media = media.loc[~nameless].drop(columns="row")
    twice = media["mediaID"].duplicated()
    rejected += _rejected(media.loc[twice], "filePath", "media.csv has the mediaID {mediaID} twice")
    media = media.loc[~twice]
    of_media = media.merge(observations.drop(columns="deploymentID"), on="mediaID")
    of_events, unclear = _observations_by_medium(observations, media)
    rows = pd.concat([of_media, of_events], ignore_index=True)
    unnamed = observations["mediaID"].ne("") & ~observations["mediaID"].isin(media["mediaID"])
    rejected += _rejected(observations.loc[unnamed], "row", "media.csv has no mediaID {mediaID}")
    without = media.loc[~media["mediaID"].isin(rows["mediaID"])]
    is_unclear = without["mediaID"].isin(unclear["mediaID"])
    rejected += _rejected(without.loc[~is_unclear], "filePath", "no observation")
    rejected += _rejected(
        without.loc[is_unclear],
        "filePath",
        "its time {timestamp} and those of events of its deployment do not all have a time zone",
    )
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
    found = Below(folder).locate(rows["filePath"].unique())
    rejected += [Rejected(cell, one.reason) for cell, one in found.items() if one.unclear]
    rows = rows.loc[~rows["filePath"].isin([cell for cell, one in found.items() if one.unclear])]
    rows = rows.assign(
        path=rows["filePath"].map({cell: one.path for cell, one in found.items()}),
        group=rows["deploymentID"],
        deployment=rows["deploymentID"],
        time=rows["timestamp"],
        sequence=rows.get("eventID", ""),
    )
    kinds = map(find_kind, rows["path"])
    sound = pd.Series([bool(kind and kind.recordings) for kind in kinds], rows.index, dtype=bool)
    unclear_span = sound & rows["eventStart"].ne("") & rows["eventEnd"].ne("") & ~_same_zones(rows)
    rejected += _rejected(
        rows.loc[unclear_span],
        "path",
        "its time {timestamp} and those of its observation do not all have a time zone",
    )
    rows = rows.assign(**_spans(rows.where(sound))).loc[~unclear_span]
    machine = int(rows.get("classificationMethod", pd.Series(dtype=str)).eq("machine").sum())
    note = f"{machine} of {len(rows)} labels were made by a machine" if machine else ""
    columns = ["path", "label", "group", "start", "end", "deployment", "time", "sequence"]
    frame, several = one_label_each(rows[columns])
    rejected += several
    if frame.empty:
        raise SecondhandError(f"--data {path}: no usable item{first_left_out(rejected, 'one')}")
    return Rows(frame, rejected, note)


def _rejected(rows: pd.DataFrame, name: str, why: str) -> list[Rejected]:
    """The rows, called after one of their columns, and why they are left out, with the cells that it names."""
    return [
        Rejected(row[name], why.format_map({str(key): quoted(cell) for key, cell in row.items()}))
        for row in rows.to_dict("records")
    ]


def _table(folder: Path, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Read a table of the package, with all cells as text; BadFile if it or one of the columns is missing.

    Missing values are "". The column ``row`` says where a row stands, for messages.
    """
    package = folder / PACKAGE
    try:
        description = json.loads(read_text(package))
        resource = {str(one["name"]): one for one in description["resources"]}.get(name, {})
        named = resource.get("path")  # none for inline data
        files = named if isinstance(named, list) else [named]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, BadFile):
            raise
        reason = "not a data package: it has no list of resources with names"
        raise BadFile(package, reason) from None
    if old := _OLD.search(str(description.get("profile"))):
        raise BadFile(
            package,
            f"Camtrap DP {old[1]}, whose tables have other columns. Export it as Camtrap DP 1.0, or convert it with the R "
            "package camtrapdp",
        )
    if not files or not all(isinstance(file, str) and "://" not in file for file in files):
        raise BadFile(
            package, f"no resource {name!r} with the path of a file, so it is not Camtrap DP 1.0"
        )
    schema, dialect = resource.get("schema"), resource.get("dialect")
    stated = schema.get("missingValues") if isinstance(schema, dict) else None
    stated = [one.get("value", "") if isinstance(one, dict) else one for one in stated or ()]
    options = {
        "encoding": resource.get("encoding"),
        "separator": dialect.get("delimiter") if isinstance(dialect, dict) else None,
    }
    if any(not isinstance(value, str | None) for value in options.values()):
        raise BadFile(package, f"the encoding or delimiter of the resource {name!r} is not a text")
    tables: list[pd.DataFrame] = []
    for file in files:
        cells = read_csv(folder / file, **options)
        if tables and not {*columns} & {*cells.columns}:  # only the first part has a header
            names = [*tables[0].columns.drop("row")]
            cells = read_csv(folder / file, names=names, **options)
        if missing := [column for column in columns if column not in cells]:
            has = ", ".join(map(str, cells.columns[:40]))
            old_names = {"media_id", "deployment_id"} & {*cells.columns}
            hint = (
                ". These are of an older version: export it as Camtrap DP 1.0" if old_names else ""
            )
            raise BadFile(folder / file, f"no column {', '.join(missing)}. It has {has}{hint}")
        cells = cells.apply(lambda column: column.str.strip())
        cells = cells.mask(cells.isin([*MISSING, *map(str, stated)]), "")
        tables.append(cells.assign(row=[f"{folder / file}, row {n + 2}" for n in cells.index]))
    return pd.concat(tables, ignore_index=True).fillna("")


def _observations_by_medium(
    observations: pd.DataFrame, media: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Event-based observations, one row for each medium within their times; and those whose times cannot be compared."""
    events = observations.loc[observations["mediaID"].eq("")].drop(columns="mediaID")
    free = media.loc[~media["mediaID"].isin(observations["mediaID"])]
    rows = free.merge(events, on="deploymentID")
    clear = _same_zones(rows)
    timestamp, begin, end = (_times(rows[name]) for name in ("timestamp", *_SPAN))
    within = clear & (begin <= timestamp) & (timestamp <= end)
    return rows.loc[within], rows.loc[~clear]


def _same_zones(rows: pd.DataFrame) -> pd.Series:
    """Whether the time of a medium and those of its observation all have a zone, or none has."""
    zoned = pd.DataFrame({name: rows[name].str.contains(_ZONE) for name in ("timestamp", *_SPAN)})
    return zoned.nunique(axis=1).le(1)


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


SOURCES.add(
    Source(
        name="camtrap-dp",
        order=25,
        claims=lambda path, options: (path if path.name == PACKAGE else path / PACKAGE).is_file(),
        read=read_package,
    )
)
