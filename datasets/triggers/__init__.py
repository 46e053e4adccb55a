"""A table of triggers, and the strain files of their times -> rows of an item table; and back."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from datasets.triggers.items import has_triggers, items_of_triggers, places
    from datasets.triggers.tables import Triggers, read_triggers
    from datasets.triggers.written import check_table, write_table

__getattr__ = on_demand(__name__)
