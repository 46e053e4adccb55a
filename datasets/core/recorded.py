"""When and where a file was recorded, as one source says: its EXIF data, a chunk of a recorder, or its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import NamedTuple


class Recorded(NamedTuple):
    """What one source says.

    Attributes
    ----------
    source : name of the source, for messages.
    time : start of the recording, or the moment of the exposure; with a zone if the source states it.
    place : latitude and longitude in degrees (WGS 84); None if not stated.
    expansion : how many times slower the recording plays than it was; None if not stated.
    """

    source: str
    time: datetime | None
    place: tuple[float, float] | None = None
    expansion: float | None = None


#: Columns of item tables: the deployment of a file, when it was recorded (ISO 8601), and its event.
RECORDED_COLUMNS = ("deployment", "time", "sequence")
#: Names, in any case, of a column or key that says which photos are one event.
SEQUENCES = (
    "sequence_id",
    "sequenceid",
    "seq_id",
    "sequence",
    "event_id",
    "eventid",
    "burst_id",
    "burst",
)


def distinct_sequences(sources: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Names of events by path, as several sources have them: each counts its own from 1, so a name that an earlier source
    has for other files gets a number.

    Examples
    --------
    >>> distinct_sequences([{"north/a.jpg": "1"}, {"south/a.jpg": "1", "south/b.jpg": "2"}])
    [{'north/a.jpg': '1'}, {'south/a.jpg': '1 (2)', 'south/b.jpg': '2'}]
    """
    files: dict[str, set[str]] = {}
    distinct = []
    for source in sources:
        own: dict[str, set[str]] = {}
        for path, name in source.items():
            own.setdefault(name, set()).add(path)
        taken = files.keys() | own.keys()
        names = {
            name: name
            if not name or paths & files.get(name, paths)
            else next(free for n in count(2) if (free := f"{name} ({n})") not in taken)
            for name, paths in own.items()
        }
        for name, paths in own.items():
            files.setdefault(names[name], set()).update(paths)
        distinct.append({path: names[name] for path, name in source.items()})
    return distinct


def valid_place(latitude: float, longitude: float) -> tuple[float, float] | None:
    """A place rounded to 6 decimals (0.1 m); None if it is not on Earth, or is the 0, 0 of a receiver without a
    fix."""
    valid = abs(latitude) <= 90 and abs(longitude) <= 180 and (latitude, longitude) != (0, 0)
    return (round(latitude, 6), round(longitude, 6)) if valid else None  # NaN is not valid either


def valid_expansion(factor: float) -> float | None:
    """A factor of time expansion, at least 1 and at most 100; None for any other number."""
    return factor if 1 <= factor <= 100 else None


def iso_time(text: str) -> datetime | None:
    """A date with a time of day in ISO 8601, with or without a zone; None for any other text."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return time if ":" in text else None  # a date alone would become midnight
