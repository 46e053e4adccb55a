"""`Settings` of fine-tuning with its sections, each a group of flags.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from datasets.cli.conflicts import Conflict, Need, Refused
from datasets.cli.options import Checked, Condition, Limits, option
from datasets.core.address import as_path
from datasets.core.errors import SecondhandError, did_you_mean
from datasets.core.folders import elsewhere
from datasets.core.scanning import absolute_path
from datasets.images.options import SampleSettings
from datasets.items.settings import (
    AddedSettings,
    ClassSettings,
    DataSettings,
    SignalSettings,
    SplitSettings,
    WarmStartSettings,
    added_settings,
    spectrogram_text,
)
from learners.backbones.choices import CANDIDATES
from learners.backbones.names import MAX_MEMBERS
from learners.machine.hardware import SpeedSettings
from learners.rule.settings import ConfidenceSettings

#: Most bodies of ``--cross-fit``: ten leave each as many files to learn from as heads that are cross-fitted. And their number
#: where it is left to the program.
MAX_BODIES, USUAL_BODIES = 10, 3


def candidates(backbone: str) -> list[str]:
    """The backbones that ``auto`` or ``auto:NAME,NAME`` compares; empty for any other ``--backbone``."""
    auto, _, named = backbone.partition(":")
    if auto != "auto":
        return []
    return list(dict.fromkeys(filter(None, named.split(",")))) or list(CANDIDATES)


@dataclass(frozen=True)
class NetworkSettings:
    """network"""

    backbone: str = option(
        "default",
        "Pretrained network: embedded or embedded/speech (installed with the program), embedded/sound (fetched when it is "
        "first needed), embedded/lite1 or embedded/lite2 (the extra bodies), a timm name, hf-hub:USER/NAME, local-dir:PATH, torchvision/NAME[:WEIGHTS] or "
        "scratch/NAME. auto, or auto:NAME,NAME, compares several by a linear probe and trains the best. default is "
        "embedded, and for sounds the best of embedded, embedded/speech and embedded/sound.",
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
    head: Literal["auto", "stages", "linear", "cosine", "fastai"] = option(
        "auto",
        "Classification layer: linear uses the features of the last stage; stages uses those of all stages; "
        "cosine uses only the direction of the features, with a learned scale; fastai is the head of fastai's "
        "vision_learner, with --dropout 0.5 by default. auto is stages where the backbone offers its stages, else linear.",
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
        return candidates(self.backbone)

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
        "Number of epochs that train the whole network; 0 trains only the head (a linear probe), as embedded/sound does "
        "unless this is given.",
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
    train: Literal["all", "attention"] = option(
        "all",
        "Layers of a transformer that --epochs trains: attention trains those of attention and the head alone "
        "(arXiv:2203.09795), which takes a third of the weights.",
    )
    optimizer: Literal["adamw", "adadelta"] = option(
        "adamw",
        "Optimizer. adadelta (arXiv:1212.5701) is for networks without pretrained weights; --lr is then 1 and --wd 0 by "
        "default.",
    )
    schedule: Literal["one-cycle", "step"] = option(
        "one-cycle",
        "How the learning rate goes on in --epochs: one-cycle rises and falls; step begins at --lr and is multiplied by "
        "0.7 after each epoch.",
    )
    bs: int = option(16, "Batch size in files.", limits=Limits(low=1))
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
    keep: Literal["best", "last", "accuracy", "f1"] = option(
        "best",
        "Weights to keep: best takes those half way between the head-only model and the last epoch, unless validation "
        "clearly prefers others (without a fitted head: the epoch of the lowest validation loss); accuracy and f1 (the mean "
        "of the classes) take those whose validation figure is highest; last takes the last epoch.",
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
    cross_fit: int | Literal["auto"] = option(
        0,
        "Number of bodies to train in turn, each without one of as many parts of the files, which it then measures; the "
        "model itself is trained on all files. It takes one training more than bodies. 0 trains one body, which the files "
        "measure that it has not learnt from; auto is 3 where that can be.",
        limits=Limits(low=0, high=MAX_BODIES, word="auto"),
        metavar="K|auto",
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


#: Settings that name files or folders.
PATHS = (
    "data", "classes_table", "from", "unknown", "background", "cache_dir", "weights",
    "out", "resume",
)  # fmt: skip


def _number_with(bodies: int | Literal["auto"], other: Any) -> bool:
    """Whether a number of bodies is asked for, and another setting is given."""
    return bodies not in (0, "auto") and other is not None


#: What ``--cross-fit`` with a number does not go with; with auto it gives way.
AGAINST_CROSS_FIT = (
    Conflict("cross_fit", "cv", "each of its folds is tested already", clash=_number_with),
    Conflict("cross_fit", "fold", "its files measure", clash=_number_with),
    Conflict("cross_fit", "from", "that body has learnt from files already", clash=_number_with),
    Conflict("cross_fit", "labels", "it is for one label a file", clash=_number_with),
    Conflict(
        "cross_fit",
        "seeds",
        "one network stands for the bodies",
        clash=lambda bodies, seeds: _number_with(bodies, seeds) and seeds > 1,
    ),
)


def against_cross_fit(section: AddedSettings) -> Iterable[Conflict]:
    """What ``--cross-fit`` does not go with in a section of a field."""
    for name, why in section.measures.items():
        yield Conflict("cross_fit", name, why, clash=_number_with)


@dataclass(frozen=True)
class Settings(Checked):
    """All settings of a fine-tuning run, by section. Outside of the program they are flat: a flag or
    a key of ``config.yaml`` has the name of a field, and no two sections share one.

    ``added`` : the sections of fields, which stand behind those of the data.
    ``chosen`` : names of the settings that the user chose. `learners.runs.resolve.resolve` fills in the others.
    """

    data: DataSettings = field(default_factory=DataSettings)
    samples: SampleSettings = field(default_factory=SampleSettings)
    classes: ClassSettings = field(default_factory=ClassSettings)
    warm_start: WarmStartSettings = field(default_factory=WarmStartSettings)
    splits: SplitSettings = field(default_factory=SplitSettings)
    added: tuple[AddedSettings, ...] = field(default_factory=added_settings)
    signal: SignalSettings = field(default_factory=SignalSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    speed: SpeedSettings = field(default_factory=SpeedSettings)
    confidence: ConfidenceSettings = field(default_factory=ConfidenceSettings)
    run: RunSettings = field(default_factory=RunSettings)
    chosen: frozenset[str] = field(default=frozenset(), compare=False)
    conflicts = (
        Conflict(
            "epochs",
            "freeze_epochs",
            "nothing would be trained",
            clash=lambda epochs, frozen: epochs == frozen == 0,
        ),
        Conflict(
            "accumulate",
            "bs",
            remedy="use a multiple of --bs",
            clash=lambda files, batch: batch > 0 and (files or 0) % batch,
        ),
        Conflict(
            "background",
            "head",
            remedy="use --head linear",
            clash=lambda background, head: background and head == "cosine",
        ),
        Conflict(
            "weights",
            "backbone",
            remedy="name the backbone",
            clash=lambda weights, backbone: weights != "published" and candidates(backbone),
        ),
        Conflict("background", "classes_table", remedy="use one of the two"),
        Need("rehearsal", ("from",), "add --from, or leave --rehearsal out"),
        Refused("cross_fit", "one body", "give at least 2, or 0 for none", of=lambda n: n == 1),
        *AGAINST_CROSS_FIT,
    )

    @property
    def sections(self) -> dict[str, Any]:
        added = {section.name: section for section in self.added}
        own = {name: value for name, value in vars(self).items() if name != "chosen"}
        return {
            key: section
            for name, value in own.items()
            for key, section in (added if name == "added" else {name: value}).items()
        }

    @property
    def table(self) -> Iterable[Condition]:
        measures = (conflict for section in self.added for conflict in against_cross_fit(section))
        return chain(self.conflicts, *(section.conflicts for section in self.added), measures)

    @property
    def free(self) -> tuple[str, ...]:
        """Names of the settings that may change when a run is resumed."""
        return *FREE, *chain(*(section.free for section in self.added))

    def flat(self) -> dict[str, Any]:
        """Each setting by its name, in the order of the sections. ``from_`` is called "from"."""
        return {
            name.rstrip("_"): value
            for section in self.sections.values()
            for name, value in vars(section).items()
        }

    def given(self) -> dict[str, Any]:
        """The settings that the user chose, as in `flat`."""
        return {name: value for name, value in self.flat().items() if name in self.chosen}

    def but(self, **values: Any) -> Settings:
        """A copy of these settings with ``values`` that the user chose, named as in `flat`.

        Raises
        ------
        SecondhandError : there is no setting of such a name.
        """
        return replace(self.filled(**values), chosen=self.chosen.union(values))

    def filled(self, **values: Any) -> Settings:
        """A copy of these settings with ``values`` that nobody chose, as in `but`."""
        names = self.flat().keys()
        for name in values.keys() - names:
            raise SecondhandError(f"There is no setting {name!r}.{did_you_mean(name, names)}")

        def with_values(section: Any) -> Any:
            names = {k: n for k in vars(section) if (n := k.rstrip("_")) in values}
            return replace(section, **{k: values[n] for k, n in names.items()})

        sections = {
            name: with_values(section)
            for name, section in vars(self).items()
            if name not in ("added", "chosen")
        }
        return replace(self, added=tuple(map(with_values, self.added)), **sections)

    def whole(self) -> Settings:
        """A copy with absolute paths, so that a run can be resumed from any folder.

        Names that are no files (``demo:digits``, a public set, a folder elsewhere) stay as they are. A
        ``--spectrogram`` file is replaced by its content.
        """
        flat = self.flat()
        paths = chain(PATHS, *(section.paths for section in self.added))
        values = {name: _whole(flat[name]) for name in paths}
        if self.network.weights_file is None:
            values["weights"] = self.network.weights
        if self.signal.spectrogram is not None:
            values["spectrogram"] = spectrogram_text(self.signal.spectrogram)
        return self.filled(**values)

    @property
    def against_cross_fit(self) -> str:
        """The flag that ``--cross-fit`` does not go with, and why; "" if there is none."""
        call = self.filled(cross_fit=USUAL_BODIES).call
        against = chain(AGAINST_CROSS_FIT, *map(against_cross_fit, self.added))
        found = next((one for one in against if one.problem(call)), None)
        return "" if found is None else f"{call[found.second]}: {found.why}"


def _whole(value: Any) -> Any:
    """The value with absolute paths; a name that is no file or pattern stays as it is."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, Path):
        return value if elsewhere(value) else as_path(absolute_path(value))
    if value is None or not (os.path.exists(value) or glob.has_magic(value)):
        return value
    return absolute_path(value)
