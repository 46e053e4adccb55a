"""What annotating programs write (Raven, Audacity, Camtrap DP) -> rows of an item table."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from datasets.annotations.sources import is_annotated, read_annotations
    from datasets.annotations.tracks import one_cell

__getattr__ = on_demand(__name__)
