"""Reads annotations of other programs as items: Raven, Audacity, Camtrap DP, MegaDetector, and tables of triggers."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from datasets.annotations.megadetector import (
        Detections,
        has_detections,
        is_detections,
        items_of_detections,
        read_detections,
    )
    from datasets.annotations.tracks import is_annotated, read_annotations, tab_cell
    from datasets.annotations.triggers import (
        Triggers,
        check_table,
        has_triggers,
        items_of_triggers,
        read_triggers,
        strain_files_of,
        write_table,
    )

__getattr__ = lazy_names(__name__)
