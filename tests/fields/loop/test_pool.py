"""Labelling and searching the files of a pool on the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from app.labels import Choices
from app.serving import Served
from app.views import name_here
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.sources.table import read_rows
from fields.loop.audit import main as audit
from fields.loop.embeddings import Embeddings
from fields.loop.pool import Alike, Labelling, Pool, assign_keys, open_labelling
from learners.inference.predictor import Predictor
from tests.app.sites import colours, write_run
from tests.datasets.images.test_capture_time import photo
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("pools") / "run")


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    served = Served("colours", Predictor(model), model)
    yield served
    served.close()


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "new", per_class=1, unknown=2)
    (tmp_path / "new/red/broken.jpg").write_bytes(b"no picture")
    return tmp_path / "new"


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """A burst of three photos, two minutes later one of two, and a photo without a time."""
    noon = datetime(2024, 5, 1, 12)
    for n, second in enumerate((0, 2, 4, 124, 126)):
        scene = Image.effect_noise((48, 48), 20 + 10 * n).convert("RGB")
        photo(tmp_path / f"card/IMG_{n}.jpg", noon + timedelta(seconds=second), scene=scene)
    (tmp_path / "card/x").mkdir()
    write_pictures(tmp_path / "card/x", per_class=1, unknown=0)
    return tmp_path / "card"


OPENED: list[Pool] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def ready(pool: Pool) -> None:
    OPENED.append(pool)
    pool.begin()
    assert pool.ready.wait(60)


def test_a_burst_is_labelled_at_once(card: Path, served: Served) -> None:
    """Its photos are turned over by previous and next; one of them may have another label."""
    labelling = Labelling(served, card, card.parent)
    ready(labelling)
    number = {Path(one.part.path).name: n for n, one in enumerate(labelling.order)}
    first, second, third, fourth, fifth = (number[f"IMG_{n}.jpg"] for n in range(5))
    assert labelling.burst(second) == [first, second, third]
    assert [labelling.beside(second, step) for step in (-1, 1)] == [first, third]
    assert [labelling.beside(first, -1), labelling.beside(third, 1)] == [first, third]
    assert "photo 2 of a burst of 3" in labelling.html(second, 1)
    alone = [n for n in range(len(labelling.order)) if n not in (first, second, third, fourth, fifth)]  # fmt: skip
    assert all(labelling.burst(n) == [n] for n in alone)
    assert labelling.save(third, "unknown", alone=True) == [third]
    assert labelling.burst(first) == [first, second]
    assert labelling.save(second, "red") == [first, second]
    assert labelling.skip(fifth) == [fourth, fifth]
    rows = labelling.table.rows()
    labels = {Path(row["path"]).name: row["label"] for row in rows}
    assert labels == {"IMG_0.jpg": "red", "IMG_1.jpg": "red", "IMG_2.jpg": "unknown"}
    labelling.undo(first, second)
    assert labelling.labelled == 1
    assert labelling.burst(second) == [first, second]
    again = Labelling(served, card, card.parent)
    ready(again)
    assert again.labelled == 1


def test_labels_are_in_a_table_that_training_and_labelling_read(pool: Path, served: Served) -> None:
    labelling = Labelling(served, pool, pool.parent)
    assert labelling.waiting == "Reading the pool: 0 of 6 files."
    ready(labelling)
    assert labelling.waiting == ""
    assert len(labelling.order) == 5, "the broken one is left out"
    assert labelling.after(-1) == 0
    for number, label in enumerate(["cyan", "red", "unknown"]):
        labelling.save(number, label)
        assert labelling.after(number) == number + 1
    labelling.save(1, "GREEN")  # as the class is spelt
    labelling.undo(0)
    assert labelling.after(4) == 0
    assert labelling.labelled == 2
    with pytest.raises(SecondhandError):
        labelling.save(3, "a\nb")
    frame = pd.read_csv(pool.parent / "new-labels.csv")
    assert frame["label"].tolist() == ["unknown", "green"]
    assert frame["model"].eq("colours").all()
    assert all(path.startswith("new/") for path in frame["path"])
    labelling.save(0, "cyan")
    rows, rejected, *_ = read_rows(pool.parent / "new-labels.csv")
    assert (rows["label"].tolist(), rejected) == (["unknown", "green", "cyan"], [])
    assert rows["path"].tolist() == [labelling.order[n].part.path for n in (2, 1, 0)]

    again = Labelling(served, pool, pool.parent)
    ready(again)
    assert [s.part for s in again.order] == [s.part for s in labelling.order]
    assert (again.after(-1), again.labelled) == (3, 3)
    Path(again.order[3].part.path).unlink()
    assert again.after(-1) == 4, "one that has gone is passed over"


def test_labels_are_written_where_the_page_was_started_or_where_told(
    pool: Path, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Nothing is written beside the pool; labelling resumes; the next command reads the table."""
    (tmp_path / "here").mkdir()
    (tmp_path / "told").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = sorted(pool.parent.iterdir())
    for tables in (None, Path("../told")):
        caplog.clear()
        with caplog.at_level("INFO", logger="app"):
            labelling = open_labelling(served, pool, tables)
        ready(labelling)
        labelling.save(2, "red")
        table = (tables or Path()).resolve() / "new-labels.csv"
        rows = read_rows(table).frame
        assert rows["path"].tolist() == [labelling.order[2].part.path]
        assert str(labelling.table.file) in caplog.text
        assert "--data" in labelling.next_command(str)
        again = open_labelling(served, pool, tables)
        ready(again)
        assert again.labelled == 1
    assert sorted(pool.parent.iterdir()) == before
    assert name_here(tmp_path / "here/new-labels.csv") == "new-labels.csv"
    assert str(tmp_path) not in labelling.next_command(name_here)


def test_skipped_files_come_again_last(pool: Path, served: Served, tmp_path: Path) -> None:
    labelling = Labelling(served, pool, tmp_path)
    ready(labelling)
    labelling.skip(0)
    labelling.skip(1)
    assert labelling.after(1) == 2
    for number in (2, 3, 4):
        labelling.save(number, "red")
    assert labelling.after(4) == 0
    page = labelling.html(0, 1)
    assert "3 of 5</b> labelled, 2 skipped. Only skipped files are left." in page
    labelling.save(0, "red")
    labelling.undo(1)
    page = labelling.html(1, 1)
    assert "4 of 5</b> labelled.<" in page, "a skip is undone, and a label ends it"
    assert labelling.labelled == 4


def test_no_folder_above_the_pool_is_on_the_page(pool: Path, served: Served) -> None:
    labelling, alike = Labelling(served, pool), Alike(served, pool)
    ready(labelling)
    ready(alike)
    example = pool / "red/red_000.jpg"
    pages = [labelling.html(0, 1), alike.html(Part(str(example)))]
    missing = Path(labelling.order[1].part.path)
    missing.unlink()
    pages.append(labelling.html(1, 2))
    assert "This file cannot be shown" in pages[-1]
    assert f"{missing.parent.name}/{missing.name}" in pages[-1]
    for page in pages:
        assert "data:image/" in page or "cannot" in page
        assert str(pool.parent) not in page
    assert "0 of 5</b> labelled" in pages[0]
    assert pages[1].count("<figure>") == 4, "all but the example, and the broken one"


def test_a_pool_that_cannot_be_used(pool: Path, served: Served, model: Path) -> None:
    with pytest.raises(SecondhandError, match="none"):
        Labelling(served, pool / "none")
    (pool.parent / "empty").mkdir()
    with pytest.raises(SecondhandError, match="empty"):
        Alike(served, pool.parent / "empty")
    with pytest.raises(SecondhandError, match="not in a folder"):
        Labelling(Served("bare", Predictor(colours())), pool)
    (pool.parent / "new-labels.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SecondhandError, match=r"new-labels.csv"):
        Labelling(served, pool, pool.parent)
    (pool.parent / "new-labels.csv").unlink()
    embeddings = pool.parent / "kept.parquet"
    with pytest.raises(SecondhandError, match=r"kept.parquet"):
        Alike(served, embeddings)
    example = shutil.copy(pool / "red/red_000.jpg", pool.parent / "a.jpg")
    Embeddings(embeddings, model, served.predictor).extend(pool.rglob("*.jpg"))
    alike = Alike(served, embeddings)
    ready(alike)
    page = alike.html(Part(str(example)))
    assert page.index("red_000.jpg") < page.index("unknown_000.jpg")
    assert "1.000" in page


def test_an_audit_is_labelled_in_its_own_table(
    pool: Path, served: Served, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pool.parent)
    table = pool.parent / "audit.csv"
    assert audit([str(model), "new", "--n", "4", "--out", str(table)]) == 3
    rows = pd.read_csv(table, dtype=str, keep_default_na=False)
    labelling = open_labelling(served, table)
    ready(labelling)
    names = [Path(path).name for path in rows["path"]]
    assert [Path(s.part.path).name for s in labelling.order] == names
    page = labelling.html(0, 1)
    assert "data:image/" in page
    assert str(pool.parent) not in page
    assert f"{rows['guess'][0]}?" not in page, "the guess would influence the label"
    assert labelling.next_command(name_here).endswith("--labels audit.csv")
    labelling.save(2, "red")
    labelling.save(0, "unknown")
    labelling.save(1, "blue")
    labelling.undo(1)
    labelled = pd.read_csv(table, dtype=str, keep_default_na=False)
    assert labelled["label"].tolist() == ["unknown", "", "red", ""]
    pd.testing.assert_frame_equal(labelled.drop(columns="label"), rows.drop(columns="label"))
    again = open_labelling(served, table)
    ready(again)
    assert (again.after(-1), again.labelled) == (1, 2)

    other = write_run(pool.parent / "other", target_accuracy=0.5)
    with pytest.raises(SecondhandError, match="was not drawn for the model"):
        open_labelling(Served("other", served.predictor, other), table)


@pytest.mark.parametrize("kind", [Labelling, Alike])
def test_errors_of_a_pool_contain_no_folder(
    pool: Path, served: Served, kind: type[Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SecondhandError(f"{pool}/x.jpg: no room")

    monkeypatch.setattr(kind, "prepare", fail)
    view = kind(served, pool)
    ready(view)
    assert view.waiting == "x.jpg: no room"


def test_a_key_labels_the_class_of_its_name() -> None:
    unknown = {"u": "unknown"}
    assert assign_keys(Choices(["red", "blue"])) == {"1": "red", "2": "blue"} | unknown
    assert assign_keys(Choices([*"0123456789"])) == {key: key for key in "0123456789"} | unknown
    assert assign_keys(Choices(["7", "dog"])) == {"7": "7", "1": "dog"} | unknown
    assert assign_keys(Choices(["7", "dog"], empties=True))["n"] == "none"
    assert assign_keys(Choices(["n"], empties=True)) == {"n": "n"} | unknown


def test_the_tenth_and_further_classes_have_keys() -> None:
    classes = [f"class {n}" for n in range(1, 41)]
    keys = assign_keys(Choices(classes))
    assert (keys["0"], keys["a"], keys["r"], keys["t"]) == tuple(
        f"class {n}" for n in (10, 11, 28, 29)
    )
    assert len(keys) == 34
    assert keys["u"] == "unknown"
    assert not {"s", "z"} & set(keys), "skip and undo"
    assert len(assign_keys(Choices(classes, empties=True))) == 34
