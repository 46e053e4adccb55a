"""Settings of the commands that use a model; what one command alone has stands in its module.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

from datasets.cameras.settings import DEPLOYMENTS
from datasets.cli.options import Checked, Limits, flag, option, positional
from datasets.core.address import is_address
from datasets.items.settings import CHANNEL, LABEL_COLUMN, PATH_COLUMN
from datasets.kinds.base import KINDS
from datasets.sources.settings import TIER

#: Settings of a prediction that may change when its job resumes: they do not affect the predictions, or name files.
FREE_OF_PREDICTION = (
    "model", "paths", "out", "overwrite", "workers", "device", "engine", "cluster", "deployments",
)  # fmt: skip

MODEL = "Model folder, such as runs/photos/model or hf:USER/NAME."
PATHS = "Files, folders, addresses such as s3://bucket/new, or patterns in quotes."
#: Help of flags that several commands have.
MOMENT = "GPS seconds of strain, such as 1126259462.4, or seconds from the start of a sound"
STRAIN = "For a table of triggers: folder, pattern or LAL cache of the strain files."
THRESHOLD = (
    "Calibrated probability (0 to 1) below which a prediction becomes unknown. The score then refuses nothing, so even "
    "a stricter value can answer more; add --keep-known 0.8 to keep it."
)
KEEP_KNOWN = (
    "Fraction of the known files that the overall score lets pass, as finetune --keep-known, but 0.5 to 1: higher values "
    "answer more files, also of unknown classes."
)


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
        """Options of a `Predictor`."""
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
        "With --triggers: a .csv, .hdf5 or .ecsv file. Default: standard output.",
    )
    overwrite: bool = option(
        False, "Replace the file or folder at --out instead of continuing an interrupted job."
    )
    events: bool = option(
        False,
        "Write one row per event. In a recording or in strain, neighbouring windows with the same class count as one event; of "
        "photos, the frames that one camera (deployment, else folder) took within --gap seconds of each other.",
    )
    gap: float | None = option(
        None,
        "With --events: longest pause in seconds within one event. Default: 0 for sound and strain, 60 for photos.",
        limits=Limits(low=0),
    )
    min_length: float = option(
        0.0,
        "With --events: shortest event in seconds; shorter ones are dropped.",
        limits=Limits(low=0),
    )
    top: int | None = option(
        None,
        "Number of most probable classes to list for each file. Default: 3; in a table on the terminal, and with "
        "--triggers, only the best.",
    )
    deployments: Path | None = option(None, DEPLOYMENTS, metavar="FILE")
    at: float | None = option(
        None,
        "Time to predict at: GPS seconds for strain (default: the loudest moment), seconds from the start for "
        "sound (default: the whole recording).",
        means=MOMENT,
    )
    windows: bool = option(
        False,
        "Write one row per window of a long recording or of continuous strain, or per box of a picture, instead of one "
        "per file.",
    )
    min_box_confidence: float | None = option(
        None,
        "For MegaDetector's JSON: least confidence of a box to crop and predict. Default: the typical threshold that "
        "the JSON names, which is 0.2 for MegaDetector 5; 0.2 if it names none.",
        limits=Limits(low=0, high=1),
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
    triggers: Path | None = option(
        None,
        "Strain: table of GPS times and detectors; predicts each row, and needs --strain.",
        metavar="FILE",
    )
    strain: str | None = option(None, STRAIN, metavar="PATH")
    channel: str | None = option(None, CHANNEL, metavar="NAME")
    recentre: bool = option(
        False,
        "Strain: judge at the loudest tile within a second, where that is not at the trigger.",
    )
    scores: bool = option(
        False, "With --triggers: add a column with the probability of each class, named after it."
    )

    def conflicts(self) -> dict[str, object]:
        return overwriting(self.out, overwrite=self.overwrite)


@dataclass(kw_only=True)
class PredictSettings(OutputSettings, OverrideSettings, EngineSettings):
    """several machines"""

    model: str = positional(MODEL)
    paths: list[str] = positional(PATHS, [])
    cluster: str | None = option(
        None,
        "Address of a Dask scheduler whose workers compute the predictions, such as tcp://10.0.0.1:8786; or "
        "local.",
        metavar="ADDRESS",
    )

    def conflicts(self) -> dict[str, object]:
        return super().conflicts() | {
            "no files to predict (name files or folders, or --triggers)": not self.paths
            and self.triggers is None
        }


@dataclass(kw_only=True)
class EvaluateSettings(OverrideSettings):
    """evaluation

    If the data name their own parts, the test part is evaluated, else everything but the training part. Files
    whose label is no class of the model count as unknown classes. Without ``labels`` all files count.
    """

    model: str = positional(MODEL)
    data: str = option(
        MISSING, "Labelled files, as for finetune --data.", metavar="SOURCE", once=True
    )
    path_column: str | None = option(None, PATH_COLUMN, metavar="NAME")
    label_column: str | None = option(None, LABEL_COLUMN, metavar="NAME")
    tier: str | None = option(None, TIER, metavar="NAME")
    strain: str | None = option(None, STRAIN, metavar="PATH")
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
    events: bool = option(
        False,
        "Sound: predict whole recordings and compare the events with the labelled spans: precision, recall and false "
        "alarms an hour over the threshold. Recordings of --unknown have no event.",
    )
    gap: float = option(
        0.0, "With --events: longest pause in seconds within one event.", limits=Limits(low=0)
    )
    out: str = option("report", "Folder to write the report to.", metavar="FOLDER")
    overwrite: bool = option(False, "Replace an older report at --out.")

    def conflicts(self) -> dict[str, object]:
        of_labels = ("unknown", "strain", "label_column", "events")
        return {
            f"--out {self.out} (name a folder on a disk)": is_address(self.out),
            **{
                f"{flag(name)} with --no-labels (leave one of them out)": getattr(self, name)
                and not self.labels
                for name in of_labels
            },
            "--gap without --events (give it too, or leave --gap out)": self.gap
            and not self.events,
        }


@dataclass(kw_only=True)
class PoolSettings(ComputeSettings, EngineSettings):
    """files"""

    model: str = positional(MODEL)
    overwrite: bool = option(False, "Replace the files at --out.")


def overwriting(out: Path | None, *, overwrite: bool) -> dict[str, object]:
    """The conflict of ``--overwrite`` without ``--out``: there is nothing to replace."""
    return {
        "--overwrite without --out (name it, or leave out --overwrite)": overwrite and out is None
    }
