"""Which items a model is compared on with the earlier one."""

from __future__ import annotations

import pandas as pd

from datasets.items.columns import with_columns
from datasets.items.items import Items
from fields.loop.after_training import without


def test_files_of_the_earlier_model_take_their_background_with_them():
    """Both models would otherwise be compared on other rows: the background has no mark of its own."""

    def rows(*paths: str) -> pd.DataFrame:
        return with_columns(pd.DataFrame({"path": paths, "label": "a"}))

    items, unknown = rows("/old.wav", "/new.wav", "/old.wav"), rows("/new.wav", "/old.wav")
    table = Items(items, unknown, "sound", "", background=rows("/old.wav", "/new.wav"))
    left = without(table, pd.Series(["/old.wav"]))
    for part in (left.frame, left.background, left.unknown_items):
        assert part["path"].tolist() == ["/new.wav"]
