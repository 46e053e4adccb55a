"""Folders elsewhere that a name stands for, such as a shared model; those that read them register themselves (`fields`)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets.core.errors import SecondhandError
from datasets.core.registry import Registry
from datasets.core.shipped import needed_to_open


@dataclass(frozen=True)
class Elsewhere:
    """Folders elsewhere.

    Attributes
    ----------
    claims : whether a name is of one, by its beginning.
    model : a folder on this disk with what the model folder of such a name holds now; raises SecondhandError if there is
        none, or none to be had.
    example : how such names look, for the help of flags.
    """

    name: str
    claims: Callable[[str], bool]
    model: Callable[[str], Path]
    example: str = ""


#: How names begin that are no paths.
_PREFIX = re.compile(r"[A-Za-z][\w+.-]+:")

ELSEWHERE: Registry[Elsewhere] = Registry("datasets.core.folders")


def elsewhere(name: str | os.PathLike[str]) -> Elsewhere | None:
    """What has the folder of a name; None for one on a disk.

    Raises
    ------
    SecondhandError : the field that has it is not here.
    """
    text = str(name)
    if not _PREFIX.match(text):
        return None
    every = (one for group in ELSEWHERE.in_turn() for one in group)
    found = next((one for one in every if one.claims(text)), None)
    if found is None and (reason := needed_to_open(text)):
        raise SecondhandError(f"{text} {reason}")
    return found


def or_elsewhere() -> str:
    """What the help of a flag says of such names, after a folder."""
    return "".join(f" or {one.example}" for one in ELSEWHERE.ours().values() if one.example)
