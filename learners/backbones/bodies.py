"""Bodies and their weights, from timm, torchvision, :mod:`learners.scratch`, a package or a file."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from datasets.core.errors import SecondhandError, first_line
from datasets.images.opening import Preprocessing
from learners.backbones.hub import (
    SOURCES,
    offline_if_unreachable,
    parse_options,
    published,
    weights_errors,
)
from learners.backbones.names import SOUND
from learners.backbones.packaged import (
    PACKAGED,
    SPEECH,
    SPEECH_INPUT,
    SpeechEmbedding,
    load_packaged,
)
from learners.backbones.upstream import require_all_tensors
from learners.backbones.yamnet import SOUND_INPUT, YAMNet

#: Mean and standard deviation of MNIST's pixels, for three equal channels.
DIGITS = Preprocessing(size=28, mean=(0.1307,) * 3, std=(0.3081,) * 3, crop=1.0)


def load_body(
    name: str, shape: tuple[int, int], pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing, str]:
    """Load a body; return it, the preprocessing of its weights, and a name that needs no hub or local folder."""
    if name.startswith(SOURCES):
        return _published_body(name, shape[0], pretrained, weights)
    return *_named_body(name, shape, pretrained, weights), name


def _named_body(
    name: str, shape: tuple[int, int], pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing]:
    if weights is not None and not Path(weights).is_file():
        raise SecondhandError(f"--weights {weights}: there is no such file")
    if name.startswith("torchvision/"):
        return _torchvision_body(name, shape[0], pretrained, weights)
    if name.startswith("scratch/"):
        return _scratch_body(name, shape[0], pretrained, weights)
    check_timm(name)
    if name in (SPEECH, SOUND):
        if weights is not None:
            raise SecondhandError(f"--weights {weights}: --backbone {name} has weights of its own")
        hearing = SPEECH_INPUT if name == SPEECH else SOUND_INPUT
        if shape[0] != hearing.size:
            raise SecondhandError(
                f"--size {shape[0]}: inputs of {name} are {hearing.size} pixels high; leave --size out"
            )
        heard: SpeechEmbedding | YAMNet = SpeechEmbedding() if name == SPEECH else YAMNet()
        if pretrained:
            load_packaged(heard, name)
        return heard, hearing
    if name not in PACKAGED:
        return _timm_body(name, shape, pretrained, weights)
    body, preprocessing = _timm_body(PACKAGED[name].architecture, shape, False, weights)
    if pretrained:
        load_packaged(body, name)
    return body, preprocessing


class Stages(nn.Module):
    """A timm network that gives the feature maps of all its stages, not only of the last.

    Maps [batch, 3, size, size] to [batch, sum of widths, h, w], the last stage first; earlier maps are
    average-pooled to its size. For data unlike the pretraining, intermediate features separate classes
    better (hypercolumns, arXiv:1411.5752; Head2Toe, arXiv:2201.03529).
    """

    model: Any  # a timm model, whose methods `nn.Module` does not declare

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.last: int = self.model.num_features  # width of the last stage

    @classmethod
    def wrap(
        cls, body: nn.Module, last: Tensor, shape: tuple[int, int]
    ) -> tuple[Stages | None, Tensor]:
        """Wrap a body; return the wrapper and its features of a black picture of this shape.

        Returns None and ``last``, the body's own features of a black picture, where the body gives no map
        or no intermediate features.
        """
        has_stages = hasattr(body, "forward_intermediates") and hasattr(body, "forward_head")
        if last.ndim != 4 or not has_stages:
            return None, last
        stages = cls(body).train(body.training)
        try:
            features = _features_of_black(stages, shape)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError):
            return None, last  # this family does not support it
        unchanged = torch.equal(features[:, : stages.last], last)
        return (stages, features) if unchanged else (None, last)

    def forward(self, x: Tensor) -> Tensor:
        x, stages = self.model.forward_intermediates(x)
        last = self.model.forward_head(x)
        h, w = last.shape[2:]
        return torch.cat([last, *(adaptive_avg_pool2d(m, (h, w)) for m in stages)], dim=1)


def _features_of_black(body: nn.Module, shape: tuple[int, int]) -> Tensor:
    """Features of one black picture, [1, features] or [1, features, h, w]."""
    was_training = body.training
    body.eval()
    try:
        with torch.inference_mode():
            out: Tensor = body(torch.zeros(1, 3, *shape))
    finally:
        body.train(was_training)
    return out


def probe(body: nn.Module, name: str, shape: tuple[int, int], native: int) -> Tensor:
    """Features of one black picture.

    Raises
    ------
    SecondhandError : the size does not suit the body.
    """
    try:
        return _features_of_black(body, shape)
    except Exception as error:
        raise SecondhandError(
            f"--size {shape[0]} does not suit {name} ({first_line(error, 160)}); its own is {native}"
        ) from None


# --- timm ---------------------------------------------------------------------------------------


def check_timm(name: str) -> None:
    """Raise SecondhandError with similar names unless timm has this network."""
    import timm

    if name in PACKAGED or timm.is_model(parse_options(name)[0]):
        return
    import torchvision

    known = [*PACKAGED, *timm.list_models(), *timm.list_pretrained()]
    known += [f"torchvision/{n}" for n in torchvision.models.list_models(torchvision.models)]
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    raise SecondhandError(
        f"--backbone {name!r} is neither 'embedded' nor a network of timm or torchvision/"
        + (f"; the nearest names: {', '.join(near)}" if near else "; see timm.list_models()")
    )


class TimeDownwards(nn.Module):
    """Wraps a body trained on spectrograms with time downwards and low frequencies on the left.

    The input has time to the right and low frequencies at the bottom, as rendered here.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.flip(2).transpose(2, 3))
        return out.transpose(2, 3).flip(2) if out.ndim == 4 else out


def _timm_body(
    name: str, shape: tuple[int, int], pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing]:
    import timm
    from timm.data.config import resolve_data_config

    name, built_with = parse_options(name)
    downwards = built_with.pop("axes", None) is not None
    sides = shape[::-1] if downwards else shape
    config = timm.get_pretrained_cfg(name)
    options: dict[str, Any] = {"num_classes": 0, "pretrained": pretrained or weights is not None}
    if weights is not None:
        # timm's loader renames old keys and resamples position embeddings.
        options["pretrained_cfg_overlay"] = {"file": str(weights)}
    if config is not None and config.fixed_input_size:
        options["img_size"] = sides
    native = int(config.input_size[-1]) if config is not None else shape[0]
    # Only downloads need the network; opening a model folder does not.
    hub = offline_if_unreachable() if pretrained else nullcontext()
    with weights_errors(name, weights), hub, require_all_tensors():
        if built_with or (model := _without_pooling(name, sides, native, options)) is None:
            model = timm.create_model(name, **options, **built_with)
    preprocessing = _timm_preprocessing(resolve_data_config({}, model=model))
    return TimeDownwards(model) if downwards else model, preprocessing


def _without_pooling(
    name: str, shape: tuple[int, int], native: int, options: dict[str, Any]
) -> Any:
    """timm's network without pooling; None where it then gives no feature map."""
    import timm

    try:
        model: Any = timm.create_model(name, global_pool="", **options)
        out = probe(model, name, shape, native)
    except (TypeError, AssertionError):
        return None  # the pooling of this family cannot be removed
    is_map = out.ndim == 4 and out.shape[1] == model.num_features
    return model if is_map and not hasattr(model, "patch_embed") else None


def _published_body(
    name: str, size: int, pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing, str]:
    """A timm network from the hub or a local folder, with its own config.json.

    A single input channel becomes three, each with a third of the weights: grey pictures, whose channels
    are equal, give the same output.
    """
    import timm

    if weights is not None or not pretrained:
        other = "--weights none" if weights is None else f"--weights {weights}"
        raise SecondhandError(
            f"--backbone {name} names weights: leave {other} out, or name a network of timm's"
        )
    config = published(name)
    height, width = config.shape
    if height != width and size != height:
        raise SecondhandError(
            f"--size {size}: inputs of {name} are {height} x {width}; leave --size out"
        )
    shape = (size, size if height == width else width)
    downwards = "axes" in config.options
    sides = shape[::-1] if downwards else shape
    options: dict[str, Any] = {"num_classes": 0, "in_chans": 3}
    if config.fixed:
        options["img_size"] = sides
    # Test without weights whether the pooling can be removed: some have a norm after it.
    map_model = _without_pooling(
        config.architecture, sides, height, {**options, "pretrained": False}
    )
    pooling = {key: value for key, value in config.options.items() if key != "axes"}
    if map_model is not None:
        pooling = {"global_pool": ""}
    hub = offline_if_unreachable()
    with weights_errors(name, None), hub, require_all_tensors():
        model = timm.create_model(name, pretrained=True, **options, **pooling)
    preprocessing = _timm_preprocessing(config.data)
    if height != width:
        preprocessing = replace(preprocessing, size=height, width=width)
    options_kept = {
        key: v for key, v in config.options.items() if map_model is None or key == "axes"
    }
    return TimeDownwards(model) if downwards else model, preprocessing, config.named(options_kept)


def _timm_preprocessing(data: dict[str, Any]) -> Preprocessing:
    known = {"nearest", "bilinear", "bicubic", "lanczos"}
    return Preprocessing(
        size=int(data["input_size"][-1]),
        mean=_three(data["mean"]),
        std=_three(data["std"]),
        interpolation=data["interpolation"] if data["interpolation"] in known else "bicubic",
        crop=float(data["crop_pct"]),
    )


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    """Three values; a single one is repeated."""
    first, second, third = tuple(values) * (3 if len(values) == 1 else 1)
    return first, second, third


# --- torchvision --------------------------------------------------------------------------------


def torchvision_weights(name: str) -> tuple[str, Any]:
    """Architecture, and published weights as named or by default, of a torchvision network.

    Raises
    ------
    SecondhandError : unknown architecture or weights.
    """
    import torchvision

    arch, _, tag = name.removeprefix("torchvision/").partition(":")
    _check_known(name, "torchvision", torchvision.models.list_models(torchvision.models))
    known = torchvision.models.get_model_weights(arch)
    if tag and tag not in known.__members__:
        raise SecondhandError(
            f"--backbone {name!r}: {arch} has no weights {tag!r}; it has {', '.join(known.__members__)}"
        )
    return arch, known[tag] if tag else getattr(known, "DEFAULT", None)


def _check_known(name: str, library: str, names: Sequence[str]) -> str:
    """Architecture in ``LIBRARY/ARCH[:WEIGHTS]``; SecondhandError unless it is one of ``names``."""
    arch = name.removeprefix(f"{library}/").partition(":")[0]
    if arch not in names:
        near = difflib.get_close_matches(arch, names, n=4, cutoff=0.4) or names
        raise SecondhandError(
            f"--backbone {name!r}: {library} has no {arch!r}; the nearest names: "
            + ", ".join(f"{library}/{n}" for n in near[:4])
        )
    return arch


def _torchvision_body(
    name: str, size: int, pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing]:
    import torchvision
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    arch, published = torchvision_weights(name)
    sides = {"image_size": size} if arch.startswith("vit_") else {}
    model = torchvision.models.get_model(arch, weights=None, **sides)
    if weights is not None or (pretrained and published is not None):
        with weights_errors(name, weights):
            state = _state(published, weights)
            if isinstance(model, VisionTransformer):
                state = interpolate_embeddings(model.image_size, model.patch_size, state)
            names = list(model.state_dict())
            last = names[-1].rpartition(".")[0]  # a classifier of another length
            _fill(model, state, [name for name in names if name.rpartition(".")[0] != last])
    return _without_classifier(model), _torchvision_preprocessing(published)


def _state(published: Any, weights: str | Path | None) -> dict[str, Tensor]:
    """State dict of a file, or of the published weights."""
    from timm.models import load_state_dict

    if weights is not None:
        return dict(load_state_dict(str(weights), use_ema=False))
    return dict(published.get_state_dict(progress=False, check_hash=True))


def _fill(model: nn.Module, state: dict[str, Tensor], names: Collection[str]) -> None:
    """Set the tensors of these names; RuntimeError where they are missing or of another shape."""
    present = model.state_dict()
    # Old files lack this counter, which is not used here.
    state = {**{n: v for n, v in present.items() if n.endswith("num_batches_tracked")}, **state}
    missing = [n for n in names if n not in state or state[n].shape != present[n].shape]
    if missing:
        raise RuntimeError(f"{len(missing)} tensors do not fit, the first is {missing[0]}")
    model.load_state_dict({**present, **{n: state[n] for n in names}})


def _torchvision_preprocessing(published: Any) -> Preprocessing:
    if published is None:
        return Preprocessing()
    transforms = published.transforms()
    return Preprocessing(
        size=int(transforms.crop_size[0]),
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
        interpolation=transforms.interpolation.value,
        crop=min(1.0, transforms.crop_size[0] / transforms.resize_size[0]),
    )


def _without_classifier(model: nn.Module) -> nn.Module:
    """The feature map where the network has the usual ending, else all but its last linear layer."""
    children = dict(model.named_children())
    if "layer4" in children or "trunk_output" in children:  # ResNet and kin, RegNet
        kept = {name: child for name, child in children.items() if name not in ("avgpool", "fc")}
        return nn.Sequential(OrderedDict(kept))
    classifier = children.get("classifier")
    if "features" in children and "norm" not in children and "head" not in children:
        layers: dict[str, nn.Module] = {"features": children["features"]}
        if isinstance(classifier, nn.Linear):  # DenseNet applies this one outside its modules
            layers["relu"] = nn.ReLU()
        if isinstance(classifier, nn.Sequential) and isinstance(classifier[0], nn.LayerNorm):
            layers["norm"] = classifier[0]  # ConvNeXt's final norm
        return nn.Sequential(OrderedDict(layers))
    name = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, nn.Identity())
    return model


# --- scratch ------------------------------------------------------------------------------------


def check_scratch(name: str) -> str:
    """Architecture in ``scratch/ARCH[:WEIGHTS]``; SecondhandError for an unknown one."""
    return _check_known(name, "scratch", ("alexnet", "mnist_cnn", "resnet18", "vit_b_16"))


def _scratch_body(
    name: str, size: int, pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing]:
    """A network of :mod:`learners.scratch` with torchvision's weights or those of a file."""
    from timm import get_pretrained_cfg
    from timm.layers.pos_embed import resample_abs_pos_embed
    from torchvision.models.vision_transformer import interpolate_embeddings

    from learners.scratch import convnets, vit

    arch, published = check_scratch(name), None
    if arch == "mnist_cnn":
        if pretrained:
            raise SecondhandError(
                f"nobody has published weights of {name}; use --weights none, or --weights FILE"
            )
        preprocessing = DIGITS
    else:
        _, published = torchvision_weights(name.replace("scratch/", "torchvision/", 1))
        preprocessing = _torchvision_preprocessing(published)
    body: nn.Module
    if arch == "vit_b_16":
        if size % 16:
            raise SecondhandError(
                f"--size {size} does not suit scratch/vit_b_16: its patches are 16 pixels a side, "
                f"so take {max(16, round(size / 16) * 16)}"
            )
        body = vit.vit_b_16(size, n_classes=None)
    else:
        convnet = {"alexnet": convnets.AlexNet, "resnet18": convnets.ResNet18}
        body = convnet.get(arch, convnets.MnistCNN)(n_classes=None)
    if pretrained or weights is not None:
        with weights_errors(name, weights):
            own_state, state = body.state_dict(), _state(published, weights)
            if arch == "vit_b_16" and "pos_embed" in state:
                # timm's weights were trained with pixels from -1 to 1, unlike torchvision's.
                config = get_pretrained_cfg("vit_base_patch16_224")
                assert config is not None
                preprocessing = _timm_preprocessing(config.to_dict())
                state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], [size // 16] * 2)
            elif arch == "vit_b_16":
                state = vit.from_torchvision(interpolate_embeddings(size, 16, OrderedDict(state)))
            _fill(body, state, own_state)
    return body, preprocessing
