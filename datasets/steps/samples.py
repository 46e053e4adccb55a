"""The step that settles how pictures that are not of 8 bits are drawn, by what the user or the training files say."""

from __future__ import annotations

from datasets.images.options import SampleSettings
from datasets.items import describe
from datasets.items.facts import Looks, Seen
from datasets.items.items import Items
from datasets.items.settings import WarmStartSettings
from datasets.kinds.base import KINDS
from datasets.steps.base import Asked


def choose_samples(items: Items, asked: Asked) -> Items:
    """Settle range, channels and page by the training files; those of a warm start are its model's."""
    flags = vars(asked.of(SampleSettings))
    warm = asked.of(WarmStartSettings).from_ is not None
    trained = items.frame.loc[items.frame["split"].eq("train"), "path"]
    looks = items.fact(Looks).of
    stored = [look.stored for path in trained.unique() if (look := looks.get(path))]
    kind = KINDS[items.kind]
    found = Seen(*kind.samples([one for one in stored if one and not warm], flags))
    describe.log_lines(describe.samples_found(found.settings, found.how, stored))
    return items.knowing(found)
