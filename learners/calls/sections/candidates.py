"""The flag of calls that list what was refused instead of what was answered."""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.options import option
from learners.calls.sections.base import SECTIONS
from learners.cli.commands import Section


@SECTIONS.add
@dataclass(kw_only=True)
class CandidateSettings(Section):
    """candidates"""

    name = "candidates"
    usual = ("candidates",)

    candidates: bool = option(
        False,
        "List what was refused instead of what was answered, with its best guess, the most probable first: what to check "
        "by eye or ear at a new site. In the answers it stays unknown.",
    )
