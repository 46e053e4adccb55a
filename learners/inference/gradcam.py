"""Heat maps of the evidence for a class: Grad-CAM (arXiv:1610.02391).

For a convolutional body the maps are its last feature map. A transformer pools inside its body, so its maps are the
patch tokens of the last layer norm on which the class depends, arranged as a grid; of a body without norms that ends in
linear layers, those of its last convolution.

Written out here, because the package grad-cam imports scikit-learn, SciPy's statistics and matplotlib's pyplot first. The
hooks are set on a copy that shares the weights, so that other threads can use the network meanwhile.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from datasets.core.errors import SecondhandError
from datasets.images.opening import Preprocessing
from datasets.spectrograms.settings import colour_table

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, nn

    from learners.backbones.building import Network

Heat = npt.NDArray[np.float32]
STRENGTH = 0.6  # opacity of the colour at the maximum
NO_MAP = "heat maps are not possible for this backbone, which has neither a feature map nor tokens on a square grid"


def heatmap(
    network: Network,
    picture: Tensor | npt.NDArray[np.uint8],
    class_index: int,
    *,
    preprocessing: Preprocessing | None = None,
) -> Heat:
    """Evidence for a class at each pixel of a picture.

    Parameters
    ----------
    network : ``Sequential(body, head)`` in eval mode; of an ensemble the first member is used.
    picture : uint8 [3, h, w] from `Predictor.open`, which needs ``preprocessing``; or the input of the network, a
        normalised float tensor [3, h, w] or [1, 3, h, w].
    class_index : index of the class in the logits.

    Returns
    -------
    float32 [h, w] in [0, 1], 1 at the strongest evidence; all 0 if there is none.

    Raises
    ------
    SecondhandError : the shape is wrong, the class does not exist, or the backbone has no feature map.
    """
    import torch

    from learners.backbones.building import first_member

    network = first_member(network)
    device = next(network.parameters()).device
    x = _normalised(picture, preprocessing).to(device)
    with torch.inference_mode(False), torch.no_grad():
        out = network[0](x)
    with torch.inference_mode(False), torch.enable_grad():
        if out.ndim == 4:
            if min(out.shape[2:]) < 2:
                raise SecondhandError(
                    f"the feature map of a picture of {x.shape[-1]} pixels is a single point. Use a larger --size"
                )
            maps = out.detach().requires_grad_()
            logits = _detached(network[1])(maps.clone())
            _check_class(logits, class_index)
            (gradient,) = torch.autograd.grad(logits[0, class_index], maps)
        else:
            maps, gradient = _last_grid(_detached(network), x, out.shape[1], class_index)
    small = _grad_cam(maps[0], gradient[0])
    return _enlarged(small, (int(x.shape[-2]), int(x.shape[-1])))


def overlay(
    picture: Image.Image | npt.NDArray[np.uint8], heat: npt.NDArray[np.floating]
) -> Image.Image:
    """Overlay a heat map on its picture: the higher the value, the more opaque the colour.

    Parameters
    ----------
    picture : Pillow picture, or uint8 [3, h, w].
    heat : [h, w] in [0, 1]; resized to the picture.
    """
    from PIL import Image

    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    picture = picture.convert("RGB")
    size = (picture.height, picture.width)
    heat = heat if heat.shape == size else _enlarged(np.asarray(heat, np.float32), size)
    heat = np.clip(np.nan_to_num(heat), 0, 1)
    warm = colour_table("inferno")[np.rint(heat * 255).astype(np.uint8)].astype(np.float32)
    share = (STRENGTH * heat)[..., None]
    mixed = (1 - share) * np.asarray(picture, np.float32) + share * warm
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def _normalised(
    picture: Tensor | npt.NDArray[np.uint8], preprocessing: Preprocessing | None
) -> Tensor:
    import torch

    x = picture if isinstance(picture, torch.Tensor) else torch.from_numpy(np.asarray(picture))
    if x.ndim == 3:
        x = x[None]
    if x.ndim != 4 or x.shape[:2] != (1, 3):
        raise SecondhandError(
            f"a heat map needs one picture [3, h, w], but the shape is {list(x.shape)}"
        )
    if x.is_floating_point():
        return x.detach().clone()
    if preprocessing is None:
        raise SecondhandError(
            "a picture of integers must be normalised: give the model's preprocessing"
        )
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    return x.float().div_(255).sub_(mean).div_(std)


def _check_class(logits: Tensor, class_index: int) -> None:
    if not 0 <= class_index < logits.shape[1]:
        raise SecondhandError(
            f"class {class_index}: expected an index from 0 to {logits.shape[1] - 1}"
        )


def _detached(module: nn.Module) -> Any:
    """Copy of a module in eval mode that shares the weights, without gradients."""
    from torch import nn

    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()
    }
    memo |= {id(buffer): buffer for buffer in module.buffers()}
    return copy.deepcopy(module, memo).eval()


def _grad_cam(maps: Tensor, gradient: Tensor) -> Heat:
    """Positive part of the maps [n, h, w], weighted by the mean of their gradients, scaled to [0, 1]."""
    heat = (gradient.mean((1, 2), keepdim=True) * maps).sum(0).relu()
    heat = heat - heat.min()
    return np.asarray((heat / (heat.max() + 1e-7)).detach().cpu(), np.float32)


def _last_grid(
    network: nn.Sequential, x: Tensor, width: int, class_index: int
) -> tuple[Tensor, Tensor]:
    """Maps [1, width, h, w] of the last norm layer with patch tokens that the class depends on, and their gradients.

    After the last attention only the class token is used, so the class does not depend on patches of later layers.
    Without such a norm layer, maps of the last convolution, of any width.

    Raises
    ------
    SecondhandError : there is no such layer.
    """
    import torch

    body = network[0]
    declared = getattr(body, "num_prefix_tokens", 1 if hasattr(body, "class_token") else None)
    candidates: list[tuple[Tensor, int]] = []
    layers: list[torch.nn.Module] = [
        m for m in network.modules() if "norm" in type(m).__name__.lower()
    ]
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    if convolutions and not layers:
        layers, width = [convolutions[-1]], convolutions[-1].out_channels

    def keep(_module: nn.Module, _inputs: Any, out: Any) -> Tensor | None:
        prefix = _prefix(out, width, declared) if isinstance(out, torch.Tensor) else None
        if prefix is None:
            return None
        # The first one starts the graph, so the backward pass skips everything before; later layers may overwrite
        # the clone.
        out = out if out.requires_grad else out.detach().requires_grad_()
        candidates.append((out, prefix))
        return out.clone()

    for layer in layers:
        layer.register_forward_hook(keep)
    logits = network(x)
    _check_class(logits, class_index)
    if candidates and logits.requires_grad:
        tensors = [out for out, _ in candidates]
        gradients = torch.autograd.grad(logits[0, class_index], tensors, allow_unused=True)
        for (tokens, prefix), gradient in reversed(list(zip(candidates, gradients, strict=True))):
            if gradient is not None and (grid := _to_maps(gradient, width, prefix)).any():
                return _to_maps(tokens, width, prefix), grid
    raise SecondhandError(NO_MAP)


def _prefix(out: Tensor, width: int, declared: int | None) -> int | None:
    """Number of tokens before those of the grid in [1, n, width]; 0 for maps; None for anything else."""
    if out.ndim == 4:
        channels_last = out.shape[3] == width and out.shape[1] == out.shape[2] > 1
        channels_first = out.shape[1] == width and out.shape[2] == out.shape[3] > 1
        return 0 if channels_last or channels_first else None
    if out.ndim != 3 or out.shape[2] != width:
        return None
    for count in (declared,) if declared is not None else range(6):
        side = round(max(out.shape[1] - count, 0) ** 0.5)
        if side > 1 and side * side == out.shape[1] - count:
            return count
    return None


def _to_maps(tokens: Tensor, width: int, prefix: int) -> Tensor:
    """Tokens [n, tokens, width], or maps with channels first or last, as maps [n, width, h, w]."""
    if tokens.ndim == 4:
        return tokens.permute(0, 3, 1, 2) if tokens.shape[3] == width else tokens
    places = tokens[:, prefix:]
    side = round(places.shape[1] ** 0.5)
    return places.transpose(1, 2).reshape(len(tokens), width, side, side)


def _enlarged(heat: Heat, size: tuple[int, int]) -> Heat:
    """Resize to (h, w), bicubic, clipped to [0, 1]."""
    from PIL import Image

    resized = Image.fromarray(heat).resize(size[::-1], Image.Resampling.BICUBIC)
    return np.clip(np.asarray(resized, np.float32), 0, 1)
