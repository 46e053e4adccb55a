"""The step that opens each file, and rejects those that cannot be used."""

from __future__ import annotations

from dataclasses import replace

from datasets.images.options import SampleSettings
from datasets.items import describe
from datasets.items.checks import usable_rows
from datasets.items.facts import Inputs, Looks
from datasets.items.items import Items
from datasets.kinds.base import PictureInfo
from datasets.steps.base import Asked


def check(items: Items, asked: Asked) -> Items:
    """Reject files of another kind and, if files are opened, those that are missing, empty or unreadable."""
    lookup, looks = items.fact(Inputs).lookup, dict[str, PictureInfo]()
    settings = asked.options.settings
    frame, bad = usable_rows(
        items.frame, items.kind, looks, check=asked.check, lookup=lookup, settings=settings
    )
    flags, stored = asked.of(SampleSettings), [look.stored for look in looks.values()]
    if flags.page is None and flags.channels is None:
        describe.log_lines(describe.pages_found(stored))
    return replace(items, frame=frame).leaving_out(bad).knowing(Looks(looks))
