"""Items and a network -> fine-tuned weights, the best epoch of them."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from learners.training.binary import label_objective
    from learners.training.growth import ANSWERS
    from learners.training.learner import Objective, class_objective
    from learners.training.members import Start, Trained, in_plain_words, train_members
    from learners.training.probe import fit_probe
    from learners.training.speed import check_precision

__getattr__ = on_demand(__name__)
