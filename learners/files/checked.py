"""JSON, in and out. What anybody may have written is read with each value checked; errors name the
key."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import numpy as np

from datasets.errors import SecondhandError

T = TypeVar("T")


class Checked:
    """A mapping whose values are asked for by type and range.

    Parameters
    ----------
    values : what was read. name : where, for the errors ("confidence", "confidence.threshold").
    keys : exactly these are expected.
    """

    def __init__(self, values: object, name: str, keys: Collection[str]) -> None:
        if not isinstance(values, Mapping):
            raise SecondhandError(f"{name}: expected settings by name, not {_short(values)}")
        self.values, self.name = values, name
        missing = [key for key in keys if key not in values]
        if missing:
            raise SecondhandError(f"{name}.{missing[0]}: missing; export the model again")
        foreign = [key for key in values if key not in keys]
        if foreign:
            raise SecondhandError(
                f"{name}.{_short(foreign[0])}: not a known key; expected {', '.join(keys)}"
            )

    def number(self, key: str, low: float, high: float, *, none: bool = False) -> float:
        """A finite number from ``low`` to ``high``; nan for null where ``none`` allows it."""
        value = self.values[key]
        if none and value is None:
            return math.nan
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not low <= value <= high
        ):
            raise self._wrong(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, key: str, low: int, high: int) -> int:
        value = self.values[key]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(key, f"a whole number from {low} to {high}")
        return value

    def text(self, key: str, *, choices: Collection[str] = ()) -> str:
        value = self.values[key]
        if not isinstance(value, str) or (choices and value not in choices):
            raise self._wrong(key, f"one of {', '.join(choices)}" if choices else "text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.values[key]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts")
        return list(value)

    def flag(self, key: str) -> bool:
        value = self.values[key]
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def _wrong(self, key: str, expected: str) -> SecondhandError:
        found = _short(self.values[key])
        return SecondhandError(f"{self.name}.{key} is {found}: expected {expected}")


def ranged(low: float, high: float, *, none: bool = False, **default: Any) -> Any:
    """A dataclass's number, as `read_as` holds it to its range; null is nan where ``none`` allows it."""
    return field(metadata={"range": (low, high), "none": none}, **default)


def read_as(cls: type[T], values: object, name: str, **ranges: tuple[float, float]) -> T:
    """A dataclass of numbers (`ranged`), texts and flags out of JSON called ``name``.

    ``ranges`` are those of fields whose range depends on something else. Raises SecondhandError that
    names the key which is missing, foreign, of another type or out of its range.
    """
    known = fields(cls)  # type: ignore[arg-type]
    read, hints = Checked(values, name, [item.name for item in known]), get_type_hints(cls)
    found: dict[str, Any] = {}
    for item in known:
        kind, key = hints[item.name], item.name
        low, high = ranges.get(key) or item.metadata.get("range", (0, 0))
        if kind is float:
            found[key] = read.number(key, low, high, none=item.metadata.get("none", False))
        elif kind is int:
            found[key] = read.whole(key, int(low), int(high))
        else:
            found[key] = read.text(key) if kind is str else read.flag(key)
    return cls(**found)


def jsonable(value: Any) -> Any:
    """As JSON has it: objects, lists and numbers; None for what is not finite, as JSON has no NaN."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
