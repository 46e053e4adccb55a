"""The page that is shown while the real one starts."""

from __future__ import annotations

import time

import httpx
import pytest

from app.starting import Starting
from datasets.core.errors import SecondhandError


def test_it_answers_at_once_and_frees_the_port(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    with Starting("127.0.0.1", 0) as starting, httpx.Client(trust_env=False) as visitor:
        url = f"http://127.0.0.1:{starting.port}"
        health = visitor.get(f"{url}/health")
        assert time.monotonic() - start < 3
        assert (health.status_code, health.json()["status"]) == (503, "starting")
        starting.tell("Opening model 2 of 3.")
        while visitor.get(f"{url}/health").json()["doing"] != "Opening model 2 of 3.":
            assert time.monotonic() - start < 30
        page = visitor.get(url)
        assert "Opening model 2 of 3." in page.text
        assert page.headers["retry-after"] == "1"
        refused = visitor.post(f"{url}/predict", content=b"x" * 1000)
        assert "starting" in refused.json()["error"]
        with pytest.raises(SecondhandError, match=f"--port {starting.port}: .*choose another"):
            Starting("127.0.0.1", starting.port)
        starting.close()
        Starting("127.0.0.1", starting.port).close()
    assert capsys.readouterr().err == "Opening model 2 of 3.\n"
