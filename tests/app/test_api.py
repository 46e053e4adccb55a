"""The API for programs, and hostile clients of it and of the page."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import resource
import secrets
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import compress
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from PIL import Image
from starlette.applications import Starlette
from starlette.datastructures import UploadFile

from app.api import _write, routes
from app.door import Traffic
from app.server import _sweep, sweep
from app.serving import Served, Site
from app.settings import PageSettings
from datasets.core.errors import SecondhandError
from learners.inference.predictions import FIELDS, Prediction
from learners.inference.predictor import Predictor
from tests.app.conftest import SETTINGS
from tests.app.sites import MOMENT, bursts, strain, tone, tones
from tests.forks import until
from tests.pictures import write_pictures

pytestmark = [pytest.mark.slow, pytest.mark.forks]

API = "/gradio_api"
#: Client for pages on loopback. It is shared because loading the system's certificates takes 50 ms.
web = httpx.Client(verify=False, timeout=60)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = write_pictures(tmp_path_factory.mktemp("queries"), per_class=3, unknown=2)
    return [str(path) for path in sorted(folder.glob("*/*.jpg"))]


def post(up, name: str, content: bytes, **fields: object) -> httpx.Response:
    form = {key: str(value) for key, value in fields.items()}
    return web.post(f"{up.url}/predict", files={"file": (name, content)}, data=form)


def post_many(up, files: list[str]) -> httpx.Response:
    form = [("file", (Path(file).name, Path(file).read_bytes())) for file in files]
    return web.post(f"{up.url}/predict", files=form)


@pytest.fixture
def predict(up):
    """Ask for the prediction of a file."""

    def ask(file: str | Path, **fields: object) -> dict:
        answer = post(up, Path(file).name, Path(file).read_bytes(), **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def upload(up, content: bytes, name: str) -> httpx.Response:
    return web.post(f"{up.url}{API}/upload", files={"files": (name, content)})


def drop(up, files: list, model: str = "colours") -> tuple[bool, str]:
    """Whether the tab *Several files* of a model takes these files, and the table or the message that it shows."""
    config = web.get(f"{up.url}/config").json()
    number = f"files-{list(up.models).index(model)}"
    (part,) = [c["id"] for c in config["components"] if c["props"].get("elem_id") == number]
    (event,) = [d["id"] for d in config["dependencies"] if [part, "change"] in d["targets"]]
    session = secrets.token_hex(8)
    asked = {"data": [files, None, True, 0.5], "fn_index": event, "session_hash": session}
    response = web.post(f"{up.url}{API}/queue/join", json=asked)
    if response.status_code != 200:
        return False, response.text
    stream = web.get(f"{up.url}{API}/queue/data", params={"session_hash": session}).text
    told = [json.loads(line) for line in re.findall(r"data: (.*)", stream)]
    (last,) = [one for one in told if one["msg"] == "process_completed"]
    output = last["output"]
    return last["success"], output["data"][-1] if last["success"] else str(output)


def file_data(path: str) -> dict:
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def assert_close(answer: dict, expected: Prediction) -> None:
    assert answer["label"] == expected.label
    assert answer["reason"] == expected.reason
    assert answer["best"] == expected.best
    probability = float("nan") if answer["probability"] is None else answer["probability"]
    assert probability == pytest.approx(expected.probability, abs=1e-5, nan_ok=True)
    assert [row["label"] for row in answer["top"]] == [name for name, _ in expected.top]
    for row, (_, p) in zip(answer["top"], expected.top, strict=True):
        assert row["probability"] == pytest.approx(p, abs=1e-5)


def leftover_folders() -> list[Path]:
    """List the folders that requests left; those of Gradio's own examples have longer names."""
    return [path for path in Path(os.environ["GRADIO_TEMP_DIR"]).iterdir() if len(path.name) == 32]


def test_predictions_are_those_of_the_predictor_also_in_parallel(up, predict, pictures):
    expected = list(Predictor(up.folder / "run" / "model").predict(pictures))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(predict, pictures))
    for answer, right in zip(answers, expected, strict=True):
        assert_close(answer, right)
        assert answer["file"] == Path(right.path).name
    assert {answer.label for answer in expected} == {"blue", "green", "red", "unknown"}
    assert leftover_folders() == []


def test_predictions_for_sound_have_windows(predict, tmp_path):
    file = tone(tmp_path / "long.wav", "low", "low", "high", "high", "silence")
    (right,) = Predictor(tones()).predict([file])
    answer = predict(file, model="tones")
    assert_close(answer, right)
    assert predict(file) == answer, "by its kind"
    assert len(answer["windows"]) == len(right.windows) > 4
    for window, expected in zip(answer["windows"], right.windows, strict=True):
        assert_close(window, expected)
        assert window["start"] == pytest.approx(expected.part.start)


def test_sound_is_predicted_at_a_moment(predict, tmp_path):
    file = tone(tmp_path / "long.wav", "low", "low", "high", "high")
    (right,) = Predictor(tones()).predict([file], at=3.5)
    assert_close(predict(file, at=3.5), right)
    assert "outside" in predict(file, at=500.0)["reason"]


def test_strain_is_predicted_at_a_moment(predict, tmp_path):
    file = strain(tmp_path / "a.hdf5")
    for at in ({}, {"at": MOMENT}):
        (right,) = Predictor(bursts()).predict([file], **at)
        assert_close(predict(file, **at), right)
    assert "GPS 5.000 is outside" in predict(file, model="bursts", at=5.0)["reason"]


def test_the_threshold_of_a_call(predict, pictures):
    grey = pictures[-2]
    default, loose = predict(grey), predict(grey, threshold=0.0)
    assert (default["label"], default["reason"]) == ("unknown", "ambiguous")
    assert loose["label"] == default["best"]


def test_the_kind_of_the_file_selects_the_model(up):
    for unknown in ("a.pdf", "a"):
        refused = post(up, unknown, b"x")
        assert refused.status_code == 422
        assert "no known ending" in refused.json()["error"]
        assert "colours (picture), tones (sound), bursts (strain)" in refused.json()["error"]


def test_no_model_for_the_kind_of_the_file_is_an_error(up, tmp_path):
    two = Site({name: up.models[name] for name in ("tones", "bursts")}, str(tmp_path), SETTINGS)
    with pytest.raises(SecondhandError, match=r"picture.*tones.*bursts"):
        two.choose(["a.jpg"])
    with pytest.raises(SecondhandError, match="sound and strain"):
        two.choose(["a.wav", "b.hdf5"])
    assert two.choose(["a.hdf5", "b.h5"]) == "bursts"
    one = Site({"tones": up.models["tones"]}, str(tmp_path), SETTINGS)
    assert one.choose(["a.jpg"]) == "tones"


def test_the_rule_in_force_is_reported(up, predict, pictures):
    """The rule of a model that cuts another score, and a threshold that replaces it."""
    strict = Predictor(up.folder / "strict" / "model")
    expected = list(strict.predict(pictures))
    labels = {answer.label for answer in expected}
    assert "unknown" in labels
    assert len(labels) > 1
    confidence = strict.rule
    # Predicted alone, an item's last digits differ, and so may its rank among near-equal items.
    clear = [abs(right.known - confidence.threshold.value) > 0.3 for right in expected]
    assert sum(clear) > len(clear) / 2
    for file, right in compress(zip(pictures, expected, strict=True), clear):
        by_own_rule = predict(file, model="strict")
        assert_close(by_own_rule, right)
        assert by_own_rule["rule"] == {
            "of_model": True, "kind": "target accuracy", "target": 0.9, "on": "combined",
            "threshold": confidence.threshold.value, "alpha": confidence.distance.alpha, "score": "", "floor": None,
        }  # fmt: skip
        other = predict(file, model="strict", threshold=0.5)
        accepted = right.probability >= 0.5 and not right.distance_p < confidence.distance.alpha
        assert (other["label"] != "unknown") == accepted
        assert (other["rule"]["of_model"], other["rule"]["on"]) == (False, "probability")
        assert other["rule"]["threshold"] == 0.5


def test_several_files_keep_their_order(up, pictures):
    chosen = [pictures[i] for i in (5, 0, 3)]
    answers = post_many(up, chosen).json()
    assert [answer["file"] for answer in answers] == [Path(file).name for file in chosen]
    hidden = {"path", "known", "box", "detection"}
    assert answers[0].keys() == {*FIELDS} - hidden | {"file", "rule"}
    refused = post_many(up, [pictures[0]] * 7)
    assert (refused.status_code, "is 6" in refused.json()["error"]) == (400, True)
    assert leftover_folders() == []


def test_the_models_are_listed(up, pictures):
    models = web.get(f"{up.url}/models").json()
    assert [model["name"] for model in models] == list(up.models)
    assert [(model["rule"]["kind"], model["rule"]["on"]) for model in models] == [
        *[("threshold", "probability")] * 3, ("target accuracy", "combined"),
    ]  # fmt: skip
    assert models[0]["rule"]["threshold"] == 0.8
    assert models[3]["rule"]["threshold"] == up.models["strict"].predictor.rule.threshold.value
    for name in ("/etc", "../run/model", str(up.folder / "run" / "model")):
        refused = post(up, "a.jpg", b"x", model=name)
        assert refused.status_code == 422
        assert name in refused.json()["error"]


def test_health(up):
    answer = web.get(f"{up.url}/health")
    counts = {"waiting": 0, "arriving": 0, "disconnected": 0}
    assert answer.json() == {"status": "ok", "models": 4, "failed": [], **counts}


def test_only_uploaded_files_are_opened(up, pictures, tmp_path):
    """Neither files of this machine, however spelled, nor web addresses are opened."""
    secret = tmp_path / "secret.jpg"
    Image.new("RGB", (40, 40), "red").save(secret)
    uploaded = upload(up, Path(pictures[0]).read_bytes(), "a.jpg").json()[0]
    folder = Path(uploaded).parent
    link = folder / "link.jpg"
    link.symlink_to(secret)
    for path in (
        str(secret), "/etc/passwd", f"{folder}/../../../{secret}", "config.json", str(link),
        f"file://{secret}", "http://127.0.0.1:9/a.jpg", f"{up.url}/health", "ftp://x/y", "~", "",
    ):  # fmt: skip
        for data in (file_data(path), {"path": path}, {"path": path, "url": path}, path):
            taken, message = drop(up, [data])
            assert not taken or "Only files that were uploaded here" in message, (data, message)
            assert os.getcwd() not in message
            assert "root:" not in message
    taken, table = drop(up, [file_data(uploaded)])
    assert taken
    assert "<b>blue</b>" in table


def test_uploads_are_capped(up, predict, tmp_path):
    assert upload(up, b"x" * (3 << 20), "a.jpg").status_code == 413
    days = tmp_path / "days.flac"
    soundfile.write(days, np.zeros(8000 * 3700, np.int16), 8000)
    assert days.stat().st_size < 2 << 20
    assert "lasts 1.0 hours" in predict(days, model="tones")["reason"]


def test_nothing_else_of_this_machine_is_served(up):
    for path in ("/etc/passwd", f"{os.getcwd()}/pyproject.toml", f"{up.folder}/run/items.csv"):
        for route in (f"{API}/file={path}", f"/file={path}"):
            assert web.get(up.url + route).status_code in (403, 404), route


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "../run"}, 422, "model ../run: this page has colours, tones, bursts, strict"),
        ({"threshold": 7}, 422, "threshold 7.0: "),
        ({"threshold": "nan"}, 422, "threshold nan: "),
        ({"at": "noon"}, 422, "at noon: "),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, 400, "Too many fields"),
    ],
)
def test_a_wrong_field_is_named(up, fields, status, message):
    answer = post(up, "a.jpg", b"x", **fields)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_a_request_without_a_file(up):
    for request in ({}, {"json": {"file": "a"}}, {"data": {"file": "/etc/passwd"}},
                    {"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=y"}}):  # fmt: skip
        answer = web.post(f"{up.url}/predict", **request)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]
    assert "curl -F file=@photo.jpg" in web.post(f"{up.url}/predict").json()["error"]
    assert web.get(f"{up.url}/predict").status_code == 405


def test_too_long_requests_are_not_read(up):
    assert post(up, "a.jpg", b"x" * (3 << 20)).status_code == 413
    host, port = re.search(r"//([^:]+):(\d+)", up.url).groups()
    for length, status in (("99999999999", b"413"), (None, b"411")):
        head = f"Content-Length: {length}" if length else "Transfer-Encoding: chunked"
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(f"POST /predict HTTP/1.1\r\nHost: {host}\r\n{head}\r\n\r\n".encode())
            assert raw.recv(100).split()[1] == status


def test_a_full_queue_is_busy(up, pictures, tmp_path):
    served = Served("one", Predictor(up.folder / "run" / "model"), settings=PageSettings(queue=1))
    app = Starlette(routes=routes(Site({"one": served}, str(tmp_path), served.settings), Traffic()))
    with served._ready:  # blocks all answers
        served._waiting.append((None, None))

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post(
                "/predict", files={"file": ("a.jpg", Path(pictures[0]).read_bytes())}
            )

    try:
        answer = asyncio.run(request())
    finally:
        served._waiting.clear()
        served.close()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "1 requests are waiting" in answer.json()["error"]
    assert not list(tmp_path.iterdir())


def hostile(pictures: list[str]) -> list[tuple[str, bytes]]:
    """Uploads with bad names around good and bad content."""
    rng = np.random.default_rng(0)
    jpeg = Path(pictures[0]).read_bytes()
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (90, 90, 3), dtype=np.uint8)).save(buffer, "PNG")
    png = buffer.getvalue()
    wide = png[:16] + (2**31 - 1).to_bytes(4, "big") * 2 + png[24:]
    wav = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80>\0\0\x02\0\x10\0data"
    contents = [
        b"", b"\0" * 1000, jpeg[: len(jpeg) // 2], png[:60], wide, wav + b"\xff\xff\xff\x7f" + b"\0" * 99,
        b"\x89HDF\r\n\x1a\n" + rng.bytes(500), b"IGWD" + b"\0" * 200, b"<svg onload=alert(1)>",
        b"GIF89a/*<script>alert(1)</script>*/=1;", jpeg + b"<?php system('id'); ?>", b"%PDF-1.7 " + jpeg,
        b"\x1f\x8b\x08\0" + rng.bytes(300), b"PK\x03\x04" + rng.bytes(300), b"fLaC" + rng.bytes(400),
        b"OggS" + rng.bytes(400), b"ID3\x04" + rng.bytes(400), b"II*\0" + rng.bytes(300),
        b"BM" + rng.bytes(200), b"P6 9999999 9999999 255\n", b"1e-20\n" * 3000, b"nan\n" * 3000,
        rng.bytes(5000), "ünïcödé 🎉".encode() * 50, jpeg, png,
    ]  # fmt: skip
    names = [
        "../../x.jpg", "..\\..\\x.jpg", "/etc/passwd", "<script>alert(1)</script>.png", "a" * 5000 + ".jpg",
        "a\x01b.wav", "CON", "-rf", "$(touch x).png", "'; DROP TABLE x;--.jpg", ".htaccess", "x.jpg.exe",
        "%2e%2e%2fx", "a b\tc.hdf5", "\u202egpj.exe", "....", "x.wav", "x.hdf5", "x.txt", "x.gwf",
    ]  # fmt: skip
    return [
        (names[(i * 7) % len(names)], contents[i % len(contents)]) for i in range(len(contents))
    ]


def test_hostile_uploads(up, predict, pictures):
    """Each gets a clear message; nothing crashes, hangs or leaks a path."""
    models, reasons = list(up.models), set()
    folders = (os.getcwd(), "/tmp/", str(up.folder), "site-packages", "Traceback", "/etc/", "0x")
    for i, (name, content) in enumerate(hostile(pictures)):
        start, model = time.monotonic(), models[i % len(models)]
        response = post(up, name, content, model=model)
        message = response.text
        assert response.status_code < 500, (name, message)
        if response.status_code == 200:
            answer = response.json()
            message = answer["reason"]
            reasons.add(message)
            assert answer["label"] != "unknown" or 0 < len(message) < 400
        assert time.monotonic() - start < 20
        assert not any(folder in message for folder in folders), message
        uploaded = upload(up, content, name)
        assert uploaded.status_code < 500, (name, uploaded.text)
        if uploaded.status_code == 200:
            (path,) = uploaded.json()
            assert Path(path).resolve().is_relative_to(os.environ["GRADIO_TEMP_DIR"])
            taken, message = drop(up, [file_data(path)], model)
            assert taken, (name, message)
            assert not any(folder in message for folder in folders), message
    assert len(reasons) > 8
    assert predict(pictures[0])["label"] == "blue"
    assert leftover_folders() == []


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("photo.jpg", "photo.jpg"),
        ("写真.jpg", "写真.jpg"),
        ("e\u0301te\u0301.wav", "été.wav"),
        ("ताल.flac", "ताल.flac"),
        ("😀.heic", "file_.heic"),
        ("____.wav", "file____.wav"),
        (".hidden", "file.hidden"),
        ("", "file"),
        ("../../a b\x1b[2J\u202e\udc80.png", "file.._.._a_b__2J__.png"),
        ("写" * 300 + ".jpg", "写" * 56 + ".jpg"),
    ],
)
def test_an_upload_keeps_the_letters_of_any_script(tmp_path, name, written):
    (path,) = _write([UploadFile(io.BytesIO(b"x"), filename=name)], tmp_path / "in")
    assert Path(path).name == written
    assert Path(path).parent == tmp_path / "in" / "0"
    assert Path(path).read_bytes() == b"x"


def test_uploads_are_deleted_whatever_goes_wrong_meanwhile(tmp_path, caplog):
    """Without descriptors it looks again; a folder that goes while it looks is none of its business."""
    (tmp_path / "upload.png").touch()
    stop, limits = threading.Event(), resource.getrlimit(resource.RLIMIT_NOFILE)
    thread = threading.Thread(target=_sweep, args=(str(tmp_path), 0.02, stop))
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        thread.start()
        until(lambda: "uploads could not be deleted" in caplog.text)
        assert (tmp_path / "upload.png").exists()
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    until(lambda: not (tmp_path / "upload.png").exists())
    assert tmp_path.is_dir()
    stop.set()
    thread.join()


def test_a_request_may_end_while_old_uploads_are_deleted(tmp_path):
    stop = threading.Event()

    def requests(name: str) -> None:
        while not stop.is_set():
            for number in range(8):
                (tmp_path / name / str(number)).mkdir(parents=True)
                (tmp_path / name / str(number) / "a.png").touch()
            shutil.rmtree(tmp_path / name, ignore_errors=True)

    threads = [threading.Thread(target=requests, args=(f"request{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(400):
            sweep(str(tmp_path), keep=3600)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_old_uploads_are_deleted(tmp_path):
    for i, age in enumerate((5000, 10, 5)):
        file = tmp_path / f"{i}" / "x.jpg"
        file.parent.mkdir()
        file.write_bytes(b"x" * 100)
        os.utime(file, (time.time() - age,) * 2)
    old = tmp_path / "0" / "x.jpg"
    assert sweep(str(tmp_path), keep=3600) == 0, "a copy is as old as its arrival, not its content"
    assert sweep(str(tmp_path), keep=3600, most=150) == 2
    assert not old.exists()
    time.sleep(0.05)
    assert sweep(str(tmp_path), keep=0.01) == 1
    assert not list(tmp_path.rglob("*.jpg"))
