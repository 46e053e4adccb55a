"""The flag of a training on tables of triggers.

This module imports nothing heavy, because the help of the commands needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.options import option
from datasets.items.settings import SETTINGS, AddedSettings

#: Help of ``--strain``, which several commands have.
STRAIN = "For a table of triggers: folder, pattern or LAL cache of the strain files."


@SETTINGS.add
@dataclass(frozen=True)
class StrainOfTriggers(AddedSettings):
    """triggers"""

    name = "triggers"
    paths = ("strain",)

    strain: str | None = option(
        None,
        f"{STRAIN} For demo:glitches: strain files of your own to inject the events into.",
        metavar="PATH",
    )
