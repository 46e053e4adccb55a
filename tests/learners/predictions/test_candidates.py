"""What was refused is listed with its best guess, most probable first, and stays unknown."""

from __future__ import annotations

import io

import pytest

from datasets.core.part import Part
from learners.inference.predictions import NAN, Prediction
from learners.outputs.csv import write_csv
from learners.predictions.candidates import Candidates, Unreviewed
from learners.predictions.merging import Events
from learners.predictions.rows import Merge, RowSettings, Windows
from learners.rule.reasons import AMBIGUOUS, BACKGROUND, OUT_OF_DISTRIBUTION, Reason, Why
from tests.learners.rules import plain_rule


def one(path: str, best: str, p: float, reason: Reason, start: float | None = None) -> Prediction:
    end = None if start is None else start + 1
    label, other = "unknown" if reason else best, "b" if best == "a" else "a"
    top = [(best, p), (other, 1 - p)]
    return Prediction(Part(path, start, end), label, best, p, reason, top, NAN)


FILES = [
    one("1", "a", 0.6, AMBIGUOUS),
    one("2", "b", 0.9, Reason()),
    one("3", "b", 0.8, OUT_OF_DISTRIBUTION),
    one("4", "a", 0.99, BACKGROUND),
    one("5", "", NAN, Reason(Why.BAD_FILE, "empty")),
]


def recording(path: str, *windows: tuple[str, float, Reason]) -> Prediction:
    parts = [one(path, best, p, why, float(n)) for n, (best, p, why) in enumerate(windows)]
    return one(path, "a", 0.7, AMBIGUOUS).with_more(windows=tuple(parts))


RECORDINGS = [
    recording("x", ("a", 0.7, AMBIGUOUS), ("a", 0.6, AMBIGUOUS), ("b", 0.9, Reason())),
    recording("y", ("b", 0.8, AMBIGUOUS), ("a", 0.9, BACKGROUND), ("a", 0.65, AMBIGUOUS)),
]


def test_files_that_were_refused():
    merge = Candidates(Merge())
    rows = [row for file in merge(FILES) for row in merge.rows(file)]
    assert [(row.path, row.label, row.best) for row in rows] == [
        ("3", "unknown", "b"),
        ("1", "unknown", "a"),
    ]
    assert [merge.named(row) for row in rows] == ["b", "a"]
    assert [row.reason.why for row in rows] == [Why.OUT_OF_DISTRIBUTION, Why.AMBIGUOUS]
    assert merge.summary() == "2 candidates, refused (a 1, b 1)"


def test_windows_and_neighbours_of_one_guess_as_one_row():
    merge = Candidates(Windows())
    rows = [row for file in merge(RECORDINGS) for row in merge.rows(file)]
    assert [(row.path, row.probability) for row in rows] == [
        ("y", 0.8),
        ("x", 0.7),
        ("y", 0.65),
        ("x", 0.6),
    ]
    merge = Candidates(Events(plain_rule(2)))
    rows = [row for file in merge(RECORDINGS) for row in merge.rows(file)]
    spans = [(row.path, row.best, row.part.start, row.part.end) for row in rows]
    assert spans == [("y", "b", 0.0, 1.0), ("x", "a", 0.0, 2.0), ("y", "a", 2.0, 3.0)]
    assert {row.label for row in rows} == {"unknown"}


def test_the_rows_of_a_file_stay_together_where_each_has_a_table():
    merge = Candidates(Windows(), by_file=True)
    files = list(merge([*RECORDINGS, recording("z", ("a", 0.9, Reason()))]))
    assert [[row.probability for row in merge.rows(file)] for file in files] == [
        [0.8, 0.65],
        [0.7, 0.6],
    ]


def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("learners.predictions.candidates.MOST", 2)
    files = [one(str(n), "a", n / 100, AMBIGUOUS) for n in range(50)]
    assert [row.path for row in Candidates(Merge())(files)][:2] == ["49", "48"]


def test_each_is_marked():
    text = io.StringIO()
    write_csv(FILES, RowSettings(merge=Candidates(Merge()), features=[Unreviewed()]), text)
    header, *rows = text.getvalue().splitlines()
    assert header.endswith(",review")
    assert all(row.endswith(",unreviewed") for row in rows)
