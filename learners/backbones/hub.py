"""Reads the configuration of published weights in timm's layout, and explains errors with weights.

``hf-hub:USER/NAME[@REVISION]`` is a folder on the Hugging Face hub, ``local-dir:PATH`` a local one. Its
``config.json`` names an architecture of timm; no code in it is run.

A network trained on sound may give its spectrogram settings beside ``architecture``:

    "mel": {"rate": 32000, "n_fft": 1024, "hop": 320, "n_mels": 128, "fmin": 50, "fmax": 14000,
            "log": "ln"}

The first six are those of `datasets.audio.settings.MelSettings`, as are the optional ``level``, ``range_db`` and
``window`` (without ``window``, one frame per pixel of the width). ``log``, "ln" or "dB", says that the
network's ``mean`` and ``std`` refer to the logarithm of mel power, for samples from -1 to 1, rather than to
pixels from 0 to 1. ``scale`` is "slaney" (librosa's filters) or "kaldi". With ``axes`` "time-frequency" the
input has time downwards and low frequencies on the left; the default is time to the right and low
frequencies at the bottom. Inputs need not be square. Networks in AudioMAE's layout need none of this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError, first_line, quoted
from learners.backbones.names import SOUND, SOUND_MEL, SPEECH, SPEECH_MEL
from learners.backbones.upstream import hub_offline

SOURCES = ("hf-hub:", "local-dir:")
#: Required and optional keys of ``mel``.
MEL = ("rate", "n_fft", "hop", "n_mels", "fmin", "fmax")
MEL_TOO = ("scale", "level", "range_db", "window", "log")
#: Lowest level of the spectrogram: this many standard deviations below the mean.
DEPTH = 4.0
#: Options of an architecture that a name or config.json may change, and their values.
OPTIONS: dict[str, tuple[object, ...]] = {
    "global_pool": ("avg", "token", "max", "avgmax"),
    "class_token": (True, False),
    "axes": ("time-frequency",),  # of a spectrogram, downwards and to the right
}
#: Options that the settings here determine.
_OURS = {"num_classes", "img_size", "in_chans"}


def parse_options(name: str) -> tuple[str, dict[str, Any]]:
    """Split ``ARCH?global_pool=avg`` into architecture and options.

    Raises
    ------
    SecondhandError : an option or its value is not in `OPTIONS`.
    """
    architecture, _, query = name.partition("?")
    options = {key: {"True": True, "False": False}.get(v, v) for key, v in parse_qsl(query)}
    for key, value in options.items():
        if value not in OPTIONS.get(key, ()):
            raise SecondhandError(
                f"backbone {quoted(name)}: {quoted(key)} is not to be {quoted(value)}; known: {OPTIONS}"
            )
    return architecture, options


@dataclass(frozen=True)
class Published:
    """Content of a ``config.json``.

    Attributes
    ----------
    architecture : architecture of timm.
    options : options of the architecture, see `OPTIONS`.
    data : input_size, mean, std, interpolation and crop_pct, as in timm.
    fixed : the network has a fixed input size.
    mel : spectrogram settings of the training, as arguments of `MelSettings`; empty for pictures.
    """

    architecture: str
    options: dict[str, Any]
    data: dict[str, Any]
    fixed: bool
    mel: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the input pictures in pixels, as rendered here."""
        _, height, width = self.data["input_size"]
        return (width, height) if "axes" in self.options else (height, width)

    def named(self, options: dict[str, Any]) -> str:
        """Name that builds the network with these options, without weights."""
        return self.architecture + (f"?{urlencode(options)}" if options else "")


def published(name: str) -> Published:
    """Read the ``config.json`` of ``hf-hub:USER/NAME`` or ``local-dir:PATH``.

    Raises
    ------
    SecondhandError : it cannot be read, or describes a network that is not supported.
    """
    source, _, where = name.partition(":")
    file = Path(where) / "config.json"
    if source == "local-dir" and not file.is_file():
        raise SecondhandError(f"--backbone {name}: there is no config.json in {where}")
    with weights_errors(name, None):
        if source == "hf-hub":
            from huggingface_hub import hf_hub_download

            repository, _, revision = where.partition("@")
            with offline_if_unreachable():
                file = Path(hf_hub_download(repository, "config.json", revision=revision or None))
        try:
            return _read_config(json.loads(file.read_text(encoding="utf-8")))
        except SecondhandError as error:
            raise SecondhandError(f"--backbone {name}: {error}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise SecondhandError(
                f"--backbone {name}: no config.json in timm's layout ({str(error)[:100]})"
            ) from None


def read_mel(name: str) -> dict[str, Any]:
    """Spectrogram settings that a backbone was trained with, as arguments of `MelSettings`; empty if none."""
    if name in (SPEECH, SOUND):
        return dict(SPEECH_MEL if name == SPEECH else SOUND_MEL)
    return published(name).mel if name.startswith(SOURCES) else {}


def _read_config(content: dict[str, Any]) -> Published:
    import timm
    from timm.data.config import resolve_data_config

    config = content.get("pretrained_cfg", content)
    architecture, arguments = content["architecture"], content.get("model_args", {})
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise SecondhandError(f"timm has no architecture {quoted(architecture)}")
    arguments_saved = {"global_pool": config.get("global_pool"), **arguments}
    options = {key: arguments_saved[key] for key in OPTIONS if arguments_saved.get(key) is not None}
    unsupported = [key for key in arguments if key not in {*OPTIONS, *_OURS} - {"axes"}]
    unsupported += [key for key, value in options.items() if value not in OPTIONS[key]]
    if unsupported:
        unsupported_json = json.dumps({key: arguments_saved[key] for key in unsupported})
        raise SecondhandError(
            f"it is a {architecture} with {unsupported_json[:160]}, which is not built here"
        )
    channels, *sides = (int(n) for n in config.get("input_size", (3, 224, 224)))
    channels = int(arguments.get("in_chans", channels))
    if channels not in (1, 3):
        raise SecondhandError(f"it was trained on {channels} channels; 1 or 3 are given here")
    size = arguments.get("img_size")
    if size is not None:
        sides = [size, size] if isinstance(size, int) else [int(side) for side in size]
    height, width = sides
    fixed = size is not None or bool(config.get("fixed_input_size"))
    data = {
        **resolve_data_config({}, pretrained_cfg=config),
        **{key: config[key] for key in ("mean", "std") if key in config},
        "input_size": (channels, height, width),
    }
    mel = dict(content.get("mel", {})) or _as_audiomae(data)
    if height != width and not mel:
        raise SecondhandError(
            f"it was trained on inputs of {height} x {width}, and does not say of which sound; "
            "pictures are square here"
        )
    if (axes := mel.pop("axes", "frequency-time")) != "frequency-time":
        options["axes"] = axes
    network = Published(architecture, options, data, fixed)
    return _with_mel(network, mel) if mel else network


def _as_audiomae(data: dict[str, Any]) -> dict[str, Any]:
    """Spectrogram settings of networks in AudioMAE's layout (arXiv:2207.06405); empty for others.

    They take 1024 frames of 128 Kaldi mel bands at 16 kHz, normalised by mean and twice the standard
    deviation over AudioSet.
    """
    mean, std = data["mean"], data["std"]
    if data["input_size"] != (1, 1024, 128) or len(mean) != 1 or abs(mean[0] + 4.2677393) > 1e-3:
        return {}
    if abs(std[0] - 4.5689974) < 1e-3:
        data["std"] = (2 * std[0],)
    return {
        "rate": 16_000, "n_fft": 400, "hop": 160, "n_mels": 128, "fmin": 20, "fmax": 8000,
        "scale": "kaldi", "log": "ln", "axes": "time-frequency",
    }  # fmt: skip


def _with_mel(network: Published, mel: dict[str, Any]) -> Published:
    """Add spectrogram settings to a network of sound, and convert mean and std to those of the pictures."""
    data, (height, width) = network.data, network.shape
    log, axes = mel.get("log"), network.options.get("axes")
    problems = [*(mel.keys() - {*MEL, *MEL_TOO}), *(f"no {key}" for key in MEL if key not in mel)]
    problems += [f"log {quoted(log)}"] if log not in (None, "ln", "dB") else []
    problems += [f"axes {quoted(axes)}"] if axes not in (None, *OPTIONS["axes"]) else []
    problems += (
        ["level or range_db beside log"] if log and {"level", "range_db"} & mel.keys() else []
    )
    if problems:
        raise SecondhandError(
            f"its spectrogram settings (mel in config.json) cannot be rendered: {', '.join(sorted(problems))}"
        )
    samples = (width - 1) * mel["hop"] + (mel["n_fft"] if mel.get("scale") == "kaldi" else 0)
    spectrogram = {key: mel[key] for key in (*MEL, *MEL_TOO) if key in mel and key != "log"}
    spectrogram = {"window": samples / mel["rate"], "size": (height, width), **spectrogram}
    try:
        if log is None:
            MelSettings(**spectrogram)
            return replace(network, mel=spectrogram)
        in_db = 10 / math.log(10) if log == "ln" else 1.0
        mean, std = (in_db * sum(data[key]) / len(data[key]) for key in ("mean", "std"))
        fixed = MelSettings(**spectrogram, level="fixed")
        white, black = fixed.full_scale, max(mean - DEPTH * std, fixed.floor)
        spectrogram |= {"level": "fixed", "range_db": float(math.ceil(white - black))}
        range_db = MelSettings(**spectrogram).range_db
    except SecondhandError as error:
        raise SecondhandError(f"its spectrogram settings (mel in config.json): {error}") from None
    levels = {"mean": ((mean - white) / range_db + 1,), "std": (std / range_db,)}
    return replace(network, mel=spectrogram, data=data | levels)


# --- what can go wrong with weights, said clearly and soon ----------------------------------------


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Use the hub's offline mode where it does not answer within 5 seconds, instead of retrying for 30."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=5)
        mode: AbstractContextManager[None] = nullcontext()
    except Exception:  # depends on the HTTP library of the client
        mode = hub_offline()
    with mode:
        yield


@contextmanager
def weights_errors(backbone: str, weights: str | Path | None) -> Iterator[None]:
    """Turn errors of loading weights into a SecondhandError: wrong file, or hub not reachable."""
    try:
        yield
    except (SecondhandError, TypeError, AssertionError):
        raise
    except Exception as error:
        first = first_line(error, 110)
        if weights is not None:
            raise SecondhandError(
                f"--weights {weights}: not the weights of {backbone} ({first}); name the backbone "
                "that they were saved from; with a model folder of this program go on by --from"
            ) from None
        copy = "--weights FILE with a copy of them"
        if backbone.startswith(SOURCES):
            copy = "local-dir:FOLDER with a copy of its config.json and weights"
        what = "loaded" if backbone.startswith("local-dir:") else "downloaded"
        raise SecondhandError(
            f"the weights of {backbone} could not be {what} ({type(error).__name__}: {first}); "
            f"without a network use --backbone embedded, or {copy}"
        ) from None
