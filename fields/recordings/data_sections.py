"""The flag of an evaluation on labels in tiers."""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.options import option
from fields.recordings.settings import TIER
from learners.cli.commands import Section
from learners.elsewhere.data_sections import DATA_SECTIONS


@DATA_SECTIONS.add
@dataclass(kw_only=True)
class TierOfData(Section):
    """labels in tiers"""

    name = "tiers"

    tier: str | None = option(None, TIER, metavar="NAME")
