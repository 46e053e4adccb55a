"""The model folder: safetensors, JSON and a model card. Opening one runs no code from it.

``config.json``
    format version, network, classes, preprocessing, spectrogram settings, confidence, provenance, metrics and the
    SHA-256 of the other files.
``model.safetensors``
    the weights, under the names of :func:`learners.backbones.building.build`; those of the members of an ensemble
    under ``members.0.``, ``members.1.``, …
``reference.safetensors``
    features of training items, to which distances are measured.
``classes.csv``
    the groups above the classes, if the model has any: label and parent.
``model.onnx``
    the network for ONNX Runtime; optional. A prediction with it needs no torch, so this module imports torch only
    when a network is built or written.
``README.md``
    a model card that the Hugging Face hub understands.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.numpy import save_file

from datasets.core.checked import read_as
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import folder_beside, write_beside
from datasets.core.json_files import parse_json
from datasets.core.shipped import needed_for_body
from datasets.images.opening import Preprocessing
from datasets.items.labels import label_error
from datasets.items.settings import MAX_OVERLAP
from datasets.kinds.base import Kind, empty_lookup, kind_of_input, spectrogram_from_dict
from datasets.kinds.views import PLAIN, TTAView
from learners.backbones.spec import CREDITS, NetworkSpec
from learners.cli.result import denominator
from learners.files.lock import disk_error
from learners.files.names import data_name
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
from learners.model.tta import MAX_TTA_VIEWS, check_tta_views
from learners.rule.base import AnyRule, read_rule
from learners.rule.fitting import uncalibrated
from learners.rule.tree_rule import FILE as TREE

if TYPE_CHECKING:
    from datasets.kinds.lookup import Lookup
    from learners.backbones.building import Network

log = logging.getLogger(__name__)

_building = RLock()

FORMAT = 1
CONFIG, WEIGHTS, REFERENCE = "config.json", "model.safetensors", "reference.safetensors"
ONNX, CARD = "model.onnx", "README.md"
#: Files that only some rules write (`AnyRule.write`).
OF_RULES = (TREE,)
#: All files of a model folder.
FILES = (CONFIG, WEIGHTS, REFERENCE, *OF_RULES, ONNX, CARD)
#: Keys of config.json that determine the features, in addition to the weights.
_FEATURES = ("network", "preprocessing", "spectrogram", "overlap", "tta")
_MAX_JSON = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Config:
    """What ``config.json`` holds: a `Bundle` without its tensors. Embeddings have no preprocessing, and a model before
    its calibration has no confidence.
    """

    format: int
    network: NetworkSpec
    classes: Annotated[list[str], Meta(min_length=2, max_length=100_000)]
    preprocessing: dict[str, Any]
    spectrogram: dict[str, Any] | None
    overlap: Annotated[float, Meta(ge=0, le=MAX_OVERLAP)]
    tta: Annotated[list[TTAView], Meta(min_length=1, max_length=MAX_TTA_VIEWS)]
    confidence: dict[str, Any]
    provenance: dict[str, Any]
    metrics: dict[str, Any]
    hashes: dict[str, str]


@dataclass
class Bundle:
    """A model with all that its predictions need.

    Attributes
    ----------
    built : the `network`; None if `load_bundle` left it to its first use.
    spec : specification of the network.
    classes : label of each logit.
    preprocessing : conversion of a picture to the network's input; unused for embeddings.
    spectrogram : spectrogram settings as JSON; None for pictures and embeddings.
    overlap : fraction of a window of a long recording that the next window shares, 0 to 0.95.
    tta_views : views of each input over which predictions are averaged.
    rule : when it answers; by default that of a model before calibration.
    provenance, metrics : data and history of the training, and its results, as JSON.
    onnx : ``model.onnx`` of the folder, with a verified hash; None without it.
    folder : the model folder; None without one.
    """

    built: Network | None
    spec: NetworkSpec
    classes: list[str]
    preprocessing: Preprocessing
    spectrogram: dict[str, Any] | None = None
    overlap: float = 0.25
    tta_views: tuple[TTAView, ...] = (PLAIN,)
    rule: AnyRule = field(default=None)  # type: ignore[assignment]  # `__post_init__` sets it
    provenance: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    onnx: Path | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not self.rule:
            self.rule = uncalibrated(len(self.classes), multi_label=self.spec.multi_label)

    @property
    def network(self) -> Network:
        """``Sequential(body, head)``, or an ensemble of them, in eval mode, float32; built at first use."""
        with _building:  # several threads of the page may need the network at once
            if self.built is None:
                assert self.folder is not None
                self.built, self.spec = _network(self.folder, self.spec)
            return self.built

    @property
    def kind(self) -> Kind:
        """The kind of the inputs."""
        return kind_of_input(self.spectrogram, looked_up=bool(self.spec.embeddings_of))

    def lookup(self) -> Lookup | None:
        """An empty lookup for its items: of a model whose inputs are looked up, one that takes only what it was trained on."""
        spec = self.spec
        own = self.kind.lookup(spec.embeddings_of, spec.size, "the model was trained on")
        return empty_lookup() if own is None else own


def save_bundle(bundle: Bundle, folder: str | os.PathLike[str]) -> Path:
    """Write a model folder atomically; return its path. `add_onnx` adds ``model.onnx``."""
    folder, rule = Path(folder), bundle.rule
    arrays = rule.arrays()
    try:
        with folder_beside(folder, replace=True) as beside:
            save_weights(bundle.network, beside / WEIGHTS)
            spec = bundle.spec
            save_file({n: np.array(v, order="C") for n, v in arrays.items()}, beside / REFERENCE)
            written = [WEIGHTS, REFERENCE, *rule.write(beside)]
            config = {
                "format": FORMAT,
                "network": spec.to_dict(),
                "classes": bundle.classes,
                "preprocessing": bundle.preprocessing.to_dict() if spec.takes_pixels else {},
                "spectrogram": bundle.spectrogram,
                "overlap": bundle.overlap,
                "tta": [dataclasses.asdict(view) for view in bundle.tta_views],
                "confidence": rule.to_json(),
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

    The folder is always valid: the file is used once ``config.json`` has its hash. If ``write`` raises
    SecondhandError, the folder stays without the file, with a warning in the log.
    """
    try:
        put_onnx(bundle, Path(folder), write)
    except SecondhandError as error:
        log.warning("%s was not written, so predictions use the slower PyTorch: %s", ONNX, error)


def put_onnx(bundle: Bundle, folder: Path, write: Callable[[Bundle, Path], None]) -> None:
    """`add_onnx`, which raises the SecondhandError of ``write``."""
    write(bundle, folder / ONNX)
    config = _read_config(folder / CONFIG)
    config["hashes"][ONNX] = sha256(folder / ONNX)
    write_beside(folder / CONFIG, _as_bytes(config))


def save_with_rule(
    bundle: Bundle,
    model: Path,
    folder: Path,
    rule: AnyRule,
    *,
    metrics: dict[str, Any],
    **provenance: Any,
) -> None:
    """Write the network of a bundle as a model folder of its own, with another rule.

    Parameters
    ----------
    model : the bundle's model folder, which becomes the last of the copy's lineage.
    metrics : figures of the copy. provenance : entries that replace those of the bundle.
    """
    earlier = bundle.provenance.get("lineage")
    lineage = [*(earlier if isinstance(earlier, list) else []), as_ancestor(bundle, model)]
    made = bundle.provenance | {"lineage": lineage} | provenance
    copy = dataclasses.replace(bundle, rule=rule, provenance=made, metrics=metrics, onnx=None)
    save_bundle(copy, folder)
    if bundle.onnx is not None:
        add_onnx(copy, folder, partial(_copy_onnx, bundle.onnx))


def _copy_onnx(onnx: Path, _: Bundle, file: Path) -> None:
    shutil.copyfile(onnx, file)


def _as_bytes(config: dict[str, Any]) -> bytes:
    text = json.dumps(config, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def card(bundle: Bundle) -> str:
    """README.md as text, with the metadata block of the Hugging Face hub."""
    classes, provenance = bundle.classes, bundle.provenance
    labels = [f"`{_one_line(name)}`" for name in classes[:50]]
    rest = f" and {len(classes) - 50} more" if len(classes) > 50 else ""
    note = plain_text(str(provenance.get("note") or ""))
    protocol = plain_text(str(provenance.get("protocol") or ""), 1000)
    chosen = plain_text(str(provenance.get("backbone") or ""), 1000)
    credit = CREDITS.get(bundle.spec.backbone, "")
    data = _one_line(str(provenance.get("data", "")))
    task, takes = (
        bundle.kind.media or "image",
        f"{bundle.spec.size} x {bundle.spec.shape[1]} pixels",
    )
    if not bundle.spec.takes_pixels:
        task = "tabular"
        takes = f"embeddings of width {bundle.spec.size} of {plain_text(bundle.spec.embeddings_of)}"
    shown = {key: value for key, value in bundle.metrics.items() if isinstance(value, float)}
    figures = [
        {
            "type": _one_line(key.rpartition("_")[2]),
            "name": plain_text(re.sub("^valid_", "validation_", key).replace("_", " ")),
            "value": value,
        }
        for key, value in shown.items()
    ]
    result_data = {"dataset": {"name": data or "unnamed", "type": "own"}, "metrics": figures}
    result = {"task": {"type": f"{task}-classification"}, **result_data}
    backbone = plain_text(bundle.spec.backbone)
    index = [{"name": backbone, "results": [result]}] if figures else []
    shares_of = [denominator(bundle.metrics, key) for key in shown]
    numbers = "\n".join(
        f"| {figure['name']} | {figure['value']:.4f} | {of} |"
        for figure, of in zip(figures, shares_of, strict=True)
    )
    task_text = "Predicts one" if bundle.rule.exclusive else "Predicts any number"
    return f"""---
library_name: secondhand
pipeline_tag: {task}-classification
tags: [secondhand, transfer-learning, safetensors]
model-index: {json.dumps(index, ensure_ascii=False)}
---

# {f"{plain_text(data_name(data))}: " if data else ""}{backbone}, fine-tuned

{task_text} of {len(classes)} classes, or "unknown": {", ".join(labels)}{rest}.

Trained on: `{data}`{f" ({note})" if note else ""}.
{_lineage(provenance)}Input: {takes}.{
        chosen
        and f'''
Backbone: {chosen}.'''
    }{
        credit
        and f'''
Started from: {credit}.'''
    }
{f"The figures rest on {protocol}." if protocol else ""}
{plain_text(str(provenance.get("headline", "")))}

| metric | value | of |
|---|---|---|
{numbers}

```
secondhand predict FOLDER FILE...
```

The folder holds tensors (safetensors, ONNX) and JSON; opening it runs no code.
"""


def as_ancestor(bundle: Bundle, folder: Path) -> dict[str, Any]:
    """Entry of the lineage for a model that another one starts from; ``folder`` is its model folder."""
    path = folder.resolve()
    return {
        "model": path.parent.name if path.name == "model" else path.name,
        "weights_sha256": sha256(folder / WEIGHTS),
        "data": str(bundle.provenance.get("data", "")),
        "items": bundle.provenance.get("items", 0),
        "trained": str(bundle.provenance.get("trained", "")),
    }


def _lineage(provenance: dict[str, Any]) -> str:
    """A sentence on the models of the warm starts, latest first; the values are unchecked."""
    lineage = provenance.get("lineage")
    entries = lineage if isinstance(lineage, list) else []
    ancestors = [entry for entry in entries if isinstance(entry, dict)]
    lines = [
        "`{}` (weights SHA-256 `{}`), trained on `{}`".format(
            *(_one_line(str(entry.get(key, ""))) for key in ("model", "weights_sha256", "data"))
        )
        for entry in reversed(ancestors[-20:])
    ]
    return f"Trained from {', which was trained from '.join(lines)}.\n" if lines else ""


def plain_text(text: str, limit: int = 200) -> str:
    """User text for a card outside of backticks, where an address would become a link and a # a heading."""
    line = _one_line(text, limit).lstrip(" #*+-=~_")
    return re.sub(r"(?<=\w)(?=:/)|(?<=www)(?=\.)|(?=@)", r"\\", line)


def _one_line(text: str, limit: int = 200) -> str:
    """User text for a card: one line without markup."""
    return "".join(c if c.isprintable() and c not in "<>`|[]" else " " for c in text)[:limit]


def load_bundle(folder: str | os.PathLike[str], *, network: bool = True) -> Bundle:
    """Read a model folder, checking every file.

    ``network=False`` delays building the network until it is used, if the folder holds ``model.onnx``; until then
    torch is not imported.

    Raises
    ------
    SecondhandError : not a model folder, a newer format, a damaged or changed file, an unknown backbone, or tensors
        that do not fit the network. The message names the file.
    """
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        raise _no_model_in(folder)
    with _naming_config(folder / CONFIG):
        return _load(folder, network)


@contextmanager
def _naming_config(config: Path) -> Iterator[None]:
    """Make errors that name no file name config.json."""
    try:
        yield
    except BadFile:
        raise
    except SecondhandError as error:
        raise BadFile(config, str(error)) from None


def hash_of_features(folder: str | os.PathLike[str]) -> str:
    """SHA-256 (hex) of everything in a model folder that determines features: weights, preprocessing and views.

    Thresholds and calibration do not count. Raises `SecondhandError` if the folder is not a model folder.
    """
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        raise _no_model_in(folder)
    with _naming_config(folder / CONFIG):
        config = _read_config(folder / CONFIG)
        hashes = read_as(Config, config, "").hashes
    inputs = {name: config[name] for name in _FEATURES} | {"weights": hashes.get(WEIGHTS)}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def newest_models(root: Path = Path("runs")) -> list[Path]:
    """The model folders of the runs in a folder, the one that was written last first."""
    files = sorted(root.glob("*/model/config.json"), key=lambda file: file.stat().st_mtime)
    return [file.parent for file in reversed(files)]


def _no_model_in(folder: Path) -> SecondhandError:
    remedy = "Give a model folder, such as runs/NAME/model"
    if not folder.exists():
        if newest := ", ".join(map(str, newest_models()[:3])):
            remedy = f"The newest models here: {newest}"
        return SecondhandError(f"{folder} is not a model folder: there is no such folder. {remedy}")
    if (folder / "model" / CONFIG).exists():
        remedy = f"It is a run folder. Give the model in it: {folder / 'model'}"
    return SecondhandError(f"{folder} is not a model folder (it has no {CONFIG}). {remedy}")


def _load(folder: Path, with_network: bool) -> Bundle:
    """The model. Errors in config.json raise SecondhandError, those in other files BadFile."""
    config = read_as(Config, _read_config(folder / CONFIG), "")
    # Without a hash in config.json the file is ignored; with one it may still be absent.
    onnx = folder / ONNX if ONNX in config.hashes and (folder / ONNX).exists() else None
    of_rule = {name: folder / name for name in OF_RULES if name in config.hashes}
    for name in (WEIGHTS, REFERENCE, *of_rule, *([ONNX] if onnx else [])):
        check_file(folder / name)
        if config.hashes.get(name) != sha256(folder / name):
            raise BadFile(
                folder / name,
                "its content does not match its hash in config.json: damaged or changed. Copy the folder again",
            )
    spec, classes, spectrogram = config.network, config.classes, config.spectrogram
    if any(label_error(name, multi_label=True) for name in classes) or len({*classes}) < len(
        classes
    ):
        raise SecondhandError("classes: expected different printable names")
    if missing := needed_for_body(spec.backbone):
        raise SecondhandError(f"network: {spec.backbone}. {missing}")
    if spec.n_classes != len(classes):
        raise SecondhandError(
            f"{len(classes)} classes, but the network has {spec.n_classes} outputs"
        )
    preprocessing = Preprocessing()
    if spec.embeddings_of and (config.preprocessing or spectrogram is not None):
        raise SecondhandError("preprocessing and spectrogram: embeddings have none")
    if not spec.embeddings_of:
        preprocessing = read_as(Preprocessing, config.preprocessing, "preprocessing")
        if preprocessing.shape != spec.shape:
            sizes = [
                str(part.size) if part.width is None else "{} x {}".format(*part.shape)
                for part in (preprocessing, spec)
            ]
            raise SecondhandError(
                "preprocessing to {} pixels, but the network takes {}".format(*sizes)
            )
    if spectrogram is not None:
        spectrogram_from_dict(spectrogram)
    check_tta_views(config.tta, kind_of_input(spectrogram, looked_up=bool(spec.embeddings_of)))
    built = None
    if with_network or onnx is None:
        built, spec = _network(folder, spec)
    rule = read_rule(config.confidence, read_arrays(folder / REFERENCE), of_rule, classes)
    if rule.classes != len(classes):
        raise SecondhandError(
            f"confidence has {rule.classes} classes, but the model has {len(classes)}"
        )
    return Bundle(
        built=built,
        spec=spec,
        classes=classes,
        preprocessing=preprocessing,
        spectrogram=spectrogram,
        overlap=config.overlap,
        tta_views=tuple(config.tta),
        rule=rule,
        provenance=config.provenance,
        metrics=config.metrics,
        onnx=onnx,
        folder=folder,
    )


def _network(folder: Path, spec: NetworkSpec) -> tuple[Network, NetworkSpec]:
    """The network in eval mode, and its spec with "auto" resolved."""
    from learners.backbones.building import build

    with _naming_config(folder / CONFIG):
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
        config = parse_json(file.read_text(encoding="utf-8"), object_pairs_hook=once_each)
    except (ValueError, RecursionError, OSError) as error:
        raise SecondhandError(f"not JSON ({str(error)[:80]})") from None
    version = config.get("format") if isinstance(config, dict) else None
    if type(version) is not int or version < 1:
        raise SecondhandError("has no format version, so it is not a model folder of Secondhand")
    if version > FORMAT:
        raise SecondhandError(
            f"has format {version}, but this version of Secondhand reads formats up to {FORMAT}. Update secondhand"
        )
    return dict(config)


def model_digest(folder: str) -> str:
    """SHA-256 (hex) of the config.json of a model folder, which contains the hashes of the other files."""
    try:
        return hashlib.sha256(Path(folder, CONFIG).read_bytes()).hexdigest()
    except OSError as error:
        raise SecondhandError(f"{folder} is not a model folder ({error})") from None
