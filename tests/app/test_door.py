"""Requests from other sites, and requests that never end."""

from __future__ import annotations

import logging
import os
import re
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

import app.connections
import app.door
from app.door import SLOWEST, USED, host_names
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


#: Routes of Gradio that the page does not answer. A route of a new version stands in neither list: decide where it belongs.
UNUSED = {
    *("/gradio_api/process_recording", "/gradio_api/deep_link", "/gradio_api/dev/reload"),  # run or keep something
    *("/gradio_api/vibe-edit", "/gradio_api/undo-vibe-edit", "/gradio_api/vibe-code"),
    *("/gradio_api/vibe-starter-queries", "/gradio_api/component_server"),
    *("/gradio_api/proxy={url_path}", "/gradio_api/file/{path}", "/gradio_api/custom_component/{id}/{environment}/{type}/{file_name}"),
    *("/gradio_api/api/{api_name}", "/gradio_api/call/{api_name}", "/gradio_api/call/v2/{api_name}"),
    *("/gradio_api/call/{api_name}/{event_id}", "/gradio_api/call/v2/{api_name}/{event_id}"),
    "/gradio_api/queue/status",
    *("/gradio_api/info", "/gradio_api/openapi.json", "/openapi.json", "/gradio_api/runs"),  # of other clients
    *("/gradio_api/user", "/gradio_api/token", "/gradio_api/login_check", "/robots.txt"),
    *("/gradio_api/stream/{event_id}", "/gradio_api/stream/{event_id}/close"),
    "/gradio_api/stream/{session_hash}/{run}/{component_id}/playlist.m3u8",
    "/gradio_api/stream/{session_hash}/{run}/{component_id}/playlist-file",
    "/gradio_api/stream/{session_hash}/{run}/{component_id}/{segment_id}.{ext}",
    *("/monitoring", "/monitoring/summary", "/monitoring/{key}"),
    *("/manifest.json", "/pwa_icon", "/pwa_icon/{size}"),
}  # fmt: skip


def test_each_route_of_gradio_is_used_or_closed() -> None:
    import gradio
    from gradio.routes import App

    with gradio.Blocks() as blocks:
        gradio.HTML("")
    blocks.run_history = False
    gradio_app = App.create_app(blocks, app_kwargs={"docs_url": None, "redoc_url": None})
    found = {getattr(route, "path", None) for route in gradio_app.routes} | {
        *gradio_app.openapi()["paths"]
    }
    plain = {str(path).replace(":path}", "}").rstrip("/") or "/" for path in found - {None}}
    used = {path.replace(":path}", "}") for path in USED}
    assert plain - used == UNUSED
    assert used <= plain


@pytest.mark.parametrize("path", [*sorted(UNUSED), "//config", "/gradio_api//upload", "/x"])
def test_what_the_page_does_not_use_is_not_there(page: str, picture: bytes, path: str) -> None:
    path = re.sub(r"\{\w+\}", "x", path)
    assert web.get(f"{page}{path}").status_code == 404
    assert web.get(f"{page}{path}/").status_code == 404
    answer = web.post(f"{page}{path}", files={"video": ("a.mp4", picture)})
    assert (answer.status_code, answer.headers["connection"]) == (404, "close")


def connect(page: str, text: bytes = b"") -> socket.socket:
    host, port = page.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)), timeout=30)
    raw.sendall(text)
    return raw


def has_ended(raw: socket.socket) -> bool:
    """Whether the page has closed a connection; what it has answered is read."""
    raw.settimeout(0)
    try:
        while raw.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


FIRST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "start", [b"", b"GET /hea", FIRST, FIRST + b"\r\n", FIRST + b"\r\n" + FIRST]
)
def test_a_connection_without_a_complete_header_is_closed(
    page: str, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    """Also one that goes on to send a byte now and then, and one that has had an answer before."""
    monkeypatch.setattr(app.connections, "PATIENCE", 2.0)
    with connect(page, start) as raw:
        deadline = time.monotonic() + 60
        while not has_ended(raw):
            assert time.monotonic() < deadline
            time.sleep(0.2)
            with suppress(OSError):
                raw.send(b"x" if start else b"")


def test_a_header_without_an_end_is_cut_off(page: str) -> None:
    sent = 0
    with connect(page, FIRST + b"X: ") as raw, suppress(OSError):
        while sent < 64 << 20:
            sent += raw.send(bytes([120]) * 4096)
            time.sleep(1e-3)
    assert sent < 64 << 20


def test_idle_connections_make_room_for_requests(page: str) -> None:
    """More connections than the page keeps: the oldest that have sent no request are closed, and requests are answered."""
    most = app.connections._most()
    idle = [connect(page) for _ in range(most + 40)]
    try:
        for _ in range(3):
            assert httpx.get(f"{page}/health", trust_env=False).status_code == 200
        until(lambda: sum(map(has_ended, idle)) >= 40)
    finally:
        for raw in idle:
            raw.close()
    assert httpx.get(f"{page}/health", trust_env=False).status_code == 200


def test_a_request_of_unknown_length_is_refused(page: str, picture: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=y"}
    for route in ("/predict", f"{API}/upload", f"{API}/run/predict"):
        answer = web.post(f"{page}{route}", content=iter([picture]), headers=headers)
        assert answer.status_code == 411, answer.text
