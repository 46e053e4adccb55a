"""The model folder: safetensors, JSON and a model card. Opening one runs nobody's code.

``config.json``
    format version, network, classes, preprocessing, recipe, confidence, provenance, metrics and
    the SHA-256 of the other files.
``model.safetensors``
    the weights, under the names of :func:`learners.backbones.building.build`; those of an ensemble's
    members under ``members.0.``, ``members.1.``, …
``reference.safetensors``
    what the distance to the training data is measured against.
``classes.csv``
    the tree of a model whose classes have one: label and parent.
``model.onnx``
    the network's arithmetic once more, for ONNX Runtime; a folder may lack it. A prediction that has
    it needs no torch, so torch is imported here where a network is built or written, and not before.
``README.md``
    a model card that the Hugging Face hub understands.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import folder_beside, write_beside
from datasets.images import Preprocessing
from datasets.items import MAX_OVERLAP, label_error
from datasets.spectrogram_kinds import spectrogram_from_dict
from learners.backbones import NetworkSpec
from learners.files import disk_error
from learners.model.tensors import (
    check_file,
    check_head,
    fill,
    no_larger_than,
    once_each,
    read_arrays,
    read_tensors,
    save_weights,
    sha256,
)
from learners.model.tta import PLAIN, TTAView, read_tta_views
from learners.uncertainty import Confidence, read_tree

if TYPE_CHECKING:
    from learners.backbones import Network

log = logging.getLogger(__name__)

_building = RLock()

FORMAT = 1
#: All that a model folder is made of.
FILES = CONFIG, WEIGHTS, REFERENCE, TREE, ONNX, CARD = (
    "config.json",
    "model.safetensors",
    "reference.safetensors",
    "classes.csv",
    "model.onnx",
    "README.md",
)
#: What features follow from, beside the weights.
_FEATURES = ("network", "preprocessing", "spectrogram", "overlap", "tta")
_MAX_JSON = 8 << 20
_MAX_CLASSES = 100_000
_KEYS = {
    "format", "network", "classes", "preprocessing", "spectrogram", "overlap", "tta", "confidence",
    "provenance", "metrics", "hashes",
}  # fmt: skip


@dataclass
class Bundle:
    """A model, whole.

    Attributes
    ----------
    network : ``Sequential(body, head)``, or an ensemble of them, in eval mode, float32. Where
        `load_bundle` left it out it is built when it is first asked for.
    spec : how to build it.
    classes : the label of each logit.
    preprocessing : picture -> input.
    recipe : how a signal is drawn, as JSON; None for pictures.
    overlap : the part of a long recording's window that the next one shares, 0 to 0.95.
    views : how each input is looked at; the answers for them are averaged.
    confidence : temperature, threshold and distance; None before calibration.
    provenance, metrics : what it was trained on and what it reached, as JSON.
    onnx : the folder's ``model.onnx``, whose hash is right; None where there is none.
    """

    network: Network
    spec: NetworkSpec
    classes: list[str]
    preprocessing: Preprocessing
    spectrogram: dict[str, Any] | None = None
    overlap: float = 0.25
    tta_views: tuple[TTAView, ...] = (PLAIN,)
    confidence: Confidence | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    onnx: Path | None = None

    if not TYPE_CHECKING:  # it has no attributes but its fields

        def __getattr__(self, name: str) -> Any:
            if name != "network":
                raise AttributeError(f"a Bundle has no {name}")
            with _building:  # threads of a page may ask at once
                if not self.built:
                    self.network, self.spec = vars(self)["_build"]()
                    del self._build
            return vars(self)["network"]

    @property
    def built(self) -> bool:
        """Whether the network is in memory."""
        return "network" in vars(self)

    @property
    def decider(self) -> Confidence:
        """The confidence, or an uncalibrated one."""
        return self.confidence or Confidence.uncalibrated(len(self.classes))


def save_bundle(bundle: Bundle, folder: str | os.PathLike[str]) -> Path:
    """Write a model folder, whole or not at all; returns it.

    It has no ``model.onnx``; `add_onnx` adds it.
    """
    folder, confidence = Path(folder), bundle.confidence
    arrays = {} if confidence is None else confidence.arrays()
    try:
        with folder_beside(folder, replace=True) as beside:
            save_weights(bundle.network, beside / WEIGHTS)
            save_file({n: np.array(v, order="C") for n, v in arrays.items()}, beside / REFERENCE)
            written = [WEIGHTS, REFERENCE]
            if (tree := bundle.decider.tree) is not None:
                tree.write(beside / TREE)
                written.append(TREE)
            config = {
                "format": FORMAT,
                "network": bundle.spec.to_dict(),
                "classes": bundle.classes,
                "preprocessing": bundle.preprocessing.to_dict(),
                "spectrogram": bundle.spectrogram,
                "overlap": bundle.overlap,
                "tta": [dataclasses.asdict(view) for view in bundle.tta_views],
                "confidence": {} if confidence is None else confidence.to_dict(),
                "provenance": bundle.provenance,
                "metrics": bundle.metrics,
                "hashes": {name: sha256(beside / name) for name in written},
            }
            (beside / CONFIG).write_bytes(_as_bytes(config))
            (beside / CARD).write_text(card(bundle), encoding="utf-8")
    except SafetensorError as error:
        raise disk_error(folder, error) from None
    return folder


def add_onnx(
    bundle: Bundle, folder: str | os.PathLike[str], write: Callable[[Bundle, Path], None]
) -> None:
    """Add ``model.onnx``, written by ``write``, to the model folder of a bundle.

    The folder is valid at every moment: the file counts once ``config.json`` holds its hash. If ``write`` raises
    SecondhandError the folder stays without it and the log says so.
    """
    folder = Path(folder)
    try:
        write(bundle, folder / ONNX)
    except SecondhandError as error:
        log.warning("no %s is written, so predictions use the slower PyTorch: %s", ONNX, error)
        return
    config = _read_config(folder / CONFIG)
    config["hashes"][ONNX] = sha256(folder / ONNX)
    write_beside(folder / CONFIG, _as_bytes(config))


def _as_bytes(config: dict[str, Any]) -> bytes:
    text = json.dumps(config, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def card(bundle: Bundle) -> str:
    """README.md as text, with the metadata block of the Hugging Face hub."""
    classes, provenance = bundle.classes, bundle.provenance
    labels = [f"`{_one_line(name)}`" for name in classes[:50]]
    rest = f" and {len(classes) - 50} more" if len(classes) > 50 else ""
    note = _one_line(str(provenance.get("note") or ""))
    protocol = _one_line(str(provenance.get("protocol") or ""), 1000)
    chosen = _one_line(str(provenance.get("backbone") or ""), 1000)
    data = _one_line(str(provenance.get("data", "")))
    task = "audio" if (bundle.spectrogram or {}).get("kind") == "sound" else "image"
    figures = [
        {"type": key.rpartition("_")[2], "name": key.replace("_", " "), "value": value}
        for key, value in bundle.metrics.items()
        if isinstance(value, float)
    ]
    result_data = {"dataset": {"name": data or "unnamed", "type": "own"}, "metrics": figures}
    result = {"task": {"type": f"{task}-classification"}, **result_data}
    index = [{"name": bundle.spec.backbone, "results": [result]}] if figures else []
    numbers = "\n".join(f"| {figure['name']} | {figure['value']:.4f} |" for figure in figures)
    answers = "Answers one" if bundle.decider.exclusive else "Says which are there"
    return f"""---
library_name: secondhand
pipeline_tag: {task}-classification
tags: [secondhand, transfer-learning, safetensors]
model-index: {json.dumps(index, ensure_ascii=False)}
---

# {bundle.spec.backbone}, fine-tuned

{answers} of {len(classes)} classes, or "unknown": {", ".join(labels)}{rest}.

Trained on: `{data}`{f" ({note})" if note else ""}.
{_lineage(provenance)}Input: {bundle.spec.size} x {bundle.spec.shape[1]} pixels.{
        chosen
        and f'''
Backbone: {chosen}.'''
    }
{f"The figures rest on {protocol}." if protocol else ""}
{_one_line(str(provenance.get("headline", "")))}

| figure | value |
|---|---|
{numbers}

```
secondhand predict FOLDER FILE...
```

The folder holds tensors (safetensors, ONNX) and JSON; opening it runs no code.
"""


def _lineage(provenance: dict[str, Any]) -> str:
    """A sentence on the models of the warm starts, latest first; the values are unchecked."""
    lineage = provenance.get("lineage")
    ancestors = (
        [entry for entry in lineage if isinstance(entry, dict)] if isinstance(lineage, list) else []
    )
    lines = [
        "`{}` (weights SHA-256 `{}`), trained on `{}`".format(
            *(_one_line(str(entry.get(key, ""))) for key in ("model", "weights_sha256", "data"))
        )
        for entry in reversed(ancestors[-20:])
    ]
    return f"Goes on from {'; that one from '.join(lines)}.\n" if lines else ""


def _one_line(text: str, limit: int = 200) -> str:
    """User text for a card: one line without markup."""
    return "".join(c if c.isprintable() and c not in "<>`|[]" else " " for c in text)[:limit]


def load_bundle(folder: str | os.PathLike[str], *, network: bool = True) -> Bundle:
    """Read a model folder, checking every file.

    ``network=False`` delays building the network until it is used, if the folder holds ``model.onnx``; until then
    torch is not imported.

    Raises
    ------
    SecondhandError : not a model folder, a newer format, a damaged or changed file, an unknown backbone, or
        tensors that do not fit the network; names the file.
    """
    folder = Path(folder)
    if not folder.is_dir() or not (folder / CONFIG).exists():
        raise _no_model_in(folder)
    with _told_of(folder / CONFIG):
        return _load(folder, network)


@contextmanager
def _told_of(config: Path) -> Iterator[None]:
    """What is wrong, and is not said of another file, is wrong with this one."""
    try:
        yield
    except BadFile:
        raise
    except SecondhandError as error:
        raise BadFile(config, str(error)) from None


def hash_of_features(folder: str | os.PathLike[str]) -> str:
    """SHA-256 (hex) of everything in a model folder that determines features: weights, preprocessing and views.

    Thresholds and calibration do not count. Raises `SecondhandError` where the folder is no model folder.
    """
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        raise _no_model_in(folder)
    try:
        config = _read_config(folder / CONFIG)
        inputs = {name: config[name] for name in _FEATURES} | {"weights": config["hashes"][WEIGHTS]}
    except (KeyError, TypeError):
        raise BadFile(folder / CONFIG, "names no hash of the weights") from None
    except SecondhandError as error:
        raise BadFile(folder / CONFIG, str(error)) from None
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _no_model_in(folder: Path) -> SecondhandError:
    if (folder / "model" / CONFIG).exists():
        remedy = f"it is a run folder; name the model in it: {folder / 'model'}"
    else:
        remedy = "a run keeps its model in RUN/model"
    return SecondhandError(f"{folder}: not a model folder (no {CONFIG} in it); {remedy}")


def _load(folder: Path, with_network: bool) -> Bundle:
    """The model. Faults of config.json raise SecondhandError, those of other files BadFile."""
    config = _read_config(folder / CONFIG)
    objects = ("hashes", "network", "preprocessing", "confidence", "provenance", "metrics")
    for key in objects:
        if not isinstance(config[key], dict):
            raise SecondhandError(f"{key} is not an object")
    # A file that the hashes do not name is none of the model's; one that is gone is not missed.
    onnx = folder / ONNX if ONNX in config["hashes"] and (folder / ONNX).exists() else None
    tree = folder / TREE if config["confidence"].get("tree") else None
    for name in (WEIGHTS, REFERENCE, *([TREE] if tree else []), *([ONNX] if onnx else [])):
        check_file(folder / name)
        if config["hashes"].get(name) != sha256(folder / name):
            raise BadFile(
                folder / name,
                "its content is not what config.json says: damaged or changed; copy the folder anew",
            )
    classes, spectrogram, overlap = config["classes"], config["spectrogram"], config["overlap"]
    if not (
        isinstance(classes, list)
        and 2 <= len(classes) <= _MAX_CLASSES
        and all(
            isinstance(name, str) and not label_error(name, multi_label=True) for name in classes
        )
        and len(set(classes)) == len(classes)
    ):
        raise SecondhandError("classes are not two or more different names that print")
    spec = _typed(
        NetworkSpec, {"width": None, "multi_label": False, **config["network"]}, "network"
    )
    if spec.n_classes != len(classes):
        raise SecondhandError(f"{len(classes)} classes but {spec.n_classes} outputs")
    preprocessing = _typed(
        Preprocessing, {"width": None, **config["preprocessing"]}, "preprocessing"
    )
    if preprocessing.shape != spec.shape:
        sizes = [
            str(part.size) if part.width is None else "{} x {}".format(*part.shape)
            for part in (preprocessing, spec)
        ]
        raise SecondhandError("preprocessing to {} pixels for a network of {}".format(*sizes))
    if type(overlap) not in (int, float) or not 0 <= overlap <= MAX_OVERLAP:
        raise SecondhandError(f"overlap {overlap!r} is not from 0 to {MAX_OVERLAP}")
    if spectrogram is not None:
        spectrogram_from_dict(spectrogram)
    tta_views = read_tta_views(
        config["tta"], "picture" if spectrogram is None else spectrogram.get("kind")
    )
    network = None
    if with_network or onnx is None:
        network, spec = _network(folder, spec)
    confidence = None
    stored_confidence = config["confidence"]
    if stored_confidence:
        read = None if tree is None else read_tree(tree, classes)
        confidence = Confidence.from_dict(stored_confidence, read_arrays(folder / REFERENCE), read)
        if confidence.classes != len(classes):
            raise SecondhandError(
                f"confidence is for {confidence.classes} classes, the model has {len(classes)}"
            )
    bundle = Bundle(
        network=network,  # type: ignore[arg-type]
        spec=spec,
        classes=classes,
        preprocessing=preprocessing,
        spectrogram=spectrogram,
        overlap=overlap,
        tta_views=tta_views,
        confidence=confidence,
        provenance=config["provenance"],
        metrics=config["metrics"],
        onnx=onnx,
    )
    if network is None:
        del bundle.network
        vars(bundle)["_build"] = partial(_network, folder, spec)
    return bundle


def _network(folder: Path, spec: NetworkSpec) -> tuple[Network, NetworkSpec]:
    """The network in eval mode, and its spec with "auto" resolved."""
    from learners.backbones import build

    with _told_of(folder / CONFIG):
        tensors = read_tensors(folder / WEIGHTS)
        check_head(tensors, spec, folder / WEIGHTS)
        with no_larger_than(tensors):
            network, built, _ = build(spec, pretrained=False)
        fill(network, tensors, folder / WEIGHTS)
    return network.eval(), built


def _read_config(file: Path) -> dict[str, Any]:
    check_file(file)
    if file.stat().st_size > _MAX_JSON:
        raise SecondhandError(f"larger than {_MAX_JSON >> 20} MiB")
    try:
        config = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=once_each)
    except (ValueError, RecursionError, OSError) as error:
        raise SecondhandError(f"not JSON ({str(error)[:80]})") from None
    version = config.get("format") if isinstance(config, dict) else None
    if type(version) is not int or version < 1:
        raise SecondhandError("has no format version: not a model folder of this program")
    if version > FORMAT:
        raise SecondhandError(
            f"format {version} is newer than this program reads ({FORMAT}): update secondhand"
        )
    if wrong := sorted(_KEYS ^ set(config)):
        raise SecondhandError(f"unknown or missing {', '.join(wrong)[:200]}: damaged or changed")
    return dict(config)


def _typed(cls: type, values: dict[str, Any], key: str) -> Any:
    wrong = sorted(set(values) ^ {item.name for item in dataclasses.fields(cls)})
    if wrong:
        raise SecondhandError(f"{key}: unknown or missing {', '.join(wrong)}")
    try:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except SecondhandError:
        raise
    except (TypeError, ValueError) as error:
        raise SecondhandError(f"{key}: {error}") from None
