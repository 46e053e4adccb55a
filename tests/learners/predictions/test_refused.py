"""Which of a call, its places and its recordings is named, under which rules, and what is said."""

from __future__ import annotations

from collections import deque

from datasets.core.part import Part
from learners.inference.predictions import NAN, Prediction
from learners.predictions.describe import refused_sentences
from learners.predictions.refused import Refused, RefusedCount
from learners.predictions.rows import Feature, RowSettings
from learners.rule.reasons import AMBIGUOUS, BACKGROUND, Reason
from learners.rule.refused import FILE, WINDOW, Usual

USUAL = Usual(unit=WINDOW, groups=((4, 50, 5), (6, 50, 5)))


def recording(path: str, refused: int, answered: int, background: int = 0) -> Prediction:
    def one(reason: Reason) -> Prediction:
        return Prediction(Part(path), "unknown" if reason else "a", "a", 0.5, reason, [], NAN)

    windows = (
        *(one(AMBIGUOUS) for _ in range(refused)),
        *(one(Reason()) for _ in range(answered)),
        *(one(BACKGROUND) for _ in range(background)),
    )
    return one(Reason()).with_more(windows=windows)


def found(
    recordings: list[Prediction], usual: Usual = USUAL, *, pages: bool = False
) -> list[Refused]:
    count = RefusedCount(usual, RowSettings().place, pages=pages)
    deque(count(recordings), maxlen=0)
    return count.found()


def test_a_site_among_others_is_named():
    here = [recording(f"card/marsh/{n}.wav", 5, 45, 500) for n in range(4)]
    assert found(here) == []
    (whole,) = found([recording(f"card/ridge/{n}.wav", 40, 10) for n in range(4)])
    assert (whole.what, whole.name, whole.refused, whole.judged) == ("call", "", 160, 200)
    both = found(here + [recording(f"card/ridge/{n}.wav", 40, 10) for n in range(4)])
    assert ("place", "card/ridge") in [(one.what, one.name) for one in both]
    assert "card/marsh" not in [one.name for one in both]
    text = "\n".join(refused_sentences(both))
    assert "card/ridge: 160 of 200 windows (80 %)" in text
    assert "10 %" in text
    assert refused_sentences([]) == []


def test_a_recording_among_those_of_its_place_is_named():
    usual = Usual(unit=WINDOW, groups=((4, 50, 20), (6, 50, 20)))
    here = [recording(f"card/marsh/{n}.wav", 5, 45) for n in range(9)]
    (one,) = found([*here, recording("card/marsh/broken.wav", 50, 0)], usual)
    assert (one.what, one.name) == ("recording", "card/marsh/broken.wav")


def test_whole_files_are_judged_by_their_own_answer():
    usual = Usual(unit=FILE, groups=((0, 1, 90), (1, 1, 10)))
    assert found([recording(f"{n}.wav", 50, 0) for n in range(40)], usual) == []


def test_a_stack_of_pages_is_judged_by_its_pages_and_counts_once():
    usual = Usual(unit=FILE, groups=((0, 1, 90), (1, 1, 10)))
    unclear = [recording(f"{n}.tif", 9, 1)._replace(reason=Reason()) for n in range(40)]
    (one,) = found(unclear, usual, pages=True)
    assert (one.refused, one.judged, one.unit) == (40, 40, FILE)
    # Each page is answered, only the stack as a whole shows several classes.
    mixed = [recording(f"{n}.tif", 1, 9)._replace(reason=AMBIGUOUS) for n in range(40)]
    assert found(mixed, usual, pages=True) == []
    assert found([recording("one.tif", 500, 0)], usual, pages=True) == []


def test_continuous_strain_is_counted_in_windows_where_the_training_had_files():
    usual = Usual(unit=FILE, groups=((0, 1, 90), (1, 1, 10)))
    stretches = [
        one._replace(part=Part("H1.hdf5", start=8.0 * n, end=8.0 * n + 8))
        for n, one in enumerate(recording("H1.hdf5", 12, 4) for _ in range(4))
    ]
    (one,) = found(stretches, usual)
    assert (one.refused, one.judged) == (48, 64)
    text = refused_sentences([one])[0]
    assert "48 of 64 windows (75 %)" in text
    assert "held-out files of the training 10 %" in text


def test_a_place_is_what_a_feature_knows_else_the_folder():
    class Site(Feature):
        def place(self, row: Prediction) -> str:
            return "north" if row.path.startswith("n") else ""

    shape = RowSettings(features=[Site()])
    assert shape.place(recording("n/1.wav", 0, 1)) == "north"
    assert shape.place(recording("s/1.wav", 0, 1)) == "s"
