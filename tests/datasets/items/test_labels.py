"""Several labels per item: how tables give them, and how items are split."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.labels import encode_targets, joined_by, parse_names
from datasets.items.splits import assign_splits, missing_split
from datasets.steps.reading import load_table


def write(folder: Path, text: str) -> Path:
    """Write a table and the files that its rows name."""
    for line in text.splitlines()[1:]:
        (folder / line.split(",")[0]).write_text(line)
    (folder / "items.csv").write_text(text)
    return folder / "items.csv"


def labels(file: Path, labels_flag: str = "multi") -> dict[str, str]:
    frame = load_table(file, kind="sound", labels=labels_flag, check=False).frame
    return dict(zip(frame["path"].map(lambda path: Path(path).name), frame["label"], strict=True))


TEXT = "path,label\na.wav, rain | bird\nb.wav,bird\nc.wav,\nd.wav,?bird|rain\ne.wav,unknown\n"


def test_a_cell_may_hold_several_labels_or_none(tmp_path: Path) -> None:
    table = load_table(write(tmp_path, TEXT), labels="multi", check=False)
    assert table.frame["label"].tolist() == ["bird|rain", "bird", "", "rain|?bird"]
    assert (table.classes, len(table.unknown_items)) == (["bird", "rain"], 1)
    assert encode_targets("bird|rain", table.classes) == [1, 1]
    assert encode_targets("bird", table.classes) == [1, 0]
    known = encode_targets("rain|?bird", table.classes)
    assert math.isnan(known[0])
    assert known[1] == 1
    # A run's items.csv is read back unchanged.
    table.frame.to_csv(tmp_path / "again.csv", index=False)
    again = load_table(tmp_path / "again.csv", labels="multi", check=False).frame
    assert again["label"].tolist() == table.frame["label"].tolist()


def test_a_column_a_class_says_what_is_not_known(tmp_path: Path) -> None:
    text = "path,Bird,Rain\na.wav,1,0\nb.wav,,1\nc.wav,0,0\nd.wav,,\ne.wav,1.0,TRUE\n"
    file = write(tmp_path, text)
    expected = {"a.wav": "Bird", "b.wav": "Rain|?Bird", "c.wav": "", "e.wav": "Bird|Rain"}
    assert labels(file, "Bird,Rain") == expected
    table = load_table(file, labels="Bird,Rain", check=False)
    assert [item.reason for item in table.rejected] == ["all labels are empty (row 5 of items.csv)"]
    with pytest.raises(
        SecondhandError, match=r"no column 'Snow' of --labels\. It has 'path', 'Bird'"
    ):
        labels(file, "Bird,Snow")
    with pytest.raises(SecondhandError, match=r"row 2: Rain is '2' \(must be 1, 0 or empty"):
        labels(write(tmp_path, "path,Bird,Rain\na.wav,1,2\n"), "Bird,Rain")


@pytest.mark.parametrize(
    ("text", "labels_flag", "message"),
    [
        (TEXT, None, r"contains \|, which separates the labels .* --labels multi"),
        (
            "path,label,best,reason\na.wav,bird|rain,bird,\n",
            "multi",
            "these are predictions of a model",
        ),
        ("path,label\na.wav,bird|unknown\n", "multi", "means none of the classes"),
        (
            "path,label\na.wav,bird\na.wav,rain\n",
            "multi",
            "has two labels: 'bird' in row 2 and 'rain' in row 3. Write its labels into one row",
        ),
        (
            "path,label\na.wav,bird|rain\nb.wav,bird\n",
            "multi",
            "two classes need 2 usable files each, .* but 'rain' has 1",
        ),
        (
            "path,label\na.wav,bird|b ird\nb.wav,bird\n",
            "multi",
            r"differ only in case or spaces.* 'b ird' is that of .*a\.wav \(row 2 of ",
        ),
        (
            "path,label\na.wav,bird\nb.wav,rain\nc.wav,Bird\n",
            None,
            r"items\.csv: the labels 'Bird' \(1 file\) and 'bird' \(1 file\) differ only in case or spaces: merge or "
            r"rename them\. 'Bird' is that of .*c\.wav \(row 4 of items\.csv\) and 'bird' is that of .*a\.wav \(row 2 of "
            r"items\.csv\)",
        ),
        (
            f"path,label\na.wav,bird\nb.wav,{'x' * 300}\n",
            None,
            r"has 300 characters.*b\.wav \(row 3 of items\.csv\)",
        ),
    ],
)
def test_what_cannot_be_meant_is_an_error(
    tmp_path: Path, text: str, labels_flag: str | None, message: str
) -> None:
    with pytest.raises(SecondhandError, match=message):
        load_table(write(tmp_path, text), labels=labels_flag, check=False)


def test_a_label_of_one_item_is_taken_out_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "path,label\na.wav,bird|rain\nb.wav,bird|snow\nc.wav,rain\nd.wav,?snow\n"
    table = load_table(write(tmp_path, text), labels="multi", check=False)
    assert table.frame["label"].tolist() == ["bird|rain", "bird", "rain", ""]
    assert table.classes == ["bird", "rain"]
    assert "'snow' (1 usable file; a class needs 2" in caplog.text


def test_folders_have_one_label_a_file(tmp_path: Path) -> None:
    for name in ("a|b", "c"):
        (tmp_path / name).mkdir()
        for number in "12":
            (tmp_path / name / f"{number}.wav").write_text(name + number)
    with pytest.raises(SecondhandError, match=r"label 'a\|b' contains \|"):
        load_table(tmp_path, check=False)
    with pytest.raises(
        SecondhandError, match=f"--labels with --data {tmp_path}: multi-label items need a table"
    ):
        load_table(tmp_path, labels="multi")


def test_splits_have_their_part_of_each_label_and_of_groups_all_or_nothing() -> None:
    """Rare labels too (Sechidis 2011, iterative stratification), with undivided groups."""
    rng = np.random.default_rng(0)
    present = rng.random((400, 6)) < [0.5, 0.3, 0.2, 0.1, 0.05, 0.02]
    frame = pd.DataFrame(
        {
            "path": [f"{n}.wav" for n in range(400)],
            "label": ["|".join(f"c{k}" for k in np.flatnonzero(row)) for row in present],
            "group": [f"g{n // 2}" for n in range(400)],
            "split": "",
        }
    )
    split, dropped = assign_splits(frame, seed=1)
    assert not dropped
    assert not missing_split(split)
    assert split.groupby("group")["split"].nunique().max() == 1
    for part in ("valid", "calibration"):
        held_labels = split.loc[split["split"].eq(part), "label"]
        counts = pd.Series(
            [name for label in held_labels for name in parse_names(label)]
        ).value_counts()
        for k, total in enumerate(present.sum(axis=0)):
            assert abs(counts.get(f"c{k}", 0) - 0.15 * total) <= max(2, 0.15 * 0.15 * total), k


@pytest.mark.parametrize(
    ("names", "several", "expected"),
    [
        (["fox", "fox, deer"], True, (",", "fox, deer")),
        (["fox", "fox; deer"], True, (";", "fox; deer")),
        (["fox", "owl, deer"], True, ("", "")),
        (["fox", "fox, deer"], False, ("", "")),
    ],
)
def test_a_comma_joins_names_of_which_one_is_a_label(
    names: list[str], several: bool, expected: tuple[str, str]
) -> None:
    assert joined_by(names, several=several) == expected


@pytest.mark.parametrize("word", ["nocall", "Nocall", "NO CALL", "no_call"])
def test_a_span_in_which_birdnet_found_nothing_has_no_class(tmp_path: Path, word: str) -> None:
    cells = ["a", "b", word, "a|b", f"b|{word}"]
    rows = [f"{n}.wav,{n},{n + 3},{label}" for n, label in enumerate(cells)]
    file = write(tmp_path, "\n".join(["path,start,end,label", *rows]))
    multi = load_table(file, kind="sound", labels="multi", check=False)
    assert multi.frame["label"].tolist() == ["a", "b", "", "a|b", "b"]
    single = [*rows[:2], rows[2], "5.wav,1,2,a", "6.wav,1,2,b"]
    file = write(tmp_path, "\n".join(["path,start,end,label", *single]))
    learned = load_table(file, kind="sound", check=False)
    assert (learned.classes, len(learned.frame)) == (["a", "b"], 4)
    (rejected,) = learned.rejected
    assert rejected.path.endswith("2.wav")
    assert "--background" in rejected.reason
    heard = load_table(file, kind="sound", learned=False, check=False)
    assert heard.classes == ["a", "b"]
    assert heard.unknown_items["path"].str.endswith("2.wav").tolist() == [True]
    files = "\n".join(["path,label", f"0.wav,{word}", f"1.wav,{word}", "2.wav,a", "3.wav,a"])
    assert load_table(write(tmp_path, files), kind="sound", check=False).classes == sorted(
        ["a", word]
    )
