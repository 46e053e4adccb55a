"""Pictures: a row for each, or for each event that one camera took."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from datasets.cameras.clock import Clock
from datasets.kinds.base import KINDS
from datasets.sources.megadetector import has_detections
from learners.calls.base import CALLS
from learners.calls.files import FileCall
from learners.cameras.bursts import bursts_of_call
from learners.cameras.when import WhenAndWhere, clock_of_call
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.predictions.rows import Feature, Merge

log = logging.getLogger(__name__)


class PictureCall(FileCall):
    """Frames of one camera may be merged into events."""

    name, title = "pictures", "pictures"
    flags: ClassVar[tuple[str, ...]] = ("events", "gap", "deployments")
    apart: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("events", "threshold_per_class", "an event of pictures has one threshold"),
    )
    needs = (("gap", "events"),)

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return KINDS[bundle.kind].photo

    @property
    def lists_all(self) -> bool:
        return self.has("events")

    @cached_property
    def clock(self) -> Clock:
        """Time and place of the pictures."""
        return clock_of_call(self.settings)

    def features(self) -> Sequence[Feature]:
        return [WhenAndWhere(self.clock)]

    def merge(self, predictor: Predictor) -> Merge:
        if not self.settings.events:
            return super().merge(predictor)
        return bursts_of_call(self.settings, predictor.rule, self.clock, self.top)

    def files(self, skipped: Counter[str]) -> Iterator[str]:
        folders = [Path(path) for path in self.settings.paths if os.path.isdir(path)]
        if self.bundle.of_boxes:
            for file in filter(has_detections, chain.from_iterable(map(Path.iterdir, folders))):
                log.warning(
                    "%s has the boxes of a detector. To predict them, name it instead", file
                )
        return super().files(skipped)


CALLS.add(PictureCall)
