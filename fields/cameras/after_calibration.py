"""The threshold for events of photos is fitted to the events that the calibration files form."""

from __future__ import annotations

from dataclasses import replace

from fields.cameras.bursts import fit_event_threshold
from learners.rule.rule import Rule
from learners.tasks.after_calibration import AFTER_CALIBRATION, AfterCalibration, Fitted


def with_events(rule: Rule, fitted: Fitted) -> Rule:
    """The rule with a threshold for events; without one for other items than photos."""
    measured = fitted.measured
    events = fit_event_threshold(
        rule,
        fitted.classes,
        fitted.calibration,
        measured.truths,
        measured.paths,
        fitted.settings,
        measured.table,
        fitted.outside,
    )
    return replace(rule, events=events)


AFTER_CALIBRATION.add(AfterCalibration("events", with_events))
