"""The command: rows of the files most like an example, as CSV, as JSON lines, and as a sheet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from fields.loop.search import main
from learners.model.bundle import save_bundle
from tests.app import sites
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    save_bundle(sites.colours(), folder / "model")
    write_pictures(folder / "pool", per_class=4)
    return folder


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_nearest_are_listed_once_embedded(world, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(world)
    store = tmp_path / "pool.parquet"
    arguments = ["model", "pool/red/red_000.jpg", "pool", "--top", "3"]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    nearest = rows(plain)
    assert [*nearest[0]] == ["path", "similarity", "start", "end", "at"]
    assert {Path(row["path"]).parent.as_posix() for row in nearest} == {"pool/red"}
    assert "pool/red/red_000.jpg" not in plain
    assert not list(world.glob("*.parquet"))

    assert main([*arguments, "--embeddings", str(store)]) == 0
    output = capsys.readouterr()
    assert output.out == plain
    assert "files embedded now 12, earlier 0" in output.err
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    assert main([*arguments[:3], str(broken), "--top", "3", "--embeddings", str(store)]) == 3
    output = capsys.readouterr()
    assert output.out == plain
    assert "files embedded now 0, earlier 12" in output.err
    assert f"{broken}: " in output.err
    assert "1 of 13 files could not be used" in output.err

    # Without files, all stored embeddings are searched.
    assert (
        main([*arguments[:2], "--top", "3", "--embeddings", str(store), "--format", "jsonl"]) == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["path"] for line in lines] == [str(world / row["path"]) for row in nearest]
    assert [*lines[0]] == [*nearest[0]]
    assert lines[0]["start"] is None
    assert main([*arguments[:2], "pool/blue", "--embeddings", str(store)]) == 0
    assert {row["path"].split("/")[1] for row in rows(capsys.readouterr().out)} == {"blue"}


def test_a_sheet_beside_a_table(world, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(world)
    out = tmp_path / "found.csv"
    assert main(["model", "pool/red/red_000.jpg", "pool", "--top", "2", "--out", str(out)]) == 0
    assert len(rows(out.read_text())) == 2
    assert str(out) in capsys.readouterr().out
    page = (tmp_path / "found" / "index.html").read_text()
    assert page.count("<img") == 3, "the example and the two"
    with pytest.raises(SecondhandError, match="already exists"):
        main(["model", "pool/red/red_000.jpg", "pool", "--out", str(out)])


def test_wrong_calls(world, tmp_path, monkeypatch):
    monkeypatch.chdir(world)
    example = "pool/red/red_000.jpg"
    with pytest.raises(SecondhandError, match="--embeddings"):
        main(["model", example])
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    wrong = {
        "broken.jpg": [str(broken), "pool"],
        "no file can be used": [example, str(broken)],
        "--top 0": [example, "pool", "--top", "0"],
        "pictures, which have no time": [example, "pool", "--at", "3"],
        "does not exist": [example, "--embeddings", str(tmp_path / "none.parquet")],
    }
    for message, words in wrong.items():
        with pytest.raises(SecondhandError, match=message):
            main(["model", *words])


def test_the_moment_of_a_recording_is_what_is_searched_for(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_bundle(sites.tones(), tmp_path / "model")
    sites.tone(tmp_path / "long.wav", "low", "high", "low", "high")
    assert main(["model", "long.wav", "long.wav", "--at", "1.5", "--top", "1"]) == 0
    (row,) = rows(capsys.readouterr().out)
    assert float(row["start"]) == pytest.approx(3, abs=0.01)


def test_nothing_is_overwritten_without_out() -> None:
    with pytest.raises(SecondhandError, match="--overwrite without --out"):
        main(["model", "a.jpg", "pool", "--overwrite"])
