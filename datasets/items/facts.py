"""What the steps find out about the items of a run; `datasets.items.describe` says it in words.

`datasets.items.items.Items.fact` gives each by its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

if TYPE_CHECKING:
    from datasets.images.settings import PictureSettings
    from datasets.kinds.base import PictureInfo
    from datasets.kinds.lookup import Lookup


class Origin(NamedTuple):
    """Where the data come from, such as "SIMULATED sounds"; "" for the user's own."""

    note: str = ""


class Stated(NamedTuple):
    """For each label the first file that has it and, in a table, its row; for messages."""

    where: Mapping[str, str]


class Inputs(NamedTuple):
    """Inputs of items that are looked up, so that no file is opened; empty, or None, for other kinds."""

    lookup: Lookup | None


class Looks(NamedTuple):
    """What the check of each picture has read, by path."""

    of: Mapping[str, PictureInfo]


class Seen(NamedTuple):
    """How pictures that are not of 8 bits are drawn.

    Attributes
    ----------
    settings : None where nothing but 8-bit pictures is expected.
    how : how the range was found, see `datasets.images.settings.PictureSettings.infer`.
    """

    settings: PictureSettings | None = None
    how: str = ""


class Corrections(NamedTuple):
    """Labels that a later source or row has replaced, with the columns `datasets.items.checks.CORRECTION_COLUMNS`."""

    frame: pd.DataFrame


class Labelled(NamedTuple):
    """Path, label, start and end (s) of all labelled items, also of those that are left out."""

    spans: pd.DataFrame


class Groups(NamedTuple):
    """Number of groups that the data or ``--group-by`` name."""

    number: int = 0


class Later(NamedTuple):
    """With ``--split-by time``, when the last file that is not for testing was recorded (ISO 8601)."""

    learnt_until: str


class Protocol(NamedTuple):
    """The evaluation protocol, as clauses joined by "; "."""

    text: str


class Unsplit(NamedTuple):
    """The items before they were split."""

    frame: pd.DataFrame


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
