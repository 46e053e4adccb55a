"""Empty cells, `none` and several labels in tables that people fill in."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.core.errors import SecondhandError
from datasets.items.facts import Labelled
from datasets.items.items import Items
from datasets.steps.reading import load_table, read_items
from tests.asked import asked
from tests.pictures import write_pictures

#: The columns of each table that is filled in, beside path and label.
SHEETS = {
    "page": ("predicted", "model", "time"),
    "suggest": ("score", "why", "guess"),
    "discover": ("cluster", "p_value"),
    "audit": ("guess", "stratum", "drawn"),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("nothing"), per_class=12)


def paths(pictures: Path, name: str, first: int, last: int) -> list[str]:
    return [str(pictures / name / f"{name}_{n:03d}.jpg") for n in range(first, last)]


def sheet(
    file: Path, files: list[str], labels: list[str], columns: tuple[str, ...] = SHEETS["suggest"]
) -> str:
    cells = {"path": files, "label": labels, **dict.fromkeys(columns, "")}
    pd.DataFrame(cells).to_csv(file, index=False)
    return str(file)


def read(data: list[str], **more: object) -> Items:
    return read_items(asked(data=data, **more))  # type: ignore[arg-type]


def labels_of(table: Items) -> dict[str, str]:
    return {Path(p).stem: n for p, n in table.frame[["path", "label"]].itertuples(index=False)}


@pytest.mark.parametrize("columns", SHEETS.values(), ids=SHEETS)
def test_an_empty_cell_is_not_labelled_yet_and_none_is_nothing(
    pictures: Path, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    written = ["red; green", "red|green", "", "none", " None ", "green;green", "red", "green"]
    data = sheet(tmp_path / "s.csv", paths(pictures, "blue", 0, 8), written, columns)
    table = load_table(data, labels="multi")
    assert [*labels_of(table).values()] == [
        "green|red",
        "green|red",
        "",
        "",
        "green",
        "red",
        "green",
    ]
    assert "blue_002" not in labels_of(table)
    (bad,) = table.rejected
    assert bad.path.endswith("blue_002.jpg")
    assert bad.reason == "not labelled yet (row 4 of s.csv)"


def test_in_another_table_an_empty_cell_shows_none_of_the_labels(
    pictures: Path, tmp_path: Path
) -> None:
    written = ["red|green", "", "red", "none", "green"]
    data = sheet(tmp_path / "t.csv", paths(pictures, "blue", 0, 5), written, ())
    table = load_table(data, labels="multi")
    assert [*labels_of(table).values()] == ["green|red", "", "red", "", "green"]
    assert table.classes == ["green", "red"]
    assert not table.rejected


def test_a_sheet_beside_a_table_of_columns_has_its_own_column(
    pictures: Path, tmp_path: Path
) -> None:
    red, none = [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]
    frame = pd.DataFrame({"path": paths(pictures, "red", 0, 5), "red": red, "none": none})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = sheet(tmp_path / "s.csv", paths(pictures, "red", 4, 7), ["red", "", "red;other"])
    table = load_table([str(tmp_path / "t.csv"), data], labels="red,none")
    expected = ["red", "red", "none", "none", "red", "red"]
    assert [*labels_of(table)] == [f"red_{n:03d}" for n in (0, 1, 2, 3, 4, 6)]
    assert [*labels_of(table).values()] == expected, "a column that is named is a class"


@pytest.mark.parametrize("written", ["none; red", "red|None", "unknown;red"])
def test_nothing_and_something_is_an_error(pictures: Path, tmp_path: Path, written: str) -> None:
    files = paths(pictures, "blue", 0, 5)
    data = sheet(tmp_path / "s.csv", files, ["red", written, "red", "green", "green"])
    with pytest.raises(
        SecondhandError, match=rf"s\.csv: .*{Path(files[1]).name}.*(?:[Nn]one|unknown) means"
    ):
        load_table(data, labels="multi")


def test_several_labels_where_an_item_has_one_are_an_error_that_names_the_row(
    pictures: Path, tmp_path: Path
) -> None:
    files = paths(pictures, "blue", 0, 4)
    data = sheet(tmp_path / "s.csv", files, ["red", "red", "red; green", "green"])
    with pytest.raises(
        SecondhandError, match=r"s\.csv, row 4: 'red; green' are several labels.*multi"
    ):
        load_table([str(pictures), data])
    frame = pd.read_csv(data, dtype=str, keep_default_na=False)
    frame["label"] = frame["guess"] = ["a; b", "a; b", "c", "c"]
    frame.to_csv(data, index=False)
    assert load_table(data).classes == ["a; b", "c"], "a class that the model has"


def test_files_labelled_none_are_of_the_background(pictures: Path, tmp_path: Path) -> None:
    empties = sheet(tmp_path / "b.csv", paths(pictures, "blue", 0, 6), [""] * 6, ())
    said = [*paths(pictures, "blue", 6, 9), *paths(pictures, "red", 0, 1)]
    data = sheet(tmp_path / "s.csv", said, ["none", "None", "none", "none"], SHEETS["page"])
    known = tmp_path / "known"
    known.mkdir()
    for name in ("red", "green"):
        (known / name).symlink_to(pictures / name)
    table = read([str(known), data], background=empties)
    assert table.classes == ["green", "red"]
    assert "red_000" not in labels_of(table), "it was corrected"
    of_it = table.background
    assert {Path(path).stem for path in of_it["path"]} == {
        *(f"blue_{n:03d}" for n in range(9)), "red_000"
    }  # fmt: skip
    assert set(of_it["label"]) == {"unknown"}
    assert set(of_it["split"]) == {"train", "valid", "calibration"}
    with pytest.raises(SecondhandError, match=r"'None' .* and 'none'"):
        read([str(known), data])  # without a background they are classes, as others are


def test_a_class_of_this_name_stays_one(pictures: Path, tmp_path: Path) -> None:
    labels = ["none"] * 6 + ["red"] * 6
    run = tmp_path / "run"
    run.mkdir()
    splits = ["train"] * 4 + ["valid", "calibration"]
    files = [*paths(pictures, "blue", 0, 6), *paths(pictures, "red", 0, 6)]
    frame = pd.DataFrame({"path": files, "label": labels, "split": splits * 2})
    frame.to_csv(run / "items.csv", index=False)
    empties = sheet(tmp_path / "b.csv", paths(pictures, "green", 0, 6), [""] * 6, ())
    data = sheet(tmp_path / "s.csv", paths(pictures, "blue", 6, 8), ["none", "none"])
    table = read([data], background=empties, from_=run / "model")
    assert table.classes == ["none", "red"]
    assert len(table.background) == 6


def test_windows_without_a_call_have_the_split_of_the_calls_beside_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    calls, empty = [], []
    for n in range(12):
        file = tmp_path / f"{n}.wav"
        soundfile.write(file, rng.normal(0, 0.1, 8000 * 6), 8000)
        calls.append({"path": file.name, "label": "ab"[n % 2], "start": 1, "end": 2})
        empty.append({"path": file.name, "label": "none", "start": 4, "end": 5})
    soundfile.write(tmp_path / "other.wav", rng.normal(0, 0.1, 8000 * 6), 8000)
    empty.append({"path": "other.wav", "label": "none", "start": 0, "end": 1})
    pd.DataFrame(calls).to_csv(tmp_path / "calls.csv", index=False)
    frame = pd.DataFrame(empty).assign(**dict.fromkeys(SHEETS["page"], ""))
    frame.to_csv(tmp_path / "labels.csv", index=False)
    data = [str(tmp_path / "calls.csv"), str(tmp_path / "labels.csv")]
    table = read(data, labelled_completely=True)
    splits = dict(zip(table.frame["path"], table.frame["split"], strict=True))
    assert len(table.frame) == 12
    assert len(table.background) == 13
    beside = table.background.loc[table.background["path"].isin(splits)]
    assert beside["split"].tolist() == beside["path"].map(splits).tolist()
    assert {*beside["split"]} == {"train", "valid", "calibration"}
    assert table.fact(Labelled).spans["label"].tolist().count("none") == 0, "they are no calls"


def test_what_was_learnt_and_is_nothing_keeps_its_split(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    splits = ["train"] * 4 + ["valid", "calibration"]
    files = {name: paths(pictures, name, 0, 6) for name in ("red", "green", "blue")}
    rows = [
        {"path": p, "label": n, "split": s}
        for n, of_it in files.items() for p, s in zip(of_it, splits, strict=True)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    frame.query("label != 'blue'").to_csv(run / "items.csv", index=False)
    frame.query("label == 'blue'").assign(label="unknown").to_csv(
        run / "background.csv", index=False
    )
    corrected = [
        files["red"][0],
        files["red"][5],
        files["blue"][5],
        paths(pictures, "blue", 8, 9)[0],
    ]
    data = sheet(tmp_path / "s.csv", corrected, ["none", "none", "green", "none"], SHEETS["page"])
    table = read([data], background=str(run / "background.csv"), from_=run / "model")
    of_it = table.background.set_index(table.background["path"].map(lambda p: Path(p).stem))[
        "split"
    ]
    assert of_it["red_000"] == "train"
    assert of_it["red_005"] == "calibration"
    assert "blue_005" not in of_it, "a call in what was background"
    assert labels_of(table)["blue_005"] == "green"
    assert of_it["blue_008"] in ("train", "valid", "calibration")
    assert len(of_it) == 5 + 2 + 1


def test_windows_of_a_background_keep_their_own_splits(pictures: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = tmp_path / "run"
    run.mkdir()
    splits = ["train", "valid", "calibration"]
    calls, empty = [], []
    for n in range(6):
        file = tmp_path / f"{n}.wav"
        soundfile.write(file, rng.normal(0, 0.1, 8000 * 6), 8000)
        calls += [
            {"path": str(file), "label": "ab"[n % 2], "start": 2.0 * k, "end": 2.0 * k + 1, "split": split}
            for k, split in enumerate(splits)
        ]  # fmt: skip
        empty += [
            {"path": str(file), "label": "unknown", "start": 2.0 * k + 1, "end": 2.0 * k + 2, "split": split}
            for k, split in enumerate(splits)
        ]  # fmt: skip
    pd.DataFrame(calls).to_csv(run / "items.csv", index=False)
    pd.DataFrame(empty).to_csv(run / "background.csv", index=False)
    new = pd.DataFrame([calls[0] | {"start": 0.5, "end": 1.5, "split": "", "label": "none"}])
    new.assign(**dict.fromkeys(SHEETS["page"], "")).to_csv(tmp_path / "new.csv", index=False)
    data = [str(tmp_path / "new.csv")]
    table = read(data, background=str(run / "background.csv"), from_=run / "model")
    found = table.background.set_index(["path", "start"])["split"]
    expected = {(row["path"], row["start"]): row["split"] for row in empty}
    assert found.to_dict() == expected | {(calls[0]["path"], 0.5): "train"}


def test_a_sheet_beside_columns_says_none(pictures: Path, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"path": paths(pictures, "red", 0, 4), "red": [1, 1, 0, 0], "blue": [0, 0, 1, 1]}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = sheet(tmp_path / "s.csv", paths(pictures, "red", 5, 7), ["none", "red;blue"])
    table = load_table([str(tmp_path / "t.csv"), data], labels="red,blue")
    assert table.classes == ["blue", "red"]
    assert [*labels_of(table).values()][-2:] == ["", "blue|red"]


def test_a_label_that_differs_in_case_names_both(pictures: Path, tmp_path: Path) -> None:
    written = ["red; Green", "green", "red", "green"]
    data = sheet(tmp_path / "s.csv", paths(pictures, "blue", 0, 4), written)
    with pytest.raises(SecondhandError, match=re.escape("'Green' (1 file) and 'green' (2 files)")):
        load_table(data, labels="multi")
