"""On the page: the tab *Label*, and *More like this* under an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.tabs import TABS, Tab
from datasets.cli.conflicts import Conflict
from datasets.cli.options import option
from learners.cli.commands import Section

if TYPE_CHECKING:
    from app.serving import Served
    from app.settings import PageSettings
    from fields.loop.pool import Alike, Labelling


@dataclass(kw_only=True)
class LabelSettings(Section):
    """labels of new files"""

    name = "label"
    conflicts = (Conflict("label", "train", remedy="name a model folder", unless="models"),)

    label: Path | None = option(
        None,
        "Add a tab to label the files of this folder, in the order that the first model suggests, or those of a "
        "table that secondhand audit drew, which gets the labels. Those of a folder go to NAME-labels.csv in the "
        "folder of --feedback, else in the current one. Default: off.",
    )


@dataclass(kw_only=True)
class AlikeSettings(Section):
    """similar files"""

    name = "pool"
    conflicts = (Conflict("pool", "train", remedy="name a model folder", unless="models"),)

    pool: Path | None = option(
        None,
        "Add a button that finds files similar to a prediction, with the first model, in this folder or .parquet "
        "file (of search --embeddings). Default: off.",
    )


def _label(settings: PageSettings, served: Served) -> Labelling | None:
    folder = settings.of(LabelSettings).label
    if not folder:
        return None
    from fields.loop.pool import open_labelling

    return open_labelling(served, folder, settings.feedback)


def _alike(settings: PageSettings, served: Served) -> Alike | None:
    pool = settings.of(AlikeSettings).pool
    if not pool:
        return None
    from fields.loop.pool import Alike

    return Alike(served, pool)


TABS.add(Tab("label", _label, LabelSettings))
TABS.add(Tab("pool", _alike, AlikeSettings))
