"""The flags of calls that predict strain, or the triggers of a table in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datasets.cli.conflicts import Conflict, Need
from datasets.cli.options import option
from datasets.items.settings import CHANNEL
from fields.detectors.settings import STRAIN
from learners.calls.sections.base import SECTIONS
from learners.cli.commands import Section


@SECTIONS.add
@dataclass(kw_only=True)
class StrainSettings(Section):
    """strain and triggers"""

    name = "strain"
    usual = in_place_of_paths = ("triggers",)
    conflicts = (
        Conflict("triggers", "paths", "the table names what to predict", "leave the files out"),
        Conflict(
            "format", "triggers", "the table is written in its own format", "leave --format out"
        ),
        Need("triggers", ("strain",), "give the files of the strain"),
    )

    triggers: Path | None = option(
        None,
        "Strain: table of GPS times and detectors; predicts each row, and needs --strain. --out is then a .csv, .hdf5 or "
        ".ecsv file, and only the best class is listed unless --top says how many.",
        metavar="FILE",
    )
    strain: str | None = option(None, STRAIN, metavar="PATH")
    channel: str | None = option(None, CHANNEL, metavar="NAME")
    recentre: bool = option(
        False,
        "Strain: judge at the loudest tile within a second, where that is not at the trigger.",
    )
    scores: bool = option(
        False, "With --triggers: add a column with the probability of each class, named after it."
    )
