"""Which rule is offered where a model answers few files."""

from __future__ import annotations

import pytest

from learners.rule.operating_points import OperatingPoint, OperatingPoints


@pytest.mark.parametrize(
    ("answered", "right", "offered"),
    [
        ((20, 40, 60, 80, 90), (20, 40, 58, 77, 80), 80),  # the loosest of which 95 % are right
        ((20, 40, 60, 80), (20, 30, 40, 50), 40),  # else the nearest
        ((50, 60, 70, 80), (50, 60, 70, 80), None),  # half of the files are answered
        ((20, 20, 20, 20), (20, 20, 20, 20), None),  # none answers more
    ],
)
def test_a_rule_is_offered_where_fewer_than_half_of_the_files_are_answered(
    answered, right, offered
):
    points = tuple(
        OperatingPoint(threshold=1 - n / 10, answered=a, right=r, low=0, high=1, unknown=0)
        for n, (a, r) in enumerate(zip(answered, right, strict=True))
    )
    table = OperatingPoints("calibration", 100, 0, 0, points)
    assert (table.offered and table.offered.answered) == offered
