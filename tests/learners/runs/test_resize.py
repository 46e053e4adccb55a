"""How photos become square by default, and what the user is told."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from datasets.items.preparing import read_items
from learners.cli.settings import Settings
from learners.runs.resize import resize_of


def table(folder: Path, *shapes: tuple[int, int]) -> Items:
    for name in ("a", "b"):
        (folder / name).mkdir()
        for number, shape in enumerate(shapes):
            picture = Image.linear_gradient("L").rotate(90 * number + 30 * (name == "a"))
            picture.resize(shape).save(folder / name / f"{number}.png")
    settings = Settings().but(data=str(folder), near_duplicates="ignore")
    return read_items(settings.data, settings.signal, 0)


WIDE, TALL, USUAL = (160, 90), (90, 160), (120, 90)


@pytest.mark.parametrize(
    ("shapes", "loss"),
    [([WIDE, TALL, WIDE, USUAL], "44 %"), ([WIDE, USUAL, USUAL, USUAL], ""), ([USUAL] * 4, "")],
)
def test_photos_are_cropped_and_a_large_loss_is_said(shapes, loss, tmp_path, caplog):
    caplog.set_level(logging.INFO, "learners.runs.resize")
    items = table(tmp_path, *shapes)
    assert resize_of(items, None) == "crop"
    assert len(caplog.messages) == bool(loss)
    assert loss in "".join(caplog.messages)
    caplog.clear()
    boxes = replace(items, frame=items.frame.assign(x=0.1, y=0.1, width=0.2, height=0.2))
    assert resize_of(boxes, None) == "crop"
    for chosen in ("crop", "pad", "squash"):
        assert resize_of(items, chosen) == chosen
    assert not caplog.messages


def test_spectrograms_are_squashed_and_nothing_else(tmp_path):
    sounds = replace(table(tmp_path, *[USUAL] * 4), kind="sound")
    assert resize_of(sounds, None) == resize_of(sounds, "squash") == "squash"
    with pytest.raises(SecondhandError, match="--resize pad: spectrograms are always squashed"):
        resize_of(sounds, "pad")
