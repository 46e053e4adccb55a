"""An interrupted job continues, and ends with the same file as an uninterrupted one."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from learners.cli import console
from learners.inference.decoding import group_by_round
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.model.bundle import save_bundle
from learners.outputs.base import OUTPUTS
from learners.outputs.journal import Journal
from learners.predict import main
from learners.predictions.rows import RowSettings
from learners.rule.reasons import Reason, Why
from tests.forks import Program, until
from tests.learners.inference.test_predictions import SPECTROGRAM_SETTINGS, tone
from tests.learners.inference.test_predictor import bundle
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of pictures and one of sound."""
    folder = tmp_path_factory.mktemp("models")
    untrained = bundle()
    save_bundle(untrained, folder / "pictures")
    untrained.spectrogram, untrained.overlap = SPECTROGRAM_SETTINGS.to_dict(), 0.5
    save_bundle(untrained, folder / "sound")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_pictures(tmp_path_factory.mktemp("files"), per_class=6, size=16)
    (folder / "green/broken.jpg").write_text("no picture")
    for number, seconds in enumerate([3.0, 0.6, 7.5, 2.2, 3.1]):
        tone(folder / f"{number}.wav", seconds)
    return folder


def answer(path: str, **fields: object) -> Prediction:
    blank = Prediction(Part(path), "a", "a", 0.5, Reason(), [("a", 0.5), ("b", 0.1)], float("nan"))
    return blank._replace(**fields)


@pytest.mark.parametrize("kind", ["pictures", "sound"])
def test_wherever_it_is_cut_off_the_same_command_ends_with_the_same_file(
    kind, models, files, tmp_path, monkeypatch
):
    """In the header, a line, between two lines of a round, at the end of a round or of the job."""
    monkeypatch.setattr("learners.inference.decoding.ROUND", 1)
    lengths = []
    monkeypatch.setattr(Journal, "finish", lambda self: lengths.append(self.file.read_bytes()))
    call = [str(models / kind), str(files), "--bs", "3", "--workers", "1", "--out"]
    full, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    assert main([*call, str(full)]) == (3 if kind == "pictures" else 0)
    lines = lengths[0].splitlines(keepends=True)
    assert len(lines) >= 4
    assert len(full.read_text().splitlines()) == (20 if kind == "pictures" else 6)
    predicted: list[str] = []
    real = Predictor.predict

    def predict(self, paths, **options):
        return real(self, (predicted.append(path) or path for path in paths), **options)

    monkeypatch.setattr(Predictor, "predict", predict)
    start, first_round = len(lines[0]), lengths[0].index(b"\n\n") + 2
    places = [10, start + 5, start + len(lines[1]), first_round, len(lengths[0]) - 1]
    for pending in places if kind == "pictures" else places[3:4]:
        predicted.clear()
        out.unlink(missing_ok=True)
        (tmp_path / "out.csv.part").write_bytes(lengths[0][:pending])
        main([*call, str(out)])
        assert out.read_bytes() == full.read_bytes()
        files_left = len(full.read_text().splitlines()) - 1
        assert (len(predicted) < files_left) == (pending >= first_round)


def test_batches_are_the_same_from_the_end_of_a_round(models, files, monkeypatch):
    """They agree to the last bit: rounds end with recordings, in the middle of a batch."""
    monkeypatch.setattr("learners.inference.decoding.ROUND", 2)
    names = [str(files / f"{n}.wav") for n in range(5)] * 2
    predictor = load_predictor(models / "sound", bs=3)
    rounds = [*group_by_round(predictor.predict(names), 3)]
    assert len(rounds) > 2
    done = len(rounds[0])
    rest = [*predictor.predict(names[done:])]
    assert repr(rest) == repr([one for answers in rounds[1:] for one in answers])


def test_killed_it_goes_on(models, tmp_path):
    folder = write_pictures(tmp_path / "files", per_class=40, size=16)
    out, reference = tmp_path / "answers.csv", tmp_path / "whole.csv"
    words = [str(models / "pictures"), str(folder), "--bs", "1", "--workers", "1", "--out"]
    assert main([*words, str(reference)]) == 0
    part = tmp_path / "answers.csv.part"
    program = Program("-m", "learners.predict", *words, str(out))
    until(lambda: part.exists() and part.read_bytes().count(b"\n") > 2)
    program.kill()
    program.wait(60)
    assert not out.exists()
    assert part.exists()
    assert main([*words, str(out)]) == 0
    assert out.read_bytes() == reference.read_bytes()
    assert not part.exists()


def test_another_question_is_an_error_that_names_the_difference(models, files, tmp_path, capsys):
    out = tmp_path / "answers.csv"
    call = [str(models / "pictures"), str(files), "--out", str(out)]
    part = tmp_path / "answers.csv.part"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "finish", lambda self: None)
        main(call)
    out.unlink()
    before = part.read_bytes()
    with pytest.raises(SecondhandError, match=r"--threshold None, but this call has 0\.25\."):
        main([*call, "--threshold", "0.25"])
    with pytest.raises(SecondhandError, match=r"folders \["):
        main([call[0], str(files / "red"), *call[2:]])
    other = bundle()
    other.classes = ["e", "f", "g", "h"]
    save_bundle(other, tmp_path / "other")
    with pytest.raises(SecondhandError, match="with model "):
        main([str(tmp_path / "other"), *call[1:]])
    assert part.read_bytes() == before
    assert main([*call, "--threshold", "0", "--overwrite"]) == 3
    assert {line.split(",")[1] for line in out.read_text().splitlines()[1:]} != {"unknown"}
    with pytest.raises(
        SecondhandError, match=r"already exists. Choose another name or give --over"
    ):
        main(call)
    part.write_text("something of the user's\n")
    with pytest.raises(SecondhandError, match="is not an unfinished job"):
        main(call)
    assert part.read_text() == "something of the user's\n"


def test_a_full_disk_stops_it_in_order_and_with_room_it_goes_on(
    models, files, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("learners.inference.decoding.ROUND", 1)
    out = tmp_path / "answers.csv"
    call = [str(models / "pictures"), str(files), "--bs", "4", "--out", str(out)]
    pending = [3]

    def fsync(descriptor: int) -> None:
        pending[0] -= 1
        if not pending[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(SystemExit) as end:
            console.run(lambda: main(call))
    assert end.value.code == 1
    assert f"{out}: No space left on device" in capsys.readouterr().err
    assert main(call) == 3
    assert len(out.read_text().splitlines()) == 20


def test_two_at_work_on_one_answer_keep_out_of_each_others_way(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom learners.outputs.journal import Journal\n"
        "with Journal(Path(sys.argv[1]), {}):\n    print('there', flush=True)\n    time.sleep(60)\n"
    )
    program = Program("-c", code, str(tmp_path / "answers.csv"))
    until(lambda: "there" in program.out)
    with pytest.raises(SecondhandError, match="in use by another process"):
        Journal(tmp_path / "answers.csv", {})
    program.kill()
    program.wait(60)
    Journal(tmp_path / "answers.csv", {})


def test_files_may_come_and_go_in_between(tmp_path):
    """Each file is answered as often as it is named; a deleted file keeps its answer."""
    out = tmp_path / "a.csv"
    with Journal(out, {}) as journal:
        assert [*journal.pending(iter("bdfdh"))] == [*"bdfdh"]
        assert [*journal.add([[answer(p) for p in "bdf"], [answer("d")]])] == [3, 4]
    with Journal(out, {}) as journal:
        assert [*journal.pending(iter("abcddfdg"))] == [*"acdg"]
        assert [*journal.add([[answer("a")]])] == [5]
        assert [one.path for one in journal] == [*"bdfda"]


def test_a_file_that_was_replaced_is_asked_again_and_its_old_answer_goes(tmp_path, caplog):
    caplog.set_level("INFO")
    files = [str(tmp_path / f"{name}.jpg") for name in "abc"]
    for file in files:
        Path(file).write_text("old")
    out = tmp_path / "a.csv"
    names = [*files, files[1]]  # one of them twice
    with Journal(out, {}) as journal:
        pending = journal.pending(iter(names))
        sources = [next(pending), next(pending)]
        Path(files[0]).write_text("new, while it was read")
        sources += pending
        list(journal.add([[answer(file) for file in sources]]))
    mtime = Path(files[1]).stat().st_mtime_ns
    Path(files[1]).write_text("new")
    os.utime(files[1], ns=(mtime, mtime))  # of the old size and time, as cp -p leaves it
    with Journal(out, {}) as journal:
        assert [*journal.pending(iter(names))] == [files[0], files[1], files[1]]
        assert "predicted again: 3" in caplog.text
        assert [one.path for one in journal] == [files[2]]
    with Journal(out, {}) as journal:  # as after a kill
        assert [*journal.pending(iter(names))] == [files[0], files[1], files[1]]
        list(journal.add([[answer(files[n], label="b") for n in (0, 1, 1)]]))
    with Journal(out, {}) as journal:
        answers = [(one.path, one.label) for one in journal]
        assert answers == [(files[2], "a"), (files[0], "b"), (files[1], "b"), (files[1], "b")]
        assert [*journal.pending(iter(names))] == []
        assert journal.before == 4


def test_an_answer_is_kept_to_the_last_bit(tmp_path):
    reason = Reason(Why.BAD_FILE, "cut off: \u2028 half")
    window = answer("x\udcff.wav", part=Part("x\udcff.wav", 0.1, 1 / 3), probability=0.1 + 0.2)
    long = answer("x\udcff.wav", reason=reason, known=-1e-300)
    long = long.with_more(windows=(window, window))
    with Journal(tmp_path / "a.csv", {"a": 1}) as journal:
        list(journal.pending(iter([long.path])))
        list(journal.add([[long]]))
    with Journal(tmp_path / "a.csv", {"a": 1}) as journal:
        (restored,) = journal
    assert repr(restored) == repr(long)
    assert restored.reason.why is Why.BAD_FILE
    assert restored.windows[0].probability == 0.1 + 0.2
    call, line = (tmp_path / "a.csv.part").read_text(errors="surrogateescape").split("\n")[:2]
    assert json.loads(call)["call"] == {"a": 1}
    in_lines = tmp_path / "a.jsonl"
    OUTPUTS["jsonl"].write([long], RowSettings(), in_lines)
    written = json.loads(in_lines.read_text(errors="surrogateescape"))
    assert json.loads(line) == written | {"state": None}
