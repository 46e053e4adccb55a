"""The step that applies corrected labels."""

from __future__ import annotations

from dataclasses import replace

from datasets.items.checks import LABELLED, apply_corrections
from datasets.items.facts import Corrections, Inputs
from datasets.items.items import Items
from datasets.steps.base import Asked


def correct(items: Items, asked: Asked) -> Items:
    """Give each content its latest label, if several sources label it and the items are for training
    (`datasets.items.checks.apply_corrections`)."""
    if not asked.options.learned:
        frame = items.frame.drop(columns=["source", LABELLED], errors="ignore")
        return replace(items, frame=frame)
    frame, replaced, copies = apply_corrections(items.frame, items.fact(Inputs).lookup)
    return replace(items, frame=frame).leaving_out(copies).knowing(Corrections(replaced))
