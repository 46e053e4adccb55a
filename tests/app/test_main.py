from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app.__main__ import at_a_desktop, main, newest_model
from datasets.core.errors import SecondhandError
from tests.app.sites import write_run
from tests.datasets.test_layering import HEAVY, python
from tests.forks import Program, until

ROOT = Path(__file__).parents[2]


def test_the_newest_model_is_the_one_written_last(tmp_path):
    assert newest_model(tmp_path) is None
    for age, name in enumerate(["old", "new", "older"]):
        file = tmp_path / name / "model" / "config.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        stamp = 1e9 + (5 if name == "new" else -age)
        os.utime(file, (stamp, stamp))
    assert newest_model(tmp_path) == Path(tmp_path / "new" / "model")


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--auth", "alice"], "--auth"), (["--queue", "0"], "--queue 0"), ([], "")],
)
def test_errors_name_the_wrong_argument(tmp_path, words, message):
    with pytest.raises(SecondhandError, match=message or re.escape(str(tmp_path))):
        main([str(tmp_path), "--port", "0", *words])


def test_a_taken_port_is_an_error_before_the_models_open(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        with pytest.raises(SecondhandError, match=rf"--port {port}: "):
            main([str(tmp_path), "--port", port])


def test_the_browser_opens_at_the_screen_of_this_machine_only(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert not at_a_desktop()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert at_a_desktop()
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    assert not at_a_desktop()
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not at_a_desktop()


def test_on_all_addresses_without_a_password_it_warns(tmp_path, capsys):
    for words in ([], ["--auth", "alice:secret"]):
        with pytest.raises(SecondhandError, match=re.escape(str(tmp_path))):
            main([str(tmp_path), "--port", "0", "--host", "0.0.0.0", *words])
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if "warning" in line]
    assert "0.0.0.0" in line
    assert "--auth NAME:PASSWORD" in line


def test_help_loads_nothing_heavy():
    out = python(
        "import runpy, sys\nsys.argv = ['app', '--help']\n"
        "try:\n    runpy.run_module('app', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n    assert not end.code\n"
        f"print('LOADED', *[name for name in {HEAVY} if name in sys.modules])\n"
    )
    assert "usage: secondhand app [MODEL...]" in " ".join(out.split())
    assert out.splitlines()[-1] == "LOADED"


@pytest.mark.slow
def test_the_command_serves_until_it_is_ended(tmp_path):
    """It demands the password, skips a model that cannot be opened, and leaves no uploads."""
    write_run(tmp_path / "runs" / "colours")
    torn = shutil.copytree(tmp_path / "runs" / "colours", tmp_path / "torn") / "model"
    (torn / "config.json").write_text("{")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = Program(
        "-m", "app", str(torn), "runs/colours/model", "--port", "0", "--auth", "alice:secret",
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        until(lambda: "\n" in process.out or process.poll() is not None)
        match = re.search(r"colours on (http://\S+:\d+)", process.out)
        assert match, process.out + process.err
        with httpx.Client(base_url=match[1], timeout=30, verify=False) as visitor:
            counts = {"waiting": 0, "arriving": 0, "disconnected": 0}
            assert visitor.get("/health").json() == {
                "status": "ok", "models": 1, "failed": ["torn"], **counts
            }  # fmt: skip
            nobody_gets_in_without_the_password(visitor)
        assert [path.name[:11] for path in temporary.iterdir()] == ["secondhand-"]
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    torn_folder, torn_file = re.escape(str(torn)), re.escape(str(torn / "config.json"))
    expected = (
        rf"Opening the model {torn_folder} …\nOpening the model runs/colours/model …\n"
        rf"warning: {torn_file}.*\nBuilding the page …\n"
    )
    assert re.fullmatch(expected, stderr)  # no traceback and no leak reports
    assert process.returncode == 0
    assert not [path for path in temporary.iterdir() if path.name.startswith("secondhand-")]


def nobody_gets_in_without_the_password(visitor):
    file = {"files": ("a.jpg", b"x")}
    question = {"data": [None, None, True, 0.5]}  # of the page: no file

    def statuses() -> list[int]:
        api = "/gradio_api"
        return [
            visitor.get("/config").status_code,
            visitor.get(f"{api}/info").status_code,
            visitor.post(f"{api}/upload", files=file).status_code,
            visitor.post(f"{api}/run/predict", json=question).status_code,
            visitor.post(f"{api}/call/predict", json=question).status_code,
        ]

    assert statuses() == [401, 404, 401, 401, 404]  # the page uses neither of the two
    plain = {"file": ("a.txt", b"x")}
    assert visitor.post("/predict", files=plain).status_code == 401
    assert visitor.get("/models").status_code == 401
    for word, status in (("other", 401), ("", 401), ("secret", 200)):
        response = visitor.post("/predict", files=plain, auth=("alice", word))
        assert response.status_code == status
    name = {"username": "alice"}
    assert visitor.post("/login", data={**name, "password": "other"}).status_code == 400
    assert statuses() == [401, 404, 401, 401, 404]  # the page uses neither of the two
    assert visitor.post("/login", data={**name, "password": "secret"}).status_code == 200
    assert 401 not in statuses()


def test_the_demo_is_trained_where_there_is_no_model(tmp_path, monkeypatch, capsys):
    """The command and its message; another test runs the training."""
    import app.__main__ as command

    calls = []

    def run(words, **_):
        calls.append(words[1:])
        (tmp_path / "runs/demo/model").mkdir(parents=True)
        (tmp_path / "runs/demo/model/config.json").write_text("{}")
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.subprocess, "run", run)
    assert command.train_demo() == Path("runs/demo/model")
    assert calls[0][:4] == ["-m", "learners.finetune", "--data", "demo:digits"]
    assert "no model in runs/" in capsys.readouterr().err
    from learners.cli.flags import parse

    parse(calls[0][2:])  # all flags exist
