"""A name -> a pretrained body and a fresh head, as plain torch.

One builder serves training and prediction: :func:`build` makes the network of a
:class:`NetworkSpec`, which a model folder carries as JSON. fastai is not imported here.

A network is ``nn.Sequential(body, head)``. The body of a convolutional network gives a feature map
[batch, features, h, w]; that of a transformer, which pools in a way of its own, gives
[batch, features]. The last layer of the head gives the logits [batch, classes]. Several such networks
that answer together are an :class:`Ensemble`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets.core.errors import SecondhandError
from datasets.images import Preprocessing
from learners.backbones.bodies import (
    DIGITS,
    EMBEDDED,
    EMBEDDED_ARCH,
    Stages,
    check_scratch,
    check_timm,
    load_body,
    probe,
    torchvision_weights,
)
from learners.backbones.hub import SOURCES, options_of, published
from learners.backbones.spec import NetworkSpec

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class Unit(nn.Module):
    """[batch, features] -> the same directions, each of length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=1)


class Cosine(nn.Module):
    """Unit vectors -> logits: s times the cosine of the angle to each class's weight, s learned.

    The cosine softmax that von Mises-Fisher heads are compared with (arXiv:2103.15718, section 2):
    a class is a direction, and how long a feature is says nothing. s = exp(``log_scale``) is above
    0; it begins at 16, where the loss over 1000 classes can still fall to 1e-4 (the bound of
    arXiv:1704.06369, proposition 2), and stays at 100 or below, as CLIP's (arXiv:2103.00020).
    """

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_classes, n_features) / math.sqrt(n_features))
        self.log_scale = nn.Parameter(torch.tensor(math.log(16.0)))

    @property
    def scale(self) -> Tensor:
        return self.log_scale.clamp(max=math.log(100.0)).exp()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * functional.linear(x, functional.normalize(self.weight, dim=1))


class Ensemble(nn.Module):
    """Networks of one spec that answer by their mean probability (arXiv:1612.01474); of several labels
    an item, ``multi_label``, by their mean logits.

    Its logits are those of :func:`averaged`; its features are the members' side by side, each of
    length 1, so that a cosine between two of them is the mean of the members' cosines.
    """

    def __init__(self, members: Iterable[nn.Sequential], *, multi_label: bool = False) -> None:
        super().__init__()
        self.members, self.multi_label = nn.ModuleList(members), multi_label

    def forward(self, x: Tensor) -> Tensor:
        return averaged([member(x) for member in self.members], multi_label=self.multi_label)


Network = nn.Sequential | Ensemble


def averaged(logits: list[Tensor], *, multi_label: bool = False) -> Tensor:
    """Logits [batch, classes] whose softmax is the mean of the softmaxes of all that are given; of
    ``multi_label``, each by itself, their mean.

    Softmax leaves one number an item open. It is set so that the log-sum-exp of the result is the
    mean of theirs: scores that are read off the logits themselves (largest logit, energy) keep
    their meaning, and equal logits come out as they went in. Of one it is that one, to the bit.
    """
    if len(logits) == 1:
        return logits[0]
    stacked = torch.stack(logits)
    if multi_label:
        return stacked.mean(0)
    level = stacked.logsumexp(2, keepdim=True)
    return (stacked - level).logsumexp(0) - math.log(len(logits)) + level.mean(0)


def build(
    spec: NetworkSpec, *, pretrained: bool = True, weights: str | Path | None = None
) -> tuple[Network, NetworkSpec, Preprocessing]:
    """Build the network of a spec, all members of it.

    Parameters
    ----------
    pretrained : load the body's published weights; the head is fresh in any case.
    weights : a ``.safetensors`` or state-dict file to load the body from instead. Read without
        unpickling anything but tensors.

    Returns
    -------
    The network, its spec with "auto" resolved and the backbone by a name that needs neither hub nor
    folder to be built again, and the preprocessing that the weights were trained with.

    Raises
    ------
    SecondhandError : the name is unknown (the nearest ones are offered), the size does not suit it,
        the weights cannot be downloaded, or they belong to another architecture.
    """
    if spec.members > 1:
        one = replace(spec, members=1)
        built = [build(one, pretrained=pretrained, weights=weights) for _ in range(spec.members)]
        _, resolved, preprocessing = built[0]
        members = [member for member, _, _ in built if isinstance(member, nn.Sequential)]
        resolved = replace(resolved, members=spec.members)
        return Ensemble(members, multi_label=spec.multi_label), resolved, preprocessing
    body, preprocessing, portable = load_body(
        spec.backbone, spec.shape, pretrained and weights is None, weights
    )
    spec = replace(spec, width=spec.width or preprocessing.width)
    out, head = probe(body, spec.backbone, spec.shape, preprocessing.size), spec.head
    if head in ("auto", "stages"):
        stages, joined = Stages.of(body, out, spec.shape)
        if head == "stages" and stages is None:
            raise SecondhandError(
                f"--head stages: {spec.backbone} gives no maps of its stages: use linear"
            )
        body, out, head = (body, out, "linear") if stages is None else (stages, joined, "stages")
    spatial = out.ndim == 4
    spec = replace(spec, backbone=portable, head=head)
    network = nn.Sequential(body, _head(spec, out.shape[1], spatial))
    return network, spec, replace(preprocessing, size=spec.size, width=spec.width)


def native_size(name: str) -> int:
    """Side of the input, in pixels, that a backbone's published weights were trained at."""
    if name.startswith("scratch/"):
        if check_scratch(name) == "digits_cnn":
            return DIGITS.size
        name = name.replace("scratch/", "torchvision/", 1)
    if name.startswith("torchvision/"):
        _, theirs = torchvision_weights(name)
        return int(theirs.transforms().crop_size[0]) if theirs is not None else 224
    if name.startswith(SOURCES):
        return published(name).shape[0]
    import timm

    check_timm(name)
    config = timm.get_pretrained_cfg(EMBEDDED_ARCH if name == EMBEDDED else options_of(name)[0])
    return int(config.input_size[-1]) if config is not None else 224


def first_member(network: Network) -> nn.Sequential:
    """The network itself, or the first of an ensemble: what can be asked where it looked."""
    if isinstance(network, Ensemble):
        member = network.members[0]
        assert isinstance(member, nn.Sequential)
        return member
    return network


def logits_and_features(network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [batch, classes] and the body's features [batch, width], pooled, in one pass.

    Distances are measured in these. Of `Stages` they are the last one's: with the others beside it
    unknown classes are told no better.
    """
    if isinstance(network, Ensemble):
        logits, each = zip(*(logits_and_features(m, x) for m in network.members), strict=True)  # type: ignore[arg-type]
        return averaged(list(logits), multi_label=network.multi_label), torch.cat(
            [functional.normalize(features.float(), dim=1) for features in each], dim=1
        )
    features = network[0](x)
    logits, pooled = network[1](features), features.mean((2, 3)) if features.ndim == 4 else features
    return logits, pooled[:, : network[0].last] if isinstance(network[0], Stages) else pooled


class LogitsAndFeatures(nn.Module):
    """A network whose forward pass is `logits_and_features`."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return logits_and_features(self.network, x)


def drop_background_row(network: nn.Sequential) -> None:
    """Take the last class out of a head that ends in a linear layer: the logits of the others are
    from now on those less its own.

    With a logit of 0 beside them their softmax is what it was. Without, it is that of the others
    alone, and its temperature can be fitted to items of theirs alone.
    """
    layer = network[1][-1]  # type: ignore[index]
    assert isinstance(layer, nn.Linear)
    for name, values in [*layer.named_parameters()]:
        setattr(layer, name, nn.Parameter(values.detach()[:-1] - values.detach()[-1:]))
    layer.out_features -= 1


def copy_weights(old: nn.Sequential, new: nn.Sequential, rows: Sequence[int | None]) -> None:
    """Give a network the weights of another one of its layout, but for the classes.

    Parameters
    ----------
    rows : for each class of ``new`` its number in ``old``; None for one that is new. A linear layer
        has zeros there: nothing speaks for the class yet, and nothing against it.
    """
    number, layer = len(new[1]) - 1, new[1][-1]  # type: ignore[arg-type, index]
    state = dict(old.state_dict())
    for name, values in layer.named_parameters():
        if values.ndim:  # the scale of a cosine is of no class
            kept = state[f"1.{number}.{name}"]
            fresh = torch.zeros_like(values) if isinstance(layer, nn.Linear) else values.detach()
            state[f"1.{number}.{name}"] = torch.stack(
                [fresh[i] if row is None else kept[row] for i, row in enumerate(rows)]
            )
    new.load_state_dict(state)


def batch_norms(network: nn.Module) -> list[BatchNorm]:
    """The layers that normalise by the batch in training, and by their averages elsewhere."""
    return [m for m in network.modules() if isinstance(m, BatchNorm)]


def parameter_groups(network: nn.Sequential) -> list[list[nn.Parameter]]:
    """Parameters from stem to head: three groups of the body (fewer of few blocks), then the head.

    The body is cut between its blocks (in the order in which they were made, which is stem to top
    in timm and torchvision), so that freezing and graded learning rates mean the same for every
    family: the first group is the stem and a third of the blocks. Single layers before and behind
    them, a stem's convolution and its norm, are none.
    """
    # Neighbours alone make a block: a transformer's `encoder.ln` comes long after its `encoder.pos_…`.
    named = groupby(network[0].named_parameters(), key=lambda item: _unit(item[0]))
    units = [[parameter for _, parameter in unit] for _, unit in named]
    layers = 2  # a weight and a bias make one
    if sum(len(unit) > layers for unit in units) < 3:
        layers = 0  # AlexNet is single layers throughout
    blocks = list(accumulate(len(unit) > layers for unit in units))
    count = min(3, blocks[-1])
    groups: list[list[nn.Parameter]] = [[] for _ in range(count)]
    for unit, block in zip(units, blocks, strict=True):
        groups[sum(block > round(i * blocks[-1] / count) for i in range(1, count))] += unit
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
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if spatial else []
    layers: list[nn.Module]
    layers = [*pool, nn.Dropout(spec.dropout), nn.Linear(n_features, spec.n_classes)]
    if spec.head == "cosine":
        # Dropout after the length is set: before it, what is left would be drawn out again, and
        # the cosines of training and of prediction would differ by sqrt(1 - dropout).
        layers = [*pool, Unit(), nn.Dropout(spec.dropout), Cosine(n_features, spec.n_classes)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
