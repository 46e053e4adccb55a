"""Trains networks: from items and a network to the weights of the best epoch."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.training.members import (
        build_network,
        decoded_pictures,
        explain_errors,
        train_members,
    )
    from learners.training.objectives import Objective, class_objective, label_objective
    from learners.training.probe import fit_probe
    from learners.training.speed import check_precision, resolve_speed

__getattr__ = lazy_names(__name__)
