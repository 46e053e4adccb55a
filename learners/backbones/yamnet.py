"""YAMNet, a body for sounds: a MobileNet (1704.04861) that names 521 kinds of sounds of AudioSet.

It sees patches of 0.96 s, each half a patch after the one before; a longer spectrogram is cut into them, and a shorter
one ends in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets.audio.mel import PATCH, PATCH_HOP, YAMNET_OFFSET
from datasets.core.errors import SecondhandError
from datasets.images.opening import Preprocessing
from learners.backbones.names import SOUND_MEL
from learners.backbones.tensorflow_variables import read_variables

#: Features and stride of each block.
BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    *[(512, 1)] * 5, (1024, 2), (1024, 1),
)  # fmt: skip
#: Added to the variances of the normalisations.
EPS = 1e-4
#: Natural logarithm of an empty spectrogram.
SILENCE = math.log(YAMNET_OFFSET)
#: Nepers of a grey value of 1, white: the network was given the logarithm of magnitudes.
RANGE = SOUND_MEL["range_db"] * math.log(10) / 20
#: Its input: black is `SILENCE`. The width is that of the window.
SOUND_INPUT = Preprocessing(
    size=SOUND_MEL["n_mels"],
    width=PATCH,
    mean=(-SILENCE / RANGE,) * 3,
    std=(1 / RANGE,) * 3,
    crop=1.0,
)


class Convolution(nn.Module):
    """A convolution without bias, batch normalisation, and ReLU; edges are padded as in TensorFlow.

    The averages of the normalisation stay as they are in training, whose batches are patches of a few clips.
    """

    def __init__(self, before: int, after: int, side: int, stride: int = 1, groups: int = 1):
        super().__init__()
        padding = side // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(before, after, side, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(after, eps=EPS)

    def train(self, mode: bool = True) -> Convolution:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.conv.stride[0] == 2:  # of even lengths TensorFlow pads the end alone
            x = functional.pad(x, (0, 1, 0, 1))
        return functional.relu(self.norm(self.conv(x)))


class YAMNet(nn.Module):
    """[batch, 3, 64, frames] -> [batch, 2048, 2, columns], whose mean are mean and maximum of the patches' features.

    Input channels are equal; time runs to the right, low frequencies are at the bottom. A column is 0.16 s. In the first
    1024 maps the patches are added where they overlap. In each of the others only that patch is shown which has most of
    the feature: a short sound counts in a long window, too.
    """

    num_features = 2 * BLOCKS[-1][0]
    #: Columns of a patch, and from each to the next; the network gives half as many.
    COLUMNS, STEP = 6, 3

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution(1, 32, 3, stride=2)
        width, blocks = 32, []
        for features, stride in BLOCKS:
            depthwise = Convolution(width, width, 3, stride, groups=width)
            blocks.append(nn.Sequential(depthwise, Convolution(width, features, 1)))
            width = features
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        count = 1 + max(math.ceil((x.shape[3] - PATCH) / PATCH_HOP), 0)
        missing = PATCH + PATCH_HOP * (count - 1) - x.shape[3]
        x = functional.pad(x[:, :1], (0, missing), value=SILENCE).flip(2).transpose(2, 3)
        x = self.stem(
            torch.cat([x[:, :, PATCH_HOP * n : PATCH_HOP * n + PATCH] for n in range(count)])
        )
        for block in self.blocks:
            x = block(x)
        patches = x.transpose(2, 3).flip(2).repeat_interleave(2, dim=3).unflatten(0, (count, -1))
        of_patches = patches.mean((3, 4), keepdim=True)
        most = (of_patches == of_patches.amax(0)).to(x.dtype)
        most = most / most.sum(0)  # of equal patches each is shown in part
        columns = self.COLUMNS + self.STEP * (count - 1)
        mean = self._placed(patches / count, columns)
        return torch.cat([mean, self._placed(patches * most, columns)], dim=1)

    def _placed(self, patches: Tensor, columns: int) -> Tensor:
        """The sum of patches [count, batch, features, 2, 6], each at its time; its mean is the sum of theirs."""
        moved = [
            functional.pad(patch, (self.STEP * n, columns - self.COLUMNS - self.STEP * n))
            for n, patch in enumerate(patches.unbind(0))
        ]
        return torch.stack(moved).sum(0) * (columns / self.COLUMNS)


def sound_tensors(index: Path) -> dict[str, Tensor]:
    """State of `YAMNet` from TensorFlow's variables, and weight and bias of the classifier.

    Raises
    ------
    SecondhandError : the files are damaged, or the variables are not YAMNet's.
    """
    variables = read_variables(index)
    prefix = "layer-1/layer/_func/_yamnet/layer_with_weights-"

    def values(layer: int, name: str) -> Tensor:
        full = f"{prefix}{layer}/{name}/.ATTRIBUTES/VARIABLE_VALUE"
        if full not in variables:
            raise SecondhandError(f"{index}: not the variables of YAMNet (no {full})")
        return torch.from_numpy(variables[full].copy())

    places = ["stem"]
    places += [f"blocks.{block}.{half}" for block in range(len(BLOCKS)) for half in (0, 1)]
    state: dict[str, torch.Tensor] = {}
    for number, place in enumerate(places):
        # Height, width, input and output; of a depthwise one its 32 to 1024 inputs have an output each.
        depthwise = place.endswith(".0")
        kernel = values(2 * number, "depthwise_kernel" if depthwise else "kernel")
        if kernel.ndim != 4:
            raise SecondhandError(
                f"{index}: not the variables of YAMNet (a kernel of {kernel.ndim} axes)"
            )
        beta = values(2 * number + 1, "beta")
        state |= {
            f"{place}.conv.weight": kernel.permute(2, 3, 0, 1)
            if depthwise
            else kernel.permute(3, 2, 0, 1),
            f"{place}.norm.weight": torch.ones_like(beta),  # it was trained without
            f"{place}.norm.bias": beta,
            f"{place}.norm.running_mean": values(2 * number + 1, "moving_mean"),
            f"{place}.norm.running_var": values(2 * number + 1, "moving_variance"),
            f"{place}.norm.num_batches_tracked": torch.tensor(0),
        }
    last = 2 * len(places)
    state |= {
        "classifier.weight": values(last, "kernel").T,
        "classifier.bias": values(last, "bias"),
    }
    return {name: value.contiguous() for name, value in state.items()}


def unit_variance(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same function with larger weights: each convolution is divided by the deviation that its normalisation divides
    by, whose variance becomes 1.

    The published weights are 0.005 to 0.02 in size, and the normalisations multiply by up to 100. A step of Adam is as
    large as the learning rate, whatever the size of the weight, so the rate that fine-tunes other bodies destroyed this
    one in its first steps (docs/decisions.md).
    """
    scaled = dict(state)
    for name, variance in state.items():
        if name.endswith(".norm.running_var"):
            place = name.removesuffix(".norm.running_var")
            deviation = (variance.double() + EPS).sqrt()
            for part in ("conv.weight", "norm.running_mean"):
                values = state[f"{place}.{part}"]
                each = deviation.reshape(-1, *[1] * (values.ndim - 1))
                scaled[f"{place}.{part}"] = (values.double() / each).to(values.dtype)
            scaled[name] = torch.full_like(variance, 1 - EPS)
    return scaled
