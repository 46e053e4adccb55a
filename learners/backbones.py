"""A name -> a pretrained body and a fresh head, as plain torch.

One builder serves training and prediction: :func:`build` makes the network of a
:class:`NetworkSpec`, which a model folder carries as JSON. fastai is not imported here.

A network is ``nn.Sequential(body, head)``. The body of a convolutional network gives a feature map
[batch, features, h, w]; that of a transformer, which pools in a way of its own, gives
[batch, features]. The last layer of the head gives the logits [batch, classes].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from datasets.errors import SecondhandError
from datasets.images import Preprocessing
from learners._bodies import (
    EMBEDDED,
    EMBEDDED_ARCH,
    check_timm,
    load_body,
    probe,
    torchvision_weights,
)
from learners._scratch import digits_preprocessing, scratch_arch

HEADS = ("concat", "linear")


@dataclass(frozen=True)
class NetworkSpec:
    """What it takes to build a network again, weights apart.

    Parameters
    ----------
    backbone : "embedded", a timm name, "torchvision/NAME[:WEIGHTS]" or "scratch/NAME".
    n_classes : length of the logits.
    size : side of the square input in pixels.
    head : "concat" (fastai's: average and maximum pooled, two linear layers) or "linear" (dropout
        and one linear layer); "auto" takes concat for feature maps and linear for transformers.
    hidden : width between concat's two linear layers.
    dropout : before the last layer, in [0, 1); half as much before the first one.
    """

    backbone: str
    n_classes: int
    size: int = 224
    head: str = "auto"
    hidden: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        problems = []
        if type(self.backbone) is not str:
            problems.append(f"backbone {self.backbone!r} is not a name")
        for name, low, high in (("n_classes", 2, 100_000), ("size", 8, 2048), ("hidden", 1, 65536)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                problems.append(f"{name} {value!r} is not a whole number from {low} to {high}")
        if self.head not in ("auto", *HEADS):
            problems.append(f"head {self.head!r} is none of auto, {', '.join(HEADS)}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            problems.append(f"dropout {self.dropout!r} is not in [0, 1)")
        if problems:
            raise SecondhandError("network: " + "; ".join(problems))


class ConcatPool(nn.Module):
    """[batch, features, h, w] -> [batch, 2 features]: the maximum beside the average."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.amax((2, 3)), x.mean((2, 3))], dim=1)


def build(
    spec: NetworkSpec, *, pretrained: bool = True, weights: str | Path | None = None
) -> tuple[nn.Sequential, NetworkSpec, Preprocessing]:
    """Build the network of a spec.

    Parameters
    ----------
    pretrained : load the body's published weights; the head is fresh in any case.
    weights : a ``.safetensors`` or state-dict file to load the body from instead. Read without
        unpickling anything but tensors.

    Returns
    -------
    The network, its spec with "auto" resolved, and the preprocessing that the weights were trained
    with.

    Raises
    ------
    SecondhandError : the name is unknown (the nearest ones are offered), the size does not suit it,
        the weights cannot be downloaded, or they belong to another architecture.
    """
    body, preprocessing = load_body(
        spec.backbone, spec.size, pretrained and weights is None, weights
    )
    out = probe(body, spec.backbone, spec.size, preprocessing.size)
    spatial = out.ndim == 4
    head = spec.head if spec.head != "auto" else ("concat" if spatial else "linear")
    if head == "concat" and not spatial:
        raise SecondhandError(
            f"--head concat pools a feature map, and {spec.backbone} pools by itself: use linear"
        )
    spec = replace(spec, head=head)
    network = nn.Sequential(body, _head(spec, out.shape[1], spatial))
    return network, spec, replace(preprocessing, size=spec.size)


def native_size(name: str) -> int:
    """Side of the input, in pixels, that a backbone's published weights were trained at."""
    if name.startswith("scratch/"):
        if scratch_arch(name) == "digits_cnn":
            return digits_preprocessing().size
        name = name.replace("scratch/", "torchvision/", 1)
    if name.startswith("torchvision/"):
        _, published = torchvision_weights(name)
        return int(published.transforms().crop_size[0]) if published is not None else 224
    import timm

    check_timm(name)
    config = timm.get_pretrained_cfg(EMBEDDED_ARCH if name == EMBEDDED else name)
    return int(config.input_size[-1]) if config is not None else 224


def logits_and_features(network: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [batch, classes] and the body's features [batch, width], pooled, in one pass.

    Distances are measured in these, not in what goes into the last layer: the concat head's hidden
    layer has forgotten more of what no class needs (AUROC of strangers 0.84 there, 0.88 here).
    """
    features = network[0](x)
    return network[1](features), features.mean((2, 3)) if features.ndim == 4 else features


def parameter_groups(network: nn.Sequential, n_body: int = 3) -> list[list[nn.Parameter]]:
    """Parameters from stem to head: ``n_body`` groups of the body, then the head.

    The body is cut between its blocks (in the order in which they were made, which is stem to top
    in timm and torchvision), so that freezing and graded learning rates mean the same for every
    family.
    """
    # Neighbours alone make a block: a transformer's `encoder.ln` comes long after its `encoder.pos_…`.
    named = groupby(network[0].named_parameters(), key=lambda item: _unit(item[0]))
    blocks = [[parameter for _, parameter in block] for _, block in named]
    n_body = min(n_body, len(blocks))
    bounds = [round(i * len(blocks) / n_body) for i in range(n_body + 1)]
    groups = [
        [parameter for block in blocks[low:high] for parameter in block]
        for low, high in pairwise(bounds)
    ]
    return [*groups, list(network[1].parameters())]


def _unit(name: str) -> str:
    """The block that a parameter belongs to: its name up to the first part that ends in a digit.

    ``layer1.0.conv2.weight`` -> ``layer1``; ``blocks.3.attn.qkv.bias`` -> ``blocks.3``;
    ``encoder.layers.encoder_layer_0.mlp.0.bias`` -> ``encoder.layers.encoder_layer_0``.
    """
    parts = name.split(".")
    last = next((i for i, part in enumerate(parts) if part[-1:].isdigit()), 0)
    return ".".join(parts[: last + 1])


def _head(spec: NetworkSpec, n_features: int, spatial: bool) -> nn.Sequential:
    if spec.head == "concat":
        # The layout of fastai's create_head, so that its habits of training carry over.
        layers: list[nn.Module] = [
            ConcatPool(),
            nn.BatchNorm1d(2 * n_features),
            nn.Dropout(spec.dropout / 2),
            nn.Linear(2 * n_features, spec.hidden, bias=False),
            nn.ReLU(inplace=True),
            nn.BatchNorm1d(spec.hidden),
            nn.Dropout(spec.dropout),
            nn.Linear(spec.hidden, spec.n_classes, bias=False),
        ]
    else:
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if spatial else []
        layers = [*pool, nn.Dropout(spec.dropout), nn.Linear(n_features, spec.n_classes)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
