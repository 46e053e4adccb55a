"""The items of a run are counted, and the evaluation protocol is stated for each kind of split."""

from __future__ import annotations

import pandas as pd
import pytest

from datasets.items.columns import with_columns
from datasets.items.describe import LISTED, describe_protocol, described
from datasets.items.facts import Groups, NearDuplicates, Sessions
from datasets.items.items import Items
from datasets.items.settings import SplitSettings
from datasets.steps.base import Asked
from datasets.steps.split import divide, folds_of
from tests.asked import asked


def protocol(
    data: Asked,
    *,
    near: NearDuplicates | None = None,
    sessions: Sessions | None = None,
    **columns: object,
) -> str:
    """Return the protocol of 40 items of two classes with these columns and settings."""
    rows = {"path": [f"{n}.png" for n in range(40)], "label": ["a", "b"] * 20}
    whole = with_columns(pd.DataFrame({**rows, **columns}))
    splits = data.of(SplitSettings)
    if splits.cv and not splits.fold:  # all folds together
        frame = whole.assign(fold=folds_of(whole, data))
    else:
        frame, _ = divide(whole, data)
    groups = Groups(whole["group"].loc[whole["group"].ne("")].nunique())
    table = Items(frame, frame.iloc[:0], "picture", "x").knowing(groups)
    table = table.knowing(*(fact for fact in (near, sessions) if fact is not None))
    return describe_protocol(table, whole, splits)


SITES = [f"site {n // 5}" for n in range(40)]
FOLDS = [str(n // 8) for n in range(40)]
PARTS = ["train"] * 20 + ["valid"] * 12 + ["test"] * 8


DRAWN, LESS = "a random split of 2 classes", "; expect lower accuracy at other sites"
NEAR = {"near": NearDuplicates((2, 2, 2, 3)), "sessions": Sessions(files=20, together=5)}
KEPT = "; near-duplicates kept together: 9 files in 4 clusters, the largest of 3"
KEPT += "; capture sessions kept together: 20 files in 5 sessions"
LOOSE = {"near": NearDuplicates(), "sessions": Sessions(files_apart=4, divided=2, error="…")}
APART = (
    "capture sessions: not kept together: 4 files in 2 sessions, because no split is possible (…), so the figures may be "
    "too good"
)


@pytest.mark.parametrize(
    ("data", "columns", "expected"),
    [
        ({}, {}, DRAWN + LESS),
        ({}, NEAR, DRAWN + KEPT + LESS),
        ({}, LOOSE, f"{DRAWN}; {APART}{LESS}"),
        (
            {},
            {"near": NearDuplicates((2,), (8,))},
            f"{DRAWN}; near-duplicates kept together: 2 files in 1 cluster, the largest of 2; not kept together: 1 cluster "
            f"of 8 files, which holds more than half of a class{LESS}",
        ),
        (
            {},
            {"near": NearDuplicates((), (8, 9))},
            f"{DRAWN}; near-duplicates: none found; not kept together: 2 clusters of 8, 9 files, each of which holds more "
            f"than half of a class{LESS}",
        ),
        (
            {},
            {"group": SITES},
            "groups that were not in training (2 of 8), drawn at random",
        ),
        (
            {},
            {"group": [*SITES[:20], *[""] * 20]},
            f"{DRAWN}; each of 4 groups stays in one split",
        ),
        (
            {},
            {"group": ["a"] * 30 + ["b"] * 10},
            "groups that were not in training (1 of 2), drawn at random; validation and calibration share b",
        ),
        (
            {},
            {"group": ["a"] * 20 + ["b"] * 19 + [""], "split": [""] * 39 + ["test"]},
            "the test split that the data name, and for the other files on a random split; "
            "each of 2 groups stays in one split, except b, which validation and calibration share",
        ),
        ({}, {"split": PARTS}, "the splits that the data name (test, train, valid)"),
        (
            {},
            {"split": ["train"] * 32 + ["test"] * 8},
            f"the test split that the data name, and for the other files on a random split{LESS}",
        ),
        ({"fold": "3"}, {"fold": FOLDS}, "fold 3 of 5, as named in the data"),
        ({"cv": "fold", "fold": "3"}, {"fold": FOLDS}, "fold 3 of 5, as named in the data"),
        (
            {"cv": "group", "fold": "site 2"},
            {"group": SITES},
            "group site 2 of 8, left out of training",
        ),
        ({"cv": 4, "fold": "1"}, {}, f"fold 1 of 4, drawn at random{LESS}"),
        ({"cv": 4}, {"near": NearDuplicates()}, f"4 folds, drawn at random{LESS}"),
        ({"cv": "group"}, {"group": SITES}, "8 groups, each left out of training"),
    ],
)
def test_each_way_to_split_is_told(data, columns, expected):
    assert protocol(asked(data="x", **data), **columns) == expected


MANY = [f"c{n:02d}" for n in range(LISTED + 1)]


@pytest.mark.parametrize(
    ("labels", "more", "expected"),
    [
        (
            [*"aaabb"],
            {},
            ["5 files of 2 classes", "training validation calibration files", "a 3 0 0 3", "b 0 1 1 2", "all 3 1 1 5"],
        ),
        (
            [*MANY, *MANY, *MANY[:-1]],
            {},
            ["38 files of 13 classes", "training validation calibration files", "all 36 1 1 38", "Smallest class: c12, 2 files"],
        ),
        (
            ["a|b", "a", "b", "", "a"],
            {"multi_label": True},
            [
                "5 files of 2 labels", "training validation calibration files", "a 2 1 0 3", "b 2 0 0 2", "no label 0 0 1 1",
                "all 3 1 1 5",
            ],
        ),
        (
            ["|".join(MANY), *MANY[1:], "?c00", "c01"],
            {"multi_label": True},
            ["15 files of 13 labels", "training validation calibration files", "all 13 1 1 15", "Smallest label: c00, 1 file"],
        ),
        (
            [*"aaabb"],
            {"windows": 9, "unknown": 2, "background": ["train", "train", "valid"]},
            [
                "5 files of 2 classes, cut into 9 windows",
                "training validation calibration files", "a 3 0 0 3", "b 0 1 1 2", "all 3 1 1 5",
                "Unknown classes: 2 files, never trained on",
                "Background: 3 files, 2 of them for training",
            ],
        ),
    ],
)  # fmt: skip
def test_the_data_are_counted_by_class_and_split(labels, more, expected):
    paths = [f"{n}.png" for n in range(len(labels))]
    splits = ["train"] * (len(labels) - 2) + ["calibration", "valid"]
    frame = with_columns(pd.DataFrame({"path": paths, "label": labels, "split": splits}))
    table = Items(
        frame, frame.iloc[: more.get("unknown", 0)], "picture", "x",
        multi_label=more.get("multi_label", False),
        background=pd.DataFrame({"split": more.get("background", [])}),
    )  # fmt: skip
    lines = described(table, more.get("windows", len(frame)))
    assert [" ".join(line.split()) for line in lines] == [f"Data: x, {expected[0]}", *expected[1:]]
