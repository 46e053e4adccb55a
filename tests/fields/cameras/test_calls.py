"""Calls of predict for photos and for the boxes of a detector, and the flags that they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.shipped import left_out
from tests.learners.test_calls import call


def test_photos_and_the_results_of_a_detector_have_calls_of_their_own(tmp_path: Path) -> None:
    results = tmp_path / "detections.json"
    results.write_text("{}")
    assert call("picture", "a.jpg").name == "photos"
    assert call("picture", str(results)).name == "megadetector"


@pytest.mark.parametrize(
    ("kind", "given", "flag", "owner"),
    [
        ("picture", {"min_box_confidence": 0.5}, "--min-box-confidence 0.5", "MegaDetector"),
        ("sound", {"min_box_confidence": 0.0}, "--min-box-confidence 0", "MegaDetector"),
        pytest.param(
            "strain",
            {"deployments": "d.csv"},
            "--deployments d.csv",
            "pictures",
            marks=pytest.mark.skipif("detectors" in left_out(), reason="the field is left out"),
        ),
    ],
)
def test_a_flag_of_other_calls_is_refused(
    kind: str, given: dict[str, object], flag: str, owner: str
) -> None:
    with pytest.raises(SecondhandError, match=f"{flag} .*{owner}"):
        call(kind, "a", **given)


def test_an_event_has_one_threshold() -> None:
    with pytest.raises(SecondhandError, match="--threshold-per-class t"):
        call("picture", "a", events=True, threshold_per_class="t")


def test_a_row_is_a_page_or_an_event() -> None:
    with pytest.raises(SecondhandError, match=r"--windows .*--events"):
        call("picture", "a", windows=True, events=True)
