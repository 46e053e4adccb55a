"""A folder, table, ``demo:NAME`` or public set -> the item table of a run: read, checked, grouped, split, drawn."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from datasets.items.basis import basis_of
    from datasets.items.checks import (
        JOIN,
        MAX_LABEL,
        UNKNOWN,
        alike,
        clean_label,
        fault_of,
        learnable,
        names_of,
        parts_of,
        without_copies,
    )
    from datasets.items.duplicates import (
        THUMBNAIL,
        alike_enough,
        correlation,
        find_clusters,
        thumbnails_of,
        tied,
    )
    from datasets.items.folds import assign_folds, fold_names, stratified_folds
    from datasets.items.multi_label import MANY, counted, joined, targets_of
    from datasets.items.preparing import Loaded, load_grouped, picture_cache, prepare_items
    from datasets.items.replay import (
        background_of,
        check_splits,
        earlier_items,
        folds_of,
        is_replayed,
        split,
    )
    from datasets.items.settings import (
        MAX_OVERLAP,
        SPECTROGRAM,
        DataSettings,
        SignalSettings,
        read_spectrogram,
        spectrogram_text,
    )
    from datasets.items.splits import SPLITS, assign_splits, groups_from_names, lacking, remarks
    from datasets.items.strangers import load_strangers, load_unlabelled
    from datasets.items.table import ItemTable, items_of_run, load_table, summary
    from datasets.items.units import units as units_of

__getattr__ = on_demand(__name__)
