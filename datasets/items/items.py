"""The items of a run: what the stages from reading to the report share."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from datasets.cameras.clock import Clock
from datasets.core.errors import Rejected
from datasets.core.lookup import Lookup
from datasets.items.checks import CORRECTION_COLUMNS
from datasets.items.facts import Lengths, NearDuplicates, Sessions
from datasets.items.labels import parse_names
from datasets.kinds.base import PictureInfo, empty_lookup


@dataclass
class Items:
    """The items of a run.

    Attributes
    ----------
    frame : items of the classes, one row each.
    unknown_items : items labelled ``unknown``, which are not trained on.
    background : files of the background (negative) class, labelled ``unknown``, with their splits.
    rejected : files that were left out, and why.
    kind : name of the kind of all files, a key of `datasets.kinds.base.KINDS`.
    source : what the user named; several sources are joined by " + ".
    multi_label : an item may have several labels, or none (see `datasets.items.labels`).
    picture_info : what the check of each picture has read, by path.
    lookup : inputs of the items that are looked up, so that no file is opened; empty for other kinds.
    corrections : labels that a later source or row has replaced (`CORRECTION_COLUMNS`).
    note : origin of the data, such as "SIMULATED sounds"; "" for the user's own.
    near_duplicates, sessions : near-duplicates, and capture sessions of photos; None if they were not searched for.
    lengths : classes that the lengths of their clips tell apart.
    groups : number of groups that the data or ``--group-by`` name.
    unsplit : ``frame`` before it was split.
    spans : path, label, start and end (s) of all labelled items, also of those that are left out.
    stated : for each label the first file that has it and, in a table, its row; for messages.
    clock : finds time and place of the files.
    learnt_until : with ``--split-by time``, when the last file that is not for testing was recorded; else "".
    protocol : the evaluation protocol, as clauses joined by "; "; "" before `render_items`.
    """

    frame: pd.DataFrame
    unknown_items: pd.DataFrame
    kind: str
    source: str
    rejected: list[Rejected] = field(default_factory=list)
    note: str = ""
    near_duplicates: NearDuplicates | None = None
    sessions: Sessions | None = None
    lengths: Lengths = Lengths()
    groups: int = 0
    stated: dict[str, str] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    learnt_until: str = ""
    protocol: str = ""
    corrections: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=[*CORRECTION_COLUMNS])
    )
    background: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame({"path": [], "split": []})
    )
    multi_label: bool = False
    picture_info: dict[str, PictureInfo] = field(default_factory=dict)
    lookup: Lookup = field(default_factory=empty_lookup)
    unsplit: pd.DataFrame = field(default_factory=pd.DataFrame)
    spans: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["path", "label", "start", "end"])
    )

    def __post_init__(self) -> None:
        self.clock.checked = self.picture_info

    @property
    def classes(self) -> list[str]:
        """The classes, sorted: the order of a network's outputs."""
        labels = self.frame["label"].unique()
        return sorted(
            {name for label in labels for name in parse_names(label)}
            if self.multi_label
            else labels
        )
