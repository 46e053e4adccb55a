"""One page for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.serving import Limits, Served
from learners.inference.predictor import Predictor
from tests.app.sites import bursts, tones, write_run
from tests.pictures import write_pictures

LIMITS = Limits(megabytes=2, files=6, queue=40, keep=600.0)


@dataclass
class Up:
    """A running page, its address and its folder."""

    url: str
    models: dict[str, Served]
    folder: Path


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    from app.server import serve

    folder = tmp_path_factory.mktemp("page")
    model = write_run(folder / "run")
    strict = write_run(folder / "strict", target_accuracy=0.9)
    models = {
        "colours": Served("colours", Predictor(model), model, limits=LIMITS),
        "tones": Served("tones", Predictor(tones()), limits=LIMITS),
        "bursts": Served("bursts", Predictor(bursts()), limits=LIMITS),
        "strict": Served("strict", Predictor(strict), strict, limits=LIMITS),
    }
    pool = write_pictures(folder / "new", per_class=2, unknown=1)
    with serve(models, feedback=folder / "kept", label=pool, pool=pool) as url:
        yield Up(url.rstrip("/"), models, folder)
