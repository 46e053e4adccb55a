"""Builds a network of a pretrained body and a new head, in plain torch.

:func:`build` makes the network of a :class:`NetworkSpec`, which a model folder stores as JSON, for training
and for prediction. fastai is not imported.

A network is ``nn.Sequential(body, head)``. A convolutional body gives a feature map
[batch, features, h, w]; a transformer pools itself and gives [batch, features]. The head gives the logits
[batch, classes]. Several networks that predict together are an :class:`Ensemble`.
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
from datasets.images.opening import Preprocessing
from datasets.spectrograms.settings import SpectrogramSettings
from learners.backbones.averaging import MEAN_PROBABILITY, Average
from learners.backbones.bodies import (
    DIGITS,
    Stages,
    check_scratch,
    check_timm,
    load_body,
    probe,
    torchvision_weights,
)
from learners.backbones.hub import SOURCES, parse_options, published
from learners.backbones.names import SOUND
from learners.backbones.packaged import PACKAGED, SPEECH, SPEECH_INPUT
from learners.backbones.spec import NetworkSpec
from learners.backbones.yamnet import SOUND_INPUT

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class Unit(nn.Module):
    """Scales features [batch, features] to length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=1)


class Cosine(nn.Module):
    """Cosine head: logits are s times the cosine between unit features and each class's weights; s is learned.

    The cosine softmax of arXiv:2103.15718, section 2: a class is a direction, and the length of the
    features is ignored. s = exp(``log_scale``) starts at 16, with which the loss over 1000 classes can fall
    to 1e-4 (bound of arXiv:1704.06369, proposition 2), and is at most 100, as in CLIP (arXiv:2103.00020).
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


class ConcatPool(nn.Module):
    """Maximum and mean of each feature map side by side, as fastai's ``AdaptiveConcatPool2d``.

    [batch, features, h, w] -> [batch, 2 * features, 1, 1].
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.amax((2, 3), keepdim=True), x.mean((2, 3), keepdim=True)], dim=1)


#: Layers with which a head for feature maps begins.
POOLS = (nn.AdaptiveAvgPool2d, ConcatPool)


class Ensemble(nn.Module):
    """Networks of one spec that predict by the ``average`` of their logits, as a rule by their mean probability
    (arXiv:1612.01474).

    The features are those of
    the members, each scaled to length 1 and concatenated, so that a cosine between two items is the mean of
    the members' cosines.
    """

    def __init__(
        self, members: Iterable[nn.Sequential], average: Average = MEAN_PROBABILITY
    ) -> None:
        super().__init__()
        self.members, self.average = nn.ModuleList(members), average

    @property
    def networks(self) -> list[nn.Sequential]:
        """The members."""
        return [member for member in self.members if isinstance(member, nn.Sequential)]

    def forward(self, x: Tensor) -> Tensor:
        return average_logits([member(x) for member in self.members], self.average)

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`logits_and_features`."""
        logits, features = zip(*(logits_and_features(m, x) for m in self.networks), strict=True)
        averaged = average_logits(list(logits), self.average)
        return averaged, features_side_by_side(features)


Network = nn.Sequential | Ensemble


def average_logits(logits: list[Tensor], average: Average = MEAN_PROBABILITY) -> Tensor:
    """The average of logits, each [batch, classes]; a single tensor is returned unchanged."""
    return logits[0] if len(logits) == 1 else average.tensors(torch.stack(logits))


def build(
    spec: NetworkSpec, *, pretrained: bool = True, weights: str | Path | None = None
) -> tuple[Network, NetworkSpec, Preprocessing]:
    """Build the network of a spec, with all its members.

    Parameters
    ----------
    pretrained : load the published weights of the body; the head is always new.
    weights : a ``.safetensors`` or state-dict file with weights of the body instead; only tensors are
        unpickled.

    Returns
    -------
    The network; its spec with "auto" resolved and a backbone name that needs neither hub nor local
    folder; and the preprocessing of the weights, which embeddings do not need.

    Raises
    ------
    SecondhandError : unknown name (similar ones are suggested), unsuitable size, or weights that cannot be
        downloaded or belong to another architecture.
    """
    if spec.members > 1:
        single = replace(spec, members=1)
        built = [build(single, pretrained=pretrained, weights=weights) for _ in range(spec.members)]
        _, resolved, preprocessing = built[0]
        members = [member for member, _, _ in built if isinstance(member, nn.Sequential)]
        resolved = replace(resolved, members=spec.members)
        return Ensemble(members, spec.average), resolved, preprocessing
    if not spec.takes_pixels:
        if spec.head == "stages":
            raise SecondhandError("--head stages: embeddings have no stages. Use linear")
        spec = replace(spec, head="linear" if spec.head == "auto" else spec.head)
        return nn.Sequential(nn.Identity(), _head(spec, spec.size, False)), spec, Preprocessing()
    body, preprocessing, portable = load_body(
        spec.backbone, spec.shape, pretrained and weights is None, weights
    )
    spec = replace(spec, width=spec.width or preprocessing.width)
    out, head = probe(body, spec.backbone, spec.shape, preprocessing.size), spec.head
    if head in ("auto", "stages"):
        stages, all_stages = Stages.wrap(body, out, spec.shape)
        if head == "stages" and stages is None:
            raise SecondhandError(
                f"--head stages: {spec.backbone} gives no maps of its stages: use linear"
            )
        head = "linear"
        if stages is not None:
            body, out, head = stages, all_stages, "stages"
    spatial = out.ndim == 4
    spec = replace(spec, backbone=portable, head=head)
    network = nn.Sequential(body, _head(spec, out.shape[1], spatial))
    return network, spec, replace(preprocessing, size=spec.size, width=spec.width)


def native_size(name: str) -> int:
    """Side of the input, in pixels, that a backbone's published weights were trained with."""
    if name.startswith("scratch/"):
        if check_scratch(name) == "mnist_cnn":
            return DIGITS.size
        name = name.replace("scratch/", "torchvision/", 1)
    if name.startswith("torchvision/"):
        _, weights = torchvision_weights(name)
        return int(weights.transforms().crop_size[0]) if weights is not None else 224
    if name.startswith(SOURCES):
        return published(name).shape[0]
    import timm

    check_timm(name)
    if name in (SPEECH, SOUND):
        return (SPEECH_INPUT if name == SPEECH else SOUND_INPUT).size
    packaged = PACKAGED.get(name)
    config = timm.get_pretrained_cfg(packaged.architecture if packaged else parse_options(name)[0])
    return int(config.input_size[-1]) if config is not None else 224


def width_of(name: str, spectrogram: SpectrogramSettings | None) -> int | None:
    """Width of the input, in pixels, of a backbone that takes windows of any length; None for the others."""
    return spectrogram.size[1] if name == SOUND and spectrogram is not None else None


def members_of(network: Network) -> list[nn.Sequential]:
    """The members of an ensemble, or the network itself."""
    return network.networks if isinstance(network, Ensemble) else [network]


def first_member(network: Network) -> nn.Sequential:
    """The network itself, or the first member of an ensemble."""
    return members_of(network)[0]


def logits_and_features(network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [batch, classes] and pooled features of the body [batch, width], in one pass.

    Distances to the training data use these features. Of `Stages` only the last stage is used: the others
    do not help to recognise unknown classes.
    """
    if isinstance(network, Ensemble):
        return network.outputs(x)
    return outputs_of_features(network, network[0](x))


def features_side_by_side(features: Sequence[Tensor]) -> Tensor:
    """Features of several members [batch, members * width], those of each scaled to length 1; of one as they are."""
    if len(features) == 1:
        return features[0]
    return torch.cat([functional.normalize(one.float(), dim=1) for one in features], dim=1)


def outputs_of_features(network: nn.Sequential, features: Tensor) -> tuple[Tensor, Tensor]:
    """`logits_and_features` from what the body gives: maps [batch, width, h, w], pooled ones, or features."""
    if features.ndim == 2 and is_convolutional(network):
        features = features[:, :, None, None]
    logits = network[1](features)
    if features.ndim == 4:
        features = features.mean((2, 3))
    if isinstance(network[0], Stages):
        features = features[:, : network[0].last]
    return logits, features


def is_convolutional(network: nn.Sequential) -> bool:
    """Whether the head starts with pooling, so that the body gives feature maps."""
    head = network[1]
    assert isinstance(head, nn.Sequential)
    return isinstance(head[0], POOLS)


class LogitsAndFeatures(nn.Module):
    """A network whose forward pass is `logits_and_features`."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return logits_and_features(self.network, x)


def drop_background_row(network: nn.Sequential) -> None:
    """Remove the background, the last class, from a linear head by subtracting its row from the others.

    With an added logit of 0 the softmax is unchanged. Without, it is the softmax over the other classes,
    whose temperature can be fitted to items of these classes alone.
    """
    layer = network[1][-1]  # type: ignore[index]
    assert isinstance(layer, nn.Linear)
    for name, values in [*layer.named_parameters()]:
        setattr(layer, name, nn.Parameter(values.detach()[:-1] - values.detach()[-1:]))
    layer.out_features -= 1


def copy_weights(old: nn.Sequential, new: nn.Sequential, rows: Sequence[int | None]) -> None:
    """Copy the weights of a network to another one of the same architecture with other classes.

    Parameters
    ----------
    rows : for each class of ``new`` its number in ``old``, or None for a new class. A linear layer gets
        zeros for a new class.
    """
    number, layer = len(new[1]) - 1, new[1][-1]  # type: ignore[arg-type, index]
    state = dict(old.state_dict())
    for name, values in layer.named_parameters():
        if values.ndim:  # the scale of a cosine head has no rows
            old_rows = state[f"1.{number}.{name}"]
            new_rows = torch.zeros_like(values) if isinstance(layer, nn.Linear) else values.detach()
            state[f"1.{number}.{name}"] = torch.stack(
                [new_rows[i] if row is None else old_rows[row] for i, row in enumerate(rows)]
            )
    new.load_state_dict(state)


def batch_norms(network: nn.Module) -> list[BatchNorm]:
    """The BatchNorm layers of a network."""
    return [m for m in network.modules() if isinstance(m, BatchNorm)]


def parameter_groups(network: nn.Sequential) -> list[list[nn.Parameter]]:
    """Parameter groups from stem to head: up to three groups of the body, then the head.

    The body is divided between its blocks, in the order of their creation (stem to top in timm and
    torchvision), so that freezing and discriminative learning rates mean the same in every family: the
    first group is the stem and a third of the blocks. Single layers do not count as blocks. A body without
    parameters is one empty group.
    """
    # Only consecutive parameters form a block: `encoder.ln` comes long after `encoder.pos_…`.
    named = groupby(network[0].named_parameters(), key=lambda item: _block_name(item[0]))
    blocks_of_parameters = [[parameter for _, parameter in parameters] for _, parameters in named]
    layers = 2  # parameters of a single layer: weight and bias
    if sum(len(parameters) > layers for parameters in blocks_of_parameters) < 3:
        layers = 0  # AlexNet consists of single layers
    blocks = list(accumulate(len(parameters) > layers for parameters in blocks_of_parameters))
    count = min(3, blocks[-1]) if blocks else 1
    groups: list[list[nn.Parameter]] = [[] for _ in range(count)]
    for parameters, block in zip(blocks_of_parameters, blocks, strict=True):
        groups[sum(block > round(i * blocks[-1] / count) for i in range(1, count))] += parameters
    return [*groups, list(network[1].parameters())]


def attention_groups(network: nn.Sequential) -> list[list[nn.Parameter]]:
    """`parameter_groups` with the attention layers of the body alone, and the head.

    Fine-tuning these is nearly as good as fine-tuning all (arXiv:2203.09795, section 4); the other two thirds of a ViT
    can be shared by models for several tasks.

    Raises
    ------
    SecondhandError : the body has none.
    """
    named = {id(parameter): name for name, parameter in network[0].named_parameters()}
    *body, head = parameter_groups(network)
    groups = [
        [p for p in group if not _ATTENTION.isdisjoint(named[id(p)].split("."))] for group in body
    ]
    if not any(groups):
        raise SecondhandError(
            "--train attention: the backbone has no attention layers. Name a transformer, such as --backbone "
            "vit_small_patch16_224, or leave it out"
        )
    return [*filter(None, groups), head]


#: Names of attention layers in timm, torchvision and `learners.scratch`.
_ATTENTION = frozenset({"attn", "self_attention", "attention"})


def _block_name(name: str) -> str:
    """Block of a parameter: its name up to the first part that ends in a digit.

    ``layer1.0.conv2.weight`` -> ``layer1``; ``blocks.3.attn.qkv.bias`` -> ``blocks.3``;
    ``encoder.layers.encoder_layer_0.mlp.0.bias`` -> ``encoder.layers.encoder_layer_0``.
    """
    parts = name.split(".")
    last = next((i for i, part in enumerate(parts) if part[-1:].isdigit()), 0)
    return ".".join(parts[: last + 1])


def fastai_head(n_features: int, n_classes: int, dropout: float, *, spatial: bool) -> nn.Sequential:
    """The head of fastai's ``vision_learner``, as its ``create_head`` builds and initialises it.

    Concat pooling of maps, then twice BatchNorm, dropout (half of it the first time) and a linear layer without bias,
    with 512 features and ReLU between them. Its weights have the same names.
    """
    width = 2 * n_features if spatial else n_features
    layers = [
        *([ConcatPool(), nn.Flatten()] if spatial else []),
        *(
            nn.BatchNorm1d(width),
            nn.Dropout(dropout / 2),
            nn.Linear(width, 512, bias=False),
            nn.ReLU(),
        ),
        *(nn.BatchNorm1d(512), nn.Dropout(dropout), nn.Linear(512, n_classes, bias=False)),
    ]
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d):
            nn.init.constant_(layer.bias, 1e-3)
        elif isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return nn.Sequential(*layers)


def _head(spec: NetworkSpec, n_features: int, spatial: bool) -> nn.Sequential:
    if spec.head == "fastai":
        return fastai_head(n_features, spec.n_classes, spec.dropout, spatial=spatial)
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if spatial else []
    layers: list[nn.Module]
    layers = [*pool, nn.Dropout(spec.dropout), nn.Linear(n_features, spec.n_classes)]
    if spec.head == "cosine":
        # Dropout after normalisation: before it, the cosines of training and prediction would differ
        # by sqrt(1 - dropout).
        layers = [*pool, Unit(), nn.Dropout(spec.dropout), Cosine(n_features, spec.n_classes)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
