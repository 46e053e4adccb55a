"""Figures of a run or an evaluation -> one HTML page that needs no network."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from learners.report.class_page import class_sections
    from learners.report.galleries import Pictures, shown, when
    from learners.report.label_page import label_sections
    from learners.report.plots import reliability
    from learners.report.report import folds_page, write_estimate, write_report
    from learners.report.sheet import Shot, heard, write_sheet

__getattr__ = on_demand(__name__)
