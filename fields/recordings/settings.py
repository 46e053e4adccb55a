"""The flag of a training on labels in tiers.

This module imports nothing heavy, because the help of the commands needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.options import option
from datasets.items.settings import SETTINGS, AddedSettings

#: Help of ``--tier``, which several commands have.
TIER = "Tier of the labels in files of Praat or ELAN. Default: the only one."


@SETTINGS.add
@dataclass(frozen=True)
class TierSettings(AddedSettings):
    """labels in tiers"""

    name = "tiers"

    tier: str | None = option(None, TIER, metavar="NAME")
