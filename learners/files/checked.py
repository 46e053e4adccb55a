"""Converts values to JSON, and reads JSON with checks whose errors name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from datasets.core.errors import SecondhandError, quoted

T = TypeVar("T")


def ranged(low: float, high: float, *, none: bool = False, **default: Any) -> Any:
    """A dataclass field for a number that `read_as` checks against its range; null is NaN where ``none`` is true."""
    return field(metadata={"range": (low, high), "none": none}, **default)


def read_as(cls: type[T], values: object, name: str, **ranges: tuple[float, float]) -> T:
    """A dataclass of numbers (`ranged`), texts and flags from the JSON called ``name``.

    ``ranges`` override the ranges of fields. A field of type `object` is not checked. Raises SecondhandError
    naming a key that is missing, unknown, of another type or out of range.
    """
    if not isinstance(values, Mapping):
        raise SecondhandError(
            f"{name} is {quoted(values)}: expected an object with settings by name"
        )
    known = {item.name: item.metadata for item in fields(cls)}  # type: ignore[arg-type]
    if missing := [key for key in known if key not in values]:
        raise SecondhandError(f"{name}.{missing[0]} is missing. Train the model again")
    if foreign := [key for key in values if key not in known]:
        raise SecondhandError(
            f"{name}.{quoted(foreign[0])} is not a known key: expected {', '.join(known)}"
        )
    fields_read, hints = dict(values), get_type_hints(cls)
    for key, metadata in known.items():
        value = values[key]
        if value is None and metadata.get("none"):
            fields_read[key] = math.nan
            continue
        expected = _expected(value, hints[key], *(ranges.get(key) or metadata.get("range", (0, 0))))
        if expected:
            raise SecondhandError(f"{name}.{key} is {quoted(value)}: expected {expected}")
        if hints[key] is float:
            fields_read[key] = float(value)
    return cls(**fields_read)


def _expected(value: Any, hint: Any, low: float, high: float) -> str:
    """Description of the values that the field allows; empty if ``value`` is one."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if hint is float:
        return "" if number else f"a number from {low:g} to {high:g}"
    if hint is int:
        whole = number and isinstance(value, int)
        return "" if whole else f"a whole number from {low} to {high}"
    if get_origin(hint) is Literal:
        return "" if value in get_args(hint) else f"one of {', '.join(get_args(hint))}"
    if hint == list[float]:
        numbers = isinstance(value, list) and not any(_expected(v, float, low, high) for v in value)
        return "" if numbers else f"a list of numbers from {low:g} to {high:g}"
    if hint == list[str]:
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return "" if texts else "a list of strings"
    words = {str: "a string", bool: "true or false", object: "anything"}
    return "" if isinstance(value, hint) else words[hint]


def jsonable(value: Any) -> Any:
    """The value as JSON types; None for numbers that are not finite."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
