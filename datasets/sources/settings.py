"""Settings that single formats of labels have; `datasets.sources.base.ReadOptions` hands them to the sources by name.

This module imports nothing heavy, because the help of the commands needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.options import Limits, option

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
    min_box_confidence: float | None = option(
        None,
        "For MegaDetector's JSON in --data: least confidence of a box to crop. Default: the typical threshold that the "
        "JSON names, which is 0.2 for MegaDetector 5; 0.2 if it names none.",
        limits=Limits(low=0, high=1),
    )
