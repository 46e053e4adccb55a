"""Files of other kinds, such as those of other packages: a row for each."""

from __future__ import annotations

from learners.calls.base import CALLS
from learners.calls.recorded import RecordedCall
from learners.cli.commands import PredictSettings
from learners.model.bundle import Bundle


class OtherCall(RecordedCall):
    """Any files that no other call claims."""

    name, title, order = "other", "other files", 1000
    flags = ("at",)

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return True


CALLS.add(OtherCall)
