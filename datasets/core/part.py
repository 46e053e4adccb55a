"""Which part of a file an item shows: a span or a moment of a signal, or a page or a box of a picture."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets.core.errors import SecondhandError

if TYPE_CHECKING:
    import pandas as pd

AnyPath = str | os.PathLike[str]


class Box(NamedTuple):
    """Left and upper edge, width and height of a box, as fractions of the upright picture's width and height."""

    x: float
    y: float
    width: float
    height: float


class Part(NamedTuple):
    """A file, or what an item shows of it; None for what is not given.

    Tables have the columns of `PART_COLUMNS` for it, in which a cell that is not given is NaN or empty.

    Attributes
    ----------
    path : the file.
    start, end : seconds in a signal; GPS times for windows and events of strain.
    at : moment: GPS time for strain, seconds from the start of the file for sound; of a picture the number of its page,
        from 0.
    box : a part of a picture.
    """

    path: str
    start: float | None = None
    end: float | None = None
    at: float | None = None
    box: Box | None = None

    @classmethod
    def from_row(cls, row: Mapping[Any, Any]) -> Part:
        """The part that a row of an item table names; columns that are missing are not given."""
        start, end, at, *numbers = (_number(row.get(name)) for name in PART_COLUMNS)
        box = None if None in numbers else Box(*numbers)  # type: ignore[arg-type]
        return cls(row["path"], start, end, at, box)

    def cells(self) -> dict[str, float]:
        """The columns of `PART_COLUMNS`, NaN for what is not given."""
        values = (self.start, self.end, self.at, *(self.box or _NO_BOX))
        return {n: _NAN if v is None else v for n, v in zip(PART_COLUMNS, values, strict=True)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Part:
        """The part that `as_json` gave, among other values."""
        box = values["box"]
        fields = {name: values[name] for name in cls._fields} | {"box": box and Box(**box)}
        return cls(**fields)

    def as_json(self) -> dict[str, Any]:
        """The fields by name, and those of the box by theirs."""
        return self._asdict() | {"box": self.box and self.box._asdict()}


FileOrPart = AnyPath | Part
#: The columns of item tables that name a part. In a table of photos "gps" would be a position.
PART_COLUMNS = ("start", "end", "gps", *Box._fields)
_NAN = float("nan")
_NO_BOX = (None,) * len(Box._fields)


def as_part(file: FileOrPart, at: float | None = None) -> Part:
    """The part that is all of a file, or its moment ``at``; a part as it is.

    Raises
    ------
    SecondhandError : it is no file name, such as a picture in memory.
    """
    if isinstance(file, Part):
        return file
    if not isinstance(file, str | os.PathLike):
        raise SecondhandError(
            f"a {type(file).__name__} cannot be predicted: expected the name of a file. Save a picture first "
            "(image.save('a.png')) and predict its name"
        )
    return Part(os.fspath(file), at=at)


def as_columns(fields: Iterable[str]) -> list[str]:
    """The columns of a table for fields of a part, and others: a box is four, the last ones."""
    names = [*fields]
    numbers = Box._fields if "box" in names else ()
    return [*(name for name in names if name != "box"), *numbers]


def part_text(row: Mapping[Hashable, Any]) -> str:
    """Times or box of a row of an item table, as text; "" if the row is the whole file."""
    if row["x"] == row["x"]:
        return f"box {', '.join(f'{row[name]:g}' for name in Box._fields)}"
    if row["gps"] == row["gps"]:
        return f"GPS {float(row['gps'])!r}"
    limits = [None if row[name] != row[name] else f"{row[name]:g}" for name in ("start", "end")]
    return "" if limits == [None, None] else f"{limits[0] or 0} to {limits[1] or 'its end'} s"


def parts_of(frame: pd.DataFrame) -> list[Part]:
    """The parts that the rows of an item table name."""
    columns = ("path", *(name for name in PART_COLUMNS if name in frame))
    return [Part.from_row(row) for row in frame[[*columns]].to_dict("records")]


def _number(cell: Any) -> float | None:
    return None if cell is None or cell == "" or cell != cell else float(cell)
