"""Requests from other sites, and requests that never end."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import app.door
from app.door import SLOWEST, host_names
from app.server import serve
from app.serving import Served
from app.settings import PageSettings
from learners.inference.predictor import Predictor
from tests.app.sites import colours
from tests.app.test_api import API, web
from tests.forks import until
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

PATIENCE = 1.5


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    feedback_folder = tmp_path_factory.mktemp("kept")
    settings = PageSettings(port=0, max_mb=2, feedback=feedback_folder, allow_host=["Page.Example"])
    served = {"colours": Served("colours", Predictor(colours()), settings=settings)}
    with pytest.MonkeyPatch.context() as patch, serve(served, settings) as url:
        patch.setattr(app.door, "ARRIVING", 2)
        patch.setattr(app.door, "PATIENCE", PATIENCE)
        yield url.rstrip("/")


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = write_pictures(tmp_path_factory.mktemp("pictures"), per_class=1)
    return next(folder.rglob("*.jpg")).read_bytes()


def responses(page: str, picture: bytes, **headers: str) -> list[httpx.Response]:
    """The responses of the page, its settings, an upload and a question to these headers."""
    port = page.rsplit(":", 1)[1]
    headers = {
        name.replace("_", "-"): value.format(page=page, port=port)
        for name, value in headers.items()
    }
    return [
        web.get(f"{page}/", headers=headers),
        web.get(f"{page}/config", headers=headers),
        web.post(f"{page}{API}/upload", files={"files": ("a.jpg", picture)}, headers=headers),
        web.post(f"{page}/predict", files={"file": ("a.jpg", picture)}, headers=headers),
    ]


def uploads() -> list[Path]:
    return [path for path in Path(os.environ["GRADIO_TEMP_DIR"]).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        # What a browser sends from a site whose host name resolves to this machine.
        *(({"host": host}, "--allow-host") for host in (
            "evil.example", "evil.example:{port}", "localhost.evil.example", "a b", "[::1")),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, "another site"),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "origin": "http://127.0.0.1:9"}, "another site"),
        ({"origin": "https://evil.example"}, "another site"),
        ({"origin": "null"}, "another site"),
        ({"origin": "http://127.0.0.1:9"}, "another site"),
    ],
)  # fmt: skip
def test_requests_from_another_site_are_refused(
    page: str, picture: bytes, headers: dict[str, str], words: str
) -> None:
    before = uploads()
    for answer in responses(page, picture, **headers):
        assert answer.status_code == 403, answer.text
        assert words in answer.json()["error"]
        assert headers.get("host", "").split(":{")[0] in answer.json()["error"]
    assert uploads() == before


@pytest.mark.parametrize(
    "headers",
    [
        # A numeric address cannot be another site's name.
        *({"host": host} for host in (
            "127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:{port}", "10.1.2.3", "page.example")),
        {"origin": "{page}"},
        {"origin": "{page}", "sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"},
        {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"},
        # Behind a TLS proxy, the browser names the page's own site as the origin.
        {"host": "page.example", "origin": "https://page.example:8443", "sec_fetch_site": "same-origin"},
    ],
)  # fmt: skip
def test_requests_from_the_page_are_accepted(
    page: str, picture: bytes, headers: dict[str, str]
) -> None:
    assert [answer.status_code for answer in responses(page, picture, **headers)] == [200] * 4


def test_a_link_to_the_page_is_followed(page: str, picture: bytes) -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    statuses = [answer.status_code for answer in responses(page, picture, **link)]
    assert statuses == [200, 200, 403, 403]


def test_other_machines_can_use_the_host_name() -> None:
    name = socket.gethostname().lower()
    assert name in host_names("0.0.0.0")
    assert host_names("127.0.0.1", ["Photos.Lab."]) == {"localhost", "127.0.0.1", "photos.lab"}


def start_form(page: str, route: str = "/predict") -> socket.socket:
    """Send the first part of a form and keep the connection open."""
    host, port = page.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)), timeout=30)
    kind = "application/json" if "run" in route else "multipart/form-data; boundary=y"
    raw.sendall(
        f"POST {route} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: 100000\r\n\r\n--y\r\n".encode()
        + b'Content-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\nxxxx'
    )
    return raw


def health(page: str) -> dict[str, int]:
    return web.get(f"{page}/health").json()


def test_an_incomplete_request_times_out(page: str) -> None:
    before = health(page)["disconnected"]
    for route in ("/predict", f"{API}/upload"):
        with start_form(page, route) as raw:
            answer = raw.makefile("rb").read()  # until the page closes the connection
        assert answer.split()[1] == b"408"
        assert b"Too slow" in answer
    assert health(page) | {"waiting": 0} == {
        "status": "ok", "models": 1, "failed": [], "waiting": 0, "arriving": 0,
        "disconnected": before + 2,
    }  # fmt: skip


def test_a_slow_request_is_answered(page: str, picture: bytes) -> None:
    """Each part that arrives extends the deadline: here by 4 s beyond the page's patience."""

    def parts() -> Iterator[bytes]:
        yield form[:-4]
        time.sleep(PATIENCE + 1)
        yield form[-4:]

    padded = picture + bytes(4 * SLOWEST)
    request = httpx.Request("POST", page, files={"file": ("a.jpg", padded)})
    kind, form = request.headers["content-type"], request.read()
    headers = {"content-type": kind, "content-length": str(len(form))}
    assert web.post(f"{page}/predict", content=parts(), headers=headers).status_code == 200


def test_the_number_of_arriving_requests_is_limited(page: str, picture: bytes) -> None:
    file = {"file": ("a.jpg", picture)}
    first, second = start_form(page), start_form(page)
    until(lambda: health(page)["arriving"] == 2)
    refused = web.post(f"{page}/predict", files=file)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert web.get(f"{page}/").status_code == 200, "what has no body is answered all the same"
    first.close()
    second.close()
    until(lambda: health(page)["arriving"] == 0)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: web.post(f"{page}/predict", files=file), range(2)))
    assert [answer.status_code for answer in answers] == [200, 200]


def test_an_upload_to_a_full_disk_is_refused(page: str, picture: bytes) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        large = ("a.jpg", picture + bytes(1_500_000))
        answers = [
            web.post(f"{page}{API}/upload", files={"files": large}),
            web.post(f"{page}/predict", files={"file": large}),
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for answer in answers:
        assert answer.status_code == 507, answer.text
        assert "disk" in answer.json()["error"]
    assert [one.status_code for one in responses(page, picture)] == [200] * 4


def test_a_broken_upload_is_counted_without_a_traceback(page: str) -> None:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Kept()
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "gradio", "app")]
    for logger in loggers:
        logger.addHandler(handler)
    before = health(page)["disconnected"]
    try:
        for count, route in enumerate(
            ("/predict", f"{API}/upload", f"{API}/run/predict"), before + 1
        ):
            raw = start_form(page, route)
            until(lambda: health(page)["arriving"] == 1)
            raw.close()
            until(lambda count=count: health(page)["disconnected"] == count)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert lines == []
