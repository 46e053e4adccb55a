"""The command: a table to fill in, what its labels show, and a model for the site."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.steps.reading import load_table
from fields.loop.audit import hardly_drawn, main
from fields.loop.auditing import read_audit
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle, save_bundle
from learners.rule.fitting import uncalibrated
from tests.app import sites
from tests.pictures import write_pictures


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    sites.write_run(folder / "run")
    write_pictures(folder / "pool", per_class=8, unknown=6)
    return folder


@pytest.fixture
def table(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world)
    assert main(["run/model", "pool", "--n", "16", "--out", str(tmp_path / "audit.csv")]) == 0
    return tmp_path / "audit.csv"


def read(table: Path) -> pd.DataFrame:
    return pd.read_csv(table, dtype=str, keep_default_na=False)


def fill(table: Path) -> pd.DataFrame:
    """Give every drawn file its right label."""
    frame = read(table)
    frame["label"] = [Path(path).parent.name for path in frame["path"]]
    frame.to_csv(table, index=False)
    return frame


def test_the_table_says_what_the_estimate_needs(world: Path, table: Path, capsys) -> None:
    frame = read(table)
    assert len(frame) == frame["path"].nunique() == 16
    assert frame["label"].eq("").all()
    answers = {p.path: p for p in Predictor(world / "run/model").predict(map(str, frame["path"]))}
    assert frame["answer"].tolist() == [answers[path].label for path in frame["path"]]
    sizes = frame.drop_duplicates("stratum")["files"].astype(int)
    assert sizes.sum() == 30, "the population"
    assert {text.split()[-1] for text in frame["stratum"]} == {str(len(sizes))}
    page = (table.parent / "audit/index.html").read_text()
    assert page.count("<img") == 16
    with pytest.raises(SecondhandError, match=r"audit\.csv already exists"):
        main(["run/model", "pool", "--out", str(table)])


def test_a_pool_of_the_runs_own_files_is_an_error(world: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(world)
    run = sites.write_run(tmp_path / "run")
    paths = sorted(map(str, (world / "pool").rglob("*.jpg")))
    pd.DataFrame({"path": paths, "label": "a"}).to_csv(tmp_path / "run/items.csv", index=False)
    with pytest.raises(SecondhandError, match=r"run or copies of them\. Give files"):
        main([str(run), "pool", "--out", str(tmp_path / "audit.csv")])


def test_labels_give_the_accuracy_and_a_model_for_the_site(
    world: Path, table: Path, tmp_path: Path, capsys
) -> None:
    frame = fill(table)
    capsys.readouterr()
    assert main(["run/model", "--labels", str(table), "--out", str(tmp_path / "site")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    answered = frame["answer"].ne("unknown")
    assert "Labelled: 16 of the 16 files drawn from 30." in output
    weights = frame["files"].astype(int) / frame.groupby("stratum")["path"].transform("count")
    value = round(100 * (weights * frame["guess"].eq(frame["label"])).sum() / weights.sum())
    assert f"Right here: {value} % (95 % limits" in output
    percent_unknown = round(100 * (weights * frame["label"].eq("unknown")).sum() / weights.sum())
    assert f"Files of unknown classes: {percent_unknown} % (95 % limits" in output
    assert answered.any()

    site, model = load_bundle(tmp_path / "site"), load_bundle(world / "run/model")
    assert site.provenance["lineage"][-1]["model"] == "run"
    assert site.metrics["calibration_items"] == 16
    known = frame["label"].ne("unknown")
    right = (weights * frame["guess"].eq(frame["label"]))[known].sum() / weights[known].sum()
    assert site.metrics["calibration_accuracy"] == pytest.approx(right)
    first = next(site.network.parameters())
    assert first.equal(next(model.network.parameters())), "the same network"
    assert site.rule.threshold.value >= 0.5
    assert len(list(Predictor(tmp_path / "site").predict([*frame["path"]]))) == 16
    with pytest.raises(SecondhandError, match=r"--out .*site already exists"):
        main(["run/model", "--labels", str(table), "--out", str(tmp_path / "site")])
    read_back = load_table(table)
    assert len(read_back.frame) + len(read_back.unknown_items) == 16, "training reads it"


def test_rows_that_were_not_drawn_are_listed_and_do_not_count(
    world: Path, table: Path, capsys
) -> None:
    frame = fill(table)
    other = frame.iloc[0].to_dict() | {"path": "pool/red/other.jpg", "label": "blue"}
    pd.concat([frame, pd.DataFrame([other, frame.iloc[1].to_dict()])]).to_csv(table, index=False)
    assert main(["run/model", "--labels", str(table)]) == 3
    output = capsys.readouterr()
    assert "pool/red/other.jpg: was not drawn by this audit (row 18 of audit.csv)" in output.err
    assert f"{frame['path'][1]}: is listed twice (row 19 of audit.csv)" in output.err
    assert "Labelled: 16 of the 16" in output.out


def test_what_a_spreadsheet_does_to_the_table_is_read(table: Path, capsys) -> None:
    frame = fill(table)
    frame["probability"] = [f"{float(p):g}" for p in frame["probability"]]
    frame["files"] += ".0"
    frame["path"] = "moved/" + frame["path"].map(lambda path: Path(path).name)
    shuffled = frame.sample(frac=1, random_state=0)
    for name in ("probability", "files", "expected"):
        shuffled[name] = shuffled[name].str.replace(".", ",")
    shuffled.to_csv(table, index=False, quoting=csv.QUOTE_ALL, sep=";", encoding="cp1252")
    assert main(["run/model", "--labels", str(table)]) == 0
    assert "Labelled: 16 of the 16 files drawn from 30." in capsys.readouterr().out


def test_wrong_tables_and_labels(world: Path, table: Path, tmp_path: Path) -> None:
    labels = ["--labels", str(table)]
    with pytest.raises(SecondhandError, match=r"audit\.csv: no row has a label"):
        main(["run/model", *labels])
    frame = fill(table)
    frame.assign(label=frame["label"].str.upper()).to_csv(table, index=False)
    with pytest.raises(SecondhandError, match=r"the class of the model is '(red|green|blue)'"):
        main(["run/model", *labels])
    first = frame["stratum"][0]
    frame.loc[frame["stratum"].ne(first)].to_csv(table, index=False)
    with pytest.raises(SecondhandError, match=f"all rows of stratum {first.split()[0]}|stratum"):
        main(["run/model", *labels])
    frame.to_csv(table, index=False)
    other = sites.write_run(tmp_path / "other", target_accuracy=0.5)
    with pytest.raises(SecondhandError, match=r"audit\.csv was not drawn for the model .*other"):
        main([str(other), *labels])
    frame[["path", "label"]].to_csv(table, index=False)
    with pytest.raises(SecondhandError, match="no column 'guess'"):
        main(["run/model", *labels])
    for words in (["run/model"], ["run/model", "pool", *labels]):
        with pytest.raises(SecondhandError, match="--labels"):
            main(words)


def test_new_class_names_count_as_unknown_classes(table: Path, capsys) -> None:
    frame = fill(table)
    frame.assign(label=frame["label"].replace("unknown", "ultraviolet")).to_csv(table, index=False)
    assert main(["run/model", "--labels", str(table)]) == 0
    new = capsys.readouterr().out
    frame.to_csv(table, index=False)
    assert main(["run/model", "--labels", str(table)]) == 0
    assert capsys.readouterr().out == new


def test_labels_of_all_files_have_no_limits(
    world: Path, table: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "all.csv"
    assert main(["run/model", "pool", "--n", "1000", "--out", str(out)]) == 0
    fill(out)
    capsys.readouterr()
    assert main(["run/model", "--labels", str(out)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "(all are labelled; other files from here may differ) of its answers" in output
    lines = output.split("Train with these labels")
    assert lines[1].startswith(" all the same:" if "is not clearly worth it" in lines[0] else ":")


def test_unlabelled_rows_are_left_out(table: Path, capsys) -> None:
    frame = fill(table)
    frame.loc[5:, "label"] = ""
    frame.to_csv(table, index=False)
    assert main(["run/model", "--labels", str(table)]) == 0
    assert "Labelled: 5 of the 16 files" in capsys.readouterr().out


def test_windows_of_recordings_are_drawn(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    save_bundle(sites.tones(), tmp_path / "model")
    sites.tone(tmp_path / "long.wav", "low", "high", "low", "high")
    sites.tone(tmp_path / "short.wav", "high")
    assert main(["model", "long.wav", "short.wav", "--n", "4"]) == 0
    frame = read(tmp_path / "audit.csv")
    assert re.search(r"Drawn: 4 of \d+ windows;", capsys.readouterr().out)
    assert frame["start"].ne("").sum() >= 3
    frame.assign(label=frame["guess"]).to_csv("audit.csv", index=False)
    assert main(["model", "--labels", "audit.csv", "--out", "site"]) == 0
    assert "Right here: 100 %" in capsys.readouterr().out
    assert len(list(Path("audit").glob("*.flac"))) == 4


def test_a_multi_label_model_is_refused(tmp_path, monkeypatch) -> None:
    bundle = replace(sites.colours(), rule=uncalibrated(3, multi_label=True))
    save_bundle(bundle, tmp_path / "model")
    write_pictures(tmp_path / "pool", per_class=1)
    with pytest.raises(SecondhandError, match="multi-label"):
        main([str(tmp_path / "model"), str(tmp_path / "pool"), "--out", str(tmp_path / "a.csv")])


def test_files_of_an_audit_are_found_as_those_of_other_tables(
    world: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    frame = fill(table)
    site = shutil.copytree(world / "pool", tmp_path / "elsewhere" / "Pool 2")
    monkeypatch.chdir(tmp_path)
    gone, twice = frame["path"][0], frame["path"][1]
    next(site.rglob(Path(gone).name)).unlink()
    places = [site / Path(twice).parent.name / folder for folder in ("one", "other")]
    for place in places:
        place.mkdir()
        shutil.copy(world / twice, place)
    (places[0].parent / Path(twice).name).unlink()
    written = "C:\\\\photos\\\\" + frame["path"].str.replace("/", "\\\\", regex=False)
    moved = site.parent / "audit.csv"
    frame.assign(path=written).to_csv(moved, index=False)
    read_back = read_audit(moved, world / "run/model")
    names = [Path(path).name for path in frame["path"][3:]]
    assert [Path(part.path).name for part in read_back.parts][3:] == names
    assert all(Path(part.path).is_file() for part in read_back.parts[3:])
    reasons = {bad.path: bad.reason for bad in read_back.not_found}
    assert [*reasons] == written[:2].tolist()
    assert reasons[written[0]].startswith("no file of its own in ")
    assert all(str(place) in reasons[written[1]] for place in places)
    capsys.readouterr()
    out = tmp_path / "site"
    words = [str(world / "run/model"), "--labels", str(moved), "--out", str(out)]
    assert main(words) == 3
    errors = capsys.readouterr().err
    assert all(f"{path}: {reason}" in errors for path, reason in reasons.items())
    assert load_bundle(out).metrics["calibration_items"] == len(frame) - 2


def test_classes_that_were_hardly_drawn_are_named():
    guesses = ["Toad"] * 2 + ["Frog"] * 48
    line = hardly_drawn(guesses, ["Frog", "Toad", "Wren"])
    assert "Wren: 0 of 50, Toad: 2 of 50" in line
    assert "Frog" not in line
    assert hardly_drawn(guesses, ["Frog"]) == ""
