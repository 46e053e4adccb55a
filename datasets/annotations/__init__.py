"""What others' programs write -> rows of an item table: labels (Raven, Audacity, Camtrap DP), and triggers in
the strain of their times; and triggers back."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from datasets.annotations.tracks import is_annotated, one_cell, read_annotations
    from datasets.annotations.triggers import (
        Triggers,
        check_table,
        has_triggers,
        items_of_triggers,
        places,
        read_triggers,
        write_table,
    )

__getattr__ = lazy_names(__name__)
