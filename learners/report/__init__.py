"""Figures of a run or an evaluation -> one HTML page that needs no network."""

from learners.report.folds import folds_page
from learners.report.galleries import Pictures
from learners.report.report import write_report

__all__ = ["Pictures", "folds_page", "write_report"]
