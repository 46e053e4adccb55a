"""What each format contains, and what of it can be read back."""

from __future__ import annotations

import csv
import io
import math
import os
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.items.facts import Corrections
from datasets.kinds.base import KINDS
from datasets.sources.base import ReadOptions, read_source
from datasets.steps.reading import load_table
from datasets.strain.settings import QScanSettings
from datasets.tables.cells import read_cells
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS
from learners.outputs.checks import check_call
from learners.predictions.merging import Events
from learners.predictions.rows import RowSettings, Windows
from learners.rule.reasons import AMBIGUOUS, OUT_OF_DISTRIBUTION, Reason, Why
from learners.runs.folder import record_inputs, write_csv
from tests.learners.inference.test_predictions import tone
from tests.learners.rules import plain_rule
from tests.pictures import write_pictures

NAN = math.nan
MEL = MelSettings(fmin=20.0, fmax=4000.0)


def answer(path: object, label: str = "a", p: float = 0.8, *span: float) -> Prediction:
    reason = AMBIGUOUS if label == "unknown" else Reason()
    start, end = span or (None, None)
    best = "b" if label == "unknown" else label
    return Prediction(Part(str(path), start, end), label, best, p, reason, [(best, p)], NAN)


@pytest.fixture
def recordings(tmp_path: Path) -> list[Prediction]:
    """Three sound files, one of them bad, and one in a subfolder with the same stem as another."""
    folder = tmp_path / "recordings"
    (folder / "deep").mkdir(parents=True)
    paths = [folder / "x.flac", folder / "x.wav", folder / "deep/x.wav"]
    for path in paths:
        tone(path, 3.0)
    long = answer(paths[1]).with_more(
        windows=(
            answer(paths[1], "a", 0.9, 0.0, 1.0),
            answer(paths[1], "unknown", 0.4, 1.0, 2.0),
            answer(paths[1], "b b", 0.7, 2.0, 3.0),
        )
    )
    bad = answer(folder / "bad.wav", "unknown", NAN)._replace(
        reason=Reason(Why.BAD_FILE, "cut off"), best="", top=[]
    )
    return [answer(paths[2]), answer(paths[0], "unknown"), long, bad]


def tabbed(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open(newline=""), delimiter="\t"))


def test_a_table_says_which_moment_of_strain_was_judged(capsys):
    one = answer("H-H1_strain.hdf5")._replace(part=Part("H-H1_strain.hdf5", at=1126259462.391))
    bad = one._replace(
        label="unknown", best="", part=Part(one.path), reason=Reason(Why.BAD_FILE, "cut off")
    )
    OUTPUTS["table"].write([one, bad], RowSettings(spectrogram=QScanSettings()), None)
    first, last = capsys.readouterr().out.splitlines()
    assert "at GPS 1126259462.391 s" in first
    assert " at " not in last
    sound = RowSettings(spectrogram=MelSettings())
    OUTPUTS["table"].write([one._replace(part=one.part._replace(at=2.5))], sound, None)
    assert "at 2.500 s" in capsys.readouterr().out
    page = answer("stack.tif")._replace(part=Part("stack.tif", at=12))
    OUTPUTS["table"].write([page], RowSettings(), None)
    assert "page 12  stack.tif" in capsys.readouterr().out.replace("   ", "  ")


def test_a_table_never_rounds_a_probability_up_to_a_threshold(capsys):
    OUTPUTS["table"].write(
        [answer("a.jpg", "unknown", 0.9496), answer("b.jpg", "a", 0.29)],
        RowSettings(),
        None,
    )
    first, last = capsys.readouterr().out.splitlines()
    assert "94 %, ambiguous" in first
    assert " 29 % " in last


def test_a_pipe_or_device_is_refused_before_anything_is_predicted(tmp_path):
    """Renaming a finished table to it would replace it for all programs."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for out in (pipe, Path("/dev/null"), Path("/dev/stdout")):
        with pytest.raises(SecondhandError, match=f"--out {out} "):
            check_call(OUTPUTS["csv"], RowSettings(), KINDS["sound"], out, overwrite=True)


def test_events_are_written_in_every_format(recordings, tmp_path, capsys):
    shape = RowSettings(merge=Events(plain_rule(2), gap=1.0, top=1), classes=("a", "b b"), top=1)
    two = recordings[2].with_more(
        windows=(*recordings[2].windows, answer("x", "b b", 0.7, 3.0, 4.0))
    )
    of_fields = [name for name in ("raven", "audacity") if name in OUTPUTS]
    for format in ("csv", "jsonl", "table", *of_fields):
        OUTPUTS[format].write([two], shape, None)
        lines = capsys.readouterr().out.splitlines()
        rows = [line for line in lines if "b b" in line]
        assert len(rows) == 1, format
        assert "2.0" in rows[0]
        assert "4.0" in rows[0]
    if "camtrap-dp" not in OUTPUTS:
        return
    OUTPUTS["camtrap-dp"].write([two], shape, tmp_path / "package")
    rows = list(csv.DictReader((tmp_path / "package/observations.csv").open()))
    assert [row["scientificName"] for row in rows] == ["a", "b b"]
    seconds = [
        (
            datetime.fromisoformat(row["eventEnd"]) - datetime.fromisoformat(row["eventStart"])
        ).seconds
        for row in rows
    ]
    assert seconds == [1, 2]


def test_a_table_is_aligned_and_coloured_on_a_terminal_alone(recordings, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shape = RowSettings(merge=Windows(), classes=("a", "b b"))
    outputs = {}
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, stream, colour in (("file", io.StringIO(), ""), ("terminal", Terminal(), ""), ("plain", Terminal(), "1")):  # fmt: skip
        monkeypatch.setenv("NO_COLOR", colour)
        monkeypatch.setattr("sys.stdout", stream)
        OUTPUTS["table"].write(recordings, shape, None)
        outputs[name] = stream.getvalue()
    assert "\x1b[32m" in outputs["terminal"]
    assert "\x1b[3" not in outputs["file"] + outputs["plain"]
    lines = outputs["file"].splitlines()
    assert len(lines) == 6
    assert len({line.index(str(Path(recordings[0].path).parents[1])) for line in lines[2:5]}) == 1
    assert lines[-1].endswith("bad.wav   bad file: cut off")
    assert "b? " in lines[1]
    assert lines[1].endswith(", ambiguous")


def test_where_a_format_may_go(recordings, tmp_path):
    for call, message in {
        ("camtrap-dp", "strain", tmp_path): "is for picture and sound",
        ("camtrap-dp", "sound", None): "Give a folder as --out",
        ("csv", "sound", tmp_path): "is a folder. Give a file",
    }.items():
        name, kind, out = call
        if name not in OUTPUTS:  # the field is left out
            continue
        with pytest.raises(SecondhandError, match=message):
            check_call(OUTPUTS[name], RowSettings(), KINDS[kind], out, overwrite=False)


def test_what_is_written_is_read_back(recordings, tmp_path):
    """By the annotation reader."""
    if "camtrap-dp" not in OUTPUTS:
        pytest.skip("the field is left out")
    folder = tmp_path / "recordings"
    expected = [(str(folder / "x.wav"), "a", 0.0, 1.0), (str(folder / "x.wav"), "b b", 2.0, 3.0)]
    shape = RowSettings(merge=Windows(), names=(str(folder),), spectrogram=MEL)
    OUTPUTS["camtrap-dp"].write(recordings[2:3], shape, folder)
    frame, *_ = read_source(str(folder), ReadOptions())
    rows = sorted(frame[["path", "label", "start", "end"]].itertuples(index=False, name=None))
    assert rows == expected


@pytest.mark.parametrize("writer", ["predict", "run"])
@pytest.mark.parametrize("name", ["a.wav", "b.hdf5"])
def test_an_answer_about_a_part_is_corrected_in_the_table(tmp_path, writer, name):
    """Its times read back as the item's own, exactly, so that it is no second item."""
    file = tmp_path / name
    file.write_bytes(b"signal")
    gps, start, end = 1126259462.0123457, 1.897648165999982, 2.0000000012345
    times = {"start": start, "end": end} if name == "a.wav" else {"gps": gps}
    rows = [{"path": str(file), "label": "ab"[n % 2]} for n in range(5)]
    items = pd.DataFrame([row | {k: v + n for k, v in times.items()} for n, row in enumerate(rows)])
    items.to_csv(tmp_path / "items.csv", index=False)
    original = answer(file, "a", 0.8, times.get("start", NAN), times.get("end", NAN))
    original = original._replace(label="b", part=original.part._replace(at=times.get("gps")))
    out = tmp_path / "answers.csv"
    if writer == "predict":
        OUTPUTS["csv"].write([original], RowSettings(), out)
    else:
        write_csv(out, pd.DataFrame([original.record()]).drop(columns="windows"))
    (row,) = csv.DictReader(out.open())
    assert [float(row["at" if k == "gps" else k]) for k in times] == [*times.values()]
    table = load_table([str(tmp_path / "items.csv"), str(out)], check=False)
    assert table.frame["label"].tolist() == [*"bbaba"]
    assert table.frame.loc[0, [*times]].tolist() == [*times.values()]
    assert table.fact(Corrections).frame["label"].tolist() == ["b"]


def test_what_a_tree_answered_teaches_nothing_until_it_is_corrected(tmp_path: Path) -> None:
    write_pictures(tmp_path / "known", per_class=2, classes=2)
    write_pictures(tmp_path / "new", per_class=3, classes=1, size=48)
    new = sorted(map(str, (tmp_path / "new" / "red").iterdir()))
    out, first = tmp_path / "tr.csv", answer(new[0], "red")
    first = first.with_more(branch=(("Café", 0.99), ("red", 0.6)))
    answers = [
        first._replace(label="Café", reason=AMBIGUOUS),
        first._replace(part=Part(new[1])),
        first._replace(part=Part(new[2]), label="unknown", reason=OUT_OF_DISTRIBUTION),
    ]
    OUTPUTS["csv"].write(answers, RowSettings(hidden=("known",)), out)
    with pytest.raises(SecondhandError, match="no label was corrected"):
        load_table([str(tmp_path / "known"), str(out)])
    rows = pd.read_csv(out, keep_default_na=False)
    rows.loc[0, "label"] = "green"
    rows.to_csv(out, index=False)
    table = load_table([str(tmp_path / "known"), str(out)])
    assert table.classes == ["green", "red"]
    assert dict(table.frame[["path", "label"]].to_numpy()).get(new[0]) == "green"
    assert len(table.frame) == 5


def test_no_spreadsheet_computes_a_name_and_each_is_read_as_it_was(tmp_path):
    """In answers on standard output and in a run; numbers stay numbers."""
    labels = ["=SUM(A1)", "+1 more", "-cmd", "@home", "'=x", "-1.5", "plain"]
    paths = [f"{sign}{n}.jpg" for n, sign in enumerate(("=", "+", "-", "@", "\t", "'=", ""))]
    rows = [
        answer(path, label)._replace(part=Part(path, at=-1.5))
        for path, label in zip(paths, labels, strict=True)
    ]
    OUTPUTS["csv"].write(rows, RowSettings(classes=labels), tmp_path / "answers.csv")
    write_csv(
        tmp_path / "predictions.csv",
        pd.DataFrame([row.record() for row in rows]).drop(columns="windows"),
    )
    write_csv(tmp_path / "rejected.csv", zip(paths, labels, strict=True), ["path", "label"])
    items = pd.DataFrame({"path": paths, "label": labels})
    record_inputs(tmp_path, {"items.csv": items})
    for name in ("answers.csv", "predictions.csv", "rejected.csv", "items.csv"):
        with open(tmp_path / name, newline="", encoding="utf-8") as opened:
            cells = [cell for row in csv.reader(opened) for cell in row]
        signs = tuple("=+-@\t\r")
        assert {cell for cell in cells if cell.startswith(signs)} <= {"-1.5", "-1.500000"}, name
        read = read_cells(tmp_path / name)
        assert read["path"].tolist() == paths
        assert read["label"].tolist() == labels
        if "at" in read:
            assert read["at"].astype(float).tolist() == [-1.5] * len(paths)
