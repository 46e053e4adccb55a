"""A folder, table, ``demo:NAME`` or public set -> the item table of a run: read, checked, grouped, split, drawn."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from datasets.items.checks import without_copies
    from datasets.items.duplicates import alike_enough, correlation, thumbnails_of
    from datasets.items.labels import (
        JOIN,
        MULTI,
        UNKNOWN,
        alike,
        clean_label,
        fault_of,
        joined,
        names_of,
        split_labels,
        targets_of,
    )
    from datasets.items.preparing import (
        Loaded,
        load_grouped,
        picture_cache,
        prepare_items,
        protocol_of,
    )
    from datasets.items.rehearsal import (
        background_of,
        check_splits,
        earlier_items,
        folds_of,
        is_rehearsed,
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
    from datasets.items.splits import SPLITS, assign_splits, fold_names, stratified_folds
    from datasets.items.splits import units as units_of
    from datasets.items.table import (
        ItemTable,
        items_of_run,
        load_table,
        load_unknown,
        load_unlabelled,
        summary,
    )

__getattr__ = on_demand(__name__)
