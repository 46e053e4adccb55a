"""The settings behind the command lines: `Settings` of fine-tuning with its sections, each a group of flags;
and the options of the commands that use a model.

`learners.cli.flags` reads them once. Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import glob
import os
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from datasets.core.errors import SecondhandError, did_you_mean
from datasets.core.options import Limits, flag, option
from datasets.core.scanning import absolute_path
from datasets.items.settings import (
    CHANNEL,
    DEPLOYMENTS,
    DataSettings,
    SignalSettings,
    spectrogram_text,
)
from datasets.kinds.base import KINDS
from learners.machine import SpeedSettings

if TYPE_CHECKING:
    from datasets.core.registry import Registry

#: Backbones that ``--backbone auto`` compares: first those that need no download, then small to medium ones of
#: several families and training sets.
CANDIDATES = (
    "embedded",
    "embedded/lite2",
    "embedded/speech",
    "resnet18.a1_in1k",
    "resnet50.a1_in1k",
    "convnext_tiny.in12k",
    "vit_small_patch16_224.augreg_in21k",
)
#: Default backbone of sounds: the better of these two.
SOUND_BACKBONE = "auto:embedded,embedded/speech"
#: A model folder is opened with at most so many networks.
MAX_MEMBERS = 16


@dataclass(frozen=True)
class NetworkSettings:
    """network"""

    backbone: str = option(
        "default",
        "Pretrained network: embedded or embedded/speech (installed with the program), embedded/lite1 or embedded/lite2 "
        "(the extra bodies), a timm name, hf-hub:USER/NAME, local-dir:PATH, torchvision/NAME[:WEIGHTS] or "
        "scratch/NAME. auto, or auto:NAME,NAME, compares several by a linear probe and trains the best. default is "
        "embedded, and for sounds the better of embedded and embedded/speech.",
        metavar="NAME",
    )
    weights: str = option(
        "published",
        "Initial weights of the backbone: published, none (random), or a file with a state dict "
        "(.safetensors, .pth).",
        metavar="published|none|FILE",
    )
    size: int | None = option(
        None,
        "Height and width of the input in pixels. Default: the size that the backbone was trained with.",
    )
    head: Literal["auto", "stages", "linear", "cosine"] = option(
        "auto",
        "Classification layer: linear uses the features of the last stage; stages uses those of all stages; "
        "cosine uses only the direction of the features, with a learned scale. auto is stages where the "
        "backbone offers its stages, else linear.",
    )
    dropout: float = option(0.2, "Dropout probability before the classification layer.")
    resize: Literal["crop", "pad", "squash"] | None = option(
        None,
        "How photos become square: crop (the centre), squash (the whole photo, squeezed) or pad (the whole photo in its "
        "shape, with borders). Default: crop; spectrograms are squashed.",
    )

    @property
    def candidates(self) -> list[str]:
        """The backbones that ``--backbone auto`` compares; empty for any other ``--backbone``."""
        auto, _, named = self.backbone.partition(":")
        if auto != "auto":
            return []
        return list(dict.fromkeys(filter(None, named.split(",")))) or list(CANDIDATES)

    def of(self, kind: str, *, comparable: bool) -> NetworkSettings:
        """The settings with the default backbone for data of this ``kind``.

        Parameters
        ----------
        comparable : one class per item, and spectrogram settings left to the backbone.
        """
        if self.backbone != "default":
            return self
        comparable &= self.size is None and self.weights == "published"
        return replace(
            self, backbone=SOUND_BACKBONE if KINDS[kind].mel and comparable else "embedded"
        )

    @property
    def fits(self) -> bool:
        """Whether the head can be fitted: one linear layer on a pretrained backbone."""
        return self.head in ("auto", "stages", "linear") and self.pretrained

    @property
    def pretrained(self) -> bool:
        """Whether the backbone starts from pretrained weights."""
        return self.weights != "none"

    @property
    def weights_file(self) -> Path | None:
        """The file that ``--weights`` names; None for ``published`` and ``none``."""
        return None if self.weights in ("published", "none") else Path(self.weights)


@dataclass(frozen=True)
class TrainSettings:
    """training"""

    epochs: int = option(
        5,
        "Number of epochs that train the whole network; 0 trains only the head (a linear probe).",
        limits=Limits(low=0),
    )
    freeze_epochs: int | Literal["fit"] = option(
        "fit",
        "Number of epochs that train only the head, before --epochs. fit computes the head as a logistic "
        "regression instead (a linear probe).",
        limits=Limits(low=0, word="fit"),
    )
    lr: float | Literal["auto"] | None = option(
        None,
        "Maximum learning rate of the head; auto runs a learning rate finder. Default: 3e-4 with "
        "--freeze-epochs fit, else 6e-3.",
        limits=Limits(above=0, below=100, word="auto"),
    )
    lr_mult: float | None = option(
        None,
        "Learning rate of the head divided by that of the first layer; 1 trains all layers alike. Default: with "
        "--freeze-epochs fit the first layer and a third of the blocks are frozen; else 2 for sound, 100 for "
        "pictures and strain.",
        limits=Limits(low=1),
    )
    bs: int = option(16, "Batch size in files, summed over all processes.", limits=Limits(low=1))
    accumulate: int | None = option(
        None,
        "Files of an optimizer step, a multiple of --bs: the gradients of several batches are accumulated, which takes the "
        "memory of one. Default: one batch.",
        limits=Limits(low=1),
    )
    wd: float = option(0.01, "Weight decay.", limits=Limits(low=0))
    clip: float | None = option(
        None, "Maximum norm of the gradient. Default: no clipping.", limits=Limits(above=0)
    )
    mixup: float = option(0.0, "Alpha of mixup; 0 turns it off.", limits=Limits(low=0))
    label_smoothing: float = option(
        0.0, "Fraction of the target spread evenly over all classes.", limits=Limits(low=0, below=1)
    )
    class_weights: bool = option(
        False, "Weight rare classes higher in the loss (docs/unbalanced-classes.md)."
    )
    ema: bool = option(
        False, "Use an exponential moving average of the weights for validation and for the model."
    )
    keep: Literal["best", "last"] = option(
        "best",
        "Weights to keep: best takes those half way between the head-only model and the last epoch, unless validation "
        "clearly prefers others (without a fitted head: the epoch of the lowest validation loss); last takes the last epoch.",
    )
    seed: int = option(
        0,
        "Random seed of splits, initial weights, order of files and augmentation.",
        limits=Limits(low=0, high=2**31 - 1),
    )
    seeds: int = option(
        1,
        "Number of networks to train, with consecutive seeds; the model averages their predictions.",
        limits=Limits(low=1, high=MAX_MEMBERS),
    )

    def of(self, kind: str, *, fits: bool) -> TrainSettings:
        """These settings with defaults for this kind of data where none were given.

        With a fitted head the first layers are frozen, because small steps hardly change them. Otherwise
        they train at a lower rate than the head: 100 times lower for pictures and strain, but only 2 times
        for sound, because mel spectrograms differ more from the photographs of the pretraining.

        Parameters
        ----------
        fits : whether the head can be fitted, `NetworkSettings.fits`.
        """
        alone, fits = self.freeze_epochs, fits and self.freeze_epochs == "fit"
        if alone == "fit" and not fits:
            alone = 1 if self.epochs else 20
        usual = None if fits else 2.0 if KINDS[kind].mel else 100.0
        return replace(
            self,
            freeze_epochs=alone,
            lr=(3e-4 if fits else 6e-3) if self.lr is None else self.lr,
            lr_mult=usual if self.lr_mult is None else self.lr_mult,
        )


@dataclass(frozen=True)
class AugmentSettings:
    """augmentation"""

    min_scale: float = option(
        0.35,
        "Smallest fraction of a picture's area that a random crop keeps.",
        limits=Limits(above=0, high=1),
    )
    flip: bool = option(
        True, "Mirror pictures left to right at random; use --no-flip for digits and text."
    )
    augment_strength: float = option(
        1.0,
        "Strength of the augmentation, 0 for none: brightness and contrast of pictures; time shift, gain, "
        "mixing and masking of sound and strain.",
        limits=Limits(low=0, high=2),
    )
    tta: int = option(
        1,
        "Test-time augmentation: average the predictions over this many variants of each file (mirrored and "
        "cropped pictures, shifted sounds), 1 (off) to 32. --tta alone means 4.",
        bare=4,
    )


def _scores() -> Registry[Any]:
    from learners.rule.scores.base import SCORES  # with NumPy, which no other setting needs

    return SCORES


@dataclass(frozen=True)
class ConfidenceSettings:
    """when to answer unknown"""

    threshold: float = option(
        0.95,
        "Calibrated probability below which a prediction becomes unknown.",
        limits=Limits(low=0, high=1),
    )
    keep_known: float = option(
        0.8,
        "Fraction of the known files that the overall score lets pass: 0.8 refuses the 20 % that look most unusual, "
        "and with them most files of unknown classes. Lower values refuse more; 1 switches the score off. Predict and "
        "adjust can change it later, from 0.5 on.",
        limits=Limits(above=0, high=1),
    )
    target_accuracy: float | None = option(
        None,
        "Fraction of the answers that must be right: the thresholds are chosen to guarantee it. Replaces --threshold "
        "and --keep-known (see --help-all).",
        limits=Limits(above=0, below=1, like=0.99),
    )
    score: str = option(
        "combined",
        "Overall score that separates known from unknown classes.",
        names=_scores,
        metavar="NAME",
    )


@dataclass(frozen=True)
class RunSettings:
    """run folder"""

    out: Path | None = option(
        None,
        "Folder to write the run to. Default: runs/NAME, after the data; where that exists, runs/NAME-2.",
        metavar="FOLDER",
    )
    overwrite: bool = option(False, "Replace the run folder if it exists.")
    resume: Path | None = option(
        None,
        "Run folder of an interrupted run to continue, with the settings it started with.",
        metavar="FOLDER",
    )
    track: Literal["none", "tensorboard", "wandb"] = option(
        "none", "Also log the metrics to TensorBoard or Weights & Biases."
    )


#: Settings that may change when a run is resumed, because they do not affect the result.
FREE = ("track", "device", "workers", "threads", "cache_dir", "cache_limit")


#: Settings of a prediction that may change when its job resumes: they do not affect the predictions, or name files.
FREE_OF_PREDICTION = (
    "model", "paths", "out", "overwrite", "workers", "device", "engine", "cluster", "deployments",
)  # fmt: skip


#: Settings that name files or folders.
PATHS = (
    "data", "strain", "classes_table", "from", "unknown", "background", "deployments", "cache_dir", "weights",
    "out", "resume",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """All settings of a fine-tuning run, by section. Outside of the program they are flat: a flag or
    a key of ``config.yaml`` has the name of a field, and no two sections share one."""

    data: DataSettings = field(default_factory=DataSettings)
    signal: SignalSettings = field(default_factory=SignalSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    speed: SpeedSettings = field(default_factory=SpeedSettings)
    confidence: ConfidenceSettings = field(default_factory=ConfidenceSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def flat(self) -> dict[str, Any]:
        """Each setting by its name, in the order of the sections. ``from_`` is called "from"."""
        return {
            name.rstrip("_"): value
            for section in vars(self).values()
            for name, value in vars(section).items()
        }

    def chosen(self) -> dict[str, Any]:
        """The settings that differ from their default values, as in `flat`."""
        defaults = Settings().flat()
        return {name: value for name, value in self.flat().items() if value != defaults[name]}

    def but(self, **values: Any) -> Settings:
        """A copy of these settings with the given ``values``, named as in `flat`.

        Raises
        ------
        SecondhandError : there is no setting of such a name.
        """
        names = self.flat().keys()
        for name in values.keys() - names:
            raise SecondhandError(f"There is no setting {name!r}.{did_you_mean(name, names)}")
        return replace(
            self,
            **{
                name: replace(
                    section,
                    **{k: values[n] for k in vars(section) if (n := k.rstrip("_")) in values},
                )
                for name, section in vars(self).items()
            },
        )

    def whole(self) -> Settings:
        """A copy with absolute paths, so that a run can be resumed from any folder.

        Names that are no files (``demo:digits``, a public set, ``hf:USER/NAME``) stay as they are. A
        ``--spectrogram`` file is replaced by its content.
        """
        flat = self.flat()
        values = {name: _whole(flat[name]) for name in PATHS}
        if self.network.weights_file is None:
            values["weights"] = self.network.weights
        if self.signal.spectrogram is not None:
            values["spectrogram"] = spectrogram_text(self.signal.spectrogram)
        return self.but(**values)

    def check(self) -> None:
        """Raise SecondhandError that names every value out of range and every pair of flags that exclude each other."""
        wrong = [
            f"{flag(item.name)} {value} (must be {limits})"
            for section in vars(self).values()
            for item in fields(section)
            if (limits := item.metadata["span"]) is not None
            and (value := getattr(section, item.name)) is not None
            and not limits.holds(value)
        ]
        wrong += [
            f"{flag(item.name)} {value} ({problem})"
            for section in vars(self).values()
            for item in fields(section)
            if (names := item.metadata["names"]) is not None
            and (value := getattr(section, item.name)) != item.default
            and (problem := names().problem(value))
        ]
        data, network, train = self.data, self.network, self.train
        weights = f"--weights {network.weights}" if network.weights != "published" else ""
        conflicts = {
            "--epochs 0 with --freeze-epochs 0": train.epochs == train.freeze_epochs == 0,
            f"--accumulate {train.accumulate} with --bs {train.bs} (use a multiple of --bs)": train.bs
            > 0
            and (train.accumulate or 0) % train.bs,
            "--background with --head cosine (use --head linear)": data.background
            and network.head == "cosine",
            f"{weights} with --backbone auto (name the backbone)": weights and network.candidates,
            "--split-by with --cv or --fold (use one of them)": data.split_by
            and (data.cv is not None or data.fold is not None),
            "--background with --classes-table (use one of the two)": data.background
            and data.classes_table,
        }
        wrong += [conflict for conflict, present in conflicts.items() if present]
        if wrong:
            raise SecondhandError(f"invalid settings: {'; '.join(wrong)}")


def _whole(value: Any) -> Any:
    """The value with absolute paths; a name that is no file or pattern stays as it is."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, Path):
        return value if str(value).startswith("hf:") else Path(absolute_path(value))
    if value is None or not (os.path.exists(value) or glob.has_magic(value)):
        return value
    return absolute_path(value)


#: Help of flags that several commands have.
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
class ComputeSettings:
    """hardware"""

    bs: int = option(32, "Batch size in files.")
    workers: int | None = option(
        None, "Number of processes that decode files. Default: chosen by the number of cores."
    )
    device: str = option("auto", "Device: auto, cpu, cuda, cuda:N or mps (Apple).", metavar="NAME")


@dataclass(kw_only=True)
class EngineSettings:
    """engine"""

    engine: Literal["auto", "torch", "onnx"] = option(
        "auto",
        "Library that runs the network: torch, or onnx (ONNX Runtime, CPU only). auto uses onnx on a CPU if the "
        "model folder contains model.onnx, else torch.",
    )


@dataclass(kw_only=True)
class OverrideSettings(ComputeSettings):
    """thresholds and hardware"""

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
class OutputSettings:
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
    )
    min_length: float = option(
        0.0, "With --events: shortest event in seconds; shorter ones are dropped."
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


@dataclass(kw_only=True)
class PredictSettings(OverrideSettings, EngineSettings):
    """thresholds and hardware"""

    cluster: str | None = option(
        None,
        "Address of a Dask scheduler whose workers compute the predictions, such as tcp://10.0.0.1:8786; or "
        "local.",
        metavar="ADDRESS",
    )


@dataclass(kw_only=True)
class EvaluateSettings(OverrideSettings):
    """Options of ``python -m learners.evaluate``; ``model`` is a model folder.

    If the data name their own parts, the test part is evaluated, else everything but the training part. Files
    whose label is no class of the model count as unknown classes. Without ``labels`` all files count.
    """

    model: str
    data: str = option(MISSING, "Labelled files, as for finetune --data.", metavar="SOURCE")
    label_column: str | None = option(
        None,
        "Column of the labels in a table. Default: label, or the usual column of the format.",
        metavar="NAME",
    )
    strain: str | None = option(None, STRAIN, metavar="PATH")
    channel: str | None = option(None, CHANNEL, metavar="NAME")
    labels: bool = option(
        True,
        "Whether the data have labels. --no-labels estimates the accuracy on an unlabelled folder or table.",
    )
    unknown: str | None = option(
        None, "Files of unknown classes: a folder, or a table with the column path.", metavar="PATH"
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
    gap: float = option(0.0, "With --events: longest pause in seconds within one event.")
    out: str = option("report", "Folder to write the report to.", metavar="FOLDER")
    overwrite: bool = option(False, "Replace an older report at --out.")


@dataclass(kw_only=True)
class PoolSettings(ComputeSettings, EngineSettings):
    """Options that `learners.suggest` and `learners.search` share."""

    overwrite: bool = option(False, "Replace the files at --out.")


@dataclass(kw_only=True)
class SuggestSettings(PoolSettings):
    """suggestions"""

    n: int = option(50, "Number of files, or windows of long recordings, to suggest.")
    mine: bool = option(
        False,
        "List the surest answers instead. Where nothing should be found, they are likely false alarms: delete the "
        "right ones, and give the table to finetune --background.",
    )
    out: Path = option(
        Path("next.csv"),
        "Table to fill in. A page that shows the files is written beside it (next.csv: next/index.html).",
    )


@dataclass(kw_only=True)
class AuditSettings(PoolSettings):
    """audit"""

    n: int = option(50, "Number of files, or windows of long recordings, to draw.")
    labels: Path | None = option(
        None,
        "Table drawn by this command, with labels filled in: estimate the accuracy.",
        metavar="FILE",
    )
    out: Path | None = option(
        None,
        "When drawing: the table to fill in, with a page that shows the files beside it (default: audit.csv). With "
        "--labels: folder for a copy of the model with temperature and threshold fitted to these labels.",
    )


@dataclass(kw_only=True)
class DiscoverSettings(PoolSettings):
    """discovery"""

    fdr: float = option(
        0.1,
        "False discovery rate: largest expected fraction of files of known classes among the files called new.",
    )
    out: Path = option(
        Path("found.csv"),
        "Table to name the clusters in. A page that shows them is written beside it (found.csv: found/index.html).",
    )


@dataclass(kw_only=True)
class AdjustSettings:
    """adjust"""

    keep_known: float | None = option(None, KEEP_KNOWN)
    threshold: float | None = option(None, THRESHOLD)
    out: Path | None = option(
        None,
        "Folder for the copy of the model with this rule. Default: only print what the rules would answer.",
        metavar="FOLDER",
    )
    overwrite: bool = option(False, "Replace the model folder at --out.")


@dataclass(kw_only=True)
class SearchSettings(PoolSettings):
    """search"""

    top: int = option(20, "Number of files, or windows of long recordings, to list.")
    embeddings: Path | None = option(
        None,
        "Parquet file that keeps the embeddings of the files for later searches; it is created, or extended by new "
        "files. Default: embeddings are not kept.",
        metavar="FILE",
    )
    at: float | None = option(
        None, "Time within the example: GPS seconds for strain, seconds from the start for sound."
    )
    format: Literal["csv", "jsonl"] = option("csv", "Output format.")
    out: Path | None = option(
        None,
        "File to write the rows to. A page that shows the files is written beside it (near.csv: "
        "near/index.html). Default: standard output.",
    )


def check_replaced(settings: Any) -> None:
    """Raise SecondhandError for ``--overwrite`` without ``--out``: there is nothing to replace."""
    if settings.overwrite and settings.out is None:
        raise SecondhandError(
            "--overwrite: there is no --out to replace. Name it, or leave out --overwrite."
        )
