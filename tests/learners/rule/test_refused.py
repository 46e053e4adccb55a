"""More refusals than chance explains: as rare as promised among files of the same source, and found elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import fisher_exact

from benchmarks.bench_refused import drawn
from datasets.core.errors import SecondhandError
from learners.rule.reasons import Why
from learners.rule.refused import FILE, WINDOW, Shares, Usual, chance_of, counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "share", "found"),
    [
        ("3 recordings, 3 new", 0.2, 0.2),
        ("20 recordings, 5 new", 0.05, 0.4),
        ("50 bursts, 100 photos", 0.05, 0.7),
        ("150 files, 40 new", 0.2, 0.9),
    ],
)
def test_files_of_the_same_source_are_seldom_told_of(world, share, found):
    """In at most 2.5 % of 200 redraws; `benchmarks/bench_refused.py` has more of them."""
    assert drawn(world, share, odds=1.0, draws=200, seed=0) <= 0.025
    assert drawn(world, share, odds=6.0, draws=60, seed=1) >= found


def test_single_files_are_compared_as_an_exact_test_does():
    """Fisher's test conditions on the number of refusals, so it is never less strict by much than Student's t."""
    usual, here = Shares(np.r_[np.ones(8), np.zeros(152)], np.ones(160)), 40
    for refused in (5, 8, 12, 20):
        shares = Shares(np.r_[np.ones(refused), np.zeros(here - refused)], np.ones(here))
        exact = fisher_exact([[refused, here - refused], [8, 152]], "greater").pvalue
        chance = chance_of(shares, usual)
        assert exact <= chance < max(4 * exact, 1e-6)


def test_recordings_count_and_not_their_windows():
    usual = Shares(np.array([3.0, 10.0, 30.0]), np.full(3, 50.0))
    here = Shares(np.full(3, 35.0), np.full(3, 50.0))
    assert chance_of(here, usual) > 0.01
    longer = Shares(10 * here.refused, 10 * here.judged)
    assert chance_of(longer, usual) > 0.01
    single = Shares(np.repeat([1.0, 0.0], [105, 45]), np.ones(150))
    assert chance_of(single, Shares(np.repeat([1.0, 0.0], [43, 107]), np.ones(150))) < 1e-9


@pytest.mark.parametrize(
    ("here", "usual"),
    [
        (Shares(np.full(3, 6.0), np.full(3, 6.0)), Shares(np.full(9, 1.0), np.full(9, 50.0))),
        (Shares(np.full(3, 50.0), np.full(3, 50.0)), Shares(np.array([1.0]), np.array([50.0]))),
        (
            Shares(np.full(99, 18.0), np.full(99, 50.0)),
            Shares(np.full(99, 12.0), np.full(99, 50.0)),
        ),
        (Shares(np.zeros(9), np.full(9, 50.0)), Shares(np.zeros(9), np.full(9, 50.0))),
    ],
    ids=["few files", "one group", "not far more", "none refused"],
)
def test_little_is_known_or_little_differs(here, usual):
    assert chance_of(here, usual) == 1


def test_background_is_neither_answered_nor_refused():
    whys = [Why.ACCEPTED, Why.AMBIGUOUS, Why.BACKGROUND, Why.BAD_FILE, Why.UNUSUAL, Why.NO_SIGNAL]
    assert counts(whys) == (2, 3)


def test_groups_that_are_alike_are_stored_once():
    shares = Shares(np.array([1.0, 0.0, 0.0, 5.0]), np.array([1.0, 1.0, 1.0, 9.0]))
    usual = Usual.of(FILE, shares)
    assert usual.groups == ((0, 1, 2), (1, 1, 1), (5, 9, 1))
    again = Usual.read({"refused": {"unit": FILE, "groups": [list(one) for one in usual.groups]}})
    assert again == usual
    assert again.shares.value == pytest.approx(6 / 12)
    assert Usual.read({}) is None
    with pytest.raises(SecondhandError, match=r"metrics\.refused\.unit"):
        Usual.read({"refused": {"unit": "page", "groups": []}})
    assert Usual.of(WINDOW, Shares.of([(0, 0)])).groups == ()
