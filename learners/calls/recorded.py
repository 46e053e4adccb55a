"""Calls that predict files with a time and a place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from datasets.cameras.clock import Clock
from datasets.cameras.deployments import read_deployments
from learners.calls.files import FileCall
from learners.calls.sections.cameras import CameraSettings
from learners.cameras.when import WhenAndWhere
from learners.predictions.rows import Feature


class RecordedCall(FileCall):
    """Its rows say when and where their files were recorded, by themselves and a table of deployments."""

    flags: ClassVar[tuple[str, ...]] = ("deployments",)

    @cached_property
    def clock(self) -> Clock:
        """Time and place of the files."""
        table = self.settings.of(CameraSettings).deployments
        return Clock(None if table is None else read_deployments(table), self.settings.paths)

    def features(self) -> Sequence[Feature]:
        return [WhenAndWhere(self.clock)]
