"""Items, DataLoaders and a network -> fine-tuned weights, the best epoch of them."""

from learners.training.items import Loaded, check_splits, load_grouped, prepare_items, split
from learners.training.members import Trained, train_members
from learners.training.speed import check_precision

__all__ = [
    "Loaded",
    "Trained",
    "check_precision",
    "check_splits",
    "load_grouped",
    "prepare_items",
    "split",
    "train_members",
]
