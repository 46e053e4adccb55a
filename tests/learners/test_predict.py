"""The command: a header and a row per file on standard output, the rest on standard error."""

from __future__ import annotations

import csv
import gc
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from datasets.core import progress
from datasets.core.errors import SecondhandError
from datasets.core.shipped import left_out
from datasets.images.opening import open_picture
from datasets.kinds.base import KINDS
from datasets.kinds.finding import find_files
from learners.calls import files
from learners.calls.base import find_call
from learners.calls.sections.base import predict_settings
from learners.cli import console
from learners.inference.predictions import FIELDS
from learners.model.bundle import load_bundle, save_bundle
from learners.outputs.base import OUTPUTS
from learners.predict import main
from tests.forks import Program, until
from tests.kept.make import MODEL as SOUND_MODEL
from tests.kept.make import write_clips
from tests.learners.rules import untrained
from tests.left_out import needs
from tests.phones import avif, heic
from tests.pictures import write_pictures

#: The columns that fields add.
OF_FIELDS = ["time", "latitude", "longitude", "deployment"] if "cameras" not in left_out() else []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "model"
    return str(save_bundle(untrained(["blue", "green", "red"]), folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), per_class=3)


def rows_of(capsys) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def lines_of(capsys) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_csv_has_a_header_and_a_row_a_file(model, folder, capsys):
    assert main([model, str(folder)]) == 0
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert out.splitlines()[0].split(",") == [
        *("path", "label", "best", "probability", "reason", "top", "distance_p", "start", "end", "at"),
        *OF_FIELDS,
    ]  # fmt: skip
    assert [row["path"] for row in rows] == sorted(str(p) for p in folder.rglob("*.jpg"))
    for row in rows:
        top = json.loads(row["top"])
        assert top[0][0] == row["best"]
        assert float(row["probability"]) == pytest.approx(top[0][1], abs=1e-5)
        assert row["label"] in (row["best"], "unknown")
    assert "Traceback" not in err


def test_quiet_says_only_what_is_wrong(model, folder, capsys, monkeypatch):
    for name in (console.QUIET, console.VERBOSE):
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
    log = logging.getLogger("learners")
    for words, expected in (([], "told\nwarning: wrong\n"), (["--quiet"], "warning: wrong\n")):
        assert main([model, str(folder), *words]) == 0
        log.info("told")
        log.warning("wrong")
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 10
        assert err.endswith(expected)
    assert err == expected
    log.debug("detail")
    assert main([model, str(folder), "--verbose"]) == 0
    log.debug("detail")
    assert capsys.readouterr().err.endswith("detail\n")
    assert main([model, str(folder), "--quiet"]) == 0
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    assert not console.watched()


def test_jsonl_has_the_same_answers(model, folder, capsys):
    main([model, str(folder), "--top", "2"])
    rows = rows_of(capsys)
    main([model, str(folder), "--top", "2", "--format", "jsonl"])
    lines = lines_of(capsys)
    assert [list(line) for line in lines] == [
        [f for f in FIELDS if f not in ("known", "branch", "box", "detection", "offset")]
        + OF_FIELDS
    ] * 9
    assert [line["best"] for line in lines] == [row["best"] for row in rows]
    assert all(len(line["top"]) == 2 for line in lines)
    assert all(line["distance_p"] is None for line in lines)


def test_bad_files_are_answered_listed_and_counted(model, folder, tmp_path, capsys):
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    good = str(folder / "red/red_000.jpg")
    assert main([model, good, str(broken), str(tmp_path / "gone.png"), good]) == 3
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    bad = [row["reason"].startswith("bad file: ") for row in rows]
    assert bad == [False, True, True, False]
    assert rows[1]["label"] == "unknown"
    assert str(broken) in err
    assert "2 of 4 files could not be read" in err


def test_a_threshold_of_one_accepts_nothing_and_of_zero_everything(model, folder, capsys):
    main([model, str(folder), "--threshold", "1"])
    labels = {row["label"] for row in rows_of(capsys)}
    assert labels == {"unknown"}
    main([model, str(folder), "--threshold", "0"])
    rows = rows_of(capsys)
    assert all(row["label"] == row["best"] for row in rows)
    with pytest.raises(SecondhandError, match=r"1\.1"):
        main([model, str(folder), "--threshold", "1.1"])


def found(*names: object, kind: str = "picture") -> tuple[list[str], Counter[str]]:
    skipped: Counter[str] = Counter()
    return list(find_files([str(name) for name in names], KINDS[kind], skipped)), skipped


def test_files_come_from_folders_patterns_and_names(folder):
    assert len(found(folder)[0]) == 9
    assert len(found(folder / "*" / "*_000.jpg")[0]) == 3
    assert found(folder / "nothing*.jpg")[0] == [str(folder / "nothing*.jpg")]
    assert found("a name.txt") == (["a name.txt"], Counter())


def test_in_a_folder_the_models_kind_counts_and_the_rest_is_counted(
    model, folder, tmp_path, capsys
):
    data = tmp_path / "mixed"
    shutil.copytree(folder, data)
    for name in ("README.txt", "sub.txt", "x.wav", "LICENSE", ".DS_Store", "Thumbs.db"):
        (data / name).write_text("not a picture")
    assert found(data, kind="sound") == (
        [str(data / "x.wav")],
        Counter({".jpg": 9, ".txt": 2, "without an ending": 1}),
    )
    assert main([model, str(data)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 10
    assert "skipped 4 files of other kinds: 2 .txt, 1 " in err
    assert main([model, str(data / "x.wav"), str(folder)]) == 3, (
        "but one named outright is answered"
    )
    out, err = capsys.readouterr()
    assert "bad file: not a picture in a supported format" in out
    assert "skipped" not in err


def test_photos_of_phones_are_answered_as_the_same_pixels_elsewhere(model, tmp_path, capsys):
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((128, 64))
    for name, data in (("a.heic", heic(photo)), ("b.AVIF", avif(photo))):
        (tmp_path / name).write_bytes(data)
        open_picture(data).save(tmp_path / f"{name}.png")
    assert main([model, str(tmp_path)]) == 0
    rows = rows_of(capsys)
    names = ["a.heic", "a.heic.png", "b.AVIF", "b.AVIF.png"]
    assert [Path(row["path"]).name for row in rows] == names
    assert rows[0]["top"] == rows[1]["top"]
    assert rows[2]["top"] == rows[3]["top"]


def test_no_file_at_all_is_a_wrong_call(model, tmp_path):
    done = Program("-m", "learners.predict", model, str(tmp_path))
    out, output = done.communicate(timeout=120)
    assert done.returncode == 2
    assert str(tmp_path) in output
    assert not out


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_names_read_back_from_standard_output_in_any_locale(
    model, folder, tmp_path, monkeypatch, format
):
    names = [b"a \xf0\x9f\xa6\x8a.jpg", b"b \xff.jpg", b"bad \xf0\x9f\xa6\x8a.jpg"]
    for name in names[:2]:
        shutil.copy(folder / "red/red_000.jpg", tmp_path / os.fsdecode(name))
    (tmp_path / os.fsdecode(names[2])).write_text("no picture")
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="ascii"))
    with pytest.raises(SystemExit, match="3"):
        console.run(lambda: main([model, str(tmp_path), "--format", format]))
    sys.stderr.flush()
    text = out.getvalue().decode("utf-8", "surrogateescape")
    rows = (
        [*csv.DictReader(io.StringIO(text))]
        if format == "csv"
        else [json.loads(line) for line in text.splitlines()]
    )
    assert [os.path.basename(os.fsencode(row["path"])) for row in rows] == names
    assert names[2] + b": bad file" in err.getvalue()


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error(model, folder):
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "learners.predict", model, str(folder)]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, timeout=200)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_thread_that_counts_files_keeps_no_model(model, folder, monkeypatch):
    """It may outlive the command, and torch aborts a process in which it frees the network at the end."""
    go_on = threading.Event()
    monkeypatch.setattr(files, "find_files", lambda *_: [folder] * go_on.wait(60))
    settings = predict_settings({"model": model, "paths": [str(folder)]})
    call = find_call(settings, load_bundle(model), OUTPUTS.find("csv", "--format"))
    bundle, count = weakref.ref(call.bundle), call.count()
    del call
    gc.collect()
    assert bundle() is None
    assert count() is None
    go_on.set()
    until(lambda: count() == 1)


def test_a_score_is_a_column_on_request(model, folder, tmp_path, capsys):
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    before = main([model, str(folder), str(broken)])
    plain = rows_of(capsys)
    assert main([model, str(folder), str(broken), "--score", "msp"]) == before == 3
    rows = rows_of(capsys)
    assert list(rows[0])[-2 - len(OF_FIELDS) :] == ["at", "known", *OF_FIELDS]
    assert rows[-1].pop("known") == ""
    for row in rows[:-1]:
        expected = np.log(float(row["probability"]))
        assert float(row.pop("known")) == pytest.approx(expected, abs=1e-5)
    assert rows == plain
    main([model, str(folder), "--score", "msp", "--format", "jsonl"])
    lines = lines_of(capsys)
    assert all(isinstance(line["known"], float) for line in lines)
    with pytest.raises(SecondhandError, match="--score knn"):
        main([model, str(folder), "--score", "knn"])


def test_what_makes_no_sense_is_a_wrong_call(model, folder):
    with pytest.raises(SecondhandError, match="--overwrite without --out"):
        main([model, str(folder), "--overwrite"])


def test_only_the_classes_of_a_site_are_answered(model, folder, tmp_path, capsys):
    names = tmp_path / "list.txt"
    names.write_text("green\n\nred\n")
    for classes in (str(names), "green, red"):
        main([model, str(folder), "--threshold", "0", "--classes", classes])
        rows = rows_of(capsys)
        for row in rows:
            shares = dict(json.loads(row["top"]))
            assert shares["blue"] == 0
            assert shares["green"] + shares["red"] == pytest.approx(1, abs=1e-5)
            assert row["best"] != "blue"
    call = [model, str(folder), "--classes"]
    with pytest.raises(SecondhandError, match=r"--classes: .* no class grey.* blue, green, red"):
        main([*call, "grey,red"])
    with pytest.raises(SecondhandError, match="contains no class name"):
        main([*call, " , "])


def test_each_class_may_have_its_own_threshold(model, folder, tmp_path, capsys):
    table = tmp_path / "thresholds.csv"
    table.write_bytes("label;threshold\r\nred;1,0\r\ngreen;0,0\r\n".encode("utf-16"))  # of Excel
    call = [model, str(folder), "--threshold-per-class", str(table)]
    main([*call, "--threshold", "0"])
    rows = rows_of(capsys)
    assert len({row["best"] for row in rows} & {"red"}) < len({row["best"] for row in rows})
    for row in rows:
        assert row["label"] == ("unknown" if row["best"] == "red" else row["best"])
    main(call)  # blue keeps the model's own, 0.95
    for row in rows_of(capsys):
        assert (row["label"] == "unknown") == (row["best"] != "green")
    for text, message in {
        "label,cut\nred,1\n": "columns label, cut; it needs the columns label and threshold",
        "label,threshold\ngrey,1\n": "no class grey. Its classes are blue, green, red",
        "label,threshold\nred,1\nred,0\n": "'red' has two rows",
        'label,threshold\nred,"1,5"\n': "'1.5' of 'red' is not a number from 0 to 1",
        "label,threshold\nred,nan\n": "'nan' of 'red' is not a number",
    }.items():
        table.write_text(text)
        with pytest.raises(SecondhandError, match=message):
            main(call)
    table.write_bytes(b"label,threshold\nr\xe9d,1\n")
    with pytest.raises(SecondhandError, match="has no class réd"):
        main(call)


@pytest.mark.parametrize("quiet", ["", "1"])
def test_a_terminal_shows_a_bad_file_once_and_counts_the_answers(
    model, folder, tmp_path, capsys, monkeypatch, quiet
):
    (tmp_path / "broken.jpg").write_text("no picture")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(console.QUIET, quiet)
    monkeypatch.setattr(progress, "_show", progress._show)
    assert main([model, str(folder), str(tmp_path / "broken.jpg"), "--threshold", "1"]) == 3
    out, err = capsys.readouterr()
    assert "broken.jpg" in out
    assert "broken.jpg" not in err
    assert "1 of 10 files could not be read" in err
    assert ("10 files: 0 answered, 9 unknown (9 ambiguous)" in err) == (not quiet)


def test_a_pipe_counts_the_answers_too(model, folder, tmp_path, capsys):
    out = tmp_path / "a.csv"
    assert main([model, str(folder), "--threshold", "1", "--out", str(out)]) == 0
    err = capsys.readouterr().err
    assert f"9 files: 0 answered, 9 unknown (9 ambiguous)\nWritten: {out}\n" in err


@needs("recordings")
def test_windows_are_counted_by_themselves_and_their_length_is_said(tmp_path, capsys):
    files = [str(path) for path in write_clips(tmp_path)]
    words, out = [str(SOUND_MODEL), *files, "--device", "cpu"], tmp_path / "rows.csv"
    assert main([*words, "--windows", "--out", str(out)]) == 3
    rows = list(csv.DictReader(out.open(newline="")))
    whys = Counter(row["reason"] for row in rows if "bad file" not in row["reason"])
    labels = Counter(row["label"] for row in rows if row["label"] != "unknown")
    assert labels["low"] > labels["middle"]
    err = capsys.readouterr().err
    assert (
        f"{whys.total()} windows in {len(files) - 1} recordings: {labels.total()} answered" in err
    )
    assert (
        f"(low {labels['low']}, middle {labels['middle']}), {whys.total() - whys['']} unknown"
        in err
    )
    spans = [float(row["end"]) - float(row["start"]) for row in rows if row["end"]]
    assert {*spans} == {1.0}
    assert "Windows are 1 s long" in err
    assert json.loads((tmp_path / "rows.csv.json").read_text())["window"] == 1.0
    for more in ([], ["--events"]):
        assert main([*words, *more]) == 3
        assert "Windows are 1 s long" in capsys.readouterr().err
    assert main([*words[:2], "--device", "cpu", "--windows"]) == 0  # one window, and nothing is cut
    assert "long" not in capsys.readouterr().err


def cut_off(folder: Path) -> None:
    """A recording of 4 s and a photo whose last quarters are missing, and a file that is not read."""
    for path in write_clips(folder):
        path.rename(folder / "cut.wav") if path.stem == "long" else path.unlink()
    photo = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(photo).save(folder / "cut.jpg", quality=90)
    for name in ("cut.wav", "cut.jpg"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) * 3 // 4])
    (folder / "notes.raw").write_bytes(bytes(1000))


@pytest.mark.parametrize(
    ("name", "words", "rows"),
    [
        ("cut.wav", [], 0),
        ("cut.wav", ["--allow-truncated"], 1),
        pytest.param("cut.wav", ["--windows"], 4, marks=needs("recordings")),
        pytest.param("cut.wav", ["--events"], 1, marks=needs("recordings")),
        ("cut.jpg", [], 0),
        ("cut.jpg", ["--allow-truncated"], 1),
        ("notes.raw", ["--allow-truncated"], 0),
    ],
)
def test_what_is_there_of_a_file_that_was_cut_off_is_predicted_on_request(
    model, tmp_path, capfd, monkeypatch, name, words, rows
):
    cut_off(tmp_path)
    sound = str(SOUND_MODEL)
    used = model if name == "cut.jpg" else sound
    status = main([used, str(tmp_path / name), *words, "--device", "cpu", "--format", "csv"])
    printed = capfd.readouterr()
    table = list(csv.DictReader(io.StringIO(printed.out)))
    assert status == (0 if rows else 3)
    assert sum("bad file" not in row["reason"] for row in table) == rows
    if rows:
        assert f"{name}: truncated" in printed.err
        assert (
            "the last 1 of 4 s are missing" if name == "cut.wav" else "% is missing"
        ) in printed.err
    else:
        assert ("--allow-truncated" in table[0]["reason"]) == (name != "notes.raw")
    if words == ["--windows"]:
        assert max(float(row["end"]) for row in table) == pytest.approx(3, abs=0.01)


def test_a_call_that_is_refused_far_more_is_told_so(model, tmp_path, capsys):
    """An untrained model refuses all, where it is said to have refused one file in ten of its calibration."""
    bundle = load_bundle(model)
    bundle.metrics["refused"] = {"unit": "file", "groups": [[0, 1, 90], [1, 1, 10]]}
    told = str(save_bundle(bundle, tmp_path / "runs/told/model"))
    pictures = write_pictures(tmp_path / "site", per_class=10)
    out = tmp_path / "out.csv"
    assert main([told, str(pictures), "--out", str(out)]) == 0
    text = capsys.readouterr().err
    assert "30 of 30 files (100 %)" in text
    assert "10 %" in text
    assert (f"suggest {told} {pictures} --n 40" in text) == ("loop" not in left_out())
    (notice,) = json.loads((tmp_path / "out.csv.json").read_text())["refused_more"]
    assert (notice["what"], notice["refused"], notice["judged"]) == ("call", 30, 30)
    # Under a stricter rule more is refused anyway.
    strict = [told, str(pictures), "--threshold", "0.99", "--out", str(out), "--overwrite"]
    assert main(strict) == 0
    assert "suggest" not in capsys.readouterr().err
    assert main([model, str(pictures)]) == 0
    assert "suggest" not in capsys.readouterr().err
