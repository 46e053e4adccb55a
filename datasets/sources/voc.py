"""Annotations of Pascal VOC (http://host.robots.ox.ac.uk/pascal/VOC), an XML file a picture, as LabelImg writes them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PureWindowsPath
from typing import Any
from xml.etree.ElementTree import Element

from datasets.core.address import as_path
from datasets.core.errors import BadFile, Rejected, SecondhandError, first_left_out, quoted
from datasets.core.part import Box
from datasets.core.scanning import files_below, is_user_file
from datasets.items.columns import SPLIT_NAMES
from datasets.kinds.base import find_kind
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.sources.beside import Below
from datasets.sources.regions import box_of_pixels, one_label_each, upright, usable_label
from datasets.sources.xml_files import line_of, read_xml
from datasets.tables.cells import read_text

_ROOT, _FOLDER, _PICTURES = "annotation", "annotations", "JPEGImages"
_BEGINS = re.compile(rf"<{_ROOT}[\s>]")
_EDGES = ("xmin", "ymin", "xmax", "ymax")
#: Files that show whether a folder has annotations.
_FIRST = 20


def read_annotations(path: Path, options: ReadOptions) -> Rows:
    """One row per object, with path, label, box, and the split if it lies in a split folder; and what was left out.

    The label is the ``name`` of the object, or what ``label_column`` names, such as "pose".

    Raises
    ------
    SecondhandError : no object of a picture can be used.
    """
    path = path.absolute()
    folder = path if path.is_dir() else path.parent
    home = folder.parent if folder.name.lower() == _FOLDER else folder
    files, rejected = files_below(home)
    photos = [file for file in files if (kind := find_kind(file)) and kind.photo]
    named = [as_path(one) for one in files if one.lower().endswith(".xml")]
    objects: dict[Path, list[dict[str, Any]]] = {}
    names: dict[Path, list[str]] = {}
    sizes: dict[Path, tuple[float, float]] = {}
    for file in named if path.is_dir() else [path]:
        if file.is_relative_to(path) and file.is_file():  # and no pipe
            try:
                root = read_xml(file, _ROOT)
            except BadFile as error:
                rejected.append(Rejected(str(file), error.reason))
                continue
            names[file] = _names(root)
            objects[file] = []
            sizes[file] = _size(root)
            for one in root.iterfind("object"):
                try:
                    objects[file].append(_row(root, one, options))
                except ValueError as error:
                    rejected.append(Rejected(f"{file}, line {line_of(one)}", str(error)))
    pictures, bad = _pictures(names, Below(home, "picture", photos))
    rejected += bad
    rows: list[dict[str, Any]] = []
    for file, picture in pictures.items():
        for row in objects[file]:
            edges = Box(*(row[name] for name in Box._fields))
            try:
                box = upright(edges, sizes[file], picture)
            except ValueError as error:
                rejected.append(Rejected(picture, f"{file.name}: {error}"))
                continue
            rows.append({"path": picture, "split": _split(file, folder), **row, **box._asdict()})
    if not rows:
        raise SecondhandError(
            f"--data {path}: no object of a picture in it{first_left_out(rejected, 'one')}"
        )
    used = {row["path"] for row in rows}
    folders = {as_path(picture).parent for picture in used}
    rejected += [
        Rejected(photo, "no annotation that can be used")
        for photo in photos
        if photo not in used and as_path(photo).parent in folders
    ]
    frame, several = one_label_each(rows)
    return Rows(frame, rejected + several)


def _split(file: Path, folder: Path) -> str:
    """The split that the first of the folders between is called after; "" for none."""
    return SPLIT_NAMES.get(file.relative_to(folder).parts[0].lower(), "")


def _names(root: Element) -> list[str]:
    """The name of the picture that an annotation is of, its path on the machine where it was drawn, and below its folder,
    which the format calls ``JPEGImages``."""
    written = (root.findtext("filename") or "").strip()
    name = PureWindowsPath(written).name
    path, folder = ((root.findtext(key) or "").strip() for key in ("path", "folder"))
    paths = [path] if PureWindowsPath(path).name == name else []
    paths += [written] if written != name else []
    return [name, *paths, *(f"{one}/{name}" for one in (folder, _PICTURES) if one)]


def _pictures(
    names: dict[Path, list[str]], photos: Below
) -> tuple[dict[Path, str], list[Rejected]]:
    """The picture of each file, and the files without one of their own.

    It is beside its file, or else anywhere, so several files may find the same one. Then it is that of the one beside it.

    Parameters
    ----------
    names : of the picture of each file, and paths that tell pictures of one name apart (`_names`).
    """
    files: dict[str, list[Path]] = defaultdict(list)
    rejected = []
    for file, (name, *more) in names.items():
        found = [*photos.locate([name], file.parent)[name].files] if name else []
        for other in more if len(found) > 1 else ():  # its folder tells which
            place = photos.locate([other], file.parent)[other]
            found = found if place.reason else [place.path]
        found = found or photos.named_after(file)
        if len(found) == 1:
            files[found[0]].append(file)
        else:
            several = f"several pictures {quoted(name)}: {', '.join(found)}"
            rejected.append(Rejected(str(file), several if found else f"no picture {quoted(name)}"))
    pictures: dict[Path, str] = {}
    for picture, of_it in files.items():
        beside = [file for file in of_it if file.parent == as_path(picture).parent]
        one = of_it if len(of_it) == 1 else beside if len(beside) == 1 else []
        pictures |= dict.fromkeys(one, picture)
        why = f"{picture} is the picture of several files"
        rejected += [Rejected(str(file), why) for file in of_it if file not in one]
    return pictures, rejected


def _row(root: Element, one: Element, options: ReadOptions) -> dict[str, Any]:
    """Label and box of an object. Raises ValueError with the reason if it has none."""
    name = options.label_column or "name"
    label = options.label or usable_label(" ".join((one.findtext(name) or "").split()))
    texts = [one.findtext(f"bndbox/{edge}") for edge in _EDGES]
    left, upper, right, lower = map(_number, texts)
    try:
        box = box_of_pixels((left, upper, right - left, lower - upper), _size(root))
    except ValueError as error:
        edges = ", ".join(f"{n} {quoted(t)}" for n, t in zip(_EDGES, texts, strict=True))
        raise ValueError(f"{edges}: {error}") from None
    return {"label": label, **box._asdict()}


def _size(root: Element) -> tuple[float, float]:
    """Width and height of the picture in pixels, as stated."""
    return _number(root.findtext("size/width")), _number(root.findtext("size/height"))


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def _claims(path: Path, options: ReadOptions) -> bool:
    """Whether a path is such a file, or a folder that has some in it or in its folder Annotations, or its split folders
    have."""
    if not path.is_dir():
        return path.suffix.lower() == ".xml" and _is_annotation(path)
    splits = [one for one in _folders(path) if one.name.lower() in SPLIT_NAMES]
    return any(
        _is_annotation(file)
        for base in (path, *splits)
        for folder in (base, *(one for one in _folders(base) if one.name.lower() == _FOLDER))
        for file in islice(folder.glob("*.[xX][mM][lL]"), _FIRST)
    )


def _folders(folder: Path) -> Iterator[Path]:
    return (one for one in folder.iterdir() if one.is_dir() and is_user_file(one))


def _is_annotation(file: Path) -> bool:
    try:
        usable = is_user_file(file) and file.is_file()
        return usable and bool(_BEGINS.search(read_text(file, first=4096)))
    except BadFile:
        return False


SOURCES.add(
    Source(
        name="voc",
        order=46,
        claims=_claims,
        read=read_annotations,
        reads="annotations of Pascal VOC (XML, for each picture a file with the outermost element annotation)",
        endings=(".xml",),
    )
)
