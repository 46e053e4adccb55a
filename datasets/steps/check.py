"""The step that opens each file, and rejects those that cannot be used."""

from __future__ import annotations

from dataclasses import replace

from datasets.core.errors import SecondhandError, first_left_out
from datasets.items.checks import usable_rows
from datasets.items.facts import Inputs, Looks
from datasets.items.items import Items
from datasets.kinds.base import PictureInfo
from datasets.steps.base import Asked
from datasets.steps.sources import Sources, is_one_of_several


def check(items: Items, asked: Asked) -> Items:
    """Reject files of another kind and, if files are opened, those that are missing, empty or unreadable.

    Raises
    ------
    SecondhandError : a source of several has no usable file.
    """
    sources, lookup = items.fact(Sources), items.fact(Inputs).lookup
    looks = dict[str, PictureInfo]()
    frame, bad = usable_rows(items.frame, items.kind, looks, check=asked.check, lookup=lookup)
    filled = {sources.of_rows[number] for number in frame["source"].unique()}
    empty = [
        name for name in sources.names
        if name not in filled and not is_one_of_several(name, sources.names, asked.options)
    ]  # fmt: skip
    if asked.options.learned and len(sources.of_rows) > 1 and empty and not lookup:
        raise SecondhandError(
            f"--data {empty[0]}: no usable {items.kind} file in it{first_left_out(bad)}"
        )
    return replace(items, frame=frame).leaving_out(bad).knowing(Looks(looks))
