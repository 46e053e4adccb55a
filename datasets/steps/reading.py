"""Reading, from what ``--data`` names to the rows to train on: the list of its steps.

Each takes the items and returns others. A field adds a step in front of one of these (`datasets.steps.base.STEPS`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from datasets.items.loaded import Loaded
from datasets.sources.base import ReadOptions
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.steps.background import add_background
from datasets.steps.base import Asked, Run, added_before
from datasets.steps.check import check
from datasets.steps.classes import sort_by_class
from datasets.steps.copies import leave_out_copies
from datasets.steps.corrections import correct
from datasets.steps.earlier import read_earlier
from datasets.steps.empty_sources import refuse_empty_sources
from datasets.steps.groups import group
from datasets.steps.near_duplicates import group_near_duplicates
from datasets.steps.negatives import train_on_background
from datasets.steps.rehearsal import rehearse
from datasets.steps.rendering import Rows, render
from datasets.steps.samples import choose_samples
from datasets.steps.sessions import group_sessions
from datasets.steps.sources import read_sources
from datasets.steps.spectrogram import Drawing, choose_spectrogram
from datasets.steps.split import split
from datasets.steps.summing_up import sum_up
from datasets.steps.unknown import add_unknown
from datasets.steps.windows import place_in_recordings

#: What the sources hold: usable files with clean labels, without splits but for those that the data name.
TABLE = (
    read_earlier, read_sources, check, refuse_empty_sources, correct, leave_out_copies, sort_by_class,
)  # fmt: skip
#: What must stay together.
GROUPS = (rehearse, group, group_near_duplicates, group_sessions)
#: What teaches and what measures.
SPLITS = (split, add_background, add_unknown, choose_samples)
#: What a network sees.
PICTURES = (choose_spectrogram, render, place_in_recordings, sum_up, train_on_background)


def take(steps: Sequence[Run], items: Items, asked: Asked) -> Items:
    """Take the steps one after the other, each behind those that fields have added before it."""
    for step in steps:
        for one in (*added_before(step), step):
            items = one(items, asked)
    return items


def load_table(
    data: str | os.PathLike[str] | Sequence[str],
    options: ReadOptions = ReadOptions(),  # noqa: B008 (it is frozen)
    *,
    check: bool = True,
    **more: Any,
) -> Items:
    """Read an item table without splitting it.

    Parameters
    ----------
    data : one source or several (`datasets.steps.sources.read_sources`). If two label the same content, the later one
        counts (`datasets.items.checks.apply_corrections`).
    options : how they are read.
    more : fields of the options, by name.
    check : open each file. Otherwise bad files stay in the table.

    Raises
    ------
    SecondhandError : there is no usable file, a column is missing, fewer than two classes have enough
        files, labels differ only in case or spaces, or a time is not a number.
    """
    sources = [str(data)] if isinstance(data, str | os.PathLike) else [*map(str, data)]
    asked = Asked(sources, options=replace(options, **more), check=check)
    return take(TABLE, Items.none(), asked)


def load_grouped(asked: Asked) -> Items:
    """Read the items with their groups, without splits; raises SecondhandError as `read_items` does."""
    if not asked.sources:
        raise SecondhandError(
            "--data is missing. Name a folder of class folders, a CSV file, or demo:digits"
        )
    return take((*TABLE, *GROUPS), Items.none(), asked)


def read_items(asked: Asked) -> Items:
    """Read the items of a run, split them, and add the files of unknown classes and of the background.

    Raises
    ------
    SecondhandError : a setting does not suit the data, or nothing is left to train on.
    """
    return take(SPLITS, load_grouped(asked), asked)


def render_items(
    items: Items,
    asked: Asked,
    trained_on: Mapping[str, Any] = MappingProxyType({}),
    spectrogram: SpectrogramSettings | None = None,
) -> Loaded:
    """Draw the signals of items from `read_items`, and log the table and what was left out.

    Parameters
    ----------
    trained_on : spectrogram settings of the backbone's training (`learners.backbones.hub.read_mel`), which
        apply where the user leaves them open.
    spectrogram : spectrogram settings of a warm start. Default: inferred from the training files.

    Raises
    ------
    SecondhandError : nothing is left to train on.
    """
    asked = replace(asked, trained_on=trained_on, spectrogram=spectrogram)
    items = take(PICTURES, items, asked)
    return Loaded(items, items.fact(Rows).known, items.fact(Drawing).spectrogram)
