"""Every preset is a document that works: its settings, its recipe, the command on top of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from datasets import catalog
from datasets.audio.recipe import AudioRecipe
from datasets.core.options import check_names, read_settings
from datasets.items import spectrogram_text
from datasets.recipes import RECIPES
from datasets.strain.recipe import StrainRecipe
from learners.cli.flags import PRESETS, make_parser, parse
from learners.cli.settings import Settings

FILES = sorted(PRESETS.glob("*.yaml"))
KINDS = {
    "best": "picture",
    "birds": "sound",
    "esc50": "sound",
    "gravity-spy-2303.13917": "strain",
    "quick": "picture",
    "speech": "sound",
    "urbansound8k": "sound",
}
each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def read(words: list[str]) -> Settings:
    return parse(make_parser("learners.finetune", "words"), words)


def launch_lines(file: Path) -> list[list[str]]:
    """The commands in a preset's comments, split as a shell does."""
    lines = re.findall(r"^# (python -m learners\.finetune .*)$", file.read_text(), re.M)
    return [shlex.split(line) for line in lines]


def test_there_are_these() -> None:
    assert {file.stem for file in FILES} == set(KINDS)


@each
def test_its_values_arrive(file: Path) -> None:
    check_names(file, read_settings(file), list(Settings().flat()))
    wanted = yaml.safe_load(file.read_text())
    got = read(["--preset", file.stem]).flat()
    if "spectrogram" in wanted:
        wanted["spectrogram"] = spectrogram_text(wanted["spectrogram"])
    assert {name: got[name] for name in wanted} == wanted
    default = Settings().flat()
    assert any(default[name] != value for name, value in wanted.items())


@each
def test_its_recipe_is_built(file: Path) -> None:
    signal = read(["--preset", file.stem]).signal
    kind = KINDS[file.stem]
    given = signal.of(kind)
    if kind == "picture":
        assert given == {}
        return
    recipe = RECIPES[kind](**given)
    written = recipe.to_dict()
    for name, value in given.items():
        assert written[name] == (list(value) if isinstance(value, tuple) else value)


@each
def test_its_launch_line_names_it_and_is_understood(file: Path) -> None:
    lines = launch_lines(file)
    assert lines
    assert file.read_text().startswith("# python -m learners.finetune ")
    for words in lines:
        assert words[words.index("--preset") + 1] == file.stem
        settings = read(words[3:])
        assert settings.data.data
        data = settings.data.data
        kind = "picture" if data == "gravityspy" else KINDS[file.stem]
        settings.signal.of(kind)  # no setting that such data do not have
        if data in catalog.SETS and settings.data.fold:
            assert f"--fold 1 to {10 if data == 'urbansound8k' else 5}" in catalog.SETS[data].note


@each
def test_what_it_says_to_override_is_a_flag(file: Path) -> None:
    flags = set(re.findall(r"--([a-z][a-z-]+)", file.read_text()))
    known = {name.replace("_", "-") for name in Settings().flat()}
    assert flags <= known | {"preset"}


def test_gravity_spy_draws_what_the_paper_draws() -> None:
    signal = read(["--preset", "gravity-spy-2303.13917"]).signal
    recipe = StrainRecipe(**signal.of("strain"))
    assert recipe.views == (0.5, 2.0, 4.0)
    assert recipe.layout == "channels"
    assert recipe.size == (140, 170)


def test_folds_of_clips_fit_their_windows() -> None:
    for name, seconds in (("esc50", 5.0), ("urbansound8k", 4.0)):
        recipe = AudioRecipe(**read(["--preset", name]).signal.of("sound"))
        assert recipe.window == seconds
        assert recipe.samples == seconds * 44_100


def test_birds_are_looked_for_where_birds_sing() -> None:
    recipe = AudioRecipe(**read(["--preset", "birds"]).signal.of("sound"))
    assert (recipe.fmin, recipe.fmax, recipe.level) == (150.0, 15_000.0, "pcen")
    (words,) = launch_lines(PRESETS / "birds.yaml")
    pattern = read(words[3:]).data.group_by
    match = re.search(pattern, "meadow7_2024-05-01.wav")
    assert match is not None
    assert match["group"] == "meadow7"
