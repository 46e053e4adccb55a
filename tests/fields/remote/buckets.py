"""A bucket on this machine, of moto's S3 server in a process of its own, behind a proxy that counts and disturbs requests."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from socket import socket

#: The secret key and the name of its user, by which the server tells nobody apart.
KEY, SECRET = "PLANTEDKEYID", "planted-secret-key"
#: Serves until its standard input ends, as it does with the process that started it.
_SERVER = "import sys; from moto.server import ThreadedMotoServer as Server; \
Server('127.0.0.1', int(sys.argv[1]), verbose=False).start(); sys.stdin.read()"
_SIGNED = {
    "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request",
    "Content-Type": "application/octet-stream",  # urllib's own would make a form of it
}
_REQUEST = re.compile(rb"([A-Z]+) (/\S*) HTTP/1\.[01]\r\n")


class Proxy:
    """Forwards requests to a server on this machine, and counts them by method.

    Attributes
    ----------
    every : of so many requests one is dropped and one answered late; 0 for none.
    """

    def __init__(self, port: int) -> None:
        self._to, self.every, self._number = port, 0, 0
        self.counts: Counter[str] = Counter()
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _forward(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", self._to)
        answers = asyncio.create_task(self._copy(far, back))
        with suppress(OSError):
            while data := await near.read(1 << 16):
                if request := _REQUEST.match(data):
                    self.counts[f"{request[1].decode()} {self._what(request[2].decode())}"] += 1
                    self._number += 1
                    if self.every and self._number % self.every == 0:
                        break
                    if self.every and self._number % self.every == self.every // 2:
                        await asyncio.sleep(0.2)
                forth.write(data)
                await forth.drain()
        answers.cancel()
        forth.close()
        back.close()

    async def _copy(self, far: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await far.read(1 << 16):
                back.write(data)
                await back.drain()
            back.close()

    @staticmethod
    def _what(path: str) -> str:
        return "list" if "list-type" in path else "file"


class Bucket:
    """An empty bucket ``photos``, and how programs reach it.

    Attributes
    ----------
    environment : variables by which drivers find the server.
    proxy : what stands between.
    """

    def __init__(self, port: int) -> None:
        self._server = f"http://127.0.0.1:{port}/photos"
        self.proxy = Proxy(port)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._ask("PUT", "")

    def put(self, key: str, content: bytes) -> str:
        """Store a file, past the proxy; returns its address."""
        self._ask("PUT", f"/{key}", content)
        return f"s3://photos/{key}"

    def fill(self, folder: Path, prefix: str) -> str:
        """Store the files of a folder; returns its address."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{prefix}/{file.relative_to(folder).as_posix()}", file.read_bytes())
        return f"s3://photos/{prefix}"

    def get(self, key: str) -> bytes:
        return self._ask("GET", f"/{key}")

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        url = self._server + urllib.parse.quote(path)
        request = urllib.request.Request(url, content, _SIGNED, method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())


@contextmanager
def serve() -> Iterator[Bucket]:
    """Serve a bucket until the end of the block."""
    with closing(socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-c", _SERVER, str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as server:
        try:
            while True:
                with suppress(OSError), socket() as trial:
                    trial.connect(("127.0.0.1", port))
                    break
            yield Bucket(port)
        finally:
            server.kill()
