"""A cluster's predictions equal one machine's, whatever happens to the workers."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from fields.cluster.client import connect
from fields.cluster.machines import predict_on
from learners.inference.options import Computing, Options
from learners.loading.predictor import load_predictor
from learners.machine.hardware import keep_thread_count
from learners.model.bundle import save_bundle
from learners.outputs.journal import Journal
from learners.predict import main
from tests.fields.cluster.clusters import here, kill_when, scheduler_and_workers
from tests.learners.rules import untrained
from tests.pictures import write_pictures

__all__ = ["here"]  # a fixture

pytest.importorskip("distributed", reason="pip install 'secondhand[cluster]'")


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread, as workers do: with two, sums differ in the last bits."""
    with keep_thread_count(1):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bundle(
        untrained(["blue", "green", "red"]), tmp_path_factory.mktemp("models") / "model"
    )


def options(top: int = 3, bs: int = 32) -> Options:
    return Options(top=top, computing=Computing(bs=bs, device="cpu"))


def test_answers_are_those_of_one_machine_in_the_order_of_the_files(
    here, model, tmp_path, monkeypatch
):
    write_pictures(tmp_path / "p", per_class=5)
    (tmp_path / "p" / "broken.jpg").write_text("no picture")
    monkeypatch.chdir(tmp_path)
    files = [str(p) for p in sorted(Path("p").rglob("*.jpg"))]
    files += ["gone.jpg", files[0]]
    ours = list(load_predictor(model, top=2, bs=4, workers=1).predict(files))
    theirs = list(predict_on(here, os.path.relpath(model), files, options(bs=4, top=2)))
    assert repr(theirs) == repr(ours)  # NaN is not equal to itself
    assert [row.path for row in theirs] == files
    assert sum(row.reason.startswith("bad file") for row in theirs) == 2


def test_a_model_travels_and_one_that_is_not_there_is_named(here, model, tmp_path):
    """Workers need no folder of this machine."""
    good = sorted(write_pictures(tmp_path / "p", per_class=2).rglob("red*.jpg"))
    with pytest.raises(SecondhandError, match=f"{tmp_path}/none is not a model folder"):
        list(predict_on(here, tmp_path / "none", good, options()))
    copy = shutil.copytree(model, tmp_path / "model")
    expected = [*load_predictor(copy, top=1, bs=1).predict(good)]
    predictions = predict_on(here, copy, good, options(bs=1, top=1))
    first = next(predictions)
    shutil.rmtree(copy)
    assert repr([first, *predictions]) == repr(expected)


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """One of the field that reads buckets, where it is here."""
    buckets = pytest.importorskip("tests.fields.remote.buckets")
    with buckets.serve() as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path / "cache"))
        yield served


def test_workers_read_a_bucket_themselves(here, model, tmp_path, bucket):
    folder = write_pictures(tmp_path / "p", per_class=2)
    predictor = load_predictor(model, top=2, bs=2, workers=1)
    ours = [*predictor.predict(sorted(folder.rglob("*.jpg")))]
    root = bucket.fill(folder, "cluster")
    names = [one.path.replace(str(folder), root) for one in ours]
    theirs = [*predict_on(here, model, [*names, f"{root}/gone.jpg"], options(bs=2, top=2))]
    assert repr(theirs[:-1]) == repr(ours).replace(str(folder), root)
    assert theirs[-1].reason.startswith("bad file: there is no such file")


def test_a_job_goes_on_where_it_was_and_few_files_are_held_at_once(
    here, model, tmp_path, monkeypatch
):
    folder = write_pictures(tmp_path / "p", per_class=5)
    reference, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    call = [str(model), str(folder), "--cluster", "local", "--bs", "2", "--out"]
    open_files = []
    monkeypatch.setattr("fields.cluster.client.connect", lambda *_, **__: nullcontext(here))
    monkeypatch.setattr("fields.cluster.machines._TOGETHER", 3)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", lambda self: open_files.append(self.file.read_bytes()))
        main([*call, str(reference)])
    assert len(reference.read_text().splitlines()) == 16
    *rounds, rest = open_files[0].split(b"\n\n")
    assert (len(rounds), rest) == (8, b"")  # one per chunk
    (tmp_path / "out.csv.part").write_bytes(b"\n\n".join([*rounds[:3], rounds[3][:30]]))
    assert main([*call, str(out)]) == 0
    assert out.read_bytes() == reference.read_bytes()


@pytest.mark.slow
def test_a_killed_worker_costs_no_answer(model, tmp_path, capsys):
    folder = write_pictures(tmp_path / "p", per_class=40)
    (folder / "broken.jpg").write_text("no picture")
    call = [str(model), str(folder), "--bs", "2"]
    assert main([*call, "--workers", "1"]) == 3
    expected = capsys.readouterr()
    with scheduler_and_workers(tmp_path) as (address, workers):
        with connect(address) as cluster:
            # Both load the model, so that both are working when one is killed.
            list(predict_on(cluster, model, sorted(folder.rglob("*.jpg"))[:4], options(bs=1)))
        rows: list[str] = []
        with kill_when(lambda: len(rows) > 20, workers[0]) as killer, connect(address) as cluster:
            files = sorted(str(path) for path in folder.rglob("*.jpg"))
            for answer in predict_on(cluster, model, files, options(bs=2)):
                rows.append(answer.path)
            assert not killer.is_alive()
        assert rows == files
        assert main([*call, "--cluster", address, "--device", "cpu"]) == 3
    theirs = capsys.readouterr()
    assert theirs.out == expected.out
    messages = [
        [line for line in said.err.splitlines() if not line.startswith("Predicting: ")]
        for said in (expected, theirs)  # a slow machine says how far it is
    ]
    assert messages[0] == messages[1]
