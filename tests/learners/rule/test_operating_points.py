"""Which rule is offered where a model answers few files."""

from __future__ import annotations

import pytest

from learners.cli.result import with_limits
from learners.evaluation.calibration_metrics import of_items
from learners.rule.operating_points import OperatingPoint, OperatingPoints, limits_text


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
        OperatingPoint(threshold=1 - n / 10, answered=a, right=r, low=0.8, high=0.99, unknown=0)
        for n, (a, r) in enumerate(zip(answered, right, strict=True))
    )
    table = OperatingPoints("calibration", 100, 0, 0, points)
    assert (table.offered and table.offered.answered) == offered


@pytest.mark.parametrize(
    ("rules", "offered"),
    [
        ([(0.95, 1), (0.7, 3), (0.5, 5), (0.0, 6)], "--threshold 0.7"),  # all right, as far as so few can tell
        ([(0.95, 1), (0.0, 6)], None),
        ([(0.95, 10), (0.7, 30), (0.5, 50), (0.0, 60)], "--threshold 0.5"),
    ],
)  # fmt: skip
def test_what_is_offered_keeps_what_its_files_can_show(rules, offered):
    points = []
    for threshold, n in rules:
        _, low, high = of_items(1.0, n)
        points.append(
            OperatingPoint(threshold=threshold, answered=n, right=n, low=low, high=high, unknown=0)
        )
    table = OperatingPoints("calibration", points[-1].answered + 15, 0, 0, tuple(points))
    assert (table.offered and table.offered.rule) == offered


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.02, 1.0, "too few to say"), (0.4, 0.91, "too few to say"), (0.5, 1.0, "50 to 100 %"), (0.9, 0.99, "90 to 99 %")],
)  # fmt: skip
def test_limits_that_tell_nothing_say_so(low, high, text):
    assert limits_text(low, high) == text
    assert with_limits(low, high) == (text if "few" in text else f"95 % limits {text}")
