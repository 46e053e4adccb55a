"""Commands give of a bucket what they give of a disk, and tell nobody what opens it."""

from __future__ import annotations

import csv
import io
from importlib import import_module
from pathlib import Path

import pytest
import torch

from datasets.core.errors import SecondhandError
from datasets.core.shipped import left_out
from datasets.core.store import COPY
from fields.remote import address
from learners.backbones.building import NetworkSpec, build
from learners.evaluate import main as evaluate
from learners.inference.decoding import Decoder
from learners.model.bundle import Bundle, save_bundle
from learners.predict import main as predict
from tests.fields.remote.buckets import KEY, SECRET, Bucket
from tests.learners.rules import plain_rule
from tests.pictures import write_pictures

pytestmark = pytest.mark.forks  # workers read what has an address


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    network, spec, preprocessing = build(NetworkSpec("test_resnet", 3, size=32), pretrained=False)
    bundle = Bundle(network, spec, ["blue", "green", "red"], preprocessing, rule=plain_rule(3))
    return str(save_bundle(bundle, tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_pictures(tmp_path_factory.mktemp("pictures"), per_class=8)
    (folder / "red" / "broken.jpg").write_text("no picture")
    return folder


def test_a_table_is_that_of_a_disk_and_the_next_call_reads_no_picture(
    bucket: Bucket, model: str, folder: Path, tmp_path: Path
) -> None:
    """Also where one request in twenty fails, and written to the bucket, where no table is replaced."""
    root, out = bucket.fill(folder, "pictures"), "s3://photos/results/table.csv"
    bucket.proxy.every = 20
    assert predict([model, str(folder), "--out", str(tmp_path / "here.csv")]) == 3
    expected = (tmp_path / "here.csv").read_text().replace(str(folder), root)
    assert predict([model, root, "--out", out]) == 3
    assert bucket.get("results/table.csv").decode() == expected
    with pytest.raises(SecondhandError, match=out):
        predict([model, root, "--out", out])
    bucket.proxy.every = 0
    bucket.proxy.counts.clear()
    address.work_for("another run")
    assert predict([model, root, "--out", out, "--overwrite"]) == 3
    assert bucket.get("results/table.csv").decode() == expected
    assert bucket.proxy.counts["GET file"] == 0


def test_a_model_has_an_address_too(
    bucket: Bucket, model: str, folder: Path, tmp_path: Path
) -> None:
    there, file = bucket.fill(Path(model), "models/digits"), str(folder / "red" / "red_000.jpg")
    for number, one in enumerate((model, there)):
        assert predict([one, file, "--out", str(tmp_path / f"{number}.csv")]) == 0
    assert evaluate([there, "--data", str(folder), "--out", str(tmp_path / "report")]) in (0, 3)
    assert (tmp_path / "0.csv").read_text() == (tmp_path / "1.csv").read_text()
    with pytest.raises(SecondhandError, match=r"^s3://photos/models "):
        predict(["s3://photos/models", file])


def test_an_interrupted_job_leaves_nothing_in_the_bucket_and_goes_on(
    bucket: Bucket, model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = bucket.fill(folder, "interrupted"), "s3://photos/later/table.csv"
    batches = Decoder.batches

    def stop_after_twenty(self, files, bs):
        for number, batch in enumerate(batches(self, files, bs)):
            if number == 20:
                raise KeyboardInterrupt
            yield batch

    call = [model, root, "--bs", "1", "--out", out]
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "batches", stop_after_twenty)
        with pytest.raises(KeyboardInterrupt):
            predict(call)
    assert not address.as_path(out).exists()
    address.work_for("the same job again")
    assert predict(call) == 3
    rows = [*csv.DictReader(io.StringIO(bucket.get("later/table.csv").decode()))]
    assert len(rows) == 25


def test_no_secret_is_written_anywhere(
    bucket: Bucket, model: str, folder: Path, tmp_path: Path, monkeypatch, capfd
) -> None:
    """A key in the environment, a password in an address and a signed query: not in any file, nor in a message."""
    root = bucket.fill(folder, "secret")
    port = bucket.proxy.port
    signed = f"http://planted-user:planted-password@127.0.0.1:{port}/photos/secret/red/red_000.jpg?sig=planted-query"
    table = tmp_path / "in" / "table.csv"
    table.parent.mkdir()
    rows = [
        f"{root}/{name}/{name}_{n:03d}.jpg,{name}" for n in range(4) for name in ("red", "green")
    ]
    table.write_text("\n".join(["path,label", f"{signed},red", *rows]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "SECONDHAND_CACHE", str(tmp_path / "cache")
    )  # in which is no word, nor in its names
    Path("out").mkdir()
    with pytest.raises(SystemExit):  # they cannot be told apart
        predict([model, signed, f"{signed}&id=2"])
    predict([model, root, signed, "--out", "out/predictions.csv"])
    if "loop" not in left_out():
        import_module("fields.loop.suggest").main([model, root, signed, "--out", "out/next.csv"])
    evaluate([model, "--data", str(table), "--out", "out/report"])
    predict([model, signed])
    written = capfd.readouterr()
    texts = {"messages": f"{written.out}{written.err}".encode()}
    for file in tmp_path.rglob("*"):
        if file.is_file() and file != table:
            texts[str(file)] = file.read_bytes()
    assert any(name.endswith(COPY) for name in texts)  # those of the cache are among them
    planted = (KEY, SECRET, "planted-user", "planted-password", "planted-query")
    found = {
        name: word for name, text in texts.items() for word in planted if word.encode() in text
    }
    assert not found
    for name in ("predictions.csv", "report/predictions.csv"):
        assert b"127.0.0.1" in texts[str(tmp_path / "out" / name)]
    assert not any(word in name for name in texts for word in planted)
