"""A table of triggers comes back with an answer, or the reason for none, in each row."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import h5py
import pytest

from datasets.core.errors import SecondhandError
from datasets.strain.settings import QScanSettings
from learners.inference.predictor import Predictor
from learners.model.bundle import save_bundle
from learners.predict import main
from tests.datasets.files import write
from tests.datasets.sources.strain import CSV, RATE, START, frame
from tests.learners.rules import untrained

pytestmark = pytest.mark.slow


def saved(folder: Path) -> str:
    spectrogram = QScanSettings(size=(32, 32), fmax=1000.0, context=16.0).to_dict()
    return str(save_bundle(untrained(["Blip", "Tomte"], spectrogram=spectrogram), folder / "model"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    frame(folder)
    frame(folder, start=START + 64, gap=slice(38 * RATE, 39 * RATE))
    return folder


#: GPS time minus START, detector, and why it is not answered.
ROWS = [
    (90.0, "H1", ""),
    (20.0, "H1", ""),
    (127.0, "H1", "ends 1.000 s after the trigger"),
    (102.5, "H1", "too little strain around GPS"),
    (200.0, "H1", "no strain of H1 at GPS"),
    (20.0, "Z9", "no strain of the detector 'Z9'"),
    (20.0, "H1", ""),
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        f"{START + gps:.1f},{ifo},8.0,id{n},Koi_Fish,0.5" for n, (gps, ifo, _) in enumerate(ROWS)
    ]
    text = CSV + "\n".join([*rows, "soon,H1,8.0,last,Koi_Fish,0.5"]) + "\n"
    return write(tmp_path_factory.mktemp("table") / "t.csv", text)


def test_each_row_is_answered_in_its_place(model, frames, table, capsys):
    assert main([model, "--triggers", str(table), "--strain", str(frames), "--threshold", "0"]) == 3
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    rows_before = list(csv.DictReader(table.open()))
    assert [*rows[0]] == [
        "event_time", "ifo", "snr", "gravityspy_id", "given_ml_label", "given_ml_confidence",
        "ml_label", "ml_confidence", "label", "reason", "offset",
    ]  # fmt: skip
    for row, before, (_, _, reason) in zip(
        rows, rows_before, [*ROWS, (0, "", "not a GPS time")], strict=True
    ):
        original = {name.removeprefix("given_"): row[name] for name in [*row][:6]}
        assert original == before
        assert (row["ml_label"] in ("Blip", "Tomte")) == (not reason)
        assert (row["label"] == "unknown") == bool(reason)
        assert reason in row["reason"]
    assert rows[1]["ml_confidence"] == rows[6]["ml_confidence"]
    assert "5 of 8 triggers could not be predicted" in err
    assert f"{table}, row 4: " in err
    # The same answer as for the trigger alone.
    (single,) = Predictor(model).predict([str(frames / f"H-H1_SIM-{START}-64.hdf5")], at=START + 20)
    assert float(rows[1]["ml_confidence"]) == pytest.approx(single.probability, abs=1e-6)


def test_the_table_is_written_by_its_ending(model, frames, table, tmp_path, capsys):
    out = tmp_path / "answers.hdf5"
    call = [model, "--triggers", str(table), "--strain", str(frames), "--out", str(out)]
    assert main(call) == 3
    record = json.loads((tmp_path / "answers.hdf5.json").read_text())
    assert record["counts"]["triggers"] == 8
    with h5py.File(out) as file:
        read = file["triggers"][:]
    assert read["gravityspy_id"].tolist() == [*(b"id%d" % n for n in range(7)), b"last"]
    assert [bool(name) for name in read["ml_label"]] == [not reason for _, _, reason in ROWS] + [
        False
    ]
    with pytest.raises(SecondhandError, match="exists already"):
        main(call)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--triggers", "t.csv"], "--triggers t.csv without --strain"),
        (["--triggers", "t.csv", "--strain", "x", "--at", "1"], "--at 1.* --triggers"),
    ],
)
def test_a_call_that_cannot_be_is_said(model, words, message):
    with pytest.raises(SecondhandError, match=message):
        main([model, *words])
    with pytest.raises(SecondhandError, match=r"--triggers t\.csv with a\.hdf5"):
        main([model, "a.hdf5", "--strain", "x", "--triggers", "t.csv"])
