"""Builds the item table of a run: reads, checks, groups and splits the files, and renders signals."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from datasets.items.checks import PART_COLUMNS, drop_contradictions, drop_copies
    from datasets.items.clock import TIME_AND_PLACE, Clock, TimeAndPlace, is_zoned, iso
    from datasets.items.deployments import Deployment, read_deployments
    from datasets.items.duplicates import correlation, duplicate_threshold, thumbnails_of
    from datasets.items.labels import (
        JOIN,
        MULTI,
        UNKNOWN,
        clean_label,
        join_labels,
        label_error,
        names_of,
        spelling_key,
        split_labels,
        targets_of,
    )
    from datasets.items.places import as_in_predictions
    from datasets.items.preparing import (
        Loaded,
        infer_spectrogram,
        load_grouped,
        picture_cache,
        protocol_of,
        read_items,
        render_items,
    )
    from datasets.items.rehearsal import (
        background_file,
        check_splits,
        earlier_items,
        folds_of,
        is_rehearsed,
        split,
    )
    from datasets.items.settings import (
        CHANNEL,
        DEPLOYMENTS,
        MAX_OVERLAP,
        SPECTROGRAM_OPTIONS,
        DataSettings,
        SignalSettings,
        read_spectrogram,
        spectrogram_text,
    )
    from datasets.items.splits import (
        SPLITS,
        assign_splits,
        components,
        fold_names,
        split_units,
        stratified_folds,
    )
    from datasets.items.table import (
        ItemTable,
        add_embeddings,
        items_of_run,
        load_table,
        load_unknown,
        load_unlabelled,
        summary,
    )

__getattr__ = lazy_names(__name__)
