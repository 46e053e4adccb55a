"""Items, DataLoaders and a network -> fine-tuned weights, the best epoch of them."""

from learners.training.items import Loaded, check_splits, load_grouped, prepare_items, split
from learners.training.members import Trained, in_plain_words, train_members
from learners.training.probe import fit_probe
from learners.training.speed import check_precision, settle

__all__ = [
    "Loaded",
    "Trained",
    "check_precision",
    "check_splits",
    "fit_probe",
    "in_plain_words",
    "load_grouped",
    "prepare_items",
    "settle",
    "split",
    "train_members",
]
