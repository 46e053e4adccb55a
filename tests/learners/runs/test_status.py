"""``status.json`` of a run folder."""

from __future__ import annotations

import json

import pytest

from datasets.core import progress
from datasets.core.checked import read_file
from learners.cli.result import Result
from learners.runs import status
from learners.runs.status import STATUS, RunStatus, status_file


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test lets pass."""
    now = [1000.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    return now


def test_a_program_reads_how_far_the_epochs_are(tmp_path, clock):
    def read() -> RunStatus:
        return read_file(RunStatus, tmp_path / STATUS)

    with status_file(tmp_path):
        with progress.step("Reading the files"):
            assert read() == RunStatus("Reading the files", 0, "files")
        for epoch in (2, 3):  # the first one was trained before the run was resumed
            with progress.step("Epoch", 10, "batches", (epoch, 4)) as advance:
                assert (read().stage, read().epoch, read().epochs) == ("Epoch", epoch, 4)
                for done in range(1, 11):
                    clock[0] += 2.0
                    advance(done)
                    # each batch takes two seconds, and epochs 2 to 4 have 30
                    left = 2 * (30 - 10 * (epoch - 2) - done)
                    if epoch == 2 and done < 3:  # not yet a tenth of the 30
                        assert read().seconds_left is None
                    elif epoch == 3 or done > 3:
                        assert read().seconds_left == pytest.approx(left)
                assert read().share == pytest.approx(epoch / 4)
            with progress.step("Calibrating", 3, "items"):
                assert read().epoch is None
    with progress.step("After it"):
        assert read().stage == "Calibrating"


def test_a_program_reads_the_result_as_values(tmp_path):
    metrics = {"test_items": 20, "test_coverage": 1.0, "test_ece": float("nan")}
    metrics |= {"test_accuracy": 0.9, "test_accuracy_of_accepted": 0.9}
    result = Result(metrics, (("a", "b", 2),), "a random split", 0, (), 200, ("c",))
    with status_file(tmp_path) as file:
        file.end(result)
        with progress.step("Writing model.onnx"):
            pass
    known = json.loads((tmp_path / STATUS).read_text())
    assert known["stage"] == "Writing model.onnx"
    assert known["result"]["metrics"] == {**metrics, "test_ece": None}
    again = read_file(RunStatus, tmp_path / STATUS).result
    assert again is not None
    assert again.sentences == result.sentences
    assert any("18 of 20" in line for line in again.sentences)


def test_a_full_disk_is_no_reason_to_end(tmp_path):
    with status_file(tmp_path / "gone"), progress.step("Epoch", 2) as advance:
        advance(2)
    assert not (tmp_path / "gone").exists()
