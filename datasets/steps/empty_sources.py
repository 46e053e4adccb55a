"""The step that refuses a source of which no file can be used."""

from __future__ import annotations

from datasets.core.errors import SecondhandError, first_left_out
from datasets.items.facts import Inputs
from datasets.items.items import Items
from datasets.steps.base import Asked
from datasets.steps.sources import Sources, is_one_of_several


def refuse_empty_sources(items: Items, asked: Asked) -> Items:
    """The same items.

    Raises
    ------
    SecondhandError : a source of several has no usable file to train on.
    """
    sources = items.fact(Sources)
    if not asked.options.learned or len(sources.of_rows) < 2 or items.fact(Inputs).lookup:
        return items
    filled = {sources.of_rows[number] for number in items.frame["source"].unique()}
    for name in sources.names:
        if name in filled or is_one_of_several(name, sources.names, asked.options):
            continue
        unusable = [*items.rejected[sources.rejected :]]
        raise SecondhandError(
            f"--data {name}: no usable {items.kind} file in it{first_left_out(unusable)}"
        )
    return items
