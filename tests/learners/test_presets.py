"""Every preset works as documented: its settings, its spectrogram settings, and its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from datasets import catalog
from datasets.cli.options import check_names, read_settings
from datasets.items.settings import spectrogram_text
from datasets.kinds import base
from learners.cli.flags import PRESETS, parse
from learners.cli.settings import Settings

FILES = sorted(PRESETS.glob("*.yaml"))
KINDS = {
    "bats": "sound",
    "best": "picture",
    "birds": "sound",
    "esc50": "sound",
    "gravity-spy-2303.13917": "strain",
    "quick": "picture",
    "urbansound8k": "sound",
}
each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def read(words: list[str]) -> Settings:
    return parse(words)


def launch_lines(file: Path) -> list[list[str]]:
    """Return the commands in a preset's comments, split as a shell does."""
    lines = re.findall(r"^# (python -m learners\.finetune .*)$", file.read_text(), re.M)
    return [shlex.split(line) for line in lines]


@each
def test_its_values_arrive(file: Path) -> None:
    check_names(file, read_settings(file), list(Settings().flat()))
    expected = yaml.safe_load(file.read_text())
    actual = read(["--preset", file.stem]).flat()
    if "spectrogram" in expected:
        expected["spectrogram"] = spectrogram_text(expected["spectrogram"])
    assert {name: actual[name] for name in expected} == expected
    default = Settings().flat()
    assert any(default[name] != value for name, value in expected.items())


@each
def test_its_recipe_is_built(file: Path) -> None:
    signal = read(["--preset", file.stem]).signal
    kind = KINDS[file.stem]
    settings = signal.for_kind(kind)
    if kind == "picture":
        assert settings == {}
        return
    spectrogram = base.KINDS[kind].settings()(**settings)
    written = spectrogram.to_dict()
    for name, value in settings.items():
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
        settings.signal.for_kind(kind)  # only settings that this kind of data has
        if data in catalog.SETS and settings.splits.fold:
            assert f"--fold 1 to {10 if data == 'urbansound8k' else 5}" in catalog.SETS[data].note


@each
def test_what_it_says_to_override_is_a_flag(file: Path) -> None:
    flags = set(re.findall(r"--([a-z][a-z-]+)", file.read_text()))
    known = {name.replace("_", "-") for name in Settings().flat()}
    assert flags <= known | {"preset"}


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        (
            "gravity-spy-2303.13917",
            {"durations": (0.5, 2.0, 4.0), "layout": "channels", "size": (140, 170)},
        ),
        ("esc50", {"window": 5.0, "samples": 5 * 44_100}),
        ("urbansound8k", {"window": 4.0, "samples": 4 * 44_100}),
        (
            "bats",
            {
                "rate": 256_000,
                "window": 0.256,
                "samples": 512 * 128,
                "n_fft": 512,
                "hop": 128,
                "fmin": 10_000.0,
            },
        ),
        (
            "birds",
            {"rate": 48_000, "window": 3.0, "fmin": 150.0, "fmax": 15_000.0, "level": "pcen"},
        ),
    ],
)
def test_it_renders_as_its_source_does(preset: str, options: dict[str, Any]) -> None:
    spectrogram = base.KINDS[KINDS[preset]].settings()(
        **read(["--preset", preset]).signal.for_kind(KINDS[preset])
    )
    assert {name: getattr(spectrogram, name) for name in options} == options


def test_the_group_of_a_bird_is_its_site() -> None:
    (words,) = launch_lines(PRESETS / "birds.yaml")
    match = re.search(read(words[3:]).splits.group_by, "meadow7_2024-05-01.wav")
    assert match is not None
    assert match["group"] == "meadow7"
