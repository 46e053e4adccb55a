"""Which backbone is used where nobody names one."""

from __future__ import annotations

import pytest

from datasets.kinds.base import KINDS
from learners.backbones.choices import CANDIDATES, SOUND_BACKBONE, usual_backbone
from learners.backbones.hub import read_mel
from learners.backbones.packaged import PACKAGED
from tests.left_out import needs


@pytest.mark.parametrize(
    "kind", ["picture", "strain", pytest.param("embedding", marks=needs("embeddings"))]
)
def test_one_body_is_for_all_that_is_no_sound(kind: str) -> None:
    assert usual_backbone(KINDS[kind]) == "embedded"


def test_bodies_of_sound_are_compared_for_what_is_drawn_as_sound() -> None:
    """Each is a packaged body, and one at least brings spectrogram settings, which the kind takes."""
    assert usual_backbone(KINDS["sound"]) == SOUND_BACKBONE
    names = SOUND_BACKBONE.removeprefix("auto:").split(",")
    assert {*names} <= PACKAGED.keys() & {*CANDIDATES}
    brought = [mel for name in names if (mel := read_mel(name))]
    assert brought
    assert all(KINDS["sound"].takes(mel) for mel in brought)
