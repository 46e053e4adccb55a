"""The step that keeps one row of each content."""

from __future__ import annotations

from dataclasses import replace

from datasets.items.checks import drop_copies
from datasets.items.facts import Inputs, Labelled
from datasets.items.items import Items
from datasets.steps.base import Asked
from datasets.steps.classes import are_empty


def leave_out_copies(items: Items, asked: Asked) -> Items:
    """Keep one row of each content (`datasets.items.checks.drop_copies`); all labelled spans are kept as a fact."""
    frame = items.frame
    spans = frame.loc[~are_empty(items, asked), ["path", "label", "start", "end"]]
    frame, copies = drop_copies(
        frame,
        lookup=items.fact(Inputs).lookup,
        several_labels=not asked.options.learned,
    )
    return replace(items, frame=frame).leaving_out(copies).knowing(Labelled(spans))
