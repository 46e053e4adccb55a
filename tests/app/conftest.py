"""One page for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from app.serving import Served
from app.settings import PageSettings
from app.tabs import sections
from learners.cli.commands import Section, with_sections
from learners.inference.predictor import Predictor
from tests.app.sites import bursts, tones, write_run
from tests.pictures import write_pictures

SETTINGS = PageSettings(port=0, max_mb=2, max_files=6, queue=40, keep=10.0)


@dataclass
class Up:
    """A running page, its address and its folder."""

    url: str
    models: dict[str, Served]
    folder: Path


def asking(**values: Path) -> tuple[Section, ...]:
    """What asks for tabs of fields, with these values of their flags; those of fields that are left out ask for nothing."""
    known = {item.name for section in sections() for item in fields(section)}
    here = {name: value for name, value in values.items() if name in known}
    return with_sections(PageSettings, sections(), here).added


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    from app.server import serve

    folder = tmp_path_factory.mktemp("page")
    model = write_run(folder / "run")
    strict = write_run(folder / "strict", target_accuracy=0.9)
    models = {
        "colours": Served("colours", Predictor(model), model, SETTINGS),
        "tones": Served("tones", Predictor(tones()), settings=SETTINGS),
        "bursts": Served("bursts", Predictor(bursts()), settings=SETTINGS),
        "strict": Served("strict", Predictor(strict), strict, SETTINGS),
    }
    pool = write_pictures(folder / "new", per_class=2, unknown=1)
    settings = replace(SETTINGS, feedback=folder / "kept", added=asking(label=pool, pool=pool))
    with serve(models, settings) as url:
        yield Up(url.rstrip("/"), models, folder)
