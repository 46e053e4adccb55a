"""What the libraries call the tensors of the same networks: one table for each network.

A row is a regular expression for a library's name and what it is called here. A library's names are
found by its table; a file with a name that no row knows was saved from something else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from torch import Tensor

Table = Mapping[str, str]

#: torchvision's and timm's resnet18 have the same names.
RESNET18: Table = {
    r"conv1\.(.+)": r"conv.\1",
    r"bn1\.(.+)": r"norm.\1",
    r"layer(\d)\.(\d)\.conv(\d)\.(.+)": r"stage\1.\2.conv\3.\4",
    r"layer(\d)\.(\d)\.bn(\d)\.(.+)": r"stage\1.\2.norm\3.\4",
    r"layer(\d)\.(\d)\.downsample\.0\.(.+)": r"stage\1.\2.around.conv.\3",
    r"layer(\d)\.(\d)\.downsample\.1\.(.+)": r"stage\1.\2.around.norm.\3",
    r"fc\.(.+)": r"head.\1",
}

ALEXNET: Table = {
    r"features\.0\.(.+)": r"conv1.\1",
    r"features\.3\.(.+)": r"conv2.\1",
    r"features\.6\.(.+)": r"conv3.\1",
    r"features\.8\.(.+)": r"conv4.\1",
    r"features\.10\.(.+)": r"conv5.\1",
    r"classifier\.1\.(.+)": r"head.3.\1",
    r"classifier\.4\.(.+)": r"head.6.\1",
    r"classifier\.6\.(.+)": r"head.8.\1",
}

#: The names of PyTorch's own MNIST example.
DIGITS_CNN: Table = {
    r"conv1\.(.+)": r"conv1.\1",
    r"conv2\.(.+)": r"conv2.\1",
    r"fc1\.(.+)": r"head.2.\1",
    r"fc2\.(.+)": r"head.5.\1",
}

_TORCHVISION_LAYER = r"encoder\.layers\.encoder_layer_(\d+)\."
VIT_TORCHVISION: Table = {
    r"class_token": "class_token",
    r"encoder\.pos_embedding": "positions",
    r"conv_proj\.(.+)": r"patches.\1",
    _TORCHVISION_LAYER + r"ln_([12])\.(.+)": r"layers.\1.norm\2.\3",
    _TORCHVISION_LAYER + r"self_attention\.in_proj_(.+)": r"layers.\1.attention.qkv.\2",
    _TORCHVISION_LAYER + r"self_attention\.out_proj\.(.+)": r"layers.\1.attention.out.\2",
    # The published files are older than the code: they say linear_1, it says 0.
    _TORCHVISION_LAYER + r"mlp\.(?:0|linear_1)\.(.+)": r"layers.\1.ffn.up.\2",
    _TORCHVISION_LAYER + r"mlp\.(?:3|linear_2)\.(.+)": r"layers.\1.ffn.down.\2",
    r"encoder\.ln\.(.+)": r"norm.\1",
    r"heads\.head\.(.+)": r"head.\1",
}

VIT_TIMM: Table = {
    r"cls_token": "class_token",
    r"pos_embed": "positions",
    r"patch_embed\.proj\.(.+)": r"patches.\1",
    r"blocks\.(\d+)\.norm([12])\.(.+)": r"layers.\1.norm\2.\3",
    r"blocks\.(\d+)\.attn\.qkv\.(.+)": r"layers.\1.attention.qkv.\2",
    r"blocks\.(\d+)\.attn\.proj\.(.+)": r"layers.\1.attention.out.\2",
    r"blocks\.(\d+)\.mlp\.fc1\.(.+)": r"layers.\1.ffn.up.\2",
    r"blocks\.(\d+)\.mlp\.fc2\.(.+)": r"layers.\1.ffn.down.\2",
    r"norm\.(.+)": r"norm.\1",
    r"head\.(.+)": r"head.\1",
}

_GPT2_LAYER = r"transformer\.h\.(\d+)\."
GPT2: Table = {
    r"transformer\.wte\.weight": "tokens.weight",
    r"transformer\.wpe\.weight": "positions.weight",
    _GPT2_LAYER + r"ln_([12])\.(.+)": r"stack.layers.\1.norm\2.\3",
    _GPT2_LAYER + r"attn\.c_attn\.(.+)": r"stack.layers.\1.attention.qkv.\2",
    _GPT2_LAYER + r"attn\.c_proj\.(.+)": r"stack.layers.\1.attention.out.\2",
    _GPT2_LAYER + r"mlp\.c_fc\.(.+)": r"stack.layers.\1.ffn.up.\2",
    _GPT2_LAYER + r"mlp\.c_proj\.(.+)": r"stack.layers.\1.ffn.down.\2",
    r"transformer\.ln_f\.(.+)": r"norm.\1",
    r"lm_head\.weight": "tokens.weight",  # the same tensor twice
}

#: The tables that a network's files may follow, by the library that they come from.
TABLES: Mapping[str, Mapping[str, Table]] = {
    "resnet18": {"torchvision": RESNET18},
    "alexnet": {"torchvision": ALEXNET},
    "vit_b_16": {"torchvision": VIT_TORCHVISION, "timm": VIT_TIMM},
    "digits_cnn": {"pytorch/examples": DIGITS_CNN},
    "gpt": {"transformers": GPT2},
}


def rename(name: str, table: Table) -> str | None:
    """Our name of a tensor; None where the table has no row for it."""
    found = ((re.fullmatch(pattern, name), ours) for pattern, ours in table.items())
    return next((match.expand(ours) for match, ours in found if match), None)


def translate(
    network: str, state: Mapping[str, Tensor], own: Collection[str]
) -> tuple[dict[str, Tensor], str]:
    """A state dict of a library's network under our names, and the library's name.

    Parameters
    ----------
    network : a key of ``TABLES``.
    own : the names that are needed. A state dict that has them all comes back as it is, from the
        library "".

    Raises
    ------
    KeyError : a tensor has a name that is in no table of the network.
    """
    if state.keys() >= set(own):
        return dict(state), ""
    strange = ""
    for library, table in TABLES[network].items():
        names = {name: rename(name, table) for name in state}
        unknown = [name for name, ours in names.items() if ours is None]
        if not unknown:
            return {ours: state[name] for name, ours in names.items() if ours}, library
        strange = strange or unknown[0]
    raise KeyError(f"{network} has no {strange}")
