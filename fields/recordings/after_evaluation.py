"""Hears the held-out recordings of a run whose items are labelled spans."""

from __future__ import annotations

from fields.recordings.held_out import with_events
from learners.runs.after_evaluation import AFTER_EVALUATION, AfterEvaluation

AFTER_EVALUATION.add(AfterEvaluation("events", with_events))
