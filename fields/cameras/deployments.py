"""Reads a table of deployments: where each recorder or camera stood, when, in which time zone its clock ran, and by how
much it was wrong."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from datasets.core.errors import SecondhandError, quoted
from datasets.core.recorded import valid_place
from datasets.core.scanning import absolute_path
from datasets.tables.cells import MISSING, read_cells

#: Clocks of one recorder that differ by less are the same: a name has the time at which the file was created.
SAME_CLOCK = timedelta(minutes=5)
#: Names of each column: that of Camtrap DP's deployments.csv, and the short one.
_COLUMNS = {
    "name": ("deploymentID", "deployment"),
    "latitude": ("latitude",),
    "longitude": ("longitude",),
    "start": ("deploymentStart", "start"),
    "end": ("deploymentEnd", "end"),
    "zone": ("timezone",),
    "offset": ("clockOffset", "clock_offset"),
}
#: What is added to a clock: 365 d 01:30:00, -01:30, 1.5 h or 90 min; a number alone counts hours.
_OFFSET = re.compile(
    r"""(?P<sign>[+-])?\ * (?=\d) (?:(?P<days>\d+(?:\.\d+)?)\ *(?:d|days?),?\ *)?
    (?:(?P<hours>\d+):(?P<minutes>[0-5]?\d)(?::(?P<seconds>[0-5]?\d(?:\.\d+)?))?
    | (?P<number>\d+(?:\.\d+)?)\ *(?P<unit>h|hours?|min|minutes?|s|seconds?)?)?""",
    re.VERBOSE | re.IGNORECASE,
)
_UNITS = {"h": "hours", "m": "minutes", "s": "seconds"}
#: Clocks that have lost their time begin in 1970 or 2000.
_LARGEST_OFFSET = timedelta(days=100 * 365.25)


class Deployment(NamedTuple):
    """One recorder or camera at one place.

    Attributes
    ----------
    name : its name, which is also in the paths of its files.
    place : latitude and longitude in degrees; None if the table has none.
    start, end : its period; with a zone if the table states one.
    zone : time zone of its clock; None if not stated.
    offset : what is added to the times of its clock, which was wrong, to make them right.
    """

    name: str
    place: tuple[float, float] | None = None
    start: datetime | None = None
    end: datetime | None = None
    zone: tzinfo | None = None
    offset: timedelta = timedelta()

    def corrected(self, time: datetime) -> datetime:
        """The time when its clock showed another."""
        try:
            return time + self.offset
        except OverflowError:  # before the year 1, or after 9999
            return time

    def covers(self, time: datetime) -> bool:
        """Whether a time lies in the period, as far as it and the period have zones; clocks differ by `SAME_CLOCK`."""
        if time.tzinfo is None:
            return True
        start, end = ((t if t and t.tzinfo else None) for t in (self.start, self.end))
        too_early = start is not None and time < start - SAME_CLOCK
        return not (too_early or (end is not None and time > end + SAME_CLOCK))


class Deployments:
    """The deployments of a table, by name."""

    def __init__(self, rows: dict[str, Deployment], file: Path) -> None:
        self.rows, self.file = rows, file
        self._of_folder: dict[str, Deployment | None] = {}

    def find(self, path: str) -> Deployment | None:
        """The deployment that a file belongs to; None if there is none.

        It is the one whose name begins the file's name (``S4A01_20190604_221500.wav``), else the one whose name is
        that of a folder above the file, the nearest first; ``site/2019`` names two folders.
        """
        path = unicodedata.normalize("NFC", absolute_path(path))
        folder, _, name = path.replace("\\", "/").rpartition("/")
        starts = [name[: end.start()] for end in re.finditer(r"[^0-9A-Za-z]", name)]
        begun = [self.rows[start] for start in starts if start in self.rows]
        if begun:
            return begun[-1]
        if folder not in self._of_folder:
            named = (self.rows[part] for part in _folders(folder) if part in self.rows)
            self._of_folder[folder] = next(named, None)
        return self._of_folder[folder]


def _folders(folder: str) -> Iterator[str]:
    """Names of one or more neighbouring folders, the nearest and longest first."""
    parts = folder.split("/")
    for last in range(len(parts), 0, -1):
        yield from ("/".join(parts[first:last]) for first in range(last))


def read_deployments(file: Path) -> Deployments:
    """Read a table of deployments: Camtrap DP's ``deployments.csv``, or the columns deployment, latitude, longitude,
    start, end, timezone and clock_offset, of which only the first is required. Empty cells are unknown.

    Without ``timezone`` the clock runs in the zone that ``start`` states, such as ``2024-03-01T08:00:00+01:00``.

    Raises
    ------
    SecondhandError : the table cannot be read, has no such column or names a deployment twice; or a place, time, zone
        or offset in it is invalid.
    """
    if not file.is_file():
        raise SecondhandError(f"--deployments {file}: there is no such file. Name a table (CSV)")
    cells = read_cells(file)
    by_name = {str(name).strip().lower(): name for name in cells.columns}
    columns = {
        field: next((by_name[n.lower()] for n in names if n.lower() in by_name), None)
        for field, names in _COLUMNS.items()
    }
    has = f"It has {', '.join(map(quoted, cells.columns[:20])) or 'none'}"
    if columns["name"] is None:
        raise SecondhandError(
            f"--deployments {file}: no column 'deployment' (or 'deploymentID'). {has}"
        )
    if (columns["latitude"] is None) != (columns["longitude"] is None):
        raise SecondhandError(
            f"--deployments {file}: only one of the columns latitude and longitude. Add the other one. {has}"
        )
    places = {
        name: cells[name].astype(str).str.replace(",", ".", regex=False)  # no thousands
        for name in (columns["latitude"], columns["longitude"])
        if name
    }
    cells = cells.assign(**places)
    rows: dict[str, Deployment] = {}
    for number, row in enumerate(cells.to_dict("records"), start=2):
        values = {
            field: unicodedata.normalize("NFC", str(row[name])).strip() if name is not None else ""
            for field, name in columns.items()
        }
        values |= {field: "" for field in values if field != "name" and values[field] in MISSING}
        if not any(values.values()):  # as spreadsheets leave below a table
            continue
        where = f"--deployments {file}, row {number}"
        if not values["name"]:
            raise SecondhandError(f"{where}: the name of the deployment is empty. Fill it in")
        if values["name"] in rows:
            raise SecondhandError(
                f"{where}: the deployment {quoted(values['name'])} has an earlier row. Give each its own name"
            )
        rows[values["name"]] = _deployment(values, where)
    return Deployments(rows, file)


def _deployment(values: dict[str, str], where: str) -> Deployment:
    zone = _zone(values["zone"], where)
    start = _moment(values["start"], zone, where)
    if zone is None and start is not None:
        zone = start.tzinfo
    end = _moment(values["end"], zone, where)
    if end and ":" not in values["end"]:  # a date: all of the day
        end += timedelta(days=1, seconds=-1)
    if start and end and (start.tzinfo is None) == (end.tzinfo is None) and start > end:
        raise SecondhandError(f"{where}: it ends ({end}) before it starts ({start}). Correct them")
    offset = _offset(values["offset"], where)
    return Deployment(values["name"], _place(values, where), start, end, zone, offset)


def _offset(text: str, where: str) -> timedelta:
    """What is added to a clock: days, hours, minutes and seconds, forward without a sign."""
    plain = re.sub(r"(?<=\d),(?=\d)", ".", text.replace("\N{MINUS SIGN}", "-")) or "0"
    if found := _OFFSET.fullmatch(plain):
        sign, days, hours, minutes, seconds, number, unit = found.groups()
        parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        if number is not None:
            parts[_UNITS[(unit or "h")[0].lower()]] = number
        with suppress(OverflowError):
            offset = timedelta(**{name: float(value or 0) for name, value in parts.items()})
            if offset <= _LARGEST_OFFSET:
                return -offset if sign == "-" else offset
    raise SecondhandError(
        f"{where}: the clock_offset {quoted(text)} cannot be added to a clock. Write what to add, such as +01:00:00, "
        "-1.5 (hours) or 365 d 02:30:00; 100 years at most"
    )


def _place(values: dict[str, str], where: str) -> tuple[float, float] | None:
    texts = values["latitude"], values["longitude"]
    if texts == ("", ""):
        return None
    try:
        place = valid_place(float(texts[0]), float(texts[1]))
    except ValueError:
        place = None
    if place is None:
        raise SecondhandError(
            f"{where}: latitude {quoted(texts[0])} and longitude {quoted(texts[1])} are no place. Write degrees, such "
            "as 52.3676 and -4.9041 (latitude -90 to 90, longitude -180 to 180), or leave both empty"
        )
    return place


def _moment(text: str, zone: tzinfo | None, where: str) -> datetime | None:
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise SecondhandError(
            f"{where}: {quoted(text)} is not a time in ISO 8601, such as 2024-03-01T08:00:00+01:00"
        ) from None
    return time.replace(tzinfo=zone) if time.tzinfo is None else time


def _zone(text: str, where: str) -> tzinfo | None:
    """A zone from its name, such as Europe/Berlin, or its offset from UTC, such as +01:00."""
    if not text:
        return None
    if offset := re.fullmatch(r"(?:UTC)?([+-])(\d\d?):?(\d\d)?", text):
        sign, hours, minutes = offset.groups()
        shift = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if shift <= timedelta(hours=14):
            return timezone(-shift if sign == "-" else shift)
    with suppress(ValueError, OSError, LookupError):
        return ZoneInfo(text)
    raise SecondhandError(
        f"{where}: {quoted(text)} is not a time zone. Write a name such as Europe/Berlin, or an offset such as +01:00"
    )
