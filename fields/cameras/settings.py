"""Settings of a training on when and where files were recorded, and on the boxes of a detector.

This module imports nothing heavy, because the help of the commands needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from datasets.cli.conflicts import Conflict
from datasets.cli.options import Limits, option
from datasets.items.settings import SETTINGS, AddedSettings

#: Help of ``--deployments``, which several commands have.
DEPLOYMENTS = (
    "Table of deployments: Camtrap DP's deployments.csv, or a CSV file with the column deployment and any of latitude, "
    "longitude, start, end, timezone and clock_offset. A file belongs to the deployment that names one of its folders or "
    "begins its name (docs/formats-of-time.md)."
)


@SETTINGS.add
@dataclass(frozen=True)
class PlaceSettings(AddedSettings):
    """time and place"""

    name = "places"
    paths = ("deployments",)
    conflicts = (
        Conflict("split_by", "cv", remedy="use one of them"),
        Conflict("split_by", "fold", remedy="use one of them"),
    )
    measures = MappingProxyType({"split_by": "the files recorded last measure"})

    deployments: Path | None = option(
        None, f"{DEPLOYMENTS} --group-by deployment groups by them.", metavar="FILE"
    )
    split_by: Literal["time"] | None = option(
        None,
        "Test on what was recorded last: time makes the last fifth of the files the test part, and learns from the "
        "earlier ones.",
    )


@SETTINGS.add
@dataclass(frozen=True)
class BoxSettings(AddedSettings):
    """boxes of a detector"""

    name = "boxes"

    min_box_confidence: float | None = option(
        None,
        "For MegaDetector's JSON in --data: least confidence of a box to crop. Default: the typical threshold that the "
        "JSON names, which is 0.2 for MegaDetector 5; 0.2 if it names none.",
        limits=Limits(low=0, high=1),
    )
