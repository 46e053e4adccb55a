"""Writes the figures of a run or an evaluation as one HTML page that needs no network."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.cli.result import part_name
    from learners.report.galleries import Pictures, Shot, flac, page_picture, time_span, write_sheet
    from learners.report.plots import reliability
    from learners.report.report import folds_page, write_estimate, write_events, write_report
    from learners.report.sections import class_sections, label_sections

__getattr__ = lazy_names(__name__)
