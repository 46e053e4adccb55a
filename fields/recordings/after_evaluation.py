"""Hears the held-out recordings of a run whose items are labelled spans: events, and windows that are refused."""

from __future__ import annotations

from fields.recordings.held_out import with_events
from fields.recordings.refused import with_refusals
from learners.runs.after_evaluation import AFTER_EVALUATION, AfterEvaluation

AFTER_EVALUATION.add(AfterEvaluation("events", with_events))
AFTER_EVALUATION.add(AfterEvaluation("refused windows", with_refusals))
