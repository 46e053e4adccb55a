"""COCO's annotations (https://cocodataset.org/#format-data), also with the fields of COCO Camera Traps, as one JSON file.

An annotation with a box is an item of its own; one without a box labels the whole picture, as those of camera traps do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets.core.errors import BadFile, Rejected, first_left_out, quoted
from datasets.core.json_files import has_keys, is_list, read_json
from datasets.core.part import Box
from datasets.core.scanning import NOT_UTF8, in_unicode
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.sources.beside import Below
from datasets.sources.regions import box_of_pixels, one_label_each, upright, usable_label

#: Fields of an image that COCO Camera Traps adds, by the column that each becomes. Pictures of one place stay together.
_OF_CAMERA = {
    "group": "location",
    "deployment": "location",
    "sequence": "seq_id",
    "time": "datetime",
}
_LISTS = ("images", "annotations", "categories")


def read_annotations(file: Path, options: ReadOptions) -> Rows:
    """One row per annotation, with path, label, and the box if it has one; and the pictures and annotations left out.

    The label is the ``name`` of the category, or what ``label_column`` names, such as "supercategory".

    Raises
    ------
    BadFile : it is not JSON, not COCO's, none of its pictures exists, or no annotation can be used.
    """
    content = read_json(file)
    if not isinstance(content, dict) or not all(isinstance(content.get(n), list) for n in _LISTS):
        raise BadFile(file, f"not COCO JSON: it needs the lists {', '.join(_LISTS)}")
    images, rejected = _images(file, content["images"])
    listed = (one for one in content["categories"] if isinstance(one, dict) and "id" in one)
    categories = {_id(one["id"]): one for one in listed}
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(content["annotations"], 1):
        try:
            rows.append(_row(one if isinstance(one, dict) else {}, images, categories, options))
        except ValueError as error:
            rejected.append(Rejected(f"{file}, annotation {number}", str(error)))
    used = {row["path"] for row in rows}
    without = (image["path"] for image in images.values() if image["path"] not in used)
    rejected += [Rejected(path, "no annotation that can be used") for path in without]
    if not rows:
        raise BadFile(file, f"no annotation can be used{first_left_out(rejected, 'one')}")
    frame, several = one_label_each(rows)
    return Rows(frame, rejected + several)


def _images(file: Path, listed: list[Any]) -> tuple[dict[str, dict[str, Any]], list[Rejected]]:
    """Images by id, each with its path, and those left out."""
    images: dict[str, dict[str, Any]] = {}
    rejected: list[Rejected] = []
    for number, image in enumerate(listed, 1):
        is_named = isinstance(image, dict) and isinstance(image.get("file_name"), str)
        if not is_named or image.get("id") is None:
            rejected.append(Rejected(f"{file}, image {number}", "no id or file_name"))
        elif in_unicode(image["file_name"]) != image["file_name"]:
            rejected.append(Rejected(in_unicode(image["file_name"]), NOT_UTF8))
        elif _id(image["id"]) in images:
            rejected.append(Rejected(image["file_name"], f"the id {image['id']} a second time"))
        else:
            images[_id(image["id"])] = image
    found = Below(file.parent, "picture").locate(image["file_name"] for image in images.values())
    if images and not any(one.files for one in found.values()):
        raise BadFile(
            file,
            f"none of its {len(images)} pictures exists, the first is {next(iter(found.values())).path}. Its names "
            "are relative to its folder: move it beside the pictures",
        )
    rejected += [Rejected(name, one.reason) for name, one in found.items() if one.unclear]
    return {
        number: image | {"path": one.path}
        for number, image in images.items()
        if not (one := found[image["file_name"]]).unclear
    }, rejected


def _id(value: Any) -> str:
    """The text of an id; programs that read tables write whole numbers as ``1.0``."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _row(
    one: dict[str, Any],
    images: dict[str, dict[str, Any]],
    categories: dict[str, dict[str, Any]],
    options: ReadOptions,
) -> dict[str, Any]:
    """Path, label, box and more of an annotation. Raises ValueError with the reason if it cannot be used."""
    label = options.label or _label(one, categories, options.label_column or "name")
    if (image := images.get(_id(one.get("image_id")))) is None:
        raise ValueError(f"no image with the id {quoted(one.get('image_id'))}")
    box, pixels = dict.fromkeys(Box._fields, float("nan")), one.get("bbox")
    if pixels is not None and pixels != []:
        try:
            size = image.get("width"), image.get("height")
            box = upright(box_of_pixels(pixels, size), size, image["path"])._asdict()
        except ValueError as error:
            where = f"{quoted(pixels)} (x, y, width and height in pixels)"
            raise ValueError(f"{where}: {error}") from None
    of_camera = {column: _text(image.get(key)) for column, key in _OF_CAMERA.items()}
    return {"path": image["path"], "label": label, **of_camera, **box}


def _label(one: dict[str, Any], categories: dict[str, dict[str, Any]], key: str) -> str:
    """Label of an annotation. Raises ValueError with the reason if it has none."""
    if (category := categories.get(_id(one.get("category_id")))) is None:
        raise ValueError(f"no category with the id {quoted(one.get('category_id'))}")
    if not (label := _text(category.get(key))):
        raise ValueError(f"its category has no {key!r}. It has {', '.join(map(str, category))}")
    return usable_label(label)


def _text(value: Any) -> str:
    return "" if value is None else in_unicode(str(value))


SOURCES.add(
    Source(
        name="coco",
        order=28,
        claims=lambda path, options: (
            (has_keys(path, "file_name") or has_keys(path, "image_id", "category_id"))
            and not is_list(path)
        ),
        read=read_annotations,
        reads=f"COCO JSON (with the lists {', '.join(_LISTS)})",
        endings=(".json",),
    )
)
