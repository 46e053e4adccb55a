"""Files of other kinds, such as those of other packages: a row for each."""

from __future__ import annotations

from typing import Any

from learners.calls.base import CALLS
from learners.cameras.calls import RecordedCall
from learners.model.bundle import Bundle


class OtherCall(RecordedCall):
    """Any files that no other call claims."""

    name, title, order = "other", "other files", 1000
    flags = (*RecordedCall.flags, "at")

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        return True


CALLS.add(OtherCall)
