"""The settings of a run's data: what is learnt from, how it is split, and how signals are drawn.

Nothing heavy is imported: the command lines read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from datasets.core.errors import SecondhandError
from datasets.core.options import Limits, check_names, checked_settings, option, read_settings

#: The named ones of ``--spectrogram``.
SPECTROGRAMS = Path(__file__).parents[1] / "spectrograms" / "presets"


def _presets() -> list[str]:
    return sorted(file.stem for file in SPECTROGRAMS.glob("*.yaml"))


#: A model folder is opened with at most this overlap of windows; twenty of them hear each moment.
MAX_OVERLAP = 0.95


@dataclass(frozen=True)
class DataSettings:
    """data"""

    data: str | list[str] = option(
        "",
        "folder of class folders, table with path,label, Raven's or Audacity's tables, Camtrap DP, "
        "demo:digits, public set (python -m datasets.catalog); of several a file's last label counts",
    )
    label_column: str | None = option(None, "column of the labels in tables, if not the usual one")
    labels: str | None = option(
        None, "several labels an item: many (a|b), or with commas the columns of 1, 0 and nothing"
    )
    strain: str | None = option(
        None,
        "of a --data of triggers: folder or LAL cache of strain files; of demo:glitches, files of your own "
        "to put events into",
    )
    classes_table: Path | None = option(
        None,
        "CSV file, label and parent, of a tree above the classes: what is no class may be a node",
    )
    from_: Path | None = option(
        None,
        "model folder (or hf:USER/NAME) to go on from, with its items; --epochs 2 trains its body as well",
    )
    rehearsal: float = option(
        1.0,
        "of --from: part of the items it learnt that are learnt again",
        limits=Limits(low=0, high=1),
    )
    unknown: str | None = option(
        None, "strangers, to measure what is refused: a folder, or a table with the column path"
    )
    background: str | None = option(
        None,
        "known strangers, noise, empty scenes, to learn as none of the classes: a folder or table "
        "likewise",
    )
    kind: Literal["auto", "picture", "sound", "strain"] = option("auto", "kind of the files")
    group_by: str | None = option(
        None, "regular expression on the file name: what must not be split"
    )
    near_duplicates: Literal["keep-together", "ignore"] = option(
        "keep-together",
        "bursts, copies that no hash finds, photos of one visit: each cluster on one side of a split",
    )
    fold: str | None = option(
        None, "value of the column 'fold' that is held out", read=str | int | None
    )
    cv: int | str | None = option(
        None,
        "cross-validation: the column fold, the column group, or a number of folds; with --fold one "
        "of them",
    )
    valid: float = option(0.15, "part of the items that chooses the checkpoint")
    calibration: float = option(0.15, "part of the items that sets temperature and threshold")

    def __post_init__(self) -> None:
        # YAML takes the name 1 for a number; folds are compared as the words of a table.
        if self.fold is not None:
            object.__setattr__(self, "fold", str(self.fold))
        if isinstance(self.data, list) and len(self.data) == 1:
            object.__setattr__(self, "data", self.data[0])

    @property
    def multi_label(self) -> bool:
        """Whether an item may have several labels."""
        return self.labels is not None or "demo:scenes" in self.sources

    @property
    def sources(self) -> list[str]:
        """What ``--data`` names, one by one; nothing where it is not given."""
        return self.data if isinstance(self.data, list) else [self.data] * bool(self.data)


@dataclass(frozen=True)
class SignalSettings:
    """sound and strain"""

    overlap: float = option(
        0.25,
        "sound: part of a long recording's window that the next shares",
        limits=Limits(low=0, high=MAX_OVERLAP),
    )
    detectors: Literal["separate", "together"] | None = option(
        None, "strain: two or three at each time are the channels (together); separate if not given"
    )
    spectrogram: str | None = option(
        None,
        'how sound is cut and drawn, and strain: FILE.yaml, its lines as "{window: 3, rate: 16000}", or one '
        f"of {', '.join(_presets())} (docs/sound-and-strain.md)",
    )
    cache_dir: Path | None = option(None, "drawings; $SECONDHAND_CACHE or the user's cache folder")
    cache_limit: float = option(
        20.0,
        "GiB of spectrograms and of decoded pictures kept, each; the least recently used go first",
        limits=Limits(above=0),
    )

    def of(self, kind: str) -> dict[str, Any]:
        """What is given for a recipe of this kind; all else is inferred.

        Raises
        ------
        SecondhandError : names all that is given and this kind of file does not have.
        """
        values = {} if self.spectrogram is None else read_spectrogram(self.spectrogram)
        other = [name for name in values if kind not in SPECTROGRAM[name].kinds]
        wrong = [f"--spectrogram {', '.join(other)}"] if other else []
        if self.detectors is not None:
            values["detectors"] = self.detectors
            wrong += ["--detectors"] if kind != "strain" else []
        if wrong:
            raise SecondhandError(
                f"{', '.join(wrong)}: no setting for data of kind {kind}; leave it out"
            )
        if "picture" in values:
            values["size"] = values.pop("picture")
        return {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}


class Drawn(NamedTuple):
    """A name that ``--spectrogram`` may set, and of which kinds of data."""

    type: type
    kinds: tuple[str, ...] = ("sound", "strain")


#: `rate`: Hz. `window`: seconds in a picture. `level`: clip (white is the clip's own peak), fixed (full
#: scale) or pcen. `n_fft`, `hop`: samples. `range_db`: dB from black to white. `durations`: seconds around the
#: trigger. `layout`: channels, row or one. `context`: seconds that are whitened. `fmin`, `fmax`: Hz.
#: `picture`: height and width in pixels.
SPECTROGRAM = {
    "rate": Drawn(int, ("sound",)),
    "window": Drawn(float, ("sound",)),
    "level": Drawn(str, ("sound",)),
    "n_fft": Drawn(int, ("sound",)),
    "hop": Drawn(int, ("sound",)),
    "n_mels": Drawn(int, ("sound",)),
    "range_db": Drawn(float, ("sound",)),
    "durations": Drawn(list, ("strain",)),
    "layout": Drawn(str, ("strain",)),
    "context": Drawn(float, ("strain",)),
    "fmin": Drawn(float),
    "fmax": Drawn(float),
    "colour": Drawn(str),
    "picture": Drawn(list),
}


def read_spectrogram(text: str) -> dict[str, Any]:
    """What ``--spectrogram`` sets, by name: of a preset, of a YAML file, or of such lines between
    braces, as `config.yaml` has them.

    Raises
    ------
    SecondhandError : there is no such preset or file, or names or values that are no settings.
    """
    if text.startswith("{"):
        content = checked_settings("--spectrogram", text)
    else:
        file = SPECTROGRAMS / f"{text}.yaml" if text in _presets() else Path(text)
        if not file.is_file():
            raise SecondhandError(
                f"--spectrogram {text}: neither a file nor one of {', '.join(_presets())}"
            )
        content = read_settings(file, flag="--spectrogram")
    check_names(text, content, SPECTROGRAM, flag="--spectrogram")
    for name, value in content.items():
        wanted = SPECTROGRAM[name].type
        if wanted is float and type(value) is int:
            content[name] = float(value)
        elif type(value) is not wanted:
            kind = {int: "a whole number", float: "a number", str: "a word", list: "a list"}[wanted]
            raise SecondhandError(f"--spectrogram {text}: {name} is {value!r}, not {kind}")
    return content


def spectrogram_text(text: str) -> str:
    """The same between braces: what a run's ``config.yaml`` holds does not change with a file."""
    content = read_spectrogram(text)
    return yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=10**6).strip()
