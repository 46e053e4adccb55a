"""Settings of the rule: when to answer "unknown"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datasets.cli.options import Limits, option

if TYPE_CHECKING:
    from datasets.core.registry import Registry


def _scores() -> Registry[Any]:
    from learners.rule.scores.base import SCORES  # with NumPy, which no other setting needs

    return SCORES


@dataclass(frozen=True)
class ConfidenceSettings:
    """when to answer unknown"""

    threshold: float | None = option(
        None,
        "Calibrated probability below which a prediction becomes unknown. Default: 0.95. Where it is given, it replaces "
        "the condition on the overall score, too, as in predict and adjust: add --keep-known to have both.",
        limits=Limits(low=0, high=1),
    )
    keep_known: float | None = option(
        None,
        "Fraction of the known files that the overall score lets pass: 0.8, the default without --threshold, refuses "
        "the 20 % that look most unusual, and with them most files of unknown classes. Lower values refuse more; 1 "
        "switches the score off. Predict and adjust can change it later, from 0.5 on.",
        limits=Limits(above=0, high=1),
    )
    target_accuracy: float | None = option(
        None,
        "Fraction of the answers that must be right: the thresholds are chosen to guarantee it. Replaces --threshold "
        "and --keep-known (see --help-all).",
        limits=Limits(above=0, below=1, like=0.99),
    )
    score: str = option(
        "combined",
        "Overall score that separates known from unknown classes.",
        names=_scores,
        metavar="NAME",
    )

    @property
    def least_probability(self) -> float:
        """``threshold``, or its default."""
        return 0.95 if self.threshold is None else self.threshold

    @property
    def kept(self) -> float:
        """``keep_known``, or its default: a given threshold has no condition on the score, as in `Rule.but`."""
        if self.keep_known is not None:
            return self.keep_known
        return 0.8 if self.threshold is None else 1.0
