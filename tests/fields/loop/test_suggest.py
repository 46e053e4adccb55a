"""The command: a table to fill in, which training reads, and a sheet to look at."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.steps.reading import load_table
from fields.loop.suggest import main
from learners.model.bundle import save_bundle
from tests.app import sites
from tests.pictures import write_pictures


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    save_bundle(sites.colours(), folder / "run" / "model")
    write_pictures(folder / "pool", per_class=4, unknown=4)
    (folder / "pool" / "notes.txt").write_text("somebody's")
    return folder


def test_a_table_to_fill_in_and_a_sheet(world, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(world)
    out = tmp_path / "next.csv"
    assert main(["run/model", "pool", "--n", "5", "--out", str(out)]) == 0
    output = capsys.readouterr()
    assert "To label: 5 of 16" in output.out
    assert f"learners.finetune --from run/model --data {out}\n" in output.out
    assert "skipped 1 file of another kind: 1 .txt" in output.err
    rows = list(csv.DictReader(out.open()))
    assert [*rows[0]] == ["path", "label", "score", "why", "guess"]
    assert {row["label"] for row in rows} == {""}
    assert {row["guess"] for row in rows} <= {"blue", "green", "red"}
    assert float(rows[0]["score"]) == max(float(row["score"]) for row in rows)
    page = (tmp_path / "next" / "index.html").read_text()
    assert page.count("<img") == 5
    assert all(row["why"] in page for row in rows)

    # Filled in except for one row, the table can be trained on; its paths are relative to the
    # working directory.
    filled = pd.read_csv(out, dtype=str)
    filled["label"] = ["a", "b", "a", "b", None]
    filled.to_csv(out, index=False)
    table = load_table(out)
    assert sorted(table.frame["label"]) == ["a", "a", "b", "b"]
    assert [item.reason for item in table.rejected] == ["not labelled yet (row 6 of next.csv)"]
    with pytest.raises(SecondhandError, match=r"next\.csv already exists"):
        main(["run/model", "pool", "--out", str(out)])
    assert list(pd.read_csv(out)["label"][:4]) == ["a", "b", "a", "b"], "no label is lost"
    assert main(["run/model", "pool", "--n", "3", "--out", str(out), "--overwrite"]) == 0
    assert len(pd.read_csv(out)) == 3


def test_what_the_run_was_given_is_left_out(world, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(world)
    paths = sorted(map(str, Path("pool").rglob("*.jpg")))
    items = world / "run" / "items.csv"
    pd.DataFrame({"path": paths[:15], "label": "a"}).to_csv(items, index=False)
    out = tmp_path / "next.csv"
    assert main(["run/model", "pool", "--out", str(out)]) == 0
    assert list(pd.read_csv(out)["path"]) == paths[15:]
    assert (
        "model's run (labelled or given as --unknown), and copies of them: 15 files"
        in capsys.readouterr().err
    )
    pd.DataFrame({"path": paths, "label": "a"}).to_csv(items, index=False)
    assert main(["run/model", "pool", "--out", str(tmp_path / "more.csv")]) == 0
    assert "No files are left to label" in capsys.readouterr().err
    assert not (tmp_path / "more.csv").exists()
    items.unlink()


def test_bad_files_are_listed_and_a_pool_of_them_is_an_error(world, tmp_path, capsys):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_text("no picture")
    model, good = str(world / "run" / "model"), str(world / "pool" / "red")
    out = ["--out", str(tmp_path / "next.csv")]
    assert main([model, good, str(tmp_path / "a.jpg"), *out]) == 3
    output = capsys.readouterr()
    assert f"{tmp_path}/a.jpg: " in output.err
    assert "1 of 5 files could not be used" in output.err
    with pytest.raises(SecondhandError, match="no file can be used"):
        main([model, str(tmp_path / "*.jpg"), *out, "--overwrite"])
    assert len(pd.read_csv(tmp_path / "next.csv")) == 4
    with pytest.raises(SecondhandError, match="no picture file in a supported format"):
        main([model, str(tmp_path / "next"), "--out", str(tmp_path / "x.csv")])
    for name in ("next", "."):
        with pytest.raises(SecondhandError, match=r"--out"):
            main([model, good, "--out", str(tmp_path / name)])


def test_times_of_recordings_are_those_that_training_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_bundle(sites.tones(), tmp_path / "model")
    sites.tone(tmp_path / "long.wav", "low", "high", "low", "high")
    sites.tone(tmp_path / "short.wav", "high")
    assert main(["model", "long.wav", "short.wav"]) == 0
    filled = pd.read_csv("next.csv", keep_default_na=False)
    assert list(filled)[-2:] == ["start", "end"]
    filled.assign(label=filled["guess"]).to_csv("next.csv", index=False)
    frame = load_table("next.csv").frame
    assert len(frame) == len(filled) >= 5
    assert frame["start"].isna().sum() == 1
    assert len(list(Path("next").glob("*.flac"))) == len(filled)


@pytest.mark.slow
def test_strain_is_suggested_at_its_loudest_moment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_bundle(sites.bursts(), tmp_path / "run" / "model")
    files = [str(sites.strain(tmp_path / f"{n}.hdf5", n)) for n in (100, 200)]
    # A label at another moment belongs to another item.
    items = f"path,label,gps\n{files[0]},a,{sites.MOMENT}\n{files[1]},a,{sites.MOMENT - 5}\n"
    Path("run/items.csv").write_text(items)
    assert main(["run/model", *files]) == 0
    (row,) = csv.DictReader(Path("next.csv").read_text().splitlines())
    assert row["path"] == files[1]
    assert float(row["gps"]) == pytest.approx(sites.MOMENT, abs=0.1)
    assert "<img" in Path("next/index.html").read_text()


def test_a_call_without_what_it_needs_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    first, usage, *_ = capsys.readouterr().err.splitlines()
    assert first == "error: MODEL and PATH are missing."
    assert usage.startswith("usage: secondhand suggest ")
