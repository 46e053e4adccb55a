"""The settings behind the command lines, and how they are read.

A command's flags are the fields of small dataclasses, one group of flags each. A value comes from,
in rising order of weight: the default here, ``--preset``, ``--config file.yaml``, a flag. Nothing
heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import yaml

from datasets.errors import SecondhandError

PRESETS = Path(__file__).parent / "presets"
Settings = TypeVar("Settings")


def option(default: Any, help: str) -> Any:
    """A dataclass field that is also a flag."""
    return field(default=default, metadata={"help": help})


@dataclass
class DataSettings:
    """data"""

    data: str = option(
        "", "folder of class folders, .csv/.tsv/.parquet with path,label, or demo:digits"
    )
    kind: Literal["auto", "picture", "sound", "strain"] = option("auto", "kind of the files")
    group_by: str | None = option(
        None, "regular expression on the file name: what must not be split"
    )
    fold: str | None = option(None, "value of the column 'fold' that is held out")
    valid: float = option(0.15, "part of the items that chooses the checkpoint")
    calibration: float = option(0.15, "part of the items that sets temperature and threshold")


@dataclass
class NetworkSettings:
    """network"""

    backbone: str = option("embedded", "embedded, a timm name, or torchvision/NAME[:WEIGHTS]")
    weights: Path | None = option(
        None, "file with the backbone's weights (.safetensors, state dict)"
    )
    pretrained: bool = option(True, "start from published weights")
    size: int | None = option(None, "side of the input in pixels; the backbone's own if not given")
    head: Literal["auto", "concat", "linear"] = option(
        "auto", "concat for CNNs, linear for transformers"
    )
    hidden: int = option(512, "width of the concat head")
    dropout: float = option(0.5, "before the last layer")


@dataclass
class TrainSettings:
    """training"""

    epochs: int = option(5, "epochs with all weights")
    freeze_epochs: int = option(1, "epochs before that with the head alone")
    lr: float | Literal["auto"] = option(6e-3, "largest learning rate of the head, or auto")
    lr_mult: float = option(100.0, "the stem learns this much slower than the head")
    bs: int = option(16, "batch size in items; more steps help with few files")
    wd: float = option(0.01, "weight decay")
    pct_start: float = option(0.3, "part of the cycle in which the rate rises")
    div: float = option(5.0, "the rate starts at lr / div")
    div_final: float = option(1e5, "and ends at lr / div_final")
    optimizer: Literal["adamw", "adam-foreach", "lion-foreach", "sgd"] = option("adamw", "which")
    eps: float = option(1e-8, "of adamw and adam-foreach")
    clip: float | None = option(None, "largest norm of the gradient")
    accumulate: int = option(1, "batches to one optimizer step")
    mixup: float = option(0.0, "alpha of mixup; 0 is off")
    label_smoothing: float = option(0.0, "part of the target spread over all classes")
    class_weights: bool = option(False, "weigh classes by 1 / their number of items")
    ema: bool = option(False, "average the weights; validate, keep and export the average")
    monitor: Literal["valid_loss", "accuracy"] = option(
        "accuracy", "what the best epoch is best in"
    )
    seed: int = option(0, "of splits, weights, order and augmentation")


@dataclass
class AugmentSettings:
    """augmentation"""

    min_scale: float = option(0.35, "smallest part of a picture's area that a crop keeps")
    flip: bool = option(True, "mirror left and right; --no-flip for digits and text")
    lighting: float = option(0.2, "largest change of brightness and contrast")


@dataclass
class SpeedSettings:
    """speed"""

    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    precision: Literal["auto", "fp32", "fp16", "bf16"] = option("auto", "of the forward pass")
    compile: bool = option(False, "torch.compile the training step")
    channels_last: bool = option(True, "memory format of feature maps; no effect on transformers")
    workers: int | None = option(
        None, "processes that open files; one less than the cores by default"
    )
    threads: int | None = option(
        None, "CPU threads of the training process; torch's own by default"
    )


@dataclass
class ConfidenceSettings:
    """confidence"""

    threshold: float = option(0.95, "calibrated probability below which the answer is unknown")
    target_accuracy: float | None = option(None, "instead: accuracy promised of what is accepted")
    target_coverage: float | None = option(None, "instead: part of known items to accept")


@dataclass
class RunSettings:
    """run"""

    out: Path | None = option(None, "run folder; runs/NAME if not given")
    overwrite: bool = option(False, "replace the run folder if it is there")
    track: Literal["none", "tensorboard", "wandb"] = option("none", "log to a tracker as well")


FINETUNE = (
    DataSettings,
    NetworkSettings,
    TrainSettings,
    AugmentSettings,
    SpeedSettings,
    ConfidenceSettings,
    RunSettings,
)


def make_parser(prog: str, description: str, groups: Sequence[type]) -> Any:
    """A jsonargparse parser with one group of flags for each dataclass."""
    import jsonargparse

    class ConfigFile(jsonargparse.ActionConfigFile):  # type: ignore[name-defined]
        """Names every wrong key of a file at once."""

        def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
            check_keys(Path(values), groups)
            if yaml.safe_load(Path(values).read_text()) is None:
                return  # nothing but comments
            super().__call__(parser, cfg, values, option_string)

    parser = jsonargparse.ArgumentParser(prog=f"python -m {prog}", description=description)
    parser.add_argument("--config", action=ConfigFile, help="YAML file of settings")
    if len(groups) > 1:
        names = ", ".join(sorted(file.stem for file in PRESETS.glob("*.yaml")))
        # For the help alone: what it stands for is read as a file, and printed as its values.
        parser.add_argument(
            "--preset", type=str, default=argparse.SUPPRESS, help=f"named settings: {names}"
        )
    for group in groups:
        section = parser.add_argument_group(group.__doc__ or "")
        hints = get_type_hints(group)
        for item in dataclasses.fields(group):
            flag = "--" + item.name.replace("_", "-")
            keywords: dict[str, Any] = {"help": item.metadata["help"], "default": item.default}
            if hints[item.name] is bool:
                keywords["action"] = jsonargparse.ActionYesNo(no_prefix="no-")
            else:
                keywords["type"] = hints[item.name]
            section.add_argument(flag, **keywords)
    return parser


def parse(parser: Any, argv: Sequence[str] | None, groups: Sequence[type]) -> list[Any]:
    """The dataclasses, filled. Wrong flags and values end with exit status 2 and a message."""
    namespace = parser.parse_args(_in_order_of_weight(list(sys.argv[1:] if argv is None else argv)))
    return [
        group(**{item.name: getattr(namespace, item.name) for item in dataclasses.fields(group)})
        for group in groups
    ]


def check_keys(file: Path, groups: Sequence[type]) -> None:
    """Raise SecondhandError that names all keys of a YAML file that are no settings."""
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SecondhandError(
            f"--config {file}: cannot be read ({str(error).splitlines()[0]})"
        ) from None
    if content is None:
        return
    if not isinstance(content, dict):
        raise SecondhandError(f"--config {file}: not a list of 'name: value' lines")
    known = [item.name for group in groups for item in dataclasses.fields(group)]
    wrong = [str(key) for key in content if key not in known]
    if wrong:
        named = []
        for key in wrong:
            near = difflib.get_close_matches(key, known, n=1)
            named.append(f"{key!r}" + (f" (meant {near[0]!r}?)" if near else ""))
        raise SecondhandError(f"--config {file}: unknown {', '.join(named)}")


def dump(settings: Sequence[Any]) -> str:
    """The settings as YAML that ``--config`` reads back."""
    content: dict[str, Any] = {}
    for group in settings:
        for key, value in dataclasses.asdict(group).items():
            content[key] = str(value) if isinstance(value, Path) else value
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _in_order_of_weight(argv: list[str]) -> list[str]:
    """The preset first, then files, then flags: jsonargparse lets the later one win."""
    presets: list[str] = []
    files: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--config", "--preset"):
            value = value if equals else next(words, "")
            if name == "--config":
                files += [f"--config={value}"]
            else:
                presets += [f"--config={_preset(value)}"]
        else:
            rest.append(word)
    return [*presets, *files, *rest]


def _preset(name: str) -> Path:
    file = PRESETS / f"{name}.yaml"
    if Path(name).name != name or not file.is_file():
        known = ", ".join(sorted(file.stem for file in PRESETS.glob("*.yaml")))
        raise SecondhandError(f"--preset {name!r} is none of {known}")
    return file
