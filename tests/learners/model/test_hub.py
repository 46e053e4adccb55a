"""Upload and download of model folders by the real client, against a server on loopback."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from PIL import Image

from datasets.core.address import local
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.scanning import walk
from learners.cli.settings import Settings
from learners.model.bundle import FILES, TREE, add_onnx, load_bundle, save_bundle
from learners.model.hub import load_model, model_folder
from learners.predict import main as predict
from learners.rule.tree import read_tree
from learners.rule.tree_rule import with_tree
from learners.runs.warm_start import start_from
from learners.share import main as share
from tests.learners.exports import CLASSES, bundle

pytestmark = pytest.mark.slow

TORCH = ("--engine", "torch")
COMMIT = "0123456789" * 4


class Hub(BaseHTTPRequestHandler):
    """The part of the protocol that the client uses, with repositories in memory."""

    protocol_version = "HTTP/1.1"
    repositories: dict[str, dict[str, bytes]]
    private: set[str]

    def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def tell(self, content: Any) -> None:
        self.answer(json.dumps(content).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        words = self.path.partition("?")[0].strip("/").split("/")
        api = words[:2] == ["api", "models"]
        name = "/".join(words[2:4] if api else words[:2])
        if name not in self.repositories or name in self.private:
            self.answer(b"", 404, X_Error_Code="RepoNotFound")
        elif api and words[4:5] == ["tree"]:
            self.tell([{"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
                       for path, content in self.repositories[name].items()])  # fmt: skip
        elif api and words[4:] and words[5] not in ("main", COMMIT):
            self.answer(b"", 404, X_Error_Code="RevisionNotFound")
        elif api:
            self.tell({"id": name, "sha": COMMIT, "siblings": [], "private": False})
        else:
            content = self.repositories[name][words[4]]
            tag = f'"{hashlib.sha256(content).hexdigest()}"'
            self.answer(content, ETag=tag, X_Repo_Commit=COMMIT)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        words = self.path.partition("?")[0].strip("/").split("/")
        if words[1:] == ["repos", "create"]:
            request = json.loads(text)
            name = f"{request['organization']}/{request['name']}"
            self.repositories.setdefault(name, {"asked": text.encode()})
            self.tell({"url": f"http://{self.headers['Host']}/{name}", "name": name, "id": name})
        elif words[1] == "validate-yaml":
            assert json.loads(text)["content"].startswith("---\nlibrary_name: secondhand\n")
            self.tell({"errors": [], "warnings": []})
        elif words[4] == "preupload":
            files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for file in json.loads(text)["files"]]  # fmt: skip
            self.tell({"files": files})
        else:
            for line in map(json.loads, text.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.repositories["/".join(words[2:4])][line["value"]["path"]] = content
            self.tell(
                {
                    "commitUrl": f"http://{self.headers['Host']}/{'/'.join(words[2:4])}/commit/{COMMIT}",
                    "commitOid": COMMIT,
                    "success": True,
                }
            )

    def log_message(self, *words: Any) -> None: ...


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    class Own(Hub):
        repositories: dict[str, dict[str, bytes]] = {}  # noqa: RUF012
        private: set[str] = set()  # noqa: RUF012

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    files = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    yield Own
    server.shutdown()
    server.server_close()


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
