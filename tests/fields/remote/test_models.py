"""Upload and download of model folders by the real client, against a server on loopback."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from huggingface_hub import constants
from PIL import Image

from datasets.core.address import local
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.scanning import walk
from fields.remote.share import main as share
from learners.cli.settings import Settings
from learners.model.bundle import FILES, TREE, add_onnx, load_bundle, save_bundle
from learners.model.places import load_model, model_folder
from learners.predict import main as predict
from learners.rule.tree import read_tree
from learners.rule.tree_rule import with_tree
from learners.runs.warm_start import start_from
from tests.learners.exports import CLASSES, bundle
from tests.learners.hubs import COMMIT, Hub, hub

__all__ = ["hub"]  # a fixture

pytestmark = pytest.mark.slow

TORCH = ("--engine", "torch")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    model, network = bundle(), b"a network that nobody runs"
    folder = save_bundle(model, tmp_path / "model")
    add_onnx(model, folder, lambda _, file: file.write_bytes(network))
    (folder / "notes.csv").write_text("the user's own")
    return folder


def test_there_and_back(
    hub: type[Hub], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert share([str(model), "somebody/fruit", "--private"]) == 0
    uploaded = hub.repositories["somebody/fruit"]
    assert "private" in str(uploaded.pop("asked"))
    expected = {name: (model / name).read_bytes() for name in FILES if name != TREE}
    assert uploaded == expected, "and nothing else"

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(SecondhandError, match=r"fruit.*--overwrite"):
        share([str(model), "somebody/fruit"])
    assert share([str(model), "somebody/fruit", "--overwrite"]) == 0
    for reply, status in ("n\n", 1), ("y\n", 0):
        monkeypatch.setattr(sys, "stdin", terminal := io.StringIO(reply))
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        assert share([str(model), "somebody/fruit"]) == status

    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    messages = []
    for name in (str(model), "hf:somebody/fruit", f"hf:somebody/fruit@{COMMIT}"):
        with redirect_stdout(io.StringIO()) as out:
            assert predict([name, str(tmp_path / "a.png"), "--format", "csv", *TORCH]) == 0
        messages.append(out.getvalue())
    assert messages[0] == messages[1] == messages[2]

    on, _ = start_from(Settings().but(**{"from": Path("hf:somebody/fruit")}))
    assert on.warm_start.from_ == model_folder("hf:somebody/fruit")
    uploaded["config.json"] = uploaded["config.json"].replace('"ü"'.encode(), b'"melon"')
    del uploaded["model.onnx"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    downloaded = load_model("hf:somebody/fruit", network=False)
    assert downloaded.classes == CLASSES, "the copy that is here"
    with pytest.raises(SecondhandError, match="somebody/other"):
        model_folder("hf:somebody/other")


def test_a_tree_goes_with_its_model(hub: type[Hub], model: Path, tmp_path: Path) -> None:
    loaded = load_bundle(model)
    rows = "".join(f"{name},fruit\n" for name in CLASSES[:2])
    rows += "".join(f"{name},\n" for name in CLASSES[2:])
    (tmp_path / "tree.csv").write_text(f"label,parent\nfruit,\n{rows}")
    tree = read_tree(tmp_path / "tree.csv", CLASSES)
    loaded.rule = with_tree(loaded.rule, tree)
    folder = save_bundle(loaded, tmp_path / "with a tree")
    assert share([str(folder), "somebody/tree"]) == 0
    assert load_model("hf:somebody/tree", network=False).rule.tree.names == tree.names


def test_what_is_wrong_is_said(hub: type[Hub], model: Path) -> None:
    share([str(model), "somebody/fruit"])
    hub.repositories["somebody/fruit"]["model.safetensors"] += b"x"
    with pytest.raises(BadFile, match=r"model\.safetensors"):
        load_model("hf:somebody/fruit")
    with pytest.raises(SecondhandError, match="none"):
        model_folder("hf:somebody/fruit@none")
    hub.private.add("somebody/fruit")
    with pytest.raises(SecondhandError, match="somebody/fruit"):
        model_folder("hf:somebody/fruit@v2")
    for name in ("fruit", "a/b/c", "../fruit", "a/b@"):
        with pytest.raises(SecondhandError, match="USER/NAME"):
            model_folder(f"hf:{name}")
    with pytest.raises(SystemExit, match="2"):
        share([str(model)])


def test_files_on_the_hub_are_read_by_their_addresses(hub: type[Hub]) -> None:
    hub.repositories["team/photos"] = {"a.png": b"one", "b.png": b"another", "notes.pdf": b""}
    names = [*walk("hf://team/photos", [])]
    assert names == [f"hf://team/photos/{name}" for name in ("a.png", "b.png", "notes.pdf")]
    assert Path(local(names[1])).read_bytes() == b"another"
    with pytest.raises(BadFile, match=r"hf://team/photos/c\.png: there is no such file"):
        local("hf://team/photos/c.png")
