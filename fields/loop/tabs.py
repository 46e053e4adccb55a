"""On the page: the tab *Label*, and *More like this* under an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.tabs import TABS, Tab

if TYPE_CHECKING:
    from app.serving import Served
    from app.settings import PageSettings
    from fields.loop.pool import Alike, Labelling


def _label(settings: PageSettings, served: Served) -> Labelling | None:
    if not settings.label:
        return None
    from fields.loop.pool import open_labelling

    return open_labelling(served, settings.label, settings.feedback)


def _alike(settings: PageSettings, served: Served) -> Alike | None:
    if not settings.pool:
        return None
    from fields.loop.pool import Alike

    return Alike(served, settings.pool)


TABS.add(Tab("label", _label))
TABS.add(Tab("pool", _alike))
