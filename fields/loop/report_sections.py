"""The section *What has changed?* of the report."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from fields.loop.before_after import NAME, Changes
from learners.evaluation.held_out import Evaluation
from learners.report.galleries import Figure, Pictures, gallery
from learners.report.report_sections import SECTIONS, ReportSection
from learners.report.templates import render


def compared(evaluation: Evaluation) -> dict[str, Any] | None:
    """What changed since the earlier model, as JSON; None without one."""
    changes: Changes | None = evaluation.found.get(NAME)
    if changes is None:
        return None
    answers = changes.changed.drop(columns="row")
    return {
        "message": changes.message,
        "subsets": changes.subsets.to_dict("records"),
        "classes": changes.classes.to_dict("records"),
        "answers": answers.to_dict("records"),
    }


def changes_html(evaluation: Evaluation, pictures: Pictures) -> Markup:
    """The section; "" without an earlier model."""
    figures = compared(evaluation)
    if figures is None:
        return Markup("")
    return render("fields.loop", "changes.html", changes=figures, **_changed(pictures, evaluation))


def _changed(pictures: Pictures, evaluation: Evaluation) -> dict[str, list[Figure]]:
    """Files that were "worsened" or "improved" since the earlier model; the surest first."""
    rows = evaluation.found[NAME].changed
    rows = rows.sort_values("after_probability", ascending=False, kind="stable")
    return {
        change: gallery(pictures, evaluation, rows.loc[rows["change"].eq(change)])
        for change in ("worsened", "improved")
    }


SECTIONS.add(ReportSection(NAME, "What has changed?", compared, changes_html))
