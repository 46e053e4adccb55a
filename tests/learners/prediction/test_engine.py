"""ONNX Runtime in the network's place: the predictor's answers stay what they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import soundfile
import torch
from PIL import Image

import learners.prediction.engine
from datasets.drawings.pictures import cache_root
from datasets.errors import SecondhandError
from datasets.sound.recipe import AudioRecipe
from learners.model.bundle import Bundle, save_bundle
from learners.networks import Network
from learners.predict import main as predict
from learners.prediction.predictor import Predictor
from tests.learners.exports import (
    CLASSES,
    NETWORKS,
    SIZE,
    VIEWS,
    bundle,
    close,
    noise,
    plain_bundle,
)


@pytest.fixture(scope="module")
def small() -> Bundle:
    return plain_bundle()


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for n, pixels in enumerate(noise(5)):
        Image.fromarray(pixels.transpose(1, 2, 0)).resize((50, 40)).save(folder / f"{n}.png")
    return sorted(map(str, folder.iterdir()))


@pytest.mark.slow
def test_the_engine_changes_no_answer(small: Bundle, pictures: list[str]) -> None:
    same(small, pictures)
    same(replace(small, views=VIEWS), pictures)


@pytest.mark.slow
def test_the_engine_changes_no_answer_of_several_networks(pictures: list[str]) -> None:
    """What else can be written in ONNX, the tests of the export see."""
    same(replace(bundle(*NETWORKS["cosine ensemble"]), views=VIEWS), pictures)


@pytest.mark.slow
def test_the_engine_hears(small: Bundle, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for n in range(3):
        soundfile.write(tmp_path / f"{n}.wav", 0.1 * rng.standard_normal(8000 * (n + 1)), 8000)
    recipe = AudioRecipe(rate=8000, window=1.0, size=(SIZE, SIZE))
    same(replace(small, recipe=recipe.to_dict()), sorted(map(str, tmp_path.glob("*.wav"))))


def same(model: Bundle, files: list[str]) -> None:
    ours = list(Predictor(model, engine="onnx", top=4).answers(files, bs=2))
    theirs = list(Predictor(model, device="cpu", top=4).answers(files, bs=2))
    assert len(ours) == len(files)
    for a, b in zip(ours, theirs, strict=True):
        assert a.prediction.label == b.prediction.label
        assert dict(a.prediction.top) == pytest.approx(dict(b.prediction.top), abs=1e-4)
        close(a.logits, b.logits)
        close(a.features, b.features)


@pytest.mark.slow
def test_the_engine_really_asks_onnx_runtime(
    small: Bundle, pictures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor(small, engine="onnx")
    monkeypatch.setattr(predictor.network, "forward", lambda x: 1 / 0)
    for module in predictor.network:
        monkeypatch.setattr(module, "forward", lambda x: 1 / 0)
    assert all(answer.best in CLASSES for answer in predictor.predict(pictures))


@pytest.mark.slow
def test_the_file_is_written_once_and_again_where_it_is_wrong(
    pictures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bundle("test_vit2")
    written: list[Path] = []
    contents: dict[Path, bytes] = {}
    true_write = learners.prediction.engine.write

    def write(network: Network, example: torch.Tensor, file: Path) -> None:
        """A second time the same: the exporter takes its seconds once for each file."""
        written.append(file)
        if file in contents:
            file.write_bytes(contents[file])
        else:
            true_write(network, example, file)
            contents[file] = file.read_bytes()

    monkeypatch.setattr(learners.prediction.engine, "write", write)

    def answers() -> list[list[float]]:
        _, logits, _ = Predictor(model, engine="onnx").outputs(pictures)
        return logits.tolist()

    first = answers()
    assert answers() == first
    (file,) = written
    assert file.parent == cache_root() / "onnx"
    for content in (b"", file.read_bytes()[:-5000], _other_weights(file)):
        file.write_bytes(content)
        assert answers() == first
    assert written == [file] * 4
    with torch.no_grad():  # another network has another name
        list(model.network.parameters())[-1].add_(1)
    assert answers() != first
    assert len(set(written)) == 2


def _other_weights(file: Path) -> bytes:
    """A whole file, with one wrong tensor in it."""
    model = onnx.load(file)
    tensor = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    tensor.raw_data = (np.frombuffer(tensor.raw_data, np.float32) * 1.01).tobytes()
    return bytes(model.SerializeToString())


def test_wrong_engines(small: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SecondhandError, match="--engine 'tpu' is none of auto, torch, onnx"):
        Predictor(small, engine="tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SecondhandError, match="--engine onnx runs on the CPU"):
        Predictor(small, engine="onnx", device="cuda:0")


@pytest.mark.slow
def test_the_command_takes_the_engine(
    small: Bundle, pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(save_bundle(small, tmp_path / "model"))
    rows = []
    for engine in ("torch", "onnx"):
        assert predict([folder, *pictures, "--engine", engine, "--format", "jsonl"]) == 0
        rows.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for ours, theirs in zip(*rows, strict=True):
        assert ours["label"] == theirs["label"]
        assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-4)
