"""No library reports to its maker: no file is written in the home folder, and no name is looked up.

Python's hooks do not see what C code does; strace, if there is one, records network calls.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from learners.machine.hardware import TELEMETRY_OFF
from learners.model.bundle import add_onnx, save_bundle
from tests.learners.exports import plain_bundle, plain_network
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

__all__ = ["plain_network"]  # a fixture

ROOT = Path(__file__).parents[1]
#: Seconds that a page runs: ONNX Runtime looks up a name between the fifth and the twelfth.
WATCHED = 14

PAGE = f"""
import sys, time
from pathlib import Path
import httpx
from app.server import serve
from app.serving import load_each
from app.settings import PageSettings
model, picture = map(Path, sys.argv[1:])
with serve(load_each(PageSettings(models=[str(model)]))[0]) as url:
    answer = httpx.post(url + "predict", files={{"file": ("a.jpg", picture.read_bytes())}}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "onnxruntime" in sys.modules
    time.sleep({WATCHED})
"""


@pytest.fixture(scope="module")
def prepared(plain_network: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model folder with its ``model.onnx``, and a picture."""
    folder = tmp_path_factory.mktemp("reports")
    bundle = plain_bundle()
    model = save_bundle(bundle, folder / "model")
    add_onnx(bundle, model, lambda _, file: shutil.copy(plain_network, file))
    picture = next(write_pictures(folder / "data", per_class=1).rglob("*.jpg"))
    return str(model), str(picture)


def run_watched(folder: Path, *words: str) -> tuple[list[str], list[str]]:
    """Run ``python WORDS…`` with a new home; return its files and its network requests."""
    home, log = folder / "home", folder / "calls"
    home.mkdir()
    log.touch()
    dropped = {*TELEMETRY_OFF, "XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR"}
    clean = {name: value for name, value in os.environ.items() if name not in dropped}
    strace = shutil.which("strace")
    trace = "openat,connect,sendto,sendmsg,sendmmsg"
    before = [strace, "-f", "-qq", "-e", f"trace={trace}", "-o", str(log)] if strace else []
    completed = subprocess.run(
        [*before, sys.executable, *words], cwd=ROOT, env=clean | {"HOME": str(home)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    outside = re.compile(r"sa_family=AF_INET6?\b|/etc/resolv\.conf")
    calls = [line for line in log.read_text().splitlines() if outside.search(line)]
    loopback = re.compile(r'inet_addr\("127\.|"::1"')
    files = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    return files, [line for line in calls if not loopback.search(line)]


def test_a_prediction_reports_to_nobody(prepared: tuple[str, str], tmp_path: Path) -> None:
    assert run_watched(tmp_path, "-m", "learners.predict", *prepared) == ([], [])


def test_the_page_reports_to_nobody(prepared: tuple[str, str], tmp_path: Path) -> None:
    assert run_watched(tmp_path, "-c", PAGE, *prepared) == ([], [])
