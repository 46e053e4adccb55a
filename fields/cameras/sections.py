"""The flags of calls whose files come from camera traps and recorders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datasets.cli.options import Limits, option
from fields.cameras.settings import DEPLOYMENTS
from learners.calls.sections.base import SECTIONS
from learners.cli.commands import Section


@SECTIONS.add
@dataclass(kw_only=True)
class CameraSettings(Section):
    """cameras and recorders"""

    name = "cameras"
    free = ("deployments",)

    deployments: Path | None = option(None, DEPLOYMENTS, metavar="FILE")
    min_box_confidence: float | None = option(
        None,
        "For MegaDetector's JSON: least confidence of a box to crop and predict. Default: the typical threshold that "
        "the JSON names, which is 0.2 for MegaDetector 5; 0.2 if it names none.",
        limits=Limits(low=0, high=1),
    )
