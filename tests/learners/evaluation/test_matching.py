"""Which labels of data from elsewhere are those of a model."""

from __future__ import annotations

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from datasets.items.labels import MULTI
from learners.evaluation.matching import label_columns, match_classes, match_labels


def test_a_file_labelled_with_a_group_is_neither_known_nor_unknown() -> None:
    """It would count as a wrong answer where the model names the group."""
    frame = pd.DataFrame({"path": ["a.jpg", "b.jpg", "c.jpg"], "label": ["apple", "milk", "fruit"]})
    table = Items(frame, frame.iloc[:0], "picture", "photos")
    with pytest.raises(SecondhandError, match=r"c\.jpg.*'fruit'"):
        match_classes(table, ["apple", "milk"], ["fruit"])
    table, _ = match_classes(table, ["apple", "milk"], [])
    assert table.unknown_items["path"].tolist() == ["c.jpg"]


@pytest.mark.parametrize(
    ("head", "column", "expected"),
    [
        ("path,Bird,Rain", None, ["Bird", "Rain"]),
        ("path,Rain", "heard", ["Rain"]),
        ("path,label,Rain", None, MULTI),
        ("path,heard,Rain", "heard", MULTI),
        ("path,Snow", None, MULTI),
    ],
)
def test_a_table_has_a_column_a_class_or_one_of_all_labels(tmp_path, head, column, expected):
    table = tmp_path / "items.csv"
    table.write_text(f"{head}\n{'1,' * head.count(',')}1\n")
    assert label_columns(table, column, ["Bird", "Rain"]) == expected
    assert label_columns(tmp_path, column, ["Bird", "Rain"]) == MULTI


@pytest.mark.parametrize(
    ("labels", "columns", "matched", "named"),
    [
        (["bird|snow", "?rain", ""], MULTI, ["bird", "?rain", ""], ["snow"]),
        (["bird", ""], ["bird"], ["bird|?rain", "?rain"], ["rain"]),
        (["bird|rain"], MULTI, ["bird|rain"], []),
        (["", ""], MULTI, ["", ""], []),
        (["snow", ""], MULTI, None, ["snow"]),
    ],
)
def test_labels_that_a_model_has_not_are_ignored(labels, columns, matched, named):
    """Those without a column are not known; where the model has none of all labels, others are meant."""
    frame = pd.DataFrame({"path": [f"{n}.wav" for n in range(len(labels))], "label": labels})
    table = Items(frame, frame.iloc[:0], "sound", "t.csv")
    if matched is None:
        with pytest.raises(SecondhandError, match=named[0]):
            match_labels(table, ["bird", "rain"], columns)
    else:
        table, lines = match_labels(table, ["bird", "rain"], columns)
        assert table.frame["label"].tolist() == matched
        assert [name in line for name, line in zip(named, lines, strict=True)] == [True] * len(
            named
        )
