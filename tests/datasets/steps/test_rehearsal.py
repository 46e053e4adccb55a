"""Items of an earlier run beside new ones: both training and held-out items keep their parts."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.core.file_state import FileState
from datasets.core.shipped import left_out
from datasets.items.columns import with_columns
from datasets.items.describe import described
from datasets.items.facts import Corrections, Protocol
from datasets.items.loaded import Loaded
from datasets.items.splits import SPLITS
from datasets.steps.base import Asked
from datasets.steps.earlier import CHANGED
from datasets.steps.reading import read_items
from datasets.steps.split import check_splits, divide, folds_of
from learners.cli.flags import parse
from learners.runs.folder import read_run_settings, write_config
from learners.runs.run import load_items
from tests.asked import asked
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

PARTS = ("train", "valid", "calibration")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("replay"), per_class=20, unknown=2)


def rows(folder: Path, label: str, first: int, last: int, **more: str) -> pd.DataFrame:
    paths = [str(folder / label / f"{label}_{n:03d}.jpg") for n in range(first, last)]
    return pd.DataFrame({"path": paths, "label": label, **more})


@pytest.fixture
def run(pictures: Path, tmp_path: Path) -> Path:
    """An earlier run on twelve files of each of two classes, and two of unknown classes."""
    parts = [
        rows(pictures, label, *span, split=part)
        for label in ("red", "green")
        for part, span in zip(PARTS, ((0, 8), (8, 10), (10, 12)), strict=True)
    ]
    table = pd.concat([*parts, rows(pictures, "unknown", 0, 2, split="unknown")])
    (tmp_path / "run").mkdir()
    table.to_csv(tmp_path / "run" / "items.csv", index=False)
    return tmp_path / "run"


def prepare_items(data: Asked, folder: Path) -> Loaded:
    """Return the items of a run with these settings."""
    return load_items(read_items(data), data, folder)


def load(run: Path, new: pd.DataFrame, **more: object) -> Loaded:
    file = run.parent / "new.csv"
    new.to_csv(file, index=False)
    (run.parent / "out").mkdir(exist_ok=True)
    data = asked(data=str(file), from_=run / "model", **more)  # type: ignore[arg-type]
    return prepare_items(data, run.parent / "out")


def split_labels(loaded: Loaded) -> dict[str, str]:
    frame = loaded.table.frame
    return dict(zip(frame["path"], frame["split"], strict=True))


def before(run: Path) -> dict[str, str]:
    old = pd.read_csv(run / "items.csv").query("split != 'unknown'")
    return dict(zip(old["path"], old["split"], strict=True))


def test_old_items_keep_their_parts_and_new_ones_are_split(
    run: Path, pictures: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An old item that is named again keeps its part too; a missing file is listed and counted."""
    caplog.set_level("INFO")
    old = before(run)
    table = pd.read_csv(run / "items.csv")
    table.loc[len(table)] = {"path": "gone.jpg", "label": "red", "split": "valid"}
    table.to_csv(run / "items.csv", index=False)
    new = pd.concat([rows(pictures, "blue", 0, 14), rows(pictures, "red", 9, 10)])
    loaded = load(run, new)
    labels_of_splits = split_labels(loaded)
    assert {path: labels_of_splits[path] for path in old} == old
    blue = loaded.table.frame.query("label == 'blue'")
    assert set(blue["split"]) == set(PARTS)
    assert len(labels_of_splits) == 24 + 14
    assert len(loaded.table.unknown_items) == 2
    assert loaded.table.source == str(run.parent / "new.csv")
    assert "16 of its 16 training items are rehearsed; its 8 other items keep their splits; 1 of " in (
        caplog.text
    )  # fmt: skip
    assert [Path(bad.path).name for bad in loaded.table.rejected] == ["gone.jpg", "red_009.jpg"]
    assert loaded.table.fact(Protocol).text.startswith("the splits of the earlier run, and for new")


def test_from_another_folder_the_runs_files_are_the_same(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other folder has files of the same names with other contents."""
    first, second = tmp_path / "here", tmp_path / "there"
    shutil.copytree(pictures, first / "small", ignore=shutil.ignore_patterns("blue", "unknown"))
    for label, other in (("red", "green"), ("green", "red")):
        for file in (first / "small" / label).iterdir():
            lookalike = second / "small" / label / file.name
            lookalike.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(first / "small" / other / file.name.replace(label, other), lookalike)
    monkeypatch.chdir(first)
    settings = parse(["--data", "small", "--out", "runs/x", "--classes-table", "x.csv"])
    assert (settings.data.data, settings.run.out) == (str(first / "small"), first / "runs/x")
    assert settings.classes.classes_table == first / "x.csv"
    assert parse(["--data", "demo:digits"]).data.data == "demo:digits"
    assert parse(["--from", "hf:a/b"]).warm_start.from_ == Path("hf:a/b")
    # A program that passes relative paths gets absolute ones in the run's tables.
    run = Path("runs/x")
    run.mkdir(parents=True)
    write_config(run, settings, "")
    begun = prepare_items(asked(data="small"), run).table.frame
    files = {str(file) for file in (first / "small").rglob("*.jpg")}
    assert set(pd.read_csv(run / "items.csv")["path"]) == files

    monkeypatch.chdir(second)
    run = first / "runs/x"
    if "loop" not in left_out():
        labelled = import_module("fields.loop.teaching").labelled_in(run / "model")
        assert {*map(FileState.content.fget, map(FileState.read, files))} == {*labelled.contents}
    argv = ["--resume", str(run)]
    assert read_run_settings(run, parse(argv).given()).data == settings.data
    loaded = load(run, rows(pictures, "blue", 0, 14))
    old = loaded.table.frame.query("rehearsed").set_index("path")
    assert old["split"].to_dict() == begun.set_index("path")["split"].to_dict()
    assert old["label"].to_dict() == begun.set_index("path")["label"].to_dict()


def test_a_file_of_another_content_is_not_replayed(
    run: Path, pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted and listed; given again, it is a new file."""
    copies = tmp_path / "copies"
    shutil.copytree(pictures, copies)
    prepare_items(asked(data=str(copies)), run)
    items = pd.read_csv(run / "items.csv").set_index("path")["split"]
    for label in ("red", "green"):  # of equal size, as a re-encoded WAV would be
        one = copies / label / f"{label}_003.jpg"
        content = one.read_bytes()
        one.write_bytes(content[:15] + b"x" + content[16:])
    shutil.copy(pictures / "unknown" / "unknown_001.jpg", copies / "unknown" / "unknown_000.jpg")
    caplog.set_level("INFO")
    loaded = load(run, rows(copies, "red", 3, 4, split="train"))
    changed = [str(copies / label / f"{label}_003.jpg") for label in ("green", "red")]
    rejected_paths = [bad.path for bad in loaded.table.rejected if bad.reason == CHANGED]
    assert rejected_paths == [*changed, str(copies / "unknown" / "unknown_000.jpg")]
    frame = loaded.table.frame.set_index("path")
    assert set(frame.index) == set(items.index[items.ne("unknown")]) - {changed[0]}
    assert not frame.loc[changed[1], "rehearsed"]
    assert "3 have changed since and are left out" in caplog.text


def test_a_correction_of_what_was_held_out_is_held_out(run: Path, pictures: Path) -> None:
    """A copy under another name is the same file. New files of one group are all trained on."""
    copy = shutil.copy(pictures / "red" / "red_011.jpg", run.parent / "corrected.jpg")
    corrected = pd.DataFrame({"path": [copy], "label": ["green"]})
    loaded = load(
        run, pd.concat([corrected, rows(pictures, "red", 15, 17).assign(group="bob")]).fillna("")
    )
    corrected = str(pictures / "red" / "red_011.jpg")
    row = loaded.table.frame.set_index("path").loc[corrected]
    assert (row["split"], row["label"]) == ("calibration", "green")
    labels_of_splits = split_labels(loaded)
    assert [labels_of_splits[path] for path in rows(pictures, "red", 15, 17)["path"]] == [
        "train"
    ] * 2
    assert loaded.table.fact(Corrections).frame["path"].tolist() == [corrected]


def test_what_belongs_to_an_old_file_goes_where_that_is(run: Path, pictures: Path) -> None:
    """This holds for the data's groups and for near-duplicates."""
    table = pd.read_csv(run / "items.csv").assign(group="")
    table.loc[table["path"].str.endswith("red_008.jpg"), "group"] = "ann"
    table.loc[table["path"].str.endswith("green_008.jpg"), "group"] = "near-duplicates 1"
    table.to_csv(run / "items.csv", index=False)
    burst = run.parent / "burst.png"
    from PIL import Image

    Image.open(pictures / "red" / "red_010.jpg").save(burst)
    new = pd.concat(
        [
            rows(pictures, "blue", 0, 14, group=""),
            rows(pictures, "red", 15, 18, group="ann"),
            pd.DataFrame({"path": [str(burst)], "label": ["red"], "group": [""]}),
        ]
    )
    loaded = load(run, new)
    labels_of_splits = split_labels(loaded)
    assert {labels_of_splits[path] for path in rows(pictures, "red", 15, 18)["path"]} == {"valid"}
    assert labels_of_splits[str(burst)] == "calibration"
    groups = loaded.table.frame.set_index("path")["group"]
    assert groups[str(burst)] == "near-duplicates 2", "1 is another cluster's name"


def test_a_part_of_what_was_learnt(run: Path, pictures: Path) -> None:
    """A fraction of each class is rehearsed; held-out items all stay, unless the fraction is 0."""
    new = rows(pictures, "blue", 0, 14)
    half = load(run, new, rehearsal=0.3).table.frame.query("label != 'blue'")
    assert half.groupby(["label", "split"]).size().to_dict() == {
        ("green", "train"): 3, ("green", "valid"): 2, ("green", "calibration"): 2,
        ("red", "train"): 3, ("red", "valid"): 2, ("red", "calibration"): 2,
    }  # fmt: skip
    with pytest.raises(SecondhandError, match="only the class 'blue', but at least two classes"):
        load(run, new, rehearsal=0)
    new = pd.concat([new, rows(pictures, "red", 12, 20)])
    nothing = load(run, new, rehearsal=0).table
    assert nothing.classes == ["blue", "red"]
    old = nothing.frame.loc[nothing.frame["path"].isin(before(run))]
    assert sorted(old["split"]) == ["calibration"] * 2 + ["valid"] * 2


def test_without_the_items_of_its_run_the_new_ones_stand_alone(
    run: Path, pictures: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run / "items.csv").unlink()
    new = pd.concat([rows(pictures, label, 0, 14) for label in ("blue", "red")])
    loaded = load(run, new)
    assert len(loaded.table.frame) == 28
    assert "no items.csv beside it" in caplog.text
    with pytest.raises(SecondhandError, match="only the class 'blue', but at least two"):
        load(run, rows(pictures, "blue", 0, 14))


def test_folds_are_of_new_items_alone(run: Path, pictures: Path) -> None:
    """A fold of items that the weights were trained on would test nothing."""
    loaded = load(run, rows(pictures, "blue", 0, 12))
    assert "36 files (12 new, 24 of the earlier run) of 3 classes" in described(loaded.table)[0]
    table = loaded.table.frame.assign(split=lambda f: f["split"].where(f["rehearsed"], ""))
    table.loc[table["split"].eq("valid"), "split"] = "test"
    folds = folds_of(table, asked(cv=3))
    assert folds[table["rehearsed"]].eq("").all()
    assert sorted(folds[~table["rehearsed"]]) == ["1"] * 4 + ["2"] * 4 + ["3"] * 4
    check_splits(table, asked(cv=3))
    tested, _ = divide(table, asked(cv=3, fold="2"))
    test = tested.loc[tested["split"].eq("test")]
    assert len(test) == 4
    assert not test["rehearsed"].any()
    counts = tested.loc[tested["rehearsed"], "split"].value_counts().to_dict()
    assert counts == {"train": 16, "calibration": 8}
    assert set(tested["split"]) <= {*SPLITS}


@pytest.mark.parametrize("seed", [0, 1])
def test_each_fold_is_tested_by_the_run_that_names_it(seed: int) -> None:
    files = pd.DataFrame({"path": [f"{n}.png" for n in range(24)], "label": ["a", "b"] * 12})
    table = with_columns(files)
    folds = folds_of(table, asked(cv=3, seed=seed))
    for name in "123":
        frame, _ = divide(table, asked(cv=3, fold=name, seed=seed))
        tested = frame.index[frame["split"].eq("test")]
        assert [*tested] == [*folds.index[folds.eq(name)]]


def test_a_class_of_one_corrected_file_waits_for_more(
    run: Path, pictures: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So does a class whose files were all held out; the run goes on without them."""
    blue = rows(pictures, "blue", 0, 14)
    one = rows(pictures, "red", 3, 4).assign(label="Onion")
    corrected = rows(pictures, "green", 8, 10).assign(label="Leek")
    table = load(run, pd.concat([blue, one, corrected])).table
    assert table.classes == ["blue", "green", "red"]
    onion, *leeks = one["path"].tolist() + corrected["path"].tolist()
    assert not {onion, *leeks} & {*table.frame["path"]}
    listed = dict(pd.read_csv(run.parent / "out" / "rejected.csv").to_numpy())
    assert "'Onion' has 1 usable file; a class needs 2" in listed[onion]
    assert all("no training file is left of its class 'Leek'" in listed[p] for p in leeks)
    assert "'Onion' (1 usable file; a class needs 2" in caplog.text
    two = pd.concat([one, rows(pictures, "red", 12, 13).assign(label="Onion")])
    assert "Onion" in load(run, pd.concat([blue, two])).table.classes


def test_a_background_keeps_its_parts(run: Path, pictures: Path) -> None:
    listed = rows(pictures, "green", 12, 18).assign(
        label="unknown", split=["valid", "train", "calibration", "train", "valid", "train"]
    )
    listed.to_csv(run / "background.csv", index=False)
    loaded = load(run, rows(pictures, "blue", 0, 14), background=str(run / "background.csv"))
    splits = loaded.table.background.set_index("path")["split"]
    assert splits.to_dict() == listed.set_index("path")["split"].to_dict()
