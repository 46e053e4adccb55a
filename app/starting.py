"""Answers at the page's address while the models open.

A process of its own with the standard library alone: it answers at once, while this one imports and loads, and the
workers that a model forks do not inherit its connections.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Secondhand</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<noscript><meta http-equiv="refresh" content="2"></noscript>
<body style="font: 1.1rem system-ui, sans-serif; margin: 3rem auto; max-width: 30rem; padding: 0 1rem">
<h1>Secondhand</h1><p>The page is starting.</p><p role="status">WORDS</p>
<script>
setInterval(async () => {
  try {
    const health = await fetch("health");
    if (health.ok) location.reload();
    else document.querySelector("[role=status]").textContent = (await health.json()).doing;
  } catch { /* between two servers */ }
}, 500);
</script>"""


class Starting:
    """The server of the starting page, until it is closed.

    Parameters
    ----------
    port : 0 selects a free one, which the attribute ``port`` names.

    Raises
    ------
    SecondhandError : the port is taken, or the address is not one of this machine's.
    """

    def __init__(self, host: str, port: int) -> None:
        from datasets.core.errors import SecondhandError  # not in the server's process

        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, host, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C is for the page, whose end closes the pipe
        )  # fmt: skip
        assert self._process.stdout
        heard = self._process.stdout.readline().strip()
        if not heard.isdigit():
            self.close()
            raise SecondhandError(f"--host {host} --port {port}: {heard}; choose another")
        self.port = int(heard)

    def tell(self, doing: str) -> None:
        """Say on the page and in the terminal what is being done."""
        print(doing, file=sys.stderr, flush=True)
        assert self._process.stdin
        with suppress(OSError):  # it has ended: only the terminal is told
            self._process.stdin.write(f"{doing}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the server, which frees the port. May be called again."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()

    def __enter__(self) -> Starting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    timeout = 5
    doing = "Loading the program."

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/":
            self._answer("text/html; charset=utf-8", PAGE.replace("WORDS", self.doing))
        else:
            message = {"status": "starting", "doing": self.doing}
            self._answer("application/json", json.dumps(message))

    def do_POST(self) -> None:
        self.close_connection = True
        self._answer(
            "application/json", json.dumps({"error": f"The page is starting. {self.doing}"})
        )

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(503)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


class _Server(ThreadingTCPServer):  # HTTPServer looks up the host's name
    allow_reuse_address = daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def handle_error(self, *_: Any) -> None:
        """A visitor who left."""


def _serve(host: str, port: int) -> None:
    try:
        server = _Server(host, port)
    except (OSError, OverflowError) as error:
        print(getattr(error, "strerror", None) or error, flush=True)
        return
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for line in sys.stdin:  # until the page's process closes it, or ends
        _Handler.doing = line.strip()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
