"""Reading, from what ``--data`` names to the rows to train on: the list of its steps, and the short ones of them.

Each takes the items and returns others. A field adds a step in front of one of these (`datasets.steps.base.STEPS`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from datasets.core.errors import SecondhandError, did_you_mean, first_left_out
from datasets.images.options import SampleSettings
from datasets.items import describe
from datasets.items.checks import LABELLED, apply_corrections, drop_copies, usable_rows
from datasets.items.facts import Corrections, Inputs, Labelled, Looks, Protocol, Unsplit
from datasets.items.items import Items
from datasets.items.loaded import Loaded
from datasets.items.settings import SplitSettings
from datasets.kinds.base import PictureInfo
from datasets.sources.base import ReadOptions
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.steps.background import add_background
from datasets.steps.base import STEPS, Asked, Run, added_before
from datasets.steps.classes import are_empty, sort_by_class
from datasets.steps.earlier import read_earlier
from datasets.steps.groups import group
from datasets.steps.near_duplicates import group_near_duplicates
from datasets.steps.negatives import train_on_background
from datasets.steps.rehearsal import rehearse
from datasets.steps.rendering import Rows, render
from datasets.steps.samples import choose_samples
from datasets.steps.sessions import group_sessions
from datasets.steps.sources import Sources, is_one_of_several, read_sources
from datasets.steps.spectrogram import Drawing, choose_spectrogram
from datasets.steps.split import split
from datasets.steps.unknown import add_unknown
from datasets.steps.windows import place_in_recordings

log = logging.getLogger(__name__)


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


def correct(items: Items, asked: Asked) -> Items:
    """Give each content its latest label, if several sources label it and the items are for training
    (`datasets.items.checks.apply_corrections`)."""
    if not asked.options.learned:
        frame = items.frame.drop(columns=["source", LABELLED], errors="ignore")
        return replace(items, frame=frame)
    frame, replaced, copies = apply_corrections(items.frame, items.fact(Inputs).lookup)
    return replace(items, frame=frame).leaving_out(copies).knowing(Corrections(replaced))


def leave_out_copies(items: Items, asked: Asked) -> Items:
    """Keep one row of each content (`datasets.items.checks.drop_copies`); all labelled spans are kept as a fact."""
    frame = items.frame
    spans = frame.loc[~are_empty(items, asked), ["path", "label", "start", "end"]]
    frame, copies = drop_copies(
        frame,
        lookup=items.fact(Inputs).lookup,
        several_labels=not asked.options.learned,
        states={path: look.state for path, look in items.fact(Looks).of.items()},
    )
    return replace(items, frame=frame).leaving_out(copies).knowing(Labelled(spans))


def sum_up(items: Items, asked: Asked) -> Items:
    """Log classes by splits and what was left out, and settle the evaluation protocol."""
    before, rows = items.fact(Unsplit).frame, items.fact(Rows).known
    protocol = describe.describe_protocol(items, before, asked.of(SplitSettings))
    describe.log_lines(describe.overview(items, Loaded(items, rows, None).windows))
    return items.knowing(Protocol(protocol))


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


def say_misplaced() -> None:
    """Warn of steps of fields and packages that precede none of these, and so are never taken."""
    names = [step.__name__ for step in (*TABLE, *GROUPS, *SPLITS, *PICTURES)]
    for one in STEPS.values():
        if one.before not in names:
            log.warning(
                "the step %s is left out: before=%r is no step of reading.%s",
                one.name, one.before, did_you_mean(one.before, names),
            )  # fmt: skip


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
    say_misplaced()
    sources = [str(data)] if isinstance(data, str | os.PathLike) else [*map(str, data)]
    asked = Asked(sources, options=replace(options, **more), check=check)
    return take(TABLE, Items.none(), asked)


def load_grouped(asked: Asked) -> Items:
    """Read the items with their groups, without splits; raises SecondhandError as `read_items` does."""
    if not asked.sources:
        raise SecondhandError(
            "--data is missing. Name a folder of class folders, a CSV file, or demo:digits"
        )
    say_misplaced()
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
