"""Settings of a run's data: its sources, its splits, and the spectrograms of signals.

This module imports nothing heavy, because the help of the commands needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import yaml

from datasets.cli.options import (
    Condition,
    Limits,
    check_names,
    checked_settings,
    option,
    read_settings,
)
from datasets.core.errors import SecondhandError
from datasets.core.folders import or_elsewhere
from datasets.core.registry import Registry
from datasets.kinds.base import KINDS

#: Folder of the presets of ``--spectrogram``.
SPECTROGRAMS = Path(__file__).parents[1] / "spectrograms" / "presets"


def _presets() -> list[str]:
    return sorted(file.stem for file in SPECTROGRAMS.glob("*.yaml"))


#: Help of the flags for the columns of a table, and for what has the labels in other formats.
PATH_COLUMN = "Column of the files in a table. Default: path, or another usual name."
LABEL_COLUMN = (
    "Column of the labels in a table, or what has them in another format (docs/formats.md). Default: label, or the usual "
    "one of the format."
)
#: Largest overlap of neighbouring windows; at this one each moment is in twenty windows.
MAX_OVERLAP = 0.95


@dataclass(frozen=True)
class DataSettings:
    """data"""

    data: str | list[str] = option(
        "",
        "Labelled files: a folder with one folder per class, a table with the columns path,label or of another "
        "program, metadata.jsonl, the JSON of COCO or Label Studio, Pascal VOC, labels of other programs for recordings and "
        "camera traps (docs/formats.md), embeddings of another network, demo:digits, or a public set (secondhand "
        "catalog). Several can be given, also by a pattern in quotes; if two of them label the same "
        "file, the later label counts.",
        metavar="SOURCE",
    )
    kind: str = option(
        "auto",
        "Kind of the files; auto goes by the ends of their names.",
        names=lambda: KINDS,
        metavar="auto|KIND",
    )
    path_column: str | None = option(None, PATH_COLUMN, metavar="NAME")
    label_column: str | None = option(None, LABEL_COLUMN, metavar="NAME")
    labels: str | None = option(
        None,
        "Multi-label classification: multi if the label column holds names joined by |, or the names of the "
        "0/1 columns, separated by commas (an empty cell is not labelled).",
        metavar="multi|COLUMNS",
    )

    def __post_init__(self) -> None:
        if isinstance(self.data, list) and len(self.data) == 1:
            object.__setattr__(self, "data", self.data[0])

    @property
    def sources(self) -> list[str]:
        """The sources that ``--data`` names; empty without the flag."""
        return self.data if isinstance(self.data, list) else [self.data] * bool(self.data)


@dataclass(frozen=True)
class ClassSettings:
    """classes"""

    classes_table: Path | None = option(
        None,
        "CSV file with the columns label and parent: a hierarchy (taxonomy) of the classes. If the model is not sure "
        "of the class, it can then name a group of classes instead.",
        metavar="FILE",
    )
    unknown: str | None = option(
        None,
        "Files of unknown classes, to measure how many of them are refused: a folder, or a table with the "
        "column path. They are not used for training.",
        metavar="PATH",
        once=True,
    )
    background: str | None = option(
        None,
        "Background (negative) class to train on, such as noise or empty scenes: a folder, or a table with "
        "the column path. Files predicted as background become unknown.",
        metavar="PATH",
    )
    labelled_completely: bool = option(
        False,
        "Every call of the classes in the recordings of --data is labelled, so the rest of them has none: windows of it "
        "train the background class. A table can say so of single recordings by 1 in the column complete.",
    )


@dataclass(frozen=True)
class WarmStartSettings:
    """warm start"""

    from_: Path | None = option(
        None,
        lambda: (
            f"Warm start: model folder{or_elsewhere()} to continue from. By default only a linear head is "
            "retrained; --epochs 2 trains the whole network."
        ),
        metavar="MODEL",
    )
    rehearsal: float = option(
        1.0,
        "With --from: fraction of the earlier training files to train on again.",
        limits=Limits(low=0, high=1),
    )


@dataclass(frozen=True)
class SplitSettings:
    """splits"""

    group_by: str | None = option(
        None,
        "Regular expression on the file name, such as '^(.+?)-' for SITE-DATE.jpg. Files with the same text in its "
        "first group are never divided between training and test. deployment groups by the deployments of the files, such "
        "as a table in --data names in the column deployment.",
        metavar="REGEX|deployment",
    )
    near_duplicates: Literal["keep-together", "ignore"] = option(
        "keep-together",
        "Whether near-duplicates (bursts, re-encoded copies, photos of one capture session) are kept together, so "
        "that none is tested on a copy of a training file, or split at random (ignore).",
    )
    fold: str | None = option(
        None,
        "Value of the column fold. Without --cv its files are used for validation and calibration; with --cv it is "
        "the one fold to test on.",
        read_type=str | int | None,
        metavar="VALUE",
    )
    cv: int | str | None = option(
        None,
        "Cross-validation: a number of random folds, the folds in the column fold, or one fold for each value of the "
        "column group. Add --fold to run a single fold.",
        metavar="N|fold|group",
    )
    valid: float = option(
        0.15, "Fraction of the files for validation, which decides which weights are kept."
    )
    calibration: float = option(
        0.15,
        "Fraction of the files for calibration, which sets the temperature and the thresholds.",
    )

    def __post_init__(self) -> None:
        # YAML reads the name 1 as a number, but folds are compared as text.
        if self.fold is not None:
            object.__setattr__(self, "fold", str(self.fold))


CHANNEL = (
    "Strain: channel to read where files have several, such as H1:GDS-CALIB_STRAIN. Default: the calibrated strain. "
    "Triggers of another channel are left out."
)


@dataclass(frozen=True)
class SignalSettings:
    """sound and strain"""

    overlap: float = option(
        0.25,
        "Sound: overlap of neighbouring windows of a long recording, as a fraction of the window.",
        limits=Limits(low=0, high=MAX_OVERLAP),
    )
    channel: str | None = option(None, CHANNEL, metavar="NAME")
    spectrogram: str | None = option(
        None,
        "Spectrogram (or Q-scan) settings: a YAML file, the same settings as text such as "
        f'"{{window: 3, rate: 16000}}", or a preset: {", ".join(_presets())} (docs/sound-and-strain.md). '
        "Default: inferred from the files.",
        metavar="FILE|TEXT|PRESET",
    )
    cache_dir: Path | None = option(
        None,
        "Folder for cached spectrograms and decoded pictures. Default: $SECONDHAND_CACHE, or your cache folder "
        "(~/.cache/secondhand on Linux).",
        metavar="FOLDER",
    )
    cache_limit: float = option(
        20.0,
        "Maximum size in GiB of the cache of spectrograms and decoded pictures; the least recently used files are deleted "
        "first.",
        limits=Limits(above=0),
    )

    def given(self) -> dict[str, Any]:
        """Spectrogram settings of the user, by name."""
        return {} if self.spectrogram is None else read_spectrogram(self.spectrogram)

    def for_kind(self, kind: str) -> dict[str, Any]:
        """Spectrogram settings of the user for this kind of signal, by name; the others are inferred.

        Raises
        ------
        SecondhandError : some settings are not for this kind; all of them are named.
        """
        values = self.given()
        field_of, options = {"picture": "size"}, KINDS[kind].options
        other_kinds = [name for name in values if field_of.get(name, name) not in options]
        if other_kinds:
            raise SecondhandError(
                f"--spectrogram {', '.join(other_kinds)}: not a setting of {kind} data. Leave it out"
            )
        return {
            field_of.get(name, name): tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }


#: Settings of ``--spectrogram``. `rate`: Hz. `window`: seconds in a spectrogram. `level`: clip (white is the
#: clip's peak), fixed (white is full scale) or pcen. `n_fft`, `hop`: samples. `range_db`: dB from black to
#: white. `scale`: slaney (mel), kaldi, or cqt (notes from `fmin` on, `bins_per_octave` in an octave). `durations`: seconds around the trigger, one per Q-scan. `layout`: grid, channels, row or one. `context`:
#: seconds that are whitened. `fmin`, `fmax`: Hz. `picture`: height and width in pixels.
SPECTROGRAM_OPTIONS = {
    "rate": int,
    "window": float,
    "level": str,
    "n_fft": int,
    "hop": int,
    "n_mels": int,
    "scale": str,
    "bins_per_octave": int,
    "range_db": float,
    "durations": list,
    "layout": str,
    "context": float,
    "fmin": float,
    "fmax": float,
    "colour": str,
    "picture": list,
}


def read_spectrogram(text: str) -> dict[str, Any]:
    """Read the value of ``--spectrogram``: a preset, a YAML file, or settings between braces.

    Returns
    -------
    The settings by name, each of the type in `SPECTROGRAM_OPTIONS`.

    Raises
    ------
    SecondhandError : there is no such preset or file, or it holds unknown names or values of another type.
    """
    if text.startswith("{"):
        content = checked_settings("--spectrogram", text)
    else:
        file = SPECTROGRAMS / f"{text}.yaml" if text in _presets() else Path(text)
        if not file.is_file():
            raise SecondhandError(
                f"--spectrogram {text}: neither a file nor a preset. The presets are {', '.join(_presets())}"
            )
        content = read_settings(file, flag="--spectrogram")
    check_names(text, content, SPECTROGRAM_OPTIONS, flag="--spectrogram")
    for name, value in content.items():
        expected = SPECTROGRAM_OPTIONS[name]
        if expected is float and type(value) is int:
            content[name] = float(value)
        elif type(value) is not expected:
            kind = {int: "a whole number", float: "a number", str: "a word", list: "a list"}[
                expected
            ]
            raise SecondhandError(f"--spectrogram {text}: {name} is {value!r}, but must be {kind}")
    return content


def spectrogram_text(text: str) -> str:
    """Format the settings of ``--spectrogram`` as text between braces.

    A run's ``config.yaml`` holds this text, so that it does not depend on a file.
    """
    content = read_spectrogram(text)
    return yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=10**6).strip()


@dataclass(frozen=True)
class AddedSettings:
    """Base of the sections of settings that fields add to those of a training; the docstring heads a section in the help.

    Attributes
    ----------
    name : its name in the registry.
    conflicts : what its settings exclude or need.
    paths : those of its settings that name files or folders.
    measures : those of its settings that say which files measure a model, which ``--cross-fit`` does itself; and why.
    free : those of its settings that may change when a run is resumed, because they do not affect the result.
    opens : those of its settings that have no meaning where no file is opened.
    """

    name: ClassVar[str]
    conflicts: ClassVar[tuple[Condition, ...]] = ()
    paths: ClassVar[tuple[str, ...]] = ()
    measures: ClassVar[Mapping[str, str]] = MappingProxyType({})
    free: ClassVar[tuple[str, ...]] = ()
    opens: ClassVar[tuple[str, ...]] = ()


#: Sections that fields add.
SETTINGS: Registry[type[AddedSettings]] = Registry("datasets.items.settings")


def added_settings() -> tuple[AddedSettings, ...]:
    """The sections of fields with their defaults."""
    return tuple(section() for section in SETTINGS.values())
