"""Checks values by the annotations of dataclasses, which state their types and ranges.

share: Annotated[float, Meta(ge=0, le=1)]
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from msgspec import Meta, ValidationError, convert
from msgspec.inspect import DataclassType, ListType, Type, UnionType, VarTupleType, type_info

from datasets.core.errors import BadFile, SecondhandError, one_line, quoted
from datasets.core.json_files import parse_json

T = TypeVar("T")

#: Common ranges.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Share = Annotated[float, Meta(ge=0, le=1)]

REMEDY = "Copy the folder again"
#: How msgspec ends a message with the place of the value, and says that a text is none of `one_of`.
_PLACE = re.compile(r" - at `\$(.+)`$")
_WORDS = re.compile(r"str matching regex '\\\\A\(\?:(.*)\)\\\\Z'")


def one_of(*words: str) -> Meta:
    """Annotation of a text that is one of these words."""
    return Meta(pattern=rf"\A(?:{'|'.join(words)})\Z")


def read_as(cls: type[T], values: object, name: str) -> T:
    """The value of a type, such as a dataclass, from the JSON called ``name``.

    Objects have all keys of their dataclass and no others; one whose default is None or False may be missing. Null is
    NaN where that is the default.

    Raises
    ------
    SecondhandError : a key is missing or unknown, or a value is of another type or out of range. The message names
        the key, its value and what is expected.
    """
    try:
        return convert(_with_all_keys(values, type_info(cls), name), cls)
    except ValidationError as error:
        if isinstance(error.__cause__, SecondhandError):  # of a __post_init__
            raise error.__cause__ from None
        found = _PLACE.search(str(error))
        place = found[1] if found else ""
        problem = f"{name}{place}={quoted(_value_at(values, place))} ({_expected(error)})"
        raise SecondhandError(f"{problem.removeprefix('.')}. {REMEDY}") from None


def read_file(cls: type[T], file: Path) -> T:
    """A dataclass from a JSON file, as in `read_as`; raises BadFile for one that holds anything else."""
    try:
        return read_as(cls, parse_json(file.read_bytes()), "")
    except (ValueError, RecursionError) as error:
        raise BadFile(file, str(error)) from None


def check_fields(instance: Any, name: str, **narrower: Any) -> None:
    """Convert the fields of a dataclass to their types: whole numbers to floats, lists to tuples.

    ``narrower`` are annotations of fields whose range depends on other values.

    Raises
    ------
    SecondhandError : values are of another type or out of range; the message names all of them.
    """
    wrong = []
    for key, hint in (_hints(type(instance)) | narrower).items():
        value = getattr(instance, key)
        try:
            object.__setattr__(instance, key, convert(value, hint))  # it may be frozen
        except ValidationError as error:
            wrong.append(f"{key}={quoted(value)} ({_expected(error)})")
    if wrong:
        raise SecondhandError(f"invalid {name}: {'; '.join(wrong)}")


def _with_all_keys(values: Any, info: Type, name: str) -> Any:
    """JSON whose objects have been found to have the right keys, without null for NaN."""
    if isinstance(info, UnionType):
        info = next((one for one in info.types if isinstance(one, DataclassType)), info)
    if isinstance(info, DataclassType) and isinstance(values, dict):
        known = {field.name: field for field in info.fields}
        for key in {**values, **known}:
            place = f"{name}.{key}".removeprefix(".")
            if key not in known:
                raise SecondhandError(
                    f"{one_line(place)[:80]} is not a known key: expected {', '.join(known)}. {REMEDY}"
                )
            if key not in values and not any(known[key].default is one for one in (None, False)):
                raise SecondhandError(f"{place} is missing. {REMEDY}")
        return {
            key: _with_all_keys(value, known[key].type, f"{name}.{key}".removeprefix("."))
            for key, value in values.items()
            if value is not None or known[key].default == known[key].default  # NaN is not
        }
    if isinstance(info, ListType | VarTupleType) and isinstance(values, list):
        return [
            _with_all_keys(value, info.item_type, f"{name}[{n}]") for n, value in enumerate(values)
        ]
    return values


def _value_at(values: Any, place: str) -> Any:
    """The value that ".key[0]" names; of what is in the values of a dictionary, which are "[...]", the dictionary."""
    for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", place.partition("[...]")[0]):
        values = values[key] if key else values[int(number)]
    return values


def _expected(error: ValidationError) -> str:
    reason = _PLACE.sub("", str(error)).replace("`", "").partition(", got ")[0]
    reason = _WORDS.sub(lambda found: f"one of {found[1].strip('|').replace('|', ', ')}", reason)
    return reason[0].lower() + reason[1:]


def _hints(cls: type) -> dict[str, Any]:
    """Annotations of the fields of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}
