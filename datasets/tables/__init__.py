"""A folder, CSV, Parquet file, ``demo:NAME`` or public set -> one item table; its splits and folds."""

from typing import TYPE_CHECKING

from datasets.fronts import on_demand

if TYPE_CHECKING:
    from datasets.tables.checks import (
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
    from datasets.tables.folds import assign_folds, fold_names, stratified_folds
    from datasets.tables.many import MANY, counted, joined, targets_of
    from datasets.tables.splits import SPLITS, assign_splits, groups_from_names, lacking, remarks
    from datasets.tables.strangers import load_strangers, load_unlabelled
    from datasets.tables.table import ItemTable, items_of_run, load_table, summary
    from datasets.tables.units import units as units_of

__getattr__ = on_demand(__name__)
