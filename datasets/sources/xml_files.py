"""Reads XML files of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, ParseError, TreeBuilder
from xml.parsers import expat

from datasets.core.errors import BadFile
from datasets.core.limits import unread

_LARGEST = 1 << 25  # bytes; an element takes several times its text


class _Located(Element):
    __slots__ = ("line",)
    line: int


def line_of(element: Element) -> int:
    """Line of an element of `read_xml` in its file."""
    assert isinstance(element, _Located)
    return element.line


def read_xml(file: Path, root: str) -> Element:
    """The root element of an XML file.

    Entities of a file's own are refused: a few lines of them can stand for gigabytes, or for another file.

    Raises
    ------
    BadFile : it cannot be read, is larger than 32 MiB, is not XML, or its root is not called ``root``.
    """
    parser = expat.ParserCreate()

    def located(tag: str, attributes: dict[str, str]) -> _Located:
        element = _Located(tag, attributes)
        element.line = parser.CurrentLineNumber
        return element

    def refuse(name: str, *_: object) -> NoReturn:
        raise BadFile(file, f"line {parser.CurrentLineNumber}: it declares the entity {name!r}")

    builder = TreeBuilder(element_factory=located)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse
    try:
        with open(file, "rb") as stream:
            data = stream.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise BadFile(file, f"larger than {_LARGEST >> 20} MiB")
        parser.Parse(data, True)
        found = builder.close()
    except OSError as error:
        raise unread(file, error) or BadFile(file, f"cannot be read: {error}") from None
    except BadFile:
        raise
    except (expat.ExpatError, ParseError, LookupError, ValueError) as error:  # or of its encoding
        raise BadFile(file, f"not XML ({error})") from None
    if found.tag != root:
        raise BadFile(file, f"its outermost element is {found.tag!r}, not {root!r}")
    return found
