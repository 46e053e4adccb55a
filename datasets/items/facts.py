"""What is found out about the items of a run, as numbers; `datasets.items.describe` says it in words."""

from __future__ import annotations

from typing import NamedTuple


class NearDuplicates(NamedTuple):
    """Near-duplicates among the items.

    Attributes
    ----------
    together : number of files in each cluster that stays in one split, at least two.
    divided : number of files in each cluster that does not, because it holds more than half of a class.
    """

    together: tuple[int, ...] = ()
    divided: tuple[int, ...] = ()


class Lengths(NamedTuple):
    """Lengths of clips of sound.

    Attributes
    ----------
    classes : classes that the length alone tells from the others, each with the median of its lengths in s.
    median : of all clips, in s.
    """

    classes: tuple[tuple[str, float], ...] = ()
    median: float = 0.0


class Sessions(NamedTuple):
    """Capture sessions of photos.

    Attributes
    ----------
    files, together : number of files in sessions that stay in one split, and of these sessions.
    files_apart, divided : number of files in the other sessions, and of these: each holds more than half of a class, or
        there is no split that keeps sessions together.
    error : why there is no such split; "" if there is one.
    """

    files: int = 0
    together: int = 0
    files_apart: int = 0
    divided: int = 0
    error: str = ""
