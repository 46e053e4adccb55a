"""The fields that the program is shipped with: says which one is missed where its folder is left out (`fields`).

This is the one file outside of `fields/` that names them and their words; it imports nothing of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import NamedTuple

#: A model that was trained on boxes of pictures, and not on whole pictures.
BOXES = "A model of boxes"


class Shipped(NamedTuple):
    """What a field is needed for, in the words of a call.

    Attributes
    ----------
    words : the flags, commands, names for programs and formats that are known only with it.
    needs : what the core knows, but some files or values need the field for.
    reads : the labelled files that it reads, for messages.
    marks : how their names begin or end, in small letters.
    alone : how names of files end that nothing else reads.
    columns : columns that tables have for it.
    bodies : how the names begin of the bodies of its networks.
    opens : regular expression of the names that it opens, or looks into, for files.
    """

    words: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    reads: str = ""
    marks: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    bodies: tuple[str, ...] = ()
    opens: str = ""


def _events_of(kind: str) -> tuple[str, ...]:
    """The flags of windows and events that files of a kind have only with a field."""
    return tuple(
        f"{flag} of {kind} files" for flag in ("--events", "--gap", "--min-length", "--windows")
    )


SHIPPED: dict[str, Shipped] = {
    "cameras": Shipped(
        ("--deployments", "--format camtrap-dp", "--format megadetector", "--min-box-confidence", "--split-by"),
        needs=(*_events_of("picture"), "--group-by deployment", BOXES),
        reads="Camtrap DP and MegaDetector's JSON",
        marks=(".json",),
    ),
    "cluster": Shipped(("--cluster",)),
    "detectors": Shipped(
        ("--channel", "--recentre", "--scores", "--strain", "--triggers"),
        needs=_events_of("strain"),
        reads="tables of triggers (with --strain) and gwosc:EVENT",
        marks=("gwosc:", ".xml", ".xml.gz"),
    ),
    "embeddings": Shipped(
        reads="embeddings of other networks",
        alone=(".birdnet.embeddings.txt", ".npz"),
        columns=("embedding",),
        bodies=("embedding/",),
    ),
    "loop": Shipped(("--label", "--pool", "adapt", "audit", "discover", "Embeddings", "Pool", "search", "suggest")),
    "recordings": Shipped(
        ("--events", "--format audacity", "--format raven", "--gap", "--tier"),
        needs=_events_of("sound"),
        reads="labels of Audacity, ELAN, Praat and Raven",
        marks=(".eaf", ".textgrid", ".txt"),
    ),
    "remote": Shipped(
        ("share",),
        opens=r"(?i)hf:|(s3a?|https?|hf|gs|gcs|az|abfss?|sftp|zip|tar|parquet)://"
        r"|.*\.(zip|tar|tar\.gz|tgz|tar\.bz2|tbz2|tar\.xz|txz|parquet)$",
    ),
}  # fmt: skip


def left_out() -> list[str]:
    """The fields that are not here."""
    try:
        folders = import_module("fields").__path__
    except ModuleNotFoundError:
        return [*SHIPPED]
    here = {one.name for one in iter_modules(folders) if find_spec(f"fields.{one.name}")}
    return [name for name in SHIPPED if name not in here]


def needed_for(word: str) -> str:
    """Sentence, after a full stop, that names the fields that a word of a call may need; "" if none of them is left out."""
    names = [
        f"fields/{name}" for name in left_out() if word in SHIPPED[name].words + SHIPPED[name].needs
    ]
    return f". {word} needs {' or '.join(names)}, which is left out here" if names else ""


def needed_to_read(name: str) -> str:
    """Sentence, after a full stop, that names the field that may read labelled files of this name; "" if none is left out."""
    for field in left_out():
        marks = SHIPPED[field].marks + SHIPPED[field].alone
        if marks and (name.lower().startswith(marks) or name.lower().endswith(marks)):
            return f". {_is_left_out(field)}"
    return ""


def needed_to_open(name: str | os.PathLike[str]) -> str:
    """Reason that names the field that opens files of such a name; "" if none is left out."""
    for field in left_out():
        if (its := SHIPPED[field].opens) and re.match(its, os.fspath(name)):
            return f"is opened by fields/{field}, which is left out here"
    return ""


def needed_for_files(names: Iterable[str]) -> str:
    """Sentence that names the field that alone reads most files of these names; "" if it is not left out.

    Names are asked for only where a field is left out.
    """
    for field in left_out():
        if its := SHIPPED[field].alone:
            names = [*names]
            if 2 * sum(name.lower().endswith(its) for name in names) > len(names):
                return _is_left_out(field)
    return ""


def needed_for_columns(names: Iterable[str]) -> str:
    """The same for the columns of a table, of which one is for a field."""
    for field in left_out():
        if its := SHIPPED[field].columns:
            names = [*names]
            if any(name.lower() in its for name in names):
                return _is_left_out(field)
    return ""


def needed_for_body(name: str) -> str:
    """The same for the body of a network."""
    for field, shipped in SHIPPED.items():
        # No folder is looked into for any other network.
        if shipped.bodies and name.startswith(shipped.bodies) and field in left_out():
            return _is_left_out(field)
    return ""


def _is_left_out(field: str) -> str:
    return f"fields/{field}, which reads {SHIPPED[field].reads}, is left out here"
