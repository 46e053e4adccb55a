"""The settings behind the command lines: `Settings` of fine-tuning with its sections, each a group of flags;
and what the commands that ask a model are told.

`learners.cli.flags` reads them once. Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import glob
import os
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from datasets.core.errors import SecondhandError
from datasets.core.options import Limits, flag, option
from datasets.core.scanning import whole
from datasets.items import DataSettings, SignalSettings, spectrogram_text
from learners.machine import SpeedSettings

#: What tells known files from strangers; `learners.uncertainty` has them.
ScoreName = Literal["combined", "msp", "knn", "rmds"]
#: What ``--backbone auto`` chooses from: small to middling, of several families and training sets.
CANDIDATES = (
    "embedded",
    "resnet18.a1_in1k",
    "resnet50.a1_in1k",
    "convnext_tiny.in12k",
    "vit_small_patch16_224.augreg_in21k",
)
#: A model folder is opened with at most so many networks.
MAX_MEMBERS = 16


@dataclass(frozen=True)
class NetworkSettings:
    """network"""

    backbone: str = option(
        "embedded",
        "embedded, a timm name, hf-hub:USER/NAME, local-dir:PATH, torchvision/NAME[:WEIGHTS], "
        "scratch/NAME; or auto, auto:NAME,NAME: the best of some by a linear probe",
    )
    weights: str = option(
        "published",
        "what the backbone starts from: published weights, none (random), or a FILE "
        "(.safetensors, state dict)",
    )
    size: int | None = option(None, "side of the input in pixels; the backbone's own if not given")
    head: Literal["auto", "stages", "linear", "cosine"] = option(
        "auto",
        "stages: one layer on what all stages of the body made, auto where it can be had; linear: on "
        "the last stage alone; cosine: direction alone, learned scale",
    )
    dropout: float = option(0.2, "before the last layer")

    @property
    def candidates(self) -> list[str]:
        """Of ``--backbone auto``, the backbones to choose from; of another none."""
        auto, _, named = self.backbone.partition(":")
        if auto != "auto":
            return []
        return list(dict.fromkeys(filter(None, named.split(",")))) or list(CANDIDATES)

    @property
    def fits(self) -> bool:
        """The head is one linear layer on a body that knows something: it can be fitted."""
        return self.head in ("auto", "stages", "linear") and self.pretrained

    @property
    def pretrained(self) -> bool:
        """Whether the body begins with weights that have learnt something."""
        return self.weights != "none"

    @property
    def weights_file(self) -> Path | None:
        """The file of ``--weights``; None of published weights and of none."""
        return None if self.weights in ("published", "none") else Path(self.weights)


@dataclass(frozen=True)
class TrainSettings:
    """training"""

    epochs: int = option(
        5, "epochs with all weights; 0 trains the head alone (a linear probe)", limits=Limits(low=0)
    )
    freeze_epochs: int | Literal["fit"] = option(
        "fit",
        "epochs before that with the head alone; or fit: its one layer is fitted to its optimum, a "
        "linear probe, which those that follow have to surpass",
        limits=Limits(low=0, word="fit"),
    )
    lr: float | Literal["auto"] | None = option(
        None,
        "largest learning rate of the head, or auto; 3e-4 behind a fitted head, 6e-3 else",
        limits=Limits(above=0, below=100, word="auto"),
    )
    lr_mult: float | None = option(
        None,
        "the stem learns this much slower than the head; behind a fitted head, where none is given, "
        "it and a third of the body do not learn; else 2 for sound, 100 for others",
        limits=Limits(low=1),
    )
    bs: int = option(
        16,
        "batch size in items, of all processes together; more steps help with few files",
        limits=Limits(low=1),
    )
    wd: float = option(0.01, "weight decay", limits=Limits(low=0))
    clip: float | None = option(None, "largest norm of the gradient", limits=Limits(above=0))
    mixup: float = option(0.0, "alpha of mixup; 0 is off", limits=Limits(low=0))
    label_smoothing: float = option(
        0.0, "part of the target spread over all classes", limits=Limits(low=0, below=1)
    )
    class_weights: bool = option(False, "rare classes count more (docs/unbalanced-classes.md)")
    ema: bool = option(False, "average the weights; validate, keep and export the average")
    keep: Literal["best", "last"] = option(
        "best",
        "the weights kept: those that validate best, of the head-only model, each epoch and blends of the "
        "two; or the last epoch's",
    )
    seed: int = option(0, "of splits, weights, order and augmentation")
    seeds: int = option(
        1,
        "networks trained, with this seed and those after it; they answer by their mean",
        limits=Limits(low=1, high=MAX_MEMBERS),
    )

    def of(self, kind: str, *, fits: bool) -> TrainSettings:
        """With what was left open set as it suits data of this kind.

        Behind a fitted head the first layers, which know photographs, stay as they are, for small
        steps hardly change them. Else they are held back; of mel spectrograms they still have much to
        learn, and in a few epochs cannot if they are held back as for pictures.

        Parameters
        ----------
        fits : the head is one that can be fitted, `NetworkSettings.fits`.
        """
        alone, fits = self.freeze_epochs, fits and self.freeze_epochs == "fit"
        if alone == "fit" and not fits:
            alone = 1 if self.epochs else 20
        usual = None if fits else 2.0 if kind == "sound" else 100.0
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
        0.35, "smallest part of a picture's area that a crop keeps", limits=Limits(above=0, high=1)
    )
    flip: bool = option(True, "mirror left and right; --no-flip for digits and text")
    augment_strength: float = option(
        1.0,
        "of pictures: brightness and contrast; of sound and strain: shift, gain, mixing, masks; 0 (none) "
        "to 2",
        limits=Limits(low=0, high=2),
    )
    tta: int = option(
        1,
        "views of each file that answers are averaged over, 1 (off) to 32: mirrored and closer "
        "pictures, sounds moved in time; 4 where no number is given",
        bare=4,
    )


@dataclass(frozen=True)
class ConfidenceSettings:
    """confidence"""

    threshold: float = option(
        0.95,
        "calibrated probability below which the answer is unknown",
        limits=Limits(low=0, high=1),
    )
    keep_known: float = option(
        0.8,
        "part of known items whose score is high enough for an answer, beside the threshold: fewer "
        "strangers are taken for a class; 1 asks the threshold alone",
        limits=Limits(above=0, high=1),
    )
    target_accuracy: float | None = option(
        None,
        "instead of both: accuracy guaranteed of what is accepted",
        limits=Limits(above=0, below=1, like=0.99),
    )
    per_class: bool = option(False, "promise --target-accuracy of each class by itself")
    score: ScoreName = option(
        "combined", "what tells known items from strangers, and what a target accuracy cuts"
    )
    coverage: float | None = option(
        None,
        "also fit sets of classes that hold the right one with this probability, as 0.9",
        limits=Limits(above=0, below=1, like=0.9),
    )


@dataclass(frozen=True)
class RunSettings:
    """run"""

    out: Path | None = option(None, "run folder; runs/NAME if not given")
    overwrite: bool = option(False, "replace the run folder if it is there")
    resume: Path | None = option(
        None, "run folder whose run goes on where it stopped, with its own settings"
    )
    track: Literal["none", "tensorboard", "wandb"] = option("none", "log to a tracker as well")
    learning_curve: bool = option(
        False, "also fit linear probes to 1/8, 1/4 and 1/2 of the labels: would more help?"
    )


#: Settings that may be others when a run goes on: they do not say what is learnt.
FREE = ("track", "device", "workers", "threads", "cache_dir", "cache_limit")


#: Settings that name files or folders.
PATHS = (
    "data", "strain", "classes_table", "from", "unknown", "background", "cache_dir", "weights", "out",
    "resume",
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

    def but(self, **values: Any) -> Settings:
        """These settings, other than ``values``, which are named as in `flat`."""
        if unknown := values.keys() - self.flat().keys():
            raise TypeError(f"no settings: {', '.join(sorted(unknown))}")
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
        """These settings with whole paths: a run goes on from any folder. What names no file, as
        ``demo:digits``, a public set or ``hf:USER/NAME``, stays as it is; of ``--spectrogram`` what
        the file says."""
        flat = self.flat()
        values = {name: _whole(flat[name]) for name in PATHS}
        if self.network.weights_file is None:
            values["weights"] = self.network.weights
        if self.signal.spectrogram is not None:
            values["spectrogram"] = spectrogram_text(self.signal.spectrogram)
        return self.but(**values)

    def check(self) -> None:
        """Raise SecondhandError that names every number out of its range."""
        wrong = [
            f"{flag(item.name)} {value} (it is {limits})"
            for section in vars(self).values()
            for item in fields(section)
            if (limits := item.metadata["span"]) is not None
            and (value := getattr(section, item.name)) is not None
            and not limits.holds(value)
        ]
        data, network, train, asked = self.data, self.network, self.train, self.confidence
        fitted = network.fits and train.freeze_epochs == "fit"
        own = f"--weights {network.weights}" if network.weights != "published" else ""
        flat = "--background" if data.background else "--coverage" if asked.coverage else ""
        together = {
            "--epochs 0 with --freeze-epochs 0": train.epochs == train.freeze_epochs == 0,
            "--background with --head cosine (use linear)": data.background
            and network.head == "cosine",
            "--learning-curve without a fitted head on a published body (leave out --from, "
            "--freeze-epochs, --weights none, --head cosine)": self.run.learning_curve
            and not (fitted and data.from_ is None),
            "--per-class without --target-accuracy": asked.per_class and not asked.target_accuracy,
            f"{own} with --backbone auto (name the backbone)": own and network.candidates,
            f"{flat} with --classes-table (one of the two)": flat and data.classes_table,
        }
        wrong += [said for said, is_so in together.items() if is_so]
        if wrong:
            raise SecondhandError(f"out of range: {', '.join(wrong)}")


def _whole(value: Any) -> Any:
    """A path, several, or none, from the root; a name that is that of no file or pattern as it stands."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, Path):
        return value if str(value).startswith("hf:") else Path(whole(value))
    if value is None or not (os.path.exists(value) or glob.has_magic(value)):
        return value
    return whole(value)


#: Of the commands that ask a model.
STRAIN = "of a table of triggers: the folder, pattern or LAL cache of their strain files"


@dataclass(kw_only=True)
class ComputeSettings:
    """what computes"""

    bs: int = option(32, "batch size in items")
    workers: int | None = option(None, "processes that decode files")
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps (Apple)")


@dataclass(kw_only=True)
class EngineSettings:
    """what does the network's arithmetic"""

    engine: Literal["auto", "torch", "onnx"] = option(
        "auto",
        "what does the network's arithmetic; onnx is ONNX Runtime on the CPU, and what auto takes there "
        "for a model that holds model.onnx",
    )


@dataclass(kw_only=True)
class OverrideSettings(ComputeSettings):
    """how a model is asked"""

    threshold: float | None = option(
        None,
        "probability in [0, 1] below which the answer is unknown, in place of the model's own cuts",
    )
    score: ScoreName | None = option(
        None, "what tells known files from strangers; the model's own if not given"
    )


@dataclass(kw_only=True)
class OutputSettings:
    """how the answers are written"""

    format: Literal["csv", "jsonl", "table", "raven", "audacity", "camtrap-dp"] | None = option(
        None,
        "of the rows; table on a terminal, else csv. raven and audacity are of sound, a file for each "
        "recording where --out names a folder; camtrap-dp is a folder of tables",
    )
    classes: str | None = option(
        None,
        "only these of the model's classes are answered: a file with a name a line, or names with commas "
        "between them; what is likelier another is unknown",
    )
    threshold_per_class: Path | None = option(
        None,
        "CSV file with the columns label and threshold: probabilities in [0, 1], in place of the model's own "
        "cuts; classes that it leaves out have --threshold, or the model's",
    )
    out: Path | None = option(
        None,
        "file or folder of the answers, instead of standard output; a job that was stopped goes on by the "
        "same command; of --triggers a .csv, .hdf5 or .ecsv file",
    )
    overwrite: bool = option(False, "begin anew, and replace what is at --out")
    events: bool = option(
        False, "a row for each event: neighbouring windows of a recording that name one class"
    )
    gap: float = option(0.0, "seconds without the class that do not end an event")
    min_length: float = option(0.0, "seconds below which an event is left out")
    top: int = option(3, "best classes listed")
    at: float | None = option(
        None,
        "moment that every file is asked about: GPS time in seconds of strain (its loudest moment if not "
        "given), seconds from the beginning of a sound (all of it if not given)",
    )
    windows: bool = option(
        False, "a row for each window of a long recording, instead of one for the file"
    )
    sets: bool = option(
        False, "also the set of classes that holds the right one with the coverage fine-tuned for"
    )
    tta: bool = option(
        True,
        "--no-tta: look at each file once, where the model was calibrated to look at it several times",
    )
    triggers: Path | None = option(
        None, "table of GPS times and detectors, of which each row is answered; with --strain"
    )
    strain: str | None = option(None, STRAIN)


@dataclass(kw_only=True)
class PredictSettings(OverrideSettings, EngineSettings):
    """how a model is asked for answers"""

    cluster: str | None = option(
        None, "Dask scheduler whose workers answer, as tcp://10.0.0.1:8786; or local"
    )


@dataclass(kw_only=True)
class EvaluateSettings(OverrideSettings):
    """What ``python -m learners.evaluate`` is asked of ``model``, a model folder.

    Of data that name their parts, the test part counts, else all but train. Files of labels that the
    model does not have are strangers. Without ``labels`` all files count.
    """

    model: str
    data: str = option(MISSING, "labelled files, named as for learners.finetune")
    label_column: str | None = option(None, "column of the labels, if not the usual one")
    strain: str | None = option(None, STRAIN)
    labels: bool = option(
        True,
        "--no-labels: the folder (of any nesting) or table has none; the accuracy to expect there is "
        "estimated",
    )
    unknown: str | None = option(None, "strangers: a folder, or a table with the column path")
    kind: Literal["auto", "picture", "sound", "strain"] = option(
        "auto", "kind of the files; what the model judges"
    )
    out: str = option("report", "folder of the report")
    overwrite: bool = option(False, "replace an older report there")


@dataclass(kw_only=True)
class PoolSettings(ComputeSettings, EngineSettings):
    """What the commands that look through a pool share."""

    overwrite: bool = option(False, "replace what is at --out")


@dataclass(kw_only=True)
class SuggestSettings(PoolSettings):
    """what is suggested"""

    n: int = option(50, "files, or windows of long recordings, that are suggested")
    out: Path = option(
        Path("next.csv"), "table to fill in; beside it, as next/index.html, the contact sheet"
    )


@dataclass(kw_only=True)
class SearchSettings(PoolSettings):
    """what is searched"""

    top: int = option(20, "files, or windows of long recordings, that are listed")
    embeddings: Path | None = option(
        None,
        "Parquet file in which the pool's embeddings are kept; made, or extended by what is new",
    )
    at: float | None = option(
        None,
        "moment of the example: GPS time in seconds of strain, seconds from the beginning of a sound",
    )
    format: Literal["csv", "jsonl"] = option("csv", "of the rows")
    out: Path | None = option(
        None,
        "file of the rows, as found.csv, instead of standard output; beside it, as "
        "found/index.html, a contact sheet",
    )


def check_replaced(settings: Any) -> None:
    """Raise SecondhandError for ``--overwrite`` where nothing is written that it could replace."""
    if settings.overwrite and settings.out is None:
        raise SecondhandError("--overwrite: replaces what is at --out; name that, or leave it out")
