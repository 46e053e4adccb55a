"""Files of other kinds, such as those of other packages: a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learners.calls.base import CALLS
from learners.calls.files import FileCall
from learners.cameras.when import WhenAndWhere, clock_of_call
from learners.model.bundle import Bundle
from learners.predictions.rows import Feature


class OtherCall(FileCall):
    """Any files that no other call claims."""

    name, title, order = "other", "other files", 1000
    flags = ("deployments", "at")

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return True

    def features(self) -> Sequence[Feature]:
        return [WhenAndWhere(clock_of_call(self.settings))]


CALLS.add(OtherCall)
