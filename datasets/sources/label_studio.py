"""Exports of Label Studio (https://labelstud.io/guide/export): choices, and labelled regions of pictures and sound.

JSON has tasks with the results of each annotation. CSV and JSON-MIN are tables, with a column for each tag of the labelling
interface, in which a cell is a choice, or JSON of choices or regions; they are brought into the form of tasks.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from datasets.core.address import is_address
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.json_files import has_keys, is_list, read_json
from datasets.core.part import Box
from datasets.core.scanning import NOT_UTF8, in_unicode
from datasets.images.boxes import box_in_picture
from datasets.items.labels import join_labels
from datasets.kinds.base import find_kind
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.sources.beside import Below
from datasets.sources.naming import LABELS, plain
from datasets.sources.regions import one_label_each, usable_label
from datasets.tables.cells import column_names, file_named, read_cells, span_error

#: Keys of a value that hold labels; those of a taxonomy are paths, of which the last name counts.
_LABELS = re.compile(r"choices|taxonomy|\w*labels")
#: Columns of every table, which are of the annotation; those that show one.
_OF_ALL = ("annotation_id", "annotator", "created_at", "updated_at", "lead_time", "id")
_OF_TABLE = ("annotation_id", "lead_time")


class _Label(NamedTuple):
    """Labels that somebody gave, and where.

    Attributes
    ----------
    name : for messages.
    tag : name of the tag of the labelling interface with which they were given.
    address : the file, as the export says.
    value : the region and the labels.
    result : all that belongs to it.
    """

    name: str
    tag: str
    address: str
    value: dict[str, Any]
    result: dict[str, Any]

    @property
    def labels(self) -> list[str]:
        """The labels in the value."""
        lists = [value for key, value in self.value.items() if _LABELS.fullmatch(key)]
        given = [one for values in lists if isinstance(values, list) for one in values]
        names = [one[-1] if isinstance(one, list) and one else one for one in given]
        return [" ".join(in_unicode(name).split()) for name in names if isinstance(name, str)]


def read_export(file: Path, options: ReadOptions) -> Rows:
    """One row per choice or region, with path, label, and the times or box of a region; and what was left out.

    The labels of people count that were given with the tag that ``label_column`` names, or with the only one.

    Raises
    ------
    SecondhandError : it is not Label Studio's, labels were given with several tags and none is named, or no label of a file
        can be used.
    """
    if options.class_columns:
        raise SecondhandError(f"{file} has no columns of classes: use --labels multi")
    tasks = _tasks(file, options)
    rejected: list[Rejected] = []
    labels: list[_Label] = []
    addresses: dict[str, None] = {}
    for number, task in enumerate(tasks, 1):
        name = f"{file}, task {number}"
        if files := _files(task):
            addresses |= dict.fromkeys(files.values())
            labels += _labels(name, task, files, rejected)
        else:
            rejected.append(Rejected(name, "no picture or recording in its data"))
    labels = _of_one_tag(file, labels, options)
    paths, bad = _paths(file, addresses)
    rejected += bad
    found: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for one in labels:
        if one.address in paths:
            try:
                found[paths[one.address], *_part(one).items()] |= _names(one, options)
            except ValueError as error:
                rejected.append(Rejected(one.name, str(error)))
    no_part = dict.fromkeys(("start", "end", *Box._fields), float("nan"))
    rows = [
        {"path": path, "label": label, **no_part, **dict(part)}
        for (path, *part), names in found.items()
        for label in ([join_labels(names)] if options.multi_label else sorted(names))
    ]
    used = {row["path"] for row in rows}
    rejected += [Rejected(one, "no label") for one in paths.values() if one not in used]
    if not rows:
        raise BadFile(file, f"no label that can be used{first_left_out(rejected, 'one')}")
    frame, several = one_label_each(rows)
    return Rows(frame, rejected + several)


def _tasks(file: Path, options: ReadOptions) -> Sequence[Any]:
    """The tasks. Of a table a tag is a column of a usual name for labels, or the one that ``label_column`` names; without
    any, every column that is no file."""
    is_json = file.suffix.lower() == ".json"
    tasks: Any = read_json(file) if is_json else read_cells(file).to_dict("records")
    if not isinstance(tasks, list) or not any(isinstance(one, dict) for one in tasks):
        raise BadFile(file, "not an export of Label Studio in the format JSON, a list of tasks")
    if not any("annotation_id" in one for one in tasks if isinstance(one, dict)):
        return tasks
    rows = [one if isinstance(one, dict) else {} for one in tasks]
    columns = dict.fromkeys(key for row in rows for key in row if key not in _OF_ALL)
    files = [name for name in columns if any(_names_file(row.get(name)) for row in rows)]
    tags = [name for name in columns if name not in files]
    usual = [name for name in tags if plain(name) in ("choice", "label", *LABELS)]
    named = [name for name in tags if name == options.label_column]
    return [
        {
            "data": {name: row.get(name) for name in files},
            "annotations": [
                {"result": [one for tag in named or usual or tags for one in _results(tag, row.get(tag))]}
            ],
        }
        for row in rows
    ]  # fmt: skip


def _results(tag: str, cell: Any) -> list[dict[str, Any]]:
    """The results in a cell, as tasks have them; a text that is no JSON is a choice."""
    content = cell
    if isinstance(cell, str):
        with suppress(ValueError, RecursionError):
            content = json.loads(cell)
    values = content if isinstance(content, list) else [content]
    if not all(isinstance(value, dict) for value in values):
        # A list in it is a path of a taxonomy.
        names = content if isinstance(content, list) else [cell]
        names = [one for one in names if isinstance(one, str | list) and str(one).strip()]
        values = [{"choices": [name]} for name in names]
    return [
        {
            **{key: value[key] for key in value if key.startswith("original_")},
            "from_name": tag,
            "value": {key: value[key] for key in value if not key.startswith("original_")},
        }
        for value in values
    ]


def _files(task: Any) -> dict[str, str]:
    """Addresses of the pictures and recordings of a task, by their names in it."""
    data = task.get("data") if isinstance(task, dict) else None
    texts = data.items() if isinstance(data, dict) else ()
    return {k: v for k, v in texts if _names_file(v)}


def _names_file(value: Any) -> bool:
    """Whether a value is the address of a picture or recording."""
    return isinstance(value, str) and find_kind(_names_in(value)[-1]) is not None


def _labels(
    name: str, task: dict[str, Any], files: Mapping[str, str], rejected: list[Rejected]
) -> Iterator[_Label]:
    """The labels of a task that people gave; those of no one file go to ``rejected``."""
    annotations = _dicts(task.get("annotations"))
    given = [one for one in annotations if not one.get("was_cancelled")]
    results = [result for one in given for result in _dicts(one.get("result"))]
    for number, result in enumerate(results, 1):
        value = result.get("value")
        if isinstance(value, dict) and any(
            _LABELS.fullmatch(key) and isinstance(value[key], list) for key in value
        ):
            place = f"{name}, result {number}"
            of = next(iter(files)) if len(files) == 1 else str(result.get("to_name"))
            if of in files:
                yield _Label(place, str(result.get("from_name")), files[of], value, result)
            else:
                several = ", ".join(files)
                rejected.append(Rejected(place, f"it is of {quoted(of)}, none of {several}"))


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _of_one_tag(file: Path, labels: list[_Label], options: ReadOptions) -> list[_Label]:
    """The labels of the tag that is meant."""
    counts, name = Counter(one.tag for one in labels), options.label_column
    tags = ", ".join(f"{quoted(tag)} {count}" for tag, count in counts.items()) or "none"
    if name in counts:
        return [one for one in labels if one.tag == name]
    if name and options.alone and not options.warm_start:
        raise BadFile(file, f"no label was given with {quoted(name)}. Labels of its tags: {tags}")
    if len(counts) > 1 and not options.label:
        raise SecondhandError(
            f"{file}: labels were given with several tags: {tags}. Name the one that is meant with --label-column"
        )
    return labels


def _names_in(address: str) -> list[str]:
    """The server, folders and file of an address; of ``/data/local-files/?d=a/b.jpg`` those of ``d``."""
    try:
        parts = urlsplit(address)
    except ValueError:  # of a host such as "["
        return [address]
    whole = f"{parts.netloc.rpartition('@')[2]}/{unquote(parts.path)}"
    path = parse_qs(parts.query).get("d", [whole])[0].replace("\\", "/")
    return [one for one in PurePosixPath(path).parts if one not in ("/", "..")] or [address]


def _paths(file: Path, addresses: Collection[str]) -> tuple[dict[str, str], list[Rejected]]:
    """Path of the file of each address: its own, or one in the folder of the export or below; and addresses without one."""
    names, paths, rejected = dict[str, str](), dict[str, str](), list[Rejected]()
    for address in addresses:
        if in_unicode(address) != address:
            rejected.append(Rejected(in_unicode(address), NOT_UTF8))
        elif not is_address(address) and os.path.isfile(file_named(file.parent, address)):
            names[address] = address
        else:
            names[address] = "/".join(_names_in(address))
    found = Below(file.parent).locate(names.values())
    for address, name in names.items():
        if not found[name].reason:
            paths[address] = found[name].path
        elif is_address(address) and not found[name].files:
            paths[address] = file_named(file.parent, address)
        else:
            rejected.append(Rejected(address, found[name].reason))
    return paths, rejected


def _names(one: _Label, options: ReadOptions) -> set[str]:
    """Labels of an item. Raises ValueError if there is none, or one cannot be used."""
    given = {options.label} if options.label else {name for name in one.labels if name}
    return {usable_label(name) for name in given or {""}}


def _part(one: _Label) -> dict[str, float]:
    """Start and end, or the box, of a region; nothing for the whole file. Raises ValueError if there is no such part."""
    value = one.value
    kind = find_kind(_names_in(one.address)[-1])
    assert kind is not None
    if all(map(_LABELS.fullmatch, value)):
        return {}
    if kind.recordings and {"start", "end"} <= value.keys():
        start, end = (_number(value, key) for key in ("start", "end"))
        if not 0 <= start < end:
            raise ValueError(f"{start:g} to {end:g} s is not a span")
        if problem := span_error(start, end):
            raise ValueError(problem)
        return {"start": start, "end": end}
    if not kind.photo or not {"x", "points"} & value.keys():
        raise ValueError("its region is neither a span of a recording nor a box in a picture")
    if one.result.get("image_rotation"):
        raise ValueError("the picture was turned in Label Studio")
    points = _points(value, one.result)
    left, upper = (min(point[axis] for point in points) for axis in (0, 1))
    right, lower = (max(point[axis] for point in points) for axis in (0, 1))
    around = (left, upper, right - left, lower - upper)
    return box_in_picture([side / 100 for side in around])._asdict()


def _points(value: dict[str, Any], result: dict[str, Any]) -> list[tuple[float, float]]:
    """Points of a polygon, or opposite ones of a rectangle or of the box around an ellipse, in percent of the picture.

    Rectangles turn around their left upper corner, ellipses around their middle.
    """
    if "points" in value:
        points = value["points"] if isinstance(value["points"], list) else []
        return [(_number(point, 0), _number(point, 1)) for point in points] or [(0.0, 0.0)]
    x, y = _number(value, "x"), _number(value, "y")
    turn = math.radians(_number({"rotation": 0, **value}, "rotation"))
    c, s = math.cos(turn), math.sin(turn)
    wide = 1.0  # a picture without turned regions need not say its size
    if turn:
        wide = _number(result, "original_width") / (_number(result, "original_height") or math.nan)
    if "radiusX" in value:
        a, b = _number(value, "radiusX"), _number(value, "radiusY")
        across, down = math.hypot(a * c, b * s / wide), math.hypot(a * s * wide, b * c)
        return [(x - across, y - down), (x + across, y + down)]
    a, b = _number(value, "width"), _number(value, "height")
    first, second = (a * c, a * s * wide), (-b * s / wide, b * c)
    return [
        (x + m * first[0] + n * second[0], y + m * first[1] + n * second[1])
        for m in (0, 1)
        for n in (0, 1)
    ]


def _number(values: Any, key: str | int) -> float:
    """A number of a region. Raises ValueError if it is none."""
    try:
        value = values[key]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise TypeError
    except (LookupError, TypeError, OverflowError):
        raise ValueError(f"its region has no number {quoted(key)}") from None
    return float(value)


def _claims(path: Path, options: ReadOptions) -> bool:
    if path.name.lower().endswith((".csv", ".tsv")):
        return path.is_file() and {*_OF_TABLE} <= {*column_names(path)}
    return has_keys(path, "annotations", "data", "result") or (
        is_list(path) and has_keys(path, *_OF_TABLE)
    )


SOURCES.add(
    Source(
        name="label-studio",
        order=27,
        claims=_claims,
        read=read_export,
        reads="an export of Label Studio as JSON, JSON-MIN or CSV",
        endings=(".json", ".csv", ".tsv"),
        has_multi_label=Path.is_file,
    )
)
