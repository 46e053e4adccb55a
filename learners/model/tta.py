"""Test-time augmentation (TTA): predictions averaged over several variants of an input.

The variants, called views, are mild augmentations that training also used. The model folder lists them, so that
calibration, prediction and the page use the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import SecondhandError
from datasets.kinds.base import Kind
from datasets.kinds.views import PLAIN, TTAView
from learners.backbones.averaging import MEAN_PROBABILITY, Average

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]
#: Arrays of torch, or of NumPy where ONNX Runtime computes the network.
A = TypeVar("A", "Tensor", Floats)

MAX_TTA_VIEWS = 32


def tta_views_for(
    kind: Kind, count: int, *, flip: bool = True, min_scale: float = 0.35, strength: float = 1.0
) -> tuple[TTAView, ...]:
    """The first ``count`` views for a kind of data; the first is the input itself.

    Pictures are mirrored if training mirrors (``flip``), and zoomed by 1.15 at the middle and the corners if training
    crops that much (``min_scale`` of the area). Sounds are shifted in time by at most half the shift of training at
    this ``strength``. There may be fewer views than ``count``.

    Raises
    ------
    SecondhandError : the count is out of range, or training uses no such augmentation. Strain has only one view: its
        time is relative to the trigger and its energy to the noise.
    """
    if not 1 <= count <= MAX_TTA_VIEWS:
        raise SecondhandError(f"--tta {count}: expected 1 (off) to {MAX_TTA_VIEWS}")
    if count == 1:
        return (PLAIN,)
    return tuple(kind.views(count, flip=flip, min_scale=min_scale, strength=strength))


def apply_tta_view(x: A, view: TTAView) -> A:
    """The view of inputs [n, 3, h, w], in the same shape; `PLAIN` returns the inputs."""
    array, view_of_x = isinstance(x, np.ndarray), cast(Any, x)
    if view.shift:
        steps = round(view.shift * x.shape[3])
        view_of_x = np.roll(view_of_x, steps, 3) if array else view_of_x.roll(steps, 3)
    if view.zoom > 1:
        size = (x.shape[2], x.shape[3])
        height, width = (max(1, round(side / view.zoom)) for side in size)
        top = round((size[0] - height) * (view.y + 1) / 2)
        left = round((size[1] - width) * (view.x + 1) / 2)
        view_of_x = view_of_x[:, :, top : top + height, left : left + width]
        view_of_x = _enlarge_array(view_of_x, size) if array else _enlarge(view_of_x, size)
    if view.mirror:
        view_of_x = np.flip(view_of_x, 3) if array else view_of_x.flip(3)
    return cast(A, view_of_x)


def _enlarge(x: Tensor, size: tuple[int, int]) -> Tensor:
    from torch.nn import functional

    return functional.interpolate(x, size, mode="bilinear", align_corners=False)


def _enlarge_array(x: Floats, size: tuple[int, int]) -> Floats:
    """Bilinear enlargement by matrix products, equal to torch's with ``align_corners=False``."""
    rows, columns = (_weights(n, side) for n, side in zip(x.shape[2:], size, strict=True))
    out: Floats = np.asarray(rows @ x @ columns.T, np.float32)
    return out


def _weights(n: int, size: int) -> Floats:
    """Bilinear weights [size, n] from ``n`` to ``size`` pixels; rows sum to 1."""
    place = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1)
    out: Floats = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(n))).astype(np.float32)
    return out


def average_tta_views(
    outputs_of: Callable[[A], tuple[A, A]],
    x: A,
    tta_views: Sequence[TTAView] = (PLAIN,),
    average: Average = MEAN_PROBABILITY,
) -> tuple[A, A]:
    """Logits [n, classes] and features [n, width] of inputs [n, 3, h, w], averaged over views.

    By default the softmax of the logits is the mean of the probabilities of the views, as in an ensemble. With a
    temperature fitted to this mean, TTA improves the likelihood of new data (arXiv:2002.06470). Features are arithmetic
    means.

    Parameters
    ----------
    outputs_of : returns logits and features of one view, like `backbones.logits_and_features`.
    """
    outputs = (outputs_of(apply_tta_view(x, view)) for view in tta_views)
    logits, features = zip(*outputs, strict=True)
    if len(tta_views) == 1:
        return logits[0], features[0]
    if isinstance(x, np.ndarray):
        return average.arrays(np.stack(logits)), np.mean(features, axis=0)
    import torch

    return average.tensors(torch.stack(logits)), torch.stack(features).mean(0)


def check_tta_views(views: Iterable[TTAView], kind: Kind) -> None:
    """Raise SecondhandError naming a view that does not suit the kind of data."""
    for number, view in enumerate(views):
        if not kind.has_view(view):
            raise SecondhandError(f"tta[{number}]: {view} is not a view for data of kind {kind}")
