"""Continuous strain is judged window by window, across frames and around gaps; energy beside a moment is seen."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.strain.frames import Stream, lists_to_scan, read_frames, source_path
from datasets.strain.settings import QScanSettings
from fields.detectors.strain_files import StrainFiles
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor
from learners.predict import main
from learners.predictions.merging import Events
from learners.rule.reasons import Reason, Why
from tests.datasets.files import write
from tests.datasets.sources.strain import BURST, RATE, START, frame
from tests.datasets.strain.test_joined import cut, noise
from tests.fields.detectors.test_triggers import saved
from tests.learners.rules import plain_rule
from tests.left_out import words_left_out

pytestmark = pytest.mark.slow

SETTINGS = QScanSettings(size=(32, 32), fmax=1000.0, context=16.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("models"))


def windows_of(folder: Path) -> list[tuple[str, float]]:
    """List and middle of each window of the strain in a folder."""
    lists, rejected = lists_to_scan(map(str, sorted(folder.rglob("*.hdf5"))), context=16.0)
    assert not rejected
    return [
        (path, window.at)
        for path in lists
        for window in SETTINGS.spans(path)
        if window.at is not None
    ]


def test_windows_cover_all_strain_once_and_show_what_a_trigger_there_shows(tmp_path: Path) -> None:
    values = noise(160)
    values[100 * RATE : 101 * RATE] = np.nan
    frames = cut(tmp_path / "frames", values, 16, skipped=(0,))
    scanned = windows_of(frames)
    reach = SETTINGS.reach
    expected = [
        START + t
        for t in np.arange(0, 160, 0.5)
        if 16 + reach <= t <= 100 - reach or 101 + reach <= t <= 160 - reach
    ]
    assert [middle for _, middle in scanned] == expected
    assert len({path for path, _ in scanned}) > 1
    whole = cut(tmp_path / "whole", values, 160) / "0" / f"H-H1_SIM-{START}-160.hdf5"
    alone = {middle: path for path, middle in windows_of(tmp_path / "whole")}
    for n in (0, 1, 60, 150, len(scanned) - 1):
        path, middle = scanned[n]
        found = read_frames(str(frames)).find("H1", middle, 16.0)
        assert isinstance(found, Stream)
        picture = SETTINGS.picture(Part(path, at=middle))
        trigger = SETTINGS.picture(Part(source_path(found), at=middle))
        np.testing.assert_array_equal(picture, trigger)
        if middle > START + 48:  # before, the whole file has more strain around it
            np.testing.assert_array_equal(picture, SETTINGS.picture(Part(whole, at=middle)))
            np.testing.assert_array_equal(picture, SETTINGS.picture(Part(alone[middle], at=middle)))


def test_a_row_per_window_has_gps_times_and_the_name_of_its_frame(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gap = slice(10 * RATE, 12 * RATE)
    frame(tmp_path / "frames", seconds=32)
    frame(tmp_path / "frames", start=START + 32, seconds=32, gap=gap)
    (tmp_path / "frames" / "bad.hdf5").write_bytes(b"\x89HDF\r\n\x1a\nbroken")
    assert main([model, str(tmp_path / "frames"), "--windows", "--threshold", "0"]) == 3
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    bad = [row for row in rows if not row["start"]]
    assert [Path(row["path"]).name for row in bad] == ["bad.hdf5"]
    rows = [row for row in rows if row["start"]]
    assert {Path(row["path"]).name for row in rows} == {
        f"H-H1_SIM-{START + n}-32.hdf5" for n in (0, 32)
    }
    assert all(float(row["end"]) - float(row["start"]) == 0.5 for row in rows)
    middles = [t for t in np.arange(0, 64, 0.5) if usable(t)]
    assert [float(row["at"]) - START for row in rows] == middles
    assert f"Strain: {len(rows) / 2:.0f} of 64 s judged" in err
    # The burst is at 20 s of each file; windows within a second of it say so.
    for row in rows:
        offset = START + BURST + (32 if float(row["at"]) > START + 32 else 0) - float(row["at"])
        if abs(offset) < 0.98:
            assert float(row["offset"]) == pytest.approx(offset, abs=0.02)
    # The answer is that of the predictor for this moment.
    row = rows[30]
    (single,) = Predictor(model).predict([row["path"]], at=float(row["at"]))
    assert float(row["probability"]) == pytest.approx(single.probability, abs=1e-3)
    out_file = tmp_path / "events.csv"
    call = [model, str(tmp_path / "frames"), "--events", "--out", str(out_file), "--threshold", "0"]
    assert main(call) == 3
    events = list(csv.DictReader(out_file.open()))
    spans = [(float(e["start"]), float(e["end"]), float(e["at"])) for e in events if e["start"]]
    assert all(start <= at <= end for start, end, at in spans)
    assert sum(end - start for start, end, _ in spans) == len(rows) / 2


def usable(t: float) -> bool:
    reach = SETTINGS.reach
    return reach <= t <= 42 - reach or 44 + reach <= t <= 64 - reach


def test_recentred_triggers_are_judged_where_the_energy_lies(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame(tmp_path)
    times = [BURST, BURST + 0.5, BURST - 0.7, 40.0]
    text = "gps,ifo,top\n" + "".join(f"{START + t!r},H1,x\n" for t in times)
    call = [model, "--triggers", str(write(tmp_path / "t.csv", text)), "--strain", str(tmp_path)]
    rows = {}
    for flags in ((), ("--recentre",)):
        assert main([*call, *flags, "--scores", "--top", "1"]) == 0
        rows[flags] = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    plain, moved = rows.values()
    for row, t in zip(plain, times, strict=True):
        offset = row["offset"]
        assert (offset == "") == (t == 40.0)
        if offset:
            assert float(offset) == pytest.approx(BURST - t, abs=0.02)
        assert float(row["Blip"]) + float(row["Tomte"]) == pytest.approx(1, abs=1e-5)
        assert json.loads(row["top"]) == [[row["ml_label"], float(row["ml_confidence"])]]
        assert row["given_top"] == "x"
    assert [row["offset"] for row in moved] == [row["offset"] for row in plain]
    scores = [float(row["Blip"]) for row in moved]
    assert (
        scores[1]
        == pytest.approx(scores[0], abs=0.02)
        != pytest.approx(float(plain[1]["Blip"]), abs=1e-6)
    )
    assert scores[3] == float(plain[3]["Blip"])


def window(path: str, middle: float, label: str) -> Prediction:
    top = [("A", 0.9), ("B", 0.1)]
    reason = Reason() if label != "unknown" else Reason(Why.AMBIGUOUS)
    return Prediction(
        Part(path, middle - 0.25, middle + 0.25, middle), label, "A", 0.9, reason, top, 1.0
    )


@pytest.mark.parametrize("gap", [0.0, 5.0])
def test_an_event_across_pieces_is_one(gap: float) -> None:
    answers = "..AA.AAA" + "AA......" + "........" + "..A....."  # A window each half second
    pieces = [
        tuple(
            window("H-H1_X-0-64.gwf", 100 + 0.5 * (8 * n + k), "A" if c == "A" else "unknown")
            for k, c in enumerate(answers[8 * n : 8 * n + 8])
        )
        for n in range(4)
    ]
    whole = [piece[0].with_more(windows=piece) for piece in pieces]
    strain = StrainFiles(SETTINGS, scan=True, gap=gap)
    events = Events(plain_rule(2), gap)
    found = [(e.part.start, e.part.end) for p in strain(whole) for e in events.rows(p)]
    expected = [(100.75, 101.75), (102.25, 104.75), (112.75, 113.25)]
    assert found == (expected if gap == 0 else [(100.75, 104.75), (112.75, 113.25)])
    # Across missing strain no event goes on, however long the gap may be.
    broken = [whole[0], whole[2].with_more(windows=tuple(w._replace(label="A") for w in pieces[2]))]
    assert len([e for p in strain(broken) for e in events.rows(p)]) >= 2


def test_calls_that_cannot_be_are_refused(model: str, tmp_path: Path) -> None:
    path = str(frame(tmp_path))
    for words, match in {
        ("--windows", "--at", "1"): "--windows .*--at 1",
        ("--events", "--cluster", "local"): "--cluster local",
        ("--scores",): "--scores .*--triggers",
        ("--events", "--format", "raven"): "--format raven is for sound",
    }.items():
        if {*words, " ".join(words[-2:])} & words_left_out():
            continue
        with pytest.raises(SecondhandError, match=match):
            main([model, path, *words])
