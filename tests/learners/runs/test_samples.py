"""A training from a model has its range, channels and page; ``config.yaml`` names them only where there are such pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.images.settings import PictureSettings
from datasets.items.facts import Seen
from datasets.items.items import Items
from learners.cli.flags import dump, parse
from learners.cli.settings import Settings
from learners.model.bundle import Bundle, load_bundle
from learners.runs.resolve import resolve
from learners.runs.warm_start import inherited

KEPT = Path(__file__).parents[2] / "kept/model"
SAMPLES = PictureSettings(range="fixed", low=(0.0,), high=(4095.0,), channels=(0, 2, 1), page="max")


@pytest.fixture(scope="module")
def origin() -> Bundle:
    kept = replace(load_bundle(KEPT, network=False), spectrogram=None)
    return replace(kept, preprocessing=replace(kept.preprocessing, samples=SAMPLES))


def test_a_training_from_a_model_has_its_range(origin: Bundle) -> None:
    asked = Settings().but(**{"from": KEPT})
    handed_on = inherited(asked, origin)
    assert PictureSettings.asked(handed_on) == SAMPLES
    assert inherited(asked.but(range=[0.0, 4095.0], page="max"), origin) == handed_on
    with pytest.raises(SecondhandError, match=r"--range file \(the model has \[0.0, 4095.0\]\)"):
        inherited(asked.but(range="file"), origin)
    without = replace(origin, preprocessing=replace(origin.preprocessing, samples=None))
    assert inherited(asked, without)["page"] is None
    with pytest.raises(SecondhandError, match=r"--page 3 \(the model has None\)"):
        inherited(asked.but(page=3), without)


def test_the_settings_of_a_run_name_its_range(tmp_path: Path) -> None:
    items = replace(Items.none(), kind="picture").knowing(Seen(SAMPLES, "bits"))
    settings = resolve(Settings().but(data="cells"), items=items)
    written = tmp_path / "config.yaml"
    written.write_text(dump(settings))
    again = parse(["--config", str(written)])
    assert PictureSettings.asked(vars(again.samples)) == SAMPLES
    plain = dump(resolve(Settings().but(data="photos"), items=items.forgetting(Seen)))
    assert not {"range", "channels", "page"} & {
        line.partition(":")[0] for line in plain.splitlines()
    }


def test_flags_are_read_as_they_are_typed() -> None:
    typed = parse(
        ["--data", "a", "--range", "-10", "4095.5", "--channels", "4", "--page", "2"]
    ).samples
    assert (typed.range, typed.channels, typed.page) == ([-10.0, 4095.5], "4", 2)
    assert parse(["--data", "a", "--range", "file", "--page", "max"]).samples.range == "file"
