"""Settings that single formats of labels have; `datasets.sources.base.ReadOptions` hands them to the sources by name.

This module imports nothing heavy, because the help of the commands needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.options import option

#: Help of ``--tier``, which several commands have.
TIER = "Tier of the labels in files of Praat or ELAN. Default: the only one."


@dataclass(frozen=True)
class FormatSettings:
    """formats"""

    tier: str | None = option(None, TIER, metavar="NAME")
    strain: str | None = option(
        None,
        "For a table of triggers in --data: folder, pattern or LAL cache of the strain files. For "
        "demo:glitches: strain files of your own to inject the events into.",
        metavar="PATH",
    )
