"""Items, DataLoaders and a network -> fine-tuned weights, the best epoch of them."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from learners.training.basis import basis_of
    from learners.training.growth import ANSWERS, item_numbers, parts_of_labels
    from learners.training.items import Loaded, load_grouped, prepare_items
    from learners.training.members import Start, Trained, in_plain_words, train_members
    from learners.training.probe import fit_probe
    from learners.training.replay import (
        background_of,
        check_splits,
        earlier_items,
        folds_of,
        is_replayed,
        split,
    )
    from learners.training.speed import check_precision, settle

__getattr__ = on_demand(__name__)
