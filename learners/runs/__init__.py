"""Runs: train, calibrate, predict, report; cross-validation; resuming; evaluation on other data."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.runs.evaluation import estimate, evaluate
    from learners.runs.event_evaluation import evaluate_events
    from learners.runs.finetuning import launch
    from learners.runs.folder import has_progress, is_finished, resume_command, settings_of
    from learners.runs.folds import cross_validate
    from learners.runs.run import Run, prepare

__getattr__ = lazy_names(__name__)
