"""One label per item: which labels of other data are those of a model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from learners.tasks.single import SingleLabel
from learners.uncertainty.tree import TOP, Tree


def test_a_file_labelled_with_a_group_is_neither_known_nor_unknown() -> None:
    """It would count as a wrong answer where the model names the group."""
    frame = pd.DataFrame({"path": ["a.jpg", "b.jpg", "c.jpg"], "label": ["apple", "milk", "fruit"]})
    classes = ["apple", "milk"]
    task = SingleLabel(tree=Tree(("apple", "milk", "fruit"), np.array([2, TOP, TOP]), 2))
    with pytest.raises(SecondhandError, match=r"c\.jpg.*'fruit'"):
        task.match_labels(Items(frame, frame.iloc[:0], "picture", "photos"), classes, None)
    table = Items(frame, frame.iloc[:0], "picture", "photos")
    SingleLabel().match_labels(table, classes, None)
    assert table.unknown_items["path"].tolist() == ["c.jpg"]
