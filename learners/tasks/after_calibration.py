"""What fields add to a rule that is fitted to the calibration items of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from datasets.core.registry import Registry
from learners.cli.settings import ConfidenceSettings
from learners.rule.numbers.arrays import Outputs
from learners.rule.rule import Rule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from learners.evaluation.held_out import Measured


@dataclass(frozen=True)
class Fitted:
    """What a rule of one label was fitted to.

    Attributes
    ----------
    classes : those of the model.
    calibration : outputs of the n calibration items, with the numbers of their classes.
    measured : these items and the training items, with their labels and files.
    outside : of cross-fitted items, bool [n], the rule that is not measured to themselves.
    """

    classes: Sequence[str]
    calibration: Outputs
    measured: Measured
    settings: ConfidenceSettings
    outside: Sequence[tuple[NDArray[np.bool_], Rule]] = ()


@dataclass(frozen=True)
class AfterCalibration:
    """What a field adds: ``complete`` gives the rule with what the field has fitted to the same items."""

    name: str
    complete: Callable[[Rule, Fitted], Rule]


#: What fields add.
AFTER_CALIBRATION: Registry[AfterCalibration] = Registry("learners.tasks.after_calibration")


def completed(rule: Rule, fitted: Fitted) -> Rule:
    """The rule with what fields add to it."""
    for one in AFTER_CALIBRATION.values():
        rule = one.complete(rule, fitted)
    return rule
