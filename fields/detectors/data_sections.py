"""The flag of an evaluation on tables of triggers."""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.conflicts import Conflict
from datasets.cli.options import option
from fields.detectors.settings import STRAIN
from learners.cli.commands import Section
from learners.elsewhere.data_sections import DATA_SECTIONS


@DATA_SECTIONS.add
@dataclass(kw_only=True)
class StrainOfData(Section):
    """triggers"""

    name = "triggers"
    conflicts = (Conflict("strain", "labels"),)

    strain: str | None = option(None, STRAIN, metavar="PATH")
