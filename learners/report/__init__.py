"""Figures of a run or an evaluation -> one HTML page that needs no network."""

from learners.report.galleries import Pictures
from learners.report.plots import reliability
from learners.report.report import folds_page, write_estimate, write_report

__all__ = ["Pictures", "folds_page", "reliability", "write_estimate", "write_report"]
