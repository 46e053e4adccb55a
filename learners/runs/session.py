"""fastai learners on any backbone for a session of one's own in Python, and the model folder of one.

``vision_learner`` and ``learner`` give a fastai ``Learner`` that a fastai user goes on with: ``lr_find``, ``fine_tune``,
``fit_one_cycle``, ``show_results``, ``ClassificationInterpretation``, callbacks, losses and metrics of one's own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastai.callback import schedule  # noqa: F401  (adds fine_tune and lr_find to Learner)
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.data.transforms import Normalize
from fastai.learner import Learner
from torch import Tensor, nn

from datasets.core.errors import SecondhandError
from datasets.images.opening import RESIZE, Preprocessing, open_picture
from learners.backbones.building import (
    build,
    is_convolutional,
    logits_and_features,
    parameter_groups,
)
from learners.backbones.spec import NetworkSpec
from learners.evaluation.held_out import REFERENCE_ITEMS
from learners.machine.hardware import keep_float32, software_and_hardware
from learners.model.bundle import Bundle, save_bundle
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.settings import ConfidenceSettings
from learners.training.learner import through_vision_learner

#: Pictures of the validation set by which the preprocessing is found; and how far off they may be in the mean, in
#: grey values. JPEGs that are scaled down while they are decoded differ by 1 or 2.
_COMPARED, _MOST_OFF = 16, 6.0


def vision_learner(
    dls: DataLoaders,
    backbone: str = "embedded",
    *,
    weights: str = "published",
    head: str = "fastai",
    dropout: float = 0.5,
    **options: Any,
) -> Learner:
    """fastai's ``vision_learner`` around a convolutional backbone, frozen if it is pretrained.

    Parameters
    ----------
    dls : of pictures, from ``ImageDataLoaders`` or a ``DataBlock``, one class a picture. If its batches are not
        normalised, they will be, as the weights of the backbone expect it.
    backbone : as ``--backbone`` of ``finetune``, such as "resnet18", "convnext_tiny", "torchvision/resnet18" or
        "scratch/resnet18".
    weights : "published", "none" (random), or a file with a state dict.
    head : "fastai" (concat pooling, two linear layers), "linear", "stages" or "cosine".
    dropout : before the last layer.
    options : of fastai's ``Learner``: ``metrics``, ``loss_func``, ``opt_func``, ``cbs``, ``path``, ``wd``, …

    Raises
    ------
    SecondhandError : there is no such backbone, it cannot be downloaded, or it gives no maps, as a ViT.
    """
    network, spec, preprocessing = _build(dls, backbone, weights, head, dropout)
    if not is_convolutional(network):
        raise SecondhandError(f"{backbone} gives no feature maps: use learner(dls, {backbone!r})")
    learn = through_vision_learner(dls, network, preprocessing, weights != "none", options)
    return _with_spec(learn, spec)


def learner(
    dls: DataLoaders,
    backbone: str,
    *,
    weights: str = "published",
    head: str = "linear",
    dropout: float = 0.2,
    **options: Any,
) -> Learner:
    """fastai's ``Learner`` around any backbone, such as a ViT, with its parameter groups, frozen if it is pretrained.

    The parameters are those of `vision_learner`.
    """
    network, spec, _ = _build(dls, backbone, weights, head, dropout)
    learn = Learner(dls, network, **{"splitter": parameter_groups, **options})
    if weights != "none":
        learn.freeze()
    return _with_spec(learn, spec)


def save_learner(
    learn: Learner,
    folder: str | os.PathLike[str],
    confidence: ConfidenceSettings | None = None,
) -> Path:
    """Write a learner of `vision_learner` or `learner` as a model folder, which every command and the page open.

    Temperature, threshold and distance are fitted to its validation items, so its figures there are no longer those of
    unseen files. The pictures are opened as its validation items are: which preprocessing that is, is found by comparing
    pixels.

    Parameters
    ----------
    folder : replaced if it is a model folder.
    confidence : when the model refuses to answer.

    Returns
    -------
    The folder.

    Raises
    ------
    SecondhandError : the learner is of another origin, its items have several labels or are no files, or transforms
        of its validation items are none that a model folder has.
    """
    spec = getattr(learn, "network_spec", None)
    if not isinstance(spec, NetworkSpec):
        raise SecondhandError(
            "this learner is not one of vision_learner or learner of this program"
        )
    dls, classes = learn.dls, [str(name) for name in learn.dls.vocab]
    network = deepcopy(learn.model).eval()
    keep_float32(str(dls.device))
    paths = [_path_of(dls.valid_ds, item) for item in dls.valid_ds.items]
    preprocessing = _preprocessing(dls, paths)
    taught = list(dls.train_ds.items)
    if len(taught) > REFERENCE_ITEMS:
        chosen = np.random.default_rng(0).choice(len(taught), REFERENCE_ITEMS, replace=False)
        taught = [taught[number] for number in chosen]
    reference = _outputs(network, dls.test_dl(taught, with_labels=True))
    calibration = _outputs(network, dls.test_dl(list(dls.valid_ds.items), with_labels=True))
    rule = fit_rule(calibration, reference, confidence, paths=[str(path) for path in paths])
    notes = {
        "note": "calibrated on its validation items",
        "items": len(dls.train_ds) + len(dls.valid_ds),
        "trained": datetime.now(UTC).isoformat(timespec="seconds"),
        **software_and_hardware(),
    }
    return save_bundle(
        Bundle(
            built=network.cpu().float(),
            spec=spec,
            classes=classes,
            preprocessing=preprocessing,
            rule=rule,
            provenance=notes,
        ),
        folder,
    )


def _build(
    dls: DataLoaders, backbone: str, weights: str, head: str, dropout: float
) -> tuple[nn.Sequential, NetworkSpec, Preprocessing]:
    x, y = (part.as_subclass(Tensor) for part in dls.valid.one_batch()[:2])
    if x.ndim != 4 or x.shape[1] != 3 or x.shape[2] != x.shape[3]:
        raise SecondhandError(
            f"batches have the shape {list(x.shape)} instead of [batch, 3, size, size]: give Resize(size)"
        )
    if y.ndim != 1 or y.is_floating_point():
        raise SecondhandError("items have several labels, or numbers: here each has one class")
    spec = NetworkSpec(backbone, len(dls.vocab), size=x.shape[2], head=head, dropout=dropout)
    file = None if weights in ("published", "none") else weights
    network, spec, preprocessing = build(spec, pretrained=weights != "none", weights=file)
    assert isinstance(network, nn.Sequential)
    if _normalize(dls) is None:
        stats = preprocessing.mean, preprocessing.std
        dls.add_tfms([Normalize.from_stats(*stats, cuda=dls.device.type == "cuda")], "after_batch")
    return network, spec, preprocessing


def _with_spec(learn: Learner, spec: NetworkSpec) -> Learner:
    learn.network_spec = spec
    return learn


def _normalize(dls: DataLoaders) -> Normalize | None:
    """How the batches are normalised; None if they are not."""
    return next((one for one in dls.valid.after_batch.fs if isinstance(one, Normalize)), None)


def _path_of(dataset: Any, item: Any) -> Path:
    """The file of an item, such as a path or the row of a table: the first path among what its transforms give."""
    for transform in [lambda value: value, *dataset.tls[0].tfms.fs]:
        item = transform(item)
        if isinstance(item, str | os.PathLike):
            return Path(item)
    raise SecondhandError("the items are no files: a model folder opens files")


@torch.no_grad()
def _outputs(network: nn.Sequential, loader: DataLoader) -> Outputs:
    """Outputs for all items of a loader, with their labels."""
    logits, features, labels = list[Tensor](), list[Tensor](), list[Tensor]()
    for x, y in loader:
        z, pooled = logits_and_features(network, x.as_subclass(Tensor))
        logits.append(z.double().cpu())
        features.append(pooled.float().cpu())
        labels.append(y.as_subclass(Tensor).cpu())
    return Outputs(
        torch.cat(logits).numpy(), torch.cat(labels).numpy(), torch.cat(features).numpy()
    )


def _preprocessing(dls: DataLoaders, paths: Sequence[Path]) -> Preprocessing:
    """How the validation items are opened, as a model folder says it.

    Raises
    ------
    SecondhandError : no preprocessing gives these pixels, or a file cannot be opened.
    """
    items = list(dls.valid_ds.items[:_COMPARED])
    normalize = _normalize(dls)
    assert normalize is not None
    mean, std = (part.flatten().cpu() for part in (normalize.mean, normalize.std))
    (x,) = dls.test_dl(items, bs=len(items)).one_batch()
    seen = x.as_subclass(Tensor).cpu() * std[:, None, None] + mean[:, None, None]
    pixels = 255 * seen.permute(0, 2, 3, 1).numpy()  # [n, size, size, 3]
    pictures = [open_picture(path) for path in paths[: len(items)]]
    best, off = Preprocessing(), np.inf
    for candidate in _candidates(x.shape[-1], mean.tolist(), std.tolist()):
        fitted = np.stack([np.asarray(candidate.fit(picture)) for picture in pictures])
        distance = float(np.abs(fitted - pixels).mean())
        if distance < off:
            best, off = candidate, distance
    if off > _MOST_OFF:
        raise SecondhandError(
            f"the validation pictures differ from what a model folder opens by {off:.0f} grey values in the mean. "
            "Use Resize(size) or Resize(size, ResizeMethod.Squish) as item transform"
        )
    return best


def _candidates(size: int, mean: list[float], std: list[float]) -> Iterator[Preprocessing]:
    # RandomResizedCrop validates on a centre of its own share, of pictures that it has squeezed: the same if they are square.
    share = size / (size + 8 * math.ceil(size * 0.14 / 8))
    plain = replace(Preprocessing(size=size), mean=tuple(mean), std=tuple(std))  # type: ignore[arg-type]
    for resize in RESIZE:
        for crop in (1.0, share) if resize == "crop" else (1.0,):
            yield replace(plain, resize=resize, crop=crop)
