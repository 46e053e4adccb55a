"""A web server on this machine, and archives that are packed."""

from __future__ import annotations

import io
import tarfile
import threading
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: Status, body and headers.
Answer = tuple[int, bytes, dict[str, str]]


class Server:
    """A web server whose answers a function gives: status, body and headers by path.

    Attributes
    ----------
    asked : paths of its requests, counted.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answers = lambda path: (404, b"", {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked[self.path] += 1
                status, body, headers = outer.answers(self.path)
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)
                    self.close_connection = self.close_connection or "Content-Length" in headers

            do_HEAD = do_GET

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *words: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def page(*links: str) -> tuple[int, bytes, dict[str, str]]:
    text = "".join(f"<tr><td><a class=x href='{link}'>x</a>" for link in links)
    return 200, f"<html><table>{text}</table>".encode(), {"Content-Type": "text/html"}


def zipped(file: Path, size: int) -> str:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.wav", bytes(size))
    return f"zip://a/b.wav::{file}"


def packed_tar(file: Path, size: int) -> str:
    with tarfile.open(file, "w:gz") as archive:
        about = tarfile.TarInfo("a/b.wav")
        about.size = size
        archive.addfile(about, io.BytesIO(bytes(size)))
    return f"tar://a/b.wav::{file}"
