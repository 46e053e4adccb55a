"""The one request that programs make without Gradio, by honest clients and by others."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from pathlib import Path

import httpx
import pandas as pd
import pytest
from starlette.applications import Starlette

from app.api import routes
from app.backend import Site
from app.door import Visits
from app.serving import Limits, Served
from datasets.core.errors import SecondhandError
from learners.inference.predictor import Predictor
from tests.app.sites import MOMENT, bursts, strain, tone, tones
from tests.app.test_api import close_to, hostile, pictures, web  # noqa: F401

pytestmark = pytest.mark.slow


def post(up, name: str, content: bytes, **fields: object) -> httpx.Response:
    form = {key: str(value) for key, value in fields.items()}
    return web.post(f"{up.url}/ask", files={"file": (name, content)}, data=form)


def ask(up, file: str | Path, **fields: object) -> dict:
    answer = post(up, Path(file).name, Path(file).read_bytes(), **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def left() -> list[Path]:
    """What requests left behind; Gradio's own folders, of the page's examples, have longer names."""
    return [path for path in Path(os.environ["GRADIO_TEMP_DIR"]).iterdir() if len(path.name) == 32]


def test_answers_are_those_of_the_predictor_also_at_once(up, pictures):  # noqa: F811
    expected = list(Predictor(up.folder / "run" / "model").predict(pictures))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda file: ask(up, file), pictures))
    for answer, right in zip(answers, expected, strict=True):
        close_to(answer, right)
        assert answer["file"] == Path(right.path).name
    assert left() == []


def test_the_fields_of_the_form(up, tmp_path, pictures):  # noqa: F811
    sound = tone(tmp_path / "a.wav", "low", "high")
    (right,) = Predictor(tones()).predict([sound])
    answer = ask(up, sound, model="tones")
    close_to(answer, right)
    assert len(answer["windows"]) == len(right.windows)
    file = strain(tmp_path / "a.hdf5")
    (right,) = Predictor(bursts()).predict([file], at=MOMENT)
    close_to(ask(up, file, model="bursts", at=MOMENT), right)
    assert "GPS 5.000 is outside" in ask(up, file, model="bursts", at=5)["reason"]
    grey = next(file for file in pictures if "unknown" in file or "grey" in file)
    assert ask(up, grey)["label"] == "unknown"
    assert ask(up, grey, threshold=0.0)["label"] != "unknown"


def test_without_a_model_the_files_kind_chooses_it(up, tmp_path, pictures):  # noqa: F811
    answers = {
        "colours": ask(up, pictures[0]),
        "tones": ask(up, tone(tmp_path / "a.wav", "low")),
        "bursts": ask(up, strain(tmp_path / "a.hdf5"), at=MOMENT),
    }
    for name, answer in answers.items():
        assert answer["best"] in up.models[name].predictor.classes
    for unknown, said in (("a.pdf", "a file of no known ending"), ("a", "no known ending")):
        refused = post(up, unknown, b"x")
        assert refused.status_code == 422
        assert said in refused.json()["error"]
        assert "colours (picture), tones (sound), bursts (strain)" in refused.json()["error"]


def test_where_no_model_is_for_the_files_kind(up, tmp_path):
    two = Site({name: up.models[name] for name in ("tones", "bursts")}, str(tmp_path))
    with pytest.raises(SecondhandError, match=r"picture.*tones.*bursts"):
        two.choose(["a.jpg"])
    with pytest.raises(SecondhandError, match="sound and strain"):
        two.choose(["a.wav", "b.hdf5"])
    assert two.choose(["a.hdf5", "b.h5"]) == "bursts"
    one = Site({"tones": up.models["tones"]}, str(tmp_path))
    assert one.choose(["a.jpg"]) == "tones"


def test_the_rule_in_force_is_reported(up, pictures):  # noqa: F811
    """A model that cuts another score than the probability: its own rule, and a threshold instead."""
    strict = Predictor(up.folder / "strict" / "model")
    expected = list(strict.predict(pictures))
    labels = {answer.label for answer in expected}
    assert "unknown" in labels
    assert len(labels) > 1
    confidence = strict.confidence
    # Asked alone, a calibration item's last digits are others, and with them a rank among its like.
    clear = [abs(right.known - confidence.threshold.value) > 0.3 for right in expected]
    assert sum(clear) > len(clear) / 2
    for file, right in compress(zip(pictures, expected, strict=True), clear):
        own = ask(up, file, model="strict")
        close_to(own, right)
        assert own["rule"] == {
            "own": True, "kind": "target accuracy", "target": 0.9, "on": "combined",
            "cut": confidence.threshold.value, "alpha": confidence.alpha, "score": "", "floor": None,
        }  # fmt: skip
        other = ask(up, file, model="strict", threshold=0.5)
        accepted = right.probability >= 0.5 and not right.distance_p < confidence.alpha
        assert (other["label"] != "unknown") == accepted
        assert (other["rule"]["own"], other["rule"]["on"]) == (False, "probability")
        assert other["rule"]["cut"] == 0.5


def test_no_place_of_the_slider_stands_for_two_rules(up, tmp_path):
    """What the page says a rule gives is what that rule accepts, also beside where it rests."""
    site = Site({"strict": up.models["strict"]}, str(tmp_path))
    held = pd.read_csv(up.folder / "strict" / "predictions.csv").query("split == 'calibration'")
    own = site.bought("strict", site.rule("strict", None))
    assert own.answered == held["label"].ne("unknown").sum() < len(held)
    alpha = up.models["strict"].predictor.confidence.alpha
    start = site.start("strict")
    for threshold in (start - 5e-4, start, min(start + 5e-4, 1.0), 0.4995, 0.5, 0.5006):
        rule = site.rule("strict", threshold)
        taken = held["probability"].ge(threshold) & ~held["distance_p"].lt(alpha)
        assert not rule.own
        assert site.bought("strict", rule).answered == taken.sum()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "../run"}, "model: this page has colours, tones, bursts, strict"),
        ({"threshold": 7}, "threshold 7.0: 0 to 1"),
        ({"threshold": "nan"}, "threshold: a number is wanted"),
        ({"at": "noon"}, "at: a number is wanted"),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, "Too many fields"),
    ],
)
def test_a_wrong_field_is_named(up, fields, said):
    answer = post(up, "a.jpg", b"x", **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_a_request_without_a_file(up):
    for request in ({}, {"json": {"file": "a"}}, {"data": {"file": "/etc/passwd"}},
                    {"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=y"}}):  # fmt: skip
        answer = web.post(f"{up.url}/ask", **request)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]
    assert "curl -F file=@photo.jpg" in web.post(f"{up.url}/ask").json()["error"]
    assert web.get(f"{up.url}/ask").status_code == 405


def test_what_is_too_long_is_not_read(up):
    assert post(up, "a.jpg", b"x" * (3 << 20)).status_code == 413
    host, port = re.search(r"//([^:]+):(\d+)", up.url).groups()
    for length, status in (("99999999999", b"413"), (None, b"411")):
        head = f"Content-Length: {length}" if length else "Transfer-Encoding: chunked"
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(f"POST /ask HTTP/1.1\r\nHost: {host}\r\n{head}\r\n\r\n".encode())
            assert raw.recv(100).split()[1] == status


def test_a_full_line_says_busy(up, pictures, tmp_path):  # noqa: F811
    served = Served("one", Predictor(up.folder / "run" / "model"), limits=Limits(queue=1))
    app = Starlette(
        routes=routes(Site({"one": served}, str(tmp_path)), served.limits, None, Visits())
    )
    with served._ready:  # nobody is answered now
        served._waiting.append((None, None))

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post(
                "/ask", files={"file": ("a.jpg", Path(pictures[0]).read_bytes())}
            )

    try:
        answer = asyncio.run(asked())
    finally:
        served._waiting.clear()
        served.close()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "1 requests are waiting" in answer.json()["error"]
    assert not list(tmp_path.iterdir())


def test_hostile_files(up, pictures):  # noqa: F811
    folders = (os.getcwd(), "/tmp/", str(up.folder), "site-packages", "Traceback", "/etc/", "0x")
    models = list(up.models)
    for i, (name, content) in enumerate(hostile(pictures)):
        # Of another model than the page's own test asks.
        answer = post(up, name, content, model=models[(i + 1) % len(models)])
        assert answer.status_code < 500, (name, answer.text)
        if answer.status_code == 200:
            assert answer.json()["label"] != "unknown" or answer.json()["reason"]
        assert not any(folder in answer.text for folder in folders), answer.text
    assert left() == []
