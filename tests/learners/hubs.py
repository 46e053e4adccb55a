"""A hub of models on loopback, which speaks with the real client."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

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
