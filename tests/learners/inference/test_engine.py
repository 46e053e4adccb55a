"""ONNX Runtime in place of torch: the predictor's answers stay the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
import soundfile
import torch
from PIL import Image

from datasets.audio.settings import MelSettings
from datasets.core.errors import BadFile, SecondhandError
from learners.cli import console
from learners.inference.engine import TorchEngine
from learners.inference.exporting import write_network
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.machine.hardware import keep_thread_count
from learners.model.bundle import CONFIG, ONNX, Bundle, add_onnx, load_bundle, save_bundle
from learners.model.tensors import sha256
from learners.predict import main as predict
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.settings import ConfidenceSettings
from tests.learners.exports import (
    NETWORKS,
    SIZE,
    VIEWS,
    bundle,
    close,
    noise,
    plain_bundle,
    plain_network,
)
from tests.test_dependencies import declared, distributions, plain

__all__ = ["plain_network"]  # a fixture


@pytest.fixture(scope="module")
def small(plain_network: Path) -> Bundle:
    return replace(plain_bundle(), onnx=plain_network)


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for n, pixels in enumerate(noise(5)):
        Image.fromarray(pixels.transpose(1, 2, 0)).resize((50, 40)).save(folder / f"{n}.png")
    return sorted(map(str, folder.iterdir()))


@pytest.mark.slow
def test_the_engine_changes_no_answer(small: Bundle, pictures: list[str], tmp_path: Path) -> None:
    """One view and several, one network and several; tests of the export cover the rest."""
    same(small, pictures)
    same(replace(small, tta_views=VIEWS), pictures)
    ensemble = bundle(*NETWORKS["cosine ensemble"])
    write_network(ensemble, tmp_path / ONNX)
    same(replace(ensemble, onnx=tmp_path / ONNX, tta_views=VIEWS), pictures)


def test_torch_computes_float32_on_each_device(small: Bundle, monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("learners.inference.engine.keep_float32", asked.append)
    TorchEngine(small, "cpu", VIEWS)
    assert asked == ["cpu"]


@pytest.mark.slow
def test_the_engine_hears(small: Bundle, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for n in range(3):
        soundfile.write(tmp_path / f"{n}.wav", 0.1 * rng.standard_normal(8000 * (n + 1)), 8000)
    spectrogram = MelSettings(rate=8000, window=1.0, size=(SIZE, SIZE))
    same(
        replace(small, spectrogram=spectrogram.to_dict()), sorted(map(str, tmp_path.glob("*.wav")))
    )


def same(model: Bundle, files: list[str]) -> None:
    ours = list(load_predictor(model, engine="onnx", top=4, bs=2).predict_detailed(files))
    theirs = list(load_predictor(model, device="cpu", top=4, bs=2).predict_detailed(files))
    assert len(ours) == len(files)
    for a, b in zip(ours, theirs, strict=True):
        assert a.prediction.label == b.prediction.label
        assert dict(a.prediction.top) == pytest.approx(dict(b.prediction.top), abs=1e-4)
        close(a.logits, b.logits)
        close(a.features, b.features)


@pytest.mark.slow
def test_a_file_that_answers_otherwise_is_thrown_away(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*words: object) -> None:
        file = words[2]
        assert isinstance(file, Path)
        assert small.onnx is not None
        file.write_bytes(_other_weights(small.onnx))

    monkeypatch.setattr("learners.inference.exporting.write_onnx", other)
    with pytest.raises(SecondhandError, match="--engine torch"):
        write_network(small, tmp_path / ONNX)
    assert not list(tmp_path.iterdir())


def _other_weights(file: Path) -> bytes:
    """Return a complete file with one wrong tensor."""
    model = onnx.load(file)
    tensor = next(t for t in model.graph.initializer if len(t.dims) == 2)  # of the head
    tensor.raw_data = (np.frombuffer(tensor.raw_data, np.float32) * 1.01).tobytes()
    return bytes(model.SerializeToString())


def test_wrong_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    small = plain_bundle()
    with pytest.raises(SecondhandError, match=r"--engine onnx.* model\.onnx.* --engine torch"):
        load_predictor(small, engine="onnx")
    with pytest.raises(SecondhandError, match="--engine 'tpu': expected one of auto, torch, onnx"):
        load_predictor(small, engine="tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SecondhandError, match="--engine onnx runs on the CPU"):
        load_predictor(small, engine="onnx", device="cuda:0")


# --- model.onnx, in the model folder --------------------------------------------------------------


@pytest.fixture(scope="module")
def carried(plain_network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the default head, distances and several views."""
    source = plain_bundle()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 3, SIZE, SIZE), dtype=np.uint8)
    logits, features = load_predictor(source, device="cpu").forward(pixels)
    items = Outputs(logits.astype(float), logits.argmax(1), features)
    source.rule = fit_rule(items, items, ConfidenceSettings(threshold=0.3, keep_known=0.8))
    folder = tmp_path_factory.mktemp("carried")
    bundle = replace(source, tta_views=VIEWS)
    model = save_bundle(bundle, folder / "model")
    add_onnx(bundle, model, lambda _, file: shutil.copy(plain_network, file))
    return model


@pytest.fixture(scope="module")
def hears(carried: Path) -> Path:
    """The same for sound."""
    spectrogram = MelSettings(rate=8000, window=1.0, size=(SIZE, SIZE)).to_dict()
    bundle = replace(load_bundle(carried), spectrogram=spectrogram, tta_views=VIEWS[:1])
    folder = carried.parent / "hears"
    model = save_bundle(bundle, folder)
    add_onnx(bundle, model, lambda _, file: shutil.copy(carried / ONNX, file))
    return model


@pytest.mark.slow
def test_the_folders_file_answers_as_its_tensors_do(carried: Path, pictures: list[str]) -> None:
    ours, theirs = load_predictor(carried, bs=2), load_predictor(carried, engine="torch", bs=5)
    assert (ours.engine, theirs.engine) == ("onnx", "torch")
    for a, b in zip(
        ours.predict_detailed(pictures), theirs.predict_detailed(pictures), strict=True
    ):
        assert (a.prediction.label, a.prediction.reason) == (
            b.prediction.label,
            b.prediction.reason,
        )
        assert dict(a.prediction.top) == pytest.approx(dict(b.prediction.top), abs=1e-4)
        assert a.prediction.distance_p == b.prediction.distance_p
        close(a.logits, b.logits)
        close(a.features, b.features)
    assert ours.bundle.built is None
    pixels = ours.open(pictures[0])
    states = (one.network.state_dict().values() for one in (ours, theirs))
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True)), "built when asked for"
    with keep_thread_count(9):  # of one picture most cores would have no part, so they share it
        close(ours.forward(pixels[None])[0], theirs.forward(pixels[None])[0])


@pytest.mark.slow
def test_an_answer_takes_neither_torch_nor_pandas(
    carried: Path, hears: Path, pictures: list[str], tmp_path: Path
) -> None:
    """Not even through the command or without POSIX features. With torch, fastai is not
    imported."""
    file = str(tmp_path / "a.wav")
    soundfile.write(file, 0.1 * np.random.default_rng(0).standard_normal(20_000), 8000)
    program = (
        "import multiprocessing, os, sys\n"
        "sys.modules |= dict.fromkeys(('fcntl', 'resource', 'pwd', 'grp'))\n"
        "del os.fork, os.forkpty, os.nice, os.sched_getaffinity, os.pread, os.pwrite, os.O_CLOEXEC\n"
        "multiprocessing.set_start_method('spawn')\n"
        "from datasets.core import processes\n"
        "processes.FORKS = False\n"
        "from secondhand import load_predictor\n"
        "folder, picture, hears, sound, out = sys.argv[1:]\n"
        "(answer,) = load_predictor(folder).predict([picture])\n"
        "(heard,) = load_predictor(hears).predict([sound])\n"
        "assert answer.best and len(heard.windows) > 1, (answer, heard)\n"
        "from learners.predict import main\n"
        "assert main([hears, sound, '--windows']) == 0\n"
        "assert main([folder, picture, '--no-tta', '--out', out]) == 0 and os.path.getsize(out)\n"
        "print(*{name.split('.')[0] for name in sys.modules})\n"
        "(same,) = load_predictor(folder, engine='torch').predict([picture])\n"
        "assert same.best == answer.best\n"
        "print(*{name.split('.')[0] for name in sys.modules})\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, str(carried), pictures[0], str(hears), file,
         str(tmp_path / "all.csv")],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    loaded, with_torch = (set(line.split()) for line in completed.stdout.splitlines()[-2:])
    assert not {"fastai", "fastcore", "fastxtend", "fastprogress"} & with_torch
    assert "onnxruntime" in loaded
    assert not {"scipy", "difflib"} & loaded
    assert "torch" in with_torch
    available = declared()[""]
    for extra, names in declared().items():
        more = {
            m for m, homes in distributions().items() if (names - available) & {*map(plain, homes)}
        }
        assert not more & loaded, extra


def test_what_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "learners.runs", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SystemExit, match="2"):
        console.run(lambda: import_module("pandas") and 0)
    assert re.search(r"error: pandas is not installed.*\[all\]", capsys.readouterr().err)
    (tmp_path / "lib/python3/site-packages/pandas").mkdir(parents=True)
    message = console.not_installed("pandas", tmp_path)
    assert "which has it" in message
    assert str(tmp_path) in message
    assert "Install" in console.not_installed("numpy", tmp_path)
    with pytest.raises(ModuleNotFoundError):  # a module of ours that is missing is a fault
        console.run(lambda: import_module("learners.runs") and 0)


@pytest.mark.slow
def test_a_folder_without_the_file_is_answered_by_torch(
    carried: Path, pictures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("learners.inference.engine.find_spec", lambda name: None)
        assert Predictor(carried).engine == "torch"
    assert Predictor(load_bundle(carried)).engine == "torch", "its network is in memory"
    folder = Path(shutil.copytree(carried, tmp_path / "model"))
    (folder / ONNX).write_bytes((folder / ONNX).read_bytes()[:-1] + b"?")
    with pytest.raises(
        BadFile, match=r"model\.onnx: its content does not match its hash in config\.json"
    ):
        Predictor(folder)
    (folder / ONNX).unlink()
    predictor = Predictor(folder)
    assert predictor.engine == "torch"
    assert [a.label for a in predictor.predict(pictures)] == [
        a.label for a in Predictor(carried).predict(pictures)
    ]


@pytest.mark.slow
def test_a_file_that_is_new_to_this_onnx_runtime_is_left_alone(
    carried: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(file: Path, workers: int | None = None) -> None:
        raise RuntimeError("opset 99")

    monkeypatch.setattr("learners.inference.engine.open_onnx", fail)
    assert Predictor(carried).engine == "torch"
    assert (
        "model.onnx does not run on this version of ONNX Runtime, so the slower PyTorch is used: opset 99"
        in caplog.text
    )
    with pytest.raises(SecondhandError, match=r"model\.onnx: opset 99\. Use --engine torch"):
        load_predictor(carried, engine="onnx")


def test_a_stop_while_the_network_is_written_leaves_a_model(tmp_path: Path) -> None:
    small = plain_bundle()
    folder = save_bundle(small, tmp_path / "model")

    def stopped(bundle: Bundle, file: Path) -> None:
        file.write_bytes(b"half of it")
        assert load_bundle(folder).onnx is None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_onnx(small, folder, stopped)
    assert load_bundle(folder).onnx is None
    add_onnx(small, folder, lambda _, file: file.write_bytes(b"whole"))
    assert load_bundle(folder).onnx == folder / ONNX


def test_a_network_that_cannot_be_written_goes_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = plain_bundle()

    def fail(bundle: Bundle, file: Path) -> None:
        raise SecondhandError("no words for it")

    folder = save_bundle(small, tmp_path / "model")
    add_onnx(small, folder, fail)
    assert [r.message for r in caplog.records] == [
        "model.onnx was not written, so predictions use the slower PyTorch: no words for it"
    ]
    assert not (folder / ONNX).exists()
    assert Predictor(folder).engine == "torch"


def _refers(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../config.json")


def _refers_in_a_node(model: onnx.ModelProto) -> None:
    tensor = onnx.TensorProto(external_data=[{"key": "location", "value": "/etc/passwd"}])  # type: ignore[list-item]
    model.graph.node.add(op_type="Constant").attribute.add(name="value", t=tensor)


def _nests(model: onnx.ModelProto) -> None:
    model.graph.node.add(op_type="If").attribute.add(name="then_branch", g=onnx.GraphProto())


def _own_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "of.mine"


def _function(model: onnx.ModelProto) -> None:
    model.functions.add(name="f", domain="of.mine")


def _sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add()


def _other_shape(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 2 * SIZE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (_refers, "tensors in another file"),
        (_refers_in_a_node, "tensors in another file"),
        (_nests, "a nested graph"),
        (_own_operator, "custom operators"),
        (_function, "training information or functions"),
        (_sparse, "sparse tensors"),
        (_other_shape, "has the shapes"),
        (b"\x3a\xff\xff\xff\x7f", "damaged ONNX"),
        (b"\x0b", "damaged ONNX"),
    ],
)  # fmt: skip
def test_a_file_that_may_not_be_trusted_is_refused(
    carried: Path, tmp_path: Path, spoil: Callable[[onnx.ModelProto], None] | bytes, match: str
) -> None:
    """An attacker can also change the hash."""
    folder = Path(shutil.copytree(carried, tmp_path / "model"))
    if isinstance(spoil, bytes):
        (folder / ONNX).write_bytes(spoil)
    else:
        model = onnx.load(folder / ONNX)
        spoil(model)
        (folder / ONNX).write_bytes(model.SerializeToString())
    config = json.loads((folder / CONFIG).read_text())
    config["hashes"][ONNX] = sha256(folder / ONNX)
    (folder / CONFIG).write_text(json.dumps(config))
    with pytest.raises(BadFile, match=match) as error:
        Predictor(folder)
    assert str(error.value).startswith(str(folder / ONNX))


@pytest.mark.slow
def test_the_command_takes_the_engine(
    carried: Path, pictures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(carried)
    rows = []
    for engine in ("torch", "onnx"):
        assert predict([folder, *pictures, "--engine", engine, "--format", "jsonl"]) == 0
        rows.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for ours, theirs in zip(*rows, strict=True):
        assert ours["label"] == theirs["label"]
        assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-4)
