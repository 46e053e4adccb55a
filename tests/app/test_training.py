"""The tab *Train*: summaries of folders, and one real training."""

from __future__ import annotations

import fcntl
import json
import re
import signal

import pytest

from app.__main__ import main
from app.feedback import Feedback
from app.serving import Served, Site
from app.train_tab import add_trained, lessons, look_at, status_html
from app.training import Training
from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS
from learners.inference.predictor import Predictor
from learners.model.bundle import save_bundle
from tests.app.sites import colours
from tests.forks import until
from tests.left_out import of_field
from tests.pictures import write_pictures


@pytest.fixture
def in_the_background():
    """Ignore Ctrl-C, as a shell does for a program started with ``&``."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_folder_is_looked_at(tmp_path):
    photos = write_pictures(tmp_path / "photos", per_class=5)
    (photos / "red" / "broken.jpg").write_text("no picture")
    look = look_at(photos)
    assert (look.kind, look.counts) == ("picture", {"blue": 5, "green": 5, "red": 5})
    assert look.pictures.keys() == look.counts.keys()
    assert any(line.strip().startswith("red/broken.jpg: not a picture") for line in look.problems)
    assert "red: 5" in look.html()


def test_a_folder_that_cannot_be_trained_on_says_why(tmp_path):
    one = write_pictures(tmp_path / "one", per_class=4, classes=1)
    two = write_pictures(tmp_path / "two", per_class=4, classes=2)
    (tmp_path / "empty").mkdir()
    for folder, reason in (
        (one, "only the class 'red'.*two classes"),
        (two / "red", "folder of one class"),
        (tmp_path / "empty", "no class folder"),
        (tmp_path / "missing", "no such folder"),
    ):
        with pytest.raises(SecondhandError, match=reason):
            look_at(folder)


def test_what_the_command_warns_of_is_a_problem(tmp_path):
    photos = write_pictures(tmp_path / "photos", per_class=5)
    for number, path in enumerate(sorted((photos / "blue").iterdir())):
        if number:
            path.unlink()
    summary = look_at(photos)
    assert summary.counts == {"green": 5, "red": 5}
    assert any("'blue'" in line and "too few" in line for line in summary.problems)


@pytest.mark.parametrize(
    "words", [["--host", "0.0.0.0"], ["--share"], ["--allow-host", "photos.example"]]
)
def test_nobody_elsewhere_trains_without_a_password(tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SecondhandError, match=r"--train.*--auth NAME:PASSWORD"):
        main(["--train", *words])
    assert not list(tmp_path.iterdir())


def test_a_model_after_the_flag_is_not_taken_for_the_folder_of_runs(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SecondhandError, match=rf"app {re.escape(str(tmp_path))} --train"):
        main(["--train", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_the_files_of_a_run_tell_how_far_it_is(tmp_path):
    training, run = Training(tmp_path / "runs"), tmp_path / "runs" / "photos"
    run.mkdir()
    rows = ["frozen,1,0.1,0.5,0.9,0,0.1", "unfrozen,1,2,1,0.5,1,10", "unfrozen,2,1,0.6,0.7,1,12"]
    head = "phase,epoch,train_loss,valid_loss,accuracy,lr,seconds"
    (run / "history.csv").write_text("\n".join([head, *rows, ""]))
    told = {"stage": "Epoch", "done": 2, "total": 9, "unit": "batches", "epoch": 3, "epochs": 5}
    (run / "status.json").write_text(json.dumps({**told, "seconds_left": 41.2}))
    training._state.write_text(json.dumps({"words": ["--data", "photos", "--out", str(run)]}))
    with open(training._lock, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the training process holds it
        status = training.status()
        with pytest.raises(SecondhandError, match="One training runs already"):
            Training(tmp_path / "runs").start(["--data", "x", "--out", "y"])
    assert status.state == "running"
    html = status_html(status)
    assert "Epoch 3 of 5" in html
    assert "2 of 9 batches, about 41\u00a0s left" in html.replace("41 s", "41\u00a0s")
    assert f'value="{(2 + 2 / 9) / 5:.3f}"' in html
    assert "<b>90.0\u00a0%</b> of the validation files right" in html
    assert html.count("<svg") == 2
    assert "Cross-entropy of training and validation over 3 epochs" in html
    body = run / "checkpoint" / "body-10"
    body.mkdir(parents=True)
    (run / "history.csv").rename(body / "history.csv")
    (body.parent / "body-9").mkdir()
    (body.parent / "body-9" / "history.csv").write_text(f"{head}\n{rows[0]}\n")
    assert len(training.status().epochs) == 3, "of the body in training, before the model is"
    taught = [*rows[:1], "unfrozen,1,2,,,1,10"]
    (run / "history.csv").write_text("\n".join([head, *taught, ""]))
    with open(training._lock, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        html = status_html(training.status())
    assert "<td>1</td><td>2.000</td><td></td><td></td>" in html, "nothing validates the model"
    assert training.status().state == "failed"  # ended without a checkpoint


@pytest.mark.slow
def test_a_training_outlives_its_page_is_stopped_and_joins_the_models(tmp_path, in_the_background):
    """Training runs in its own process; a second page watches it, stops it and may resume it."""
    photos = write_pictures(tmp_path / "photos", per_class=6)
    one = Training(tmp_path / "runs")
    words = one.words([photos], "usual")
    assert words == ["--data", str(photos), "--out", str(tmp_path / "runs" / "photos")]
    small = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8"]
    one.start([*small, "--epochs", "5000", "--workers", "0", *words])
    other = Training(tmp_path / "runs")
    until(lambda: len(other.status().epochs) > 1 or not other.status().runs)
    status = other.status()
    assert (status.state, status.run.stage, status.run.epochs) == ("running", "Epoch", 5000), status
    with pytest.raises(SecondhandError, match="One training runs already"):
        other.start(other.words([photos], "quick"))
    other.cancel()
    assert other.status().state == "stopping"
    until(lambda: not one.status().runs)
    status = other.status()
    assert (status.state, status.model) == ("stopped", tmp_path / "runs/photos/model"), status
    assert "Named right: " in status.run.result.sentences[0] + status.run.result.sentences[1]
    site = Site({}, str(tmp_path))
    for _ in range(2):  # the second time it is there already
        add_trained(site, other)
    assert [*site.models] == ["photos"]
    served = site.models["photos"]
    (answer,) = served.predictor.predict([sorted(photos.glob("red/*"))[0]])
    assert answer.best in {"red", "green", "blue"}
    served.close()
    other.resume()
    assert one.status().runs
    one.cancel()
    until(lambda: not other.status().runs)
    assert one.status().state == "stopped"
    assert (tmp_path / "runs/photos/model/config.json").is_file()


@pytest.mark.slow
def test_a_training_that_fails_says_why(tmp_path):
    training = Training(tmp_path / "runs")
    training.start(["--data", str(tmp_path / "gone"), "--out", str(tmp_path / "runs" / "gone")])
    until(lambda: not training.status().runs)
    status = training.status()
    assert status.state == "failed"
    assert str(tmp_path / "gone") in status.error
    assert "was not trained" in status_html(status)


def test_corrections_of_one_model_can_be_trained_on(tmp_path):
    model, photos = tmp_path / "run" / "model", write_pictures(tmp_path / "photos", per_class=3)
    feedback = Feedback(tmp_path / "kept")
    save_bundle(colours(), model)
    served = Served("run", Predictor(model), model)
    site = Site({"run": served}, str(tmp_path), feedback=feedback)
    assert lessons(site, []).tables == ()
    for file in sorted((photos / "red").iterdir()):
        feedback.save(str(file), "blue", kind=KINDS["picture"], model="run")
    new = lessons(site, [])
    assert (new.model, new.words, new.tables) == ("run", "3 corrections", (feedback.table.file,))
    labelling = of_field("fields.loop.pool").Labelling(served, photos, tmp_path)
    assert lessons(site, [labelling]) == new
    labelling.table.file.write_text("path,label\nred/a.jpg,red\nred/b.jpg,\n")
    new = lessons(site, [labelling])
    assert new.words == "3 corrections and 1 label"
    words = Training(tmp_path / "runs").words(new.tables, "usual", model)
    tables = [str(feedback.table.file), str(tmp_path / "photos-labels.csv")]
    assert words[:5] == ["--from", str(model), "--data", *tables]
    assert words[-1] == str(tmp_path / "runs" / "run-corrected")
    feedback.save(str(file), "green", kind=KINDS["picture"], model="another")
    assert lessons(site, []).tables == ()
    labelling.close()
    served.close()
