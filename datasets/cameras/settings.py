"""Settings on when and where files were recorded.

This module imports nothing heavy, because the help of the commands needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from datasets.cli.options import option

#: Help of ``--deployments``, which several commands have.
DEPLOYMENTS = (
    "Table of deployments: Camtrap DP's deployments.csv, or a CSV file with the column deployment and any of latitude, "
    "longitude, start, end, timezone and clock_offset. A file belongs to the deployment that names one of its folders or "
    "begins its name (docs/formats.md)."
)


@dataclass(frozen=True)
class PlaceSettings:
    """time and place"""

    deployments: Path | None = option(None, DEPLOYMENTS, metavar="FILE")
    split_by: Literal["time"] | None = option(
        None,
        "Test on what was recorded last: time makes the last fifth of the files the test part, and learns from the "
        "earlier ones.",
    )
