"""The small layers: each a few lines of arithmetic on tensors.

Shapes are written [batch, n, width] for sequences of n positions and [batch, channels, h, w] for feature maps;
"…" stands for any number of leading dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) for a while; then each module of the network is in the mode that it was in."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


# --- linear maps ----------------------------------------------------------------------------------


class Linear(nn.Module):
    """y = x Wᵀ + b, as ``torch.nn.Linear``: x […, n_in], W [n_out, n_in], b [n_out], y […, n_out].

    The weights start uniform within ±1 / √n_in, so that y has about a third of the variance of x.
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_in)
        self.weight = nn.Parameter(torch.empty(n_out, n_in).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_out).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


class Conv1D(nn.Module):
    """GPT-2's linear layer, as in transformers: y = x W + b, with the weight transposed. W [n_in, n_out], b [n_out].

    It is a convolution over the sequence whose kernel is one position wide, hence the name.
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Embedding(nn.Module):
    """Row i of a table for token i, as ``torch.nn.Embedding``: ids int64 […] -> […, width]; weight [n, width].

    Parameters
    ----------
    scaled : multiply the rows by √width (arXiv:1706.03762, section 3.4). The same small weights then give logits
        where they are tied to the output layer, and inputs that positions of size 1 do not drown.
    """

    def __init__(self, n: int, width: int, *, scaled: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, width).normal_(std=0.02))
        self.scale = math.sqrt(width) if scaled else 1.0

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids] * self.scale


def one_hot(ids: Tensor, n: int) -> Tensor:
    """Float vectors of n numbers, all 0 but a 1 at the id, as ``torch.nn.functional.one_hot``: int64 […] -> […, n].

    Times a matrix [n, width] they give its rows: an `Embedding` is a linear layer on one-hot vectors, without the
    products with 0.

    Raises
    ------
    RuntimeError : an id is not from 0 to n - 1.
    """
    return torch.zeros(*ids.shape, n, device=ids.device).scatter_(-1, ids[..., None], 1.0)


# --- normalisation --------------------------------------------------------------------------------

# BatchNorm and LayerNorm are torch's by type, because fastai recognises by type the layers that it also trains in
# a frozen body. Their constructors make the tensors that the docstrings name; the arithmetic is here.


class BatchNorm(nn.BatchNorm2d):
    """Each channel to mean 0 and variance 1 over batch and space (arXiv:1502.03167, algorithm 1).

    [batch, channels, h, w] as ``torch.nn.BatchNorm2d``; [batch, features] or [batch, channels, n] as
    ``torch.nn.BatchNorm1d``, whose tensors have the same names. weight, bias [channels] scale and shift afterwards. In training, the buffers
    running_mean, running_var [channels] move towards the statistics of each batch by the factor ``momentum``; in
    eval mode they replace them.
    """

    momentum: float
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        mean, variance = self.running_mean, self.running_var
        if self.training:
            all_but_channels = (0, *range(2, x.ndim))
            mean = wide.mean(all_but_channels)  # [channels]
            variance = wide.var(all_but_channels, correction=0)  # [channels]
            with torch.no_grad():
                n = x.numel() // x.shape[1]
                self.num_batches_tracked.add_(1)
                self.running_mean.lerp_(mean, self.momentum)
                # The unbiased estimate, because it stands for pictures that are not in the batch.
                self.running_var.lerp_(variance * n / max(1, n - 1), self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)  # [channels]
        shift = self.bias - mean * scale  # [channels]
        shape = (-1, *[1] * (x.ndim - 2))  # [channels, 1, 1] for maps, [features] for features
        return (wide * scale.view(shape) + shift.view(shape)).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Each position to mean 0 and variance 1 over its width (arXiv:1607.06450, equation 4). […, width].

    As ``torch.nn.LayerNorm``; weight, bias [width]. Training and eval mode are the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        centred = wide - wide.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)  # […, 1]
        y = centred * torch.rsqrt(variance + self.eps) * self.weight
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class RMSNorm(nn.Module):
    """Each position to root mean square 1, without subtracting the mean (arXiv:1910.07467, equation 4). […, width].

    As ``torch.nn.RMSNorm``; weight [width].
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)  # […, 1]
        return (wide * inverse * self.weight).to(x.dtype)


def at_least_float32(x: Tensor) -> Tensor:
    """Half-precision numbers as float32, because sums over many of them overflow or lose their last digits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# --- activations, probabilities, loss -------------------------------------------------------------


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), where Φ is the normal distribution function (arXiv:1606.08415, section 2). Any shape."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    """GPT-2's approximation of `gelu`, at most 5e-4 off; torch's ``approximate="tanh"``. Any shape."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ), from 0 to 1, as ``torch.sigmoid``. Any shape."""
    # By tanh, because e⁻ˣ is beyond float32 for x < -88, and its gradient is then no number.
    return (1 + torch.tanh(x / 2)) / 2


def silu(x: Tensor) -> Tensor:
    """x / (1 + e⁻ˣ), also called swish; ``torch.nn.functional.silu``. Any shape."""
    return x * sigmoid(x)


def softmax(x: Tensor, dim: int = -1, temperature: float = 1.0) -> Tensor:
    """Logits to probabilities. A temperature between 0 and 1 sharpens them, one above 1 flattens them. Any shape."""
    # Subtracting the largest logit changes nothing but avoids e^100, which is beyond float32.
    e = torch.exp((x - x.amax(dim, keepdim=True)) / temperature)
    return e / e.sum(dim, keepdim=True)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Logarithm of the softmax, exact where the probability itself would round to 0. Any shape."""
    x = x - x.amax(dim, keepdim=True)
    return x - torch.log(torch.exp(x).sum(dim, keepdim=True))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of -log p(target) in nats, as torch's: logits [n, classes], targets int64 [n] -> []."""
    return -log_softmax(logits)[torch.arange(len(targets), device=targets.device), targets].mean()


class Dropout(nn.Module):
    """In training, each number becomes 0 with probability p, else it is divided by 1 - p, which keeps the mean.

    As ``torch.nn.Dropout`` (arXiv:1207.0580). Any shape.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * (torch.rand_like(x) >= self.p) / (1 - self.p)


# --- positions ------------------------------------------------------------------------------------


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """Fixed positions of the first Transformer (arXiv:1706.03762, section 3.5). -> [length, width].

    Column 2i holds sin(t / 10000^(2i/width)), column 2i + 1 the cosine of the same angle: clocks with periods from 2π
    to 2π · 10000 positions.
    """
    angles = _angles(torch.arange(length), width)  # [length, width / 2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


def rotate(x: Tensor, start: int = 0) -> Tensor:
    """Rotary positions (arXiv:2104.09864, equation 34): each pair of columns is turned by an angle proportional to t.

    The scalar product of a query and a key then depends on the distance of their positions only.

    Parameters
    ----------
    x : queries or keys [batch, heads, n, d], d even.
    start : position of the first one; with a cache, the number of positions before.
    """
    positions = torch.arange(start, start + x.shape[-2], device=x.device)
    angles = _angles(positions, x.shape[-1])  # [n, d / 2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]  # [batch, heads, n, d / 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2)


def _angles(positions: Tensor, width: int) -> Tensor:
    """positions [n] -> radians [n, width / 2]."""
    # In float64, because a float32 sine at position 100 000 is wrong in its third digit.
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    return positions[:, None] * 10_000.0 ** (-pairs / width)


# --- feed-forward networks ------------------------------------------------------------------------


class FFN(nn.Module):
    """Two linear layers at each position (arXiv:1706.03762, equation 2): […, width] -> […, hidden] -> […, width].

    As ``timm.layers.Mlp``, whose names it has.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = gelu,
        linear: type[Linear] | type[Conv1D] = Linear,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.fc1 = linear(width, hidden)
        self.fc2 = linear(hidden, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.dropout(self.activation(self.fc1(x))))


class GeGLU(nn.Module):
    """(GELU(x W) ⊙ x V) W₂ (arXiv:2002.05202, equation 6): one hidden layer gates another. […, width] -> […, width].

    fc1 holds W and V, each [hidden, width], one below the other. Which of them comes first is a convention of files:

    - W, the gate, as in the paper, LLaMA and ModernBERT: ``timm.layers.GluMlp`` with ``gate_last=False``.
    - V, and the gate last, as in the essay, diffusers and ``timm.layers.GluMlp`` by default. Weights of one kind give
      another function in the other: a file is loaded with the ``gate_last`` that it was trained with.
    """

    activation = staticmethod(gelu)

    def __init__(
        self, width: int, hidden: int, bias: bool = False, *, gate_last: bool = False
    ) -> None:
        super().__init__()
        self.gate_last = gate_last
        self.fc1 = Linear(width, 2 * hidden, bias)
        self.fc2 = Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.fc1(x).chunk(2, dim=-1)  # […, hidden] each
        gate, values = (second, first) if self.gate_last else (first, second)
        return self.fc2(self.activation(gate) * values)


class SwiGLU(GeGLU):
    """The same with SiLU in place of GELU, as in LLaMA and Mixtral."""

    activation = staticmethod(silu)
