"""The step that says what was read, and what the figures will rest on."""

from __future__ import annotations

from datasets.items import describe
from datasets.items.facts import Protocol, Unsplit
from datasets.items.items import Items
from datasets.items.loaded import Loaded
from datasets.items.settings import SplitSettings
from datasets.steps.base import Asked
from datasets.steps.rendering import Rows


def sum_up(items: Items, asked: Asked) -> Items:
    """Log classes by splits and what was left out, and settle the evaluation protocol."""
    before, rows = items.fact(Unsplit).frame, items.fact(Rows).known
    protocol = describe.describe_protocol(items, before, asked.of(SplitSettings))
    describe.log_lines(describe.overview(items, Loaded(items, rows, None).windows))
    return items.knowing(Protocol(protocol))
