"""The endpoints, asked by Gradio's own client and by clients that mean harm."""

from __future__ import annotations

import io
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from gradio_client import Client, handle_file
from PIL import Image

from app.server import sweep
from learners.inference.predictor import Prediction, Predictor
from tests.app.sites import MOMENT, bursts, strain, tone, tones
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

API = "/gradio_api"
#: Asks pages on loopback. One for all: to read the certificates of the world takes 50 ms each time.
web = httpx.Client(verify=False, timeout=60)


@pytest.fixture(scope="module")
def client(up):
    return Client(up.url, verbose=False, ssl_verify=False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = write_pictures(tmp_path_factory.mktemp("asked"), per_class=3, unknown=2)
    return [str(path) for path in sorted(folder.glob("*/*.jpg"))]


def upload(up, content: bytes, name: str) -> httpx.Response:
    return web.post(f"{up.url}{API}/upload", files={"files": (name, content)})


def ask(up, data: list, endpoint: str = "ask") -> tuple[str, str]:
    """The last event of a call, and what it carries."""
    began = web.post(f"{up.url}{API}/call/{endpoint}", json={"data": data})
    if began.status_code != 200:
        return "refused", began.text
    event = began.json()["event_id"]
    stream = web.get(f"{up.url}{API}/call/{endpoint}/{event}").text
    return re.findall(r"event: (\w+)\ndata: (.*)", stream)[-1]


def file_data(path: str) -> dict:
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def close_to(answer: dict, expected: Prediction) -> None:
    assert answer["label"] == expected.label
    assert answer["reason"] == expected.reason
    assert answer["best"] == expected.best
    given = float("nan") if answer["probability"] is None else answer["probability"]
    assert given == pytest.approx(expected.probability, abs=1e-5, nan_ok=True)
    assert [row["label"] for row in answer["top"]] == [name for name, _ in expected.top]
    for row, (_, p) in zip(answer["top"], expected.top, strict=True):
        assert row["probability"] == pytest.approx(p, abs=1e-5)


def test_answers_are_those_of_the_predictor(up, client, pictures):
    expected = list(Predictor(up.folder / "run" / "model").predict(pictures))
    for file, right in zip(pictures, expected, strict=True):
        (answer,) = client.predict(handle_file(file), api_name="/ask")
        close_to(answer, right)
    assert {answer.label for answer in expected} == {"blue", "green", "red", "unknown"}


def test_eight_at_once_are_each_answered_for_their_own_file(up, pictures):
    expected = {p.path: p for p in Predictor(up.folder / "run" / "model").predict(pictures)}

    def many(number: int) -> None:
        one = Client(up.url, verbose=False, ssl_verify=False)
        for file in pictures[number % 3 :: 2]:
            (answer,) = one.predict(handle_file(file), model="colours", api_name="/ask")
            close_to(answer, expected[file])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(many, range(8)))


def test_sound_is_answered_with_its_windows(client, tmp_path):
    file = tone(tmp_path / "long.wav", "low", "low", "high", "high", "silence")
    (right,) = Predictor(tones()).predict([file])
    (answer,) = client.predict(handle_file(str(file)), model="tones", api_name="/ask")
    close_to(answer, right)
    assert client.predict(handle_file(str(file)), api_name="/ask") == [answer]  # by its kind
    assert len(answer["windows"]) == len(right.windows) > 4
    for window, expected in zip(answer["windows"], right.windows, strict=True):
        close_to(window, expected)
        assert window["start"] == pytest.approx(expected.start)


def test_strain_is_asked_about_a_moment(client, tmp_path):
    file = strain(tmp_path / "a.hdf5")
    for at in (None, MOMENT):
        (right,) = Predictor(bursts()).predict([file], at=at)
        (answer,) = client.predict(handle_file(str(file)), model="bursts", at=at, api_name="/ask")
        close_to(answer, right)
    (answer,) = client.predict(handle_file(str(file)), model="bursts", at=5.0, api_name="/ask")
    assert "GPS 5.000 is outside" in answer["reason"]


def test_the_threshold_of_a_call(client, pictures):
    grey = pictures[-2]
    (own,) = client.predict(handle_file(grey), api_name="/ask")
    (loose,) = client.predict(handle_file(grey), threshold=0.0, api_name="/ask")
    assert (own["label"], own["reason"]) == ("unknown", "ambiguous")
    assert loose["label"] == own["best"]
    with pytest.raises(Exception, match="0 to 1"):
        client.predict(handle_file(grey), threshold=7.0, api_name="/ask")


def test_several_files_keep_their_order(client, pictures):
    chosen = [pictures[i] for i in (5, 0, 3)]
    answers = client.predict([handle_file(file) for file in chosen], api_name="/ask_many")
    assert [answer["file"] for answer in answers] == [Path(file).name for file in chosen]
    with pytest.raises(Exception, match="more than the 6"):
        client.predict([handle_file(pictures[0])] * 7, api_name="/ask_many")


def test_the_results_are_typed_and_models_come_from_the_start(up, client):
    described = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(described) == {"/ask", "/ask_many", "/models"}
    returns = described["/ask"]["returns"][0]["type"]["items"]["properties"]
    assert set(returns) == {*Prediction._fields} - {"path", "known"} | {"file", "rule"}
    assert returns["probability"] == {"type": "number"}
    models = client.predict(api_name="/models")
    assert [model["name"] for model in models] == list(up.models)
    assert [(model["rule"]["kind"], model["rule"]["on"]) for model in models] == [
        *[("threshold", "probability")] * 3, ("target accuracy", "combined"),
    ]  # fmt: skip
    assert models[0]["rule"]["cut"] == 0.8
    assert models[3]["rule"]["cut"] == up.models["strict"].predictor.confidence.threshold.value
    for name in ("/etc", "../run/model", str(up.folder / "run" / "model")):
        with pytest.raises(Exception, match=re.escape(name)):
            client.predict(None, model=name, api_name="/ask")


def test_health(up):
    answer = web.get(f"{up.url}/health")
    counts = {"waiting": 0, "arriving": 0, "broken_off": 0}
    assert answer.json() == {"status": "ok", "models": 4, **counts}


def test_only_uploaded_files_are_opened(up, pictures, tmp_path):
    """Neither files of this machine, by any spelling, nor addresses."""
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
            kind, said = ask(up, [data, "colours", None, None])
            assert kind in ("error", "refused"), (path, data, said)
            assert os.getcwd() not in said
            assert "root:" not in said
    kind, said = ask(up, [file_data(uploaded), "colours", None, None])
    assert kind == "complete"
    assert json.loads(said)[0][0]["label"] == "blue"


def test_uploads_are_capped(up, client, tmp_path):
    assert upload(up, b"x" * (3 << 20), "a.jpg").status_code == 413
    days = tmp_path / "days.flac"
    soundfile.write(days, np.zeros(8000 * 3700, np.int16), 8000)
    assert days.stat().st_size < 2 << 20
    (answer,) = client.predict(handle_file(str(days)), model="tones", api_name="/ask")
    assert "1.0 hours are more than this page takes" in answer["reason"]


def test_nothing_else_of_this_machine_is_served(up):
    for path in ("/etc/passwd", f"{os.getcwd()}/pyproject.toml", f"{up.folder}/run/items.csv"):
        for route in (f"{API}/file={path}", f"/file={path}"):
            assert web.get(up.url + route).status_code in (403, 404), route


def hostile(pictures: list[str]) -> list[tuple[str, bytes]]:
    """Uploads: bad names around good and bad content."""
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


def test_hostile_uploads(up, client, pictures):
    """No crash, hang or leak of a path; each with a message that a person understands."""
    models, words = list(up.models), set()
    folders = (os.getcwd(), "/tmp/", str(up.folder), "site-packages", "Traceback", "/etc/", "0x")
    for i, (name, content) in enumerate(hostile(pictures)):
        began = time.monotonic()
        response = upload(up, content, name)
        if response.status_code != 200:
            said = response.text
            assert response.status_code < 500, (name, said)
        else:
            path = response.json()[0]
            assert Path(path).resolve().is_relative_to(os.environ["GRADIO_TEMP_DIR"])
            model = models[i % len(models)]
            kind, said = ask(up, [file_data(path), model, None, None])
            assert kind == "complete", (name, said)
            (answer,) = json.loads(said)[0]
            said = answer["reason"]
            words.add(said)
            if answer["label"] == "unknown":
                assert said
                assert len(said) < 400
        assert time.monotonic() - began < 20
        assert not any(folder in said for folder in folders), said
    assert len(words) > 8
    (answer,) = client.predict(handle_file(pictures[0]), api_name="/ask")
    assert answer["label"] == "blue"


def test_old_uploads_are_swept(tmp_path):
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
