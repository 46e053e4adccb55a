"""Sections of a report that fields add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from datasets.core.registry import Registry
from learners.evaluation.held_out import Evaluation

if TYPE_CHECKING:
    from learners.report.galleries import Pictures


@dataclass(frozen=True)
class ReportSection:
    """A section of the report of a single-label model, after its first one.

    Attributes
    ----------
    name : of its figures in report.json.
    question : its title.
    figures : as JSON; None without any.
    page : its content; "" without any.
    """

    name: str
    question: str
    figures: Callable[[Evaluation], Any]
    page: Callable[[Evaluation, Pictures], Markup]


SECTIONS: Registry[ReportSection] = Registry("learners.report.report_sections")
