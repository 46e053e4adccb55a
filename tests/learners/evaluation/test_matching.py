"""Which labels of data from elsewhere are those of a model."""

from __future__ import annotations

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from learners.evaluation.matching import match_classes


def test_a_file_labelled_with_a_group_is_neither_known_nor_unknown() -> None:
    """It would count as a wrong answer where the model names the group."""
    frame = pd.DataFrame({"path": ["a.jpg", "b.jpg", "c.jpg"], "label": ["apple", "milk", "fruit"]})
    table = Items(frame, frame.iloc[:0], "picture", "photos")
    with pytest.raises(SecondhandError, match=r"c\.jpg.*'fruit'"):
        match_classes(table, ["apple", "milk"], ["fruit"])
    match_classes(table, ["apple", "milk"], [])
    assert table.unknown_items["path"].tolist() == ["c.jpg"]
