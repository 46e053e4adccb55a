"""The small layers: each a few lines of arithmetic on tensors, with its parameters in sight.

Shapes are written [batch, length, width] for sequences and [batch, channels, h, w] for feature
maps; "…" stands for any number of leading dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

# Where a layer is torch's by type, its tensors are made and named there, and fastai knows by the type
# which parameters to train while the body is frozen. The arithmetic is here.

# --- linear maps ----------------------------------------------------------------------------------


class Linear(nn.Linear):
    """y = x Wᵀ + b. x […, n_in], W [n_out, n_in], b [n_out], y […, n_out].

    Weights begin within ±1 / √n_in, which keeps the variance of y near a third of x's.
    """

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


class Conv1D(nn.Module):
    """GPT-2's linear layer: y = x W + b, its weight the other way round. W [n_in, n_out], b [n_out].

    It is a convolution over the sequence with a kernel one position wide, hence the name.
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Embedding(nn.Module):
    """Row i of a table for number i. ids int64 […] -> […, width]; weight [n, width]."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, width).normal_(std=0.02))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


# --- normalisation --------------------------------------------------------------------------------


class BatchNorm(nn.BatchNorm2d):
    """Each channel to mean 0 and variance 1 over batch and space (1502.03167). [batch, channels, h, w].

    weight, bias [channels] scale and shift afterwards. The buffers running_mean, running_var
    [channels] follow the batches' by ``momentum`` and stand in for them in eval mode;
    num_batches_tracked counts.
    """

    momentum: float
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        if self.training:
            n = x.numel() // x.shape[1]
            mean = wide.mean((0, 2, 3))  # [channels]
            variance = wide.var((0, 2, 3), correction=0)  # [channels]
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                self.running_mean.lerp_(mean, self.momentum)
                # The running one is the unbiased estimate: it stands for all pictures to come.
                self.running_var.lerp_(variance * n / max(1, n - 1), self.momentum)
        else:
            mean, variance = self.running_mean, self.running_var
        scale = self.weight * torch.rsqrt(variance + self.eps)  # [channels]
        shift = self.bias - mean * scale  # [channels]
        return (wide * scale[:, None, None] + shift[:, None, None]).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Each position to mean 0 and variance 1 over its width (1607.06450). […, width].

    weight, bias [width]. It has no buffers: it does the same in training and afterwards.
    """

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        centred = wide - wide.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)  # […, 1]
        y = centred * torch.rsqrt(variance + self.eps) * self.weight
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class RMSNorm(nn.Module):
    """Each position to root mean square 1, its mean left alone (1910.07467). […, width]."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(
            x.dtype
        ) * self.weight


def at_least_float32(x: Tensor) -> Tensor:
    """Sums over many half-precision numbers lose what they are about: they are taken in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# --- activations, probabilities, loss -------------------------------------------------------------


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), Φ the normal distribution function (1606.08415). Any shape."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    """GPT-2's approximation of it, at most 5e-4 off. Any shape."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    """x / (1 + e⁻ˣ), also named swish. Any shape."""
    return x * torch.sigmoid(x)


def softmax(x: Tensor, dim: int = -1, temperature: float = 1.0) -> Tensor:
    """Logits to probabilities; a temperature above 0 and below 1 sharpens them, above 1 flattens."""
    # The largest is taken off first: e to the power of 100 does not fit into a float32.
    e = torch.exp((x - x.amax(dim, keepdim=True)) / temperature)
    return e / e.sum(dim, keepdim=True)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Its logarithm, exact where the probability itself would round to 0."""
    x = x - x.amax(dim, keepdim=True)
    return x - torch.log(torch.exp(x).sum(dim, keepdim=True))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of -log p(target) in nats. logits [n, classes], targets int64 [n] -> []."""
    return -log_softmax(logits)[torch.arange(len(targets), device=targets.device), targets].mean()


class Dropout(nn.Dropout):
    """In training, each number is 0 with probability p, and else 1 / (1 - p) times itself."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * (torch.rand_like(x) >= self.p) / (1 - self.p)


# --- positions ------------------------------------------------------------------------------------


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """The first Transformer's fixed positions (1706.03762, section 3.5). -> [length, width].

    Even columns hold sin(t / 10000^(i/width)), odd ones the cosine of the same: clocks, from one
    with a period of 2π positions to one of 2π · 10000.
    """
    angles = _angles(torch.arange(length), width)  # [length, width / 2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


def rotate(x: Tensor, start: int = 0) -> Tensor:
    """Rotary positions (2104.09864): each pair of columns turns by an angle that grows with t.

    Two vectors' scalar product then depends on how far apart they stand, and not on where.

    Parameters
    ----------
    x : queries or keys [batch, heads, length, head width], the last even.
    start : position of the first of them; with a cache, the number of those before.
    """
    positions = torch.arange(start, start + x.shape[-2], device=x.device)
    angles = _angles(positions, x.shape[-1])  # [length, head width / 2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]  # [batch, heads, length, head width / 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2)


def _angles(positions: Tensor, width: int) -> Tensor:
    """positions [length] -> [length, width / 2], in radians."""
    # In float64: a float32 sine of position 100 000 is wrong in its third digit.
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    return positions[:, None] * 10_000.0 ** (-pairs / width)


# --- feed-forward networks ------------------------------------------------------------------------


class FFN(nn.Module):
    """Two linear layers at each position: width -> hidden -> width."""

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
        self.up = linear(width, hidden)
        self.down = linear(hidden, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] -> […, width]"""
        return self.down(self.dropout(self.activation(self.up(x))))


class GeGLU(nn.Module):
    """One half of the hidden layer gates the other, through a GELU (2002.05202). No biases."""

    activation = staticmethod(gelu)

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = Linear(width, hidden, bias=False)
        self.up = Linear(width, hidden, bias=False)
        self.down = Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] -> […, width]"""
        return self.down(self.activation(self.gate(x)) * self.up(x))


class SwiGLU(GeGLU):
    """The same through a SiLU."""

    activation = staticmethod(silu)
