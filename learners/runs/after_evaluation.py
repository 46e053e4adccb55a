"""What fields measure in a run beside the figures of its held-out items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from datasets.core.registry import Registry
from datasets.items.items import Items
from learners.evaluation.held_out import Evaluation
from learners.inference.predictor import Predictor


@dataclass(frozen=True)
class AfterEvaluation:
    """A measurement.

    Attributes
    ----------
    measure : gives the evaluation of the items of a run with metrics and lines more. The predictors by path, of which
        there may be none, are those that have not learnt from this file; of all others it is the predictor.
    """

    name: str
    measure: Callable[[Evaluation, Predictor, Items, Mapping[str, Predictor]], Evaluation]


AFTER_EVALUATION: Registry[AfterEvaluation] = Registry("learners.runs.after_evaluation")


def measured_further(
    evaluation: Evaluation,
    predictor: Predictor,
    table: Items,
    of_path: Mapping[str, Predictor],
) -> Evaluation:
    """The evaluation with what fields measure."""
    for one in AFTER_EVALUATION.values():
        evaluation = one.measure(evaluation, predictor, table, of_path)
    return evaluation
