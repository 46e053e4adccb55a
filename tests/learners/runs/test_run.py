"""How much of a photo its centre square leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from datasets.items.items import Items
from datasets.steps.base import Asked
from datasets.steps.reading import read_items
from learners.cli.settings import Settings
from learners.runs.run import LOST, lost_by_crop


def table(folder: Path, *shapes: tuple[int, int]) -> Items:
    for name in ("a", "b"):
        (folder / name).mkdir()
        for number, shape in enumerate(shapes):
            picture = Image.linear_gradient("L").rotate(90 * number + 30 * (name == "a"))
            picture.resize(shape).save(folder / name / f"{number}.png")
    settings = Settings().but(data=str(folder), near_duplicates="ignore")
    return read_items(Asked.by(*settings.sections.values(), seed=settings.train.seed))


WIDE, TALL, USUAL = (160, 90), (90, 160), (120, 90)


@pytest.mark.parametrize(
    ("shapes", "loss"),
    [([WIDE, TALL, WIDE, USUAL], 0.4375), ([WIDE, USUAL, USUAL, USUAL], 0.25), ([USUAL] * 4, 0.25)],
)
def test_the_loss_is_that_of_the_typical_photo(shapes, loss, tmp_path):
    items = table(tmp_path, *shapes)
    assert lost_by_crop(items) == loss
    assert (lost_by_crop(items) >= LOST) == (loss > 0.4)
    boxes = replace(items, frame=items.frame.assign(x=0.1, y=0.1, width=0.2, height=0.2))
    assert lost_by_crop(boxes) == 0
