"""Settings of the commands that use a model; what one command alone has stands in its module.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from datasets.cli.conflicts import Conflict, Missing, Need, Refused
from datasets.cli.options import Checked, Condition, flag, option, positional
from datasets.core.address import is_address
from datasets.core.doors import addresses
from datasets.core.folders import or_elsewhere
from datasets.items.settings import CHANNEL, LABEL_COLUMN, PATH_COLUMN
from datasets.kinds.base import KINDS

T = TypeVar("T", bound=Checked)
S = TypeVar("S", bound="Sectioned")

#: Settings of a prediction that may change when its job resumes: they do not affect the predictions, or name files.
FREE_OF_PREDICTION = (
    "model", "paths", "out", "overwrite", "workers", "device", "engine",
)  # fmt: skip

#: Help of flags that several commands have.
MOMENT = "GPS seconds of strain, such as 1126259462.4, or seconds from the start of a sound"
THRESHOLD = (
    "Calibrated probability (0 to 1) below which a prediction becomes unknown. The score then refuses nothing, so even "
    "a stricter value can answer more; add --keep-known 0.8 to keep it."
)
KEEP_KNOWN = (
    "Fraction of the known files that the overall score lets pass, as finetune --keep-known, but 0.5 to 1: higher values "
    "answer more files, also of unknown classes."
)


def model_help() -> str:
    return f"Model folder, such as runs/photos/model{or_elsewhere()}."


def paths_help() -> str:
    return f"Files, folders, {addresses()}or patterns in quotes."


#: Without ``--out`` there is nothing to replace.
OVERWRITING = Need("overwrite", ("out",), "name it, or leave out --overwrite")


@dataclass(kw_only=True)
class ComputeSettings(Checked):
    """hardware"""

    bs: int = option(32, "Batch size in files.")
    workers: int | None = option(
        None, "Number of processes that decode files. Default: chosen by the number of cores."
    )
    device: str = option("auto", "Device: auto, cpu, cuda, cuda:N or mps (Apple).", metavar="NAME")

    @property
    def computing(self) -> dict[str, Any]:
        """Keywords of `learners.loading.predictor.load_predictor`."""
        names = ("bs", "workers", "device", "engine")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}


@dataclass(kw_only=True)
class EngineSettings(Checked):
    """engine"""

    engine: Literal["auto", "torch", "onnx"] = option(
        "auto",
        "Library that runs the network: torch, or onnx (ONNX Runtime, CPU only). auto uses onnx on a CPU if the "
        "model folder contains model.onnx, else torch.",
    )


@dataclass(kw_only=True)
class OverrideSettings(ComputeSettings):
    """thresholds"""

    threshold: float | None = option(
        None, f"{THRESHOLD} Default: the thresholds stored in the model."
    )
    keep_known: float | None = option(None, f"{KEEP_KNOWN} Default: that of the model.")
    score: str | None = option(
        None,
        "Overall score that separates known from unknown classes, as in finetune --help-all. Default: the model's score.",
        metavar="NAME",
    )


@dataclass(kw_only=True)
class OutputSettings(Checked):
    """output"""

    format: str | None = option(
        None,
        "Output format: csv, jsonl, table, raven, audacity, camtrap-dp or megadetector. raven and audacity are for sound, with one file for each recording if --out is a "
        "folder; camtrap-dp writes a folder of tables; megadetector adds the classes to a JSON of MegaDetector. Default: table on a terminal, else csv.",
        metavar="NAME",
    )
    classes: str | None = option(
        None,
        "Restrict the predictions to these classes: names separated by commas, or a file with one name per "
        "line. Files that look more like an excluded class become unknown.",
        metavar="NAMES|FILE",
    )
    threshold_per_class: Path | None = option(
        None,
        "CSV file with the columns label and threshold (0 to 1). Classes that are not listed use --threshold, "
        "or the model's thresholds.",
        metavar="FILE",
    )
    out: Path | None = option(
        None,
        "File or folder to write the predictions to. If the job is interrupted, the same command continues it. "
        "Default: standard output.",
    )
    overwrite: bool = option(
        False, "Replace the file or folder at --out instead of continuing an interrupted job."
    )
    top: int | None = option(
        None,
        "Number of most probable classes to list for each file. Default: 3; in a table on the terminal only the best.",
    )
    at: float | None = option(
        None,
        "Time to predict at: GPS seconds for strain (default: the loudest moment), seconds from the start for "
        "sound (default: the whole recording).",
        means=MOMENT,
    )
    windows: bool = option(
        False,
        "Write one row per window of a long recording or of continuous strain, or per box or page of a picture (TIFF, "
        "animations), instead of one per file.",
    )
    allow_truncated: bool = option(
        False,
        "Predict what is there of recordings and photos that were cut off, and say how much is missing. Otherwise they "
        "are bad files. Windows and events of recordings are always those that are there.",
    )
    tta: bool = option(
        True,
        "Use the test-time augmentation that the model was trained with (finetune --tta); --no-tta predicts each "
        "file once, which is faster.",
    )


@dataclass(kw_only=True)
class Section(Checked):
    """A group of settings that only some calls have (`learners.calls.sections`), which its docstring heads in the help.

    Attributes
    ----------
    name : its name in the registry.
    usual : settings that the help shows by itself.
    free : settings that may change when a job resumes, because they do not affect the predictions.
    in_place_of_paths : settings that name what to predict, so that no files are named.
    elsewhere : settings that send files to other machines, which some calls do not allow.
    """

    name: ClassVar[str]
    usual: ClassVar[tuple[str, ...]] = ()
    free: ClassVar[tuple[str, ...]] = ()
    in_place_of_paths: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[tuple[str, ...]] = ()


@dataclass(kw_only=True)
class Sectioned(Checked):
    """Settings with ``added`` groups of others."""

    added: tuple[Section, ...] = ()

    @property
    def sections(self) -> dict[str, Any]:
        return {"": self, **{type(section).__name__: section for section in self.added}}

    @property
    def values(self) -> dict[str, Any]:
        """The settings of all sections by name."""
        return {name: one for part in self.sections.values() for name, one in vars(part).items()}

    @property
    def table(self) -> Iterable[Condition]:
        return chain(self.conflicts, *(section.conflicts for section in self.added))

    def of(self, section: type[T]) -> T:
        """The settings of a section; its defaults if it is not among those that were read."""
        return next((one for one in self.added if isinstance(one, section)), section())


def with_sections(
    settings: type[S], sections: Iterable[type[Section]], values: Mapping[str, Any]
) -> S:
    """Settings from their values by name, of which each section has its own; the others have their defaults."""
    rest, added = dict(values), list[Section]()
    for section in sections:
        names = [item.name for item in fields(section) if item.name in rest]
        added.append(section(**{name: rest.pop(name) for name in names}))
    return settings(**rest, added=tuple(added))


@dataclass(kw_only=True)
class PredictSettings(Sectioned, OutputSettings, OverrideSettings, EngineSettings):
    """files

    ``added`` : the settings of `learners.calls.sections`.
    """

    model: str = positional(model_help)
    paths: list[str] = positional(paths_help, [])

    @property
    def table(self) -> Iterable[Condition]:
        named = [name for section in self.added for name in section.in_place_of_paths]
        remedy = ", or ".join(["name files or folders", *map(flag, named)])
        missing = Missing(("paths", *named), "no files to predict", remedy)
        return chain([OVERWRITING, missing], super().table)


@dataclass(kw_only=True)
class EvaluateSettings(Sectioned, OverrideSettings):
    """evaluation

    If the data name their own parts, the test part is evaluated, else everything but the training part. Files
    whose label is no class of the model count as unknown classes. Without ``labels`` all files count. ``added`` : the
    settings of `learners.elsewhere.judges`.
    """

    model: str = positional(model_help)
    data: str = option(
        MISSING, "Labelled files, as for finetune --data.", metavar="SOURCE", once=True
    )
    path_column: str | None = option(None, PATH_COLUMN, metavar="NAME")
    label_column: str | None = option(None, LABEL_COLUMN, metavar="NAME")
    channel: str | None = option(None, CHANNEL, metavar="NAME")
    labels: bool = option(
        True,
        "Whether the data have labels. --no-labels estimates the accuracy on an unlabelled folder or table.",
    )
    unknown: str | None = option(
        None,
        "Files of unknown classes: a folder, or a table with the column path.",
        metavar="PATH",
        once=True,
    )
    kind: str = option(
        "auto",
        "Kind of the files; auto takes the kind of the model.",
        names=lambda: KINDS,
        metavar="auto|KIND",
    )
    out: str = option("report", "Folder to write the report to.", metavar="FOLDER")
    overwrite: bool = option(False, "Replace an older report at --out.")

    conflicts = (
        Refused("out", "no folder on a disk", "name one", of=is_address),
        *(Conflict(name, "labels") for name in ("unknown", "label_column")),
    )
