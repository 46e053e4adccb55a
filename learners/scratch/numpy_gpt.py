"""The decoder of ``gpt`` in NumPy alone: forward, backward by hand, SGD, AdamW and a schedule.

Each layer is a pair of functions, forward and backward. The backward function takes dy, the gradient of the loss with
respect to the layer's output, and inputs or outputs of the forward function; it returns the gradients with respect to
the inputs, each in the shape of its input. Parameters have the names and shapes of ``gpt.GPT``'s state dict. Shapes:
[batch, n, width], and [batch, heads, n, d] inside attention.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.integer[Any]]
Arrays = dict[str, Array]

# --- the layers, forward and backward -------------------------------------------------------------


def linear(x: Array, w: Array, b: Array) -> Array:
    """x […, n_in], w [n_in, n_out], b [n_out] -> […, n_out]."""
    return x @ w + b


def linear_backward(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    """-> dx, dw, db. y = x w gives dx = dy wᵀ and dw = xᵀ dy, summed over all leading axes."""
    rows, drows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return dy @ w.T, rows.T @ drows, drows.sum(0)


def layer_norm(x: Array, w: Array, b: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """x […, width] -> y […, width]; for the backward pass also z, x normalised, and 1 / std […, 1]."""
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    z = centred * inverse
    return z * w + b, z, inverse


def layer_norm_backward(
    dy: Array, z: Array, inverse: Array, w: Array
) -> tuple[Array, Array, Array]:
    """-> dx, dw, db. Because y ignores mean and size of x, dx has no component along 1 or along z."""
    dz = dy * w
    dx = dz - dz.mean(-1, keepdims=True) - z * (dz * z).mean(-1, keepdims=True)
    leading = tuple(range(dy.ndim - 1))
    return dx * inverse, (dy * z).sum(leading), dy.sum(leading)


def batch_norm(x: Array, w: Array, b: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """In training: x [batch, channels, h, w], w, b [channels] -> y, z, both as x, and 1 / std [channels, 1, 1].

    x may also be [batch, features]; 1 / std is then [features]. The decoder has none. It is `layer_norm` over other
    axes: for each channel over batch and space.
    """
    axes, shape = _all_but_channels(x)
    centred = x - x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(axes, keepdims=True) + eps)
    z = centred * inverse
    return z * w.reshape(shape) + b.reshape(shape), z, inverse[0]


def batch_norm_backward(
    dy: Array, z: Array, inverse: Array, w: Array
) -> tuple[Array, Array, Array]:
    """-> dx, dw, db."""
    axes, shape = _all_but_channels(dy)
    dz = dy * w.reshape(shape)
    dx = dz - dz.mean(axes, keepdims=True) - z * (dz * z).mean(axes, keepdims=True)
    return dx * inverse, (dy * z).sum(axes), dy.sum(axes)


def _all_but_channels(x: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of x [batch, channels, …] to average over, and the shape that [channels] has beside a row of x."""
    return (0, *range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))


def dropout(x: Array, p: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """x and the mask, both of any shape: y = x · mask, where the mask is 0 with probability p, else 1 / (1 - p)."""
    mask = ((rng.random(x.shape) >= p) / (1 - p)).astype(x.dtype)
    return x * mask, mask


def dropout_backward(dy: Array, mask: Array) -> Array:
    """-> dx."""
    return dy * mask


def gelu(x: Array) -> Array:
    """GPT-2's, by tanh. Any shape."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_backward(dy: Array, x: Array) -> Array:
    """-> dx. With y = x (1 + tanh u) / 2: y' = (1 + tanh u) / 2 + x (1 - tanh² u) u' / 2."""
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x * x * x))
    return dy * 0.5 * (1 + t + x * (1 - t**2) * c * (1 + 3 * 0.044715 * x * x))


def softmax(x: Array) -> Array:
    """Along the last axis; any shape."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_backward(dy: Array, y: Array) -> Array:
    """-> dx. The Jacobian of a row is diag(y) - y yᵀ."""
    return y * (dy - (dy * y).sum(-1, keepdims=True))


def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Causal. q, k, v [batch, heads, n, d] -> [batch, heads, n, d], weights [batch, heads, n, n]."""
    n, d = q.shape[-2:]
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(d)  # [batch, heads, n, n]
    weights = softmax(np.where(np.tri(n, dtype=bool), scores, -np.inf))
    return weights @ v, weights


def attention_backward(
    dy: Array, q: Array, k: Array, v: Array, weights: Array
) -> tuple[Array, Array, Array]:
    """-> dq, dk, dv. Hidden keys have weight 0, and so gradient 0."""
    dscores = softmax_backward(dy @ v.swapaxes(-2, -1), weights) / math.sqrt(q.shape[-1])
    return dscores @ k, dscores.swapaxes(-2, -1) @ q, weights.swapaxes(-2, -1) @ dy


def embedding(ids: Ids, w: Array) -> Array:
    """ids […] -> […, width]; w [n, width]."""
    return w[ids]


def embedding_backward(dy: Array, ids: Ids, w: Array) -> Array:
    """-> dw: the sum of the gradients over all look-ups of a row."""
    dw = np.zeros_like(w)
    np.add.at(dw, ids, dy)
    return dw


def cross_entropy(logits: Array, targets: Ids) -> tuple[float, Array]:
    """Mean of -log p(target), and its gradient: (p - one-hot) / count.

    logits [batch, n, vocabulary], targets [batch, n] -> [], [batch, n, vocabulary].
    """
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    places = targets[..., None]
    gradient = np.exp(log_p)
    np.put_along_axis(gradient, places, np.take_along_axis(gradient, places, -1) - 1, -1)
    return -float(np.take_along_axis(log_p, places, -1).mean()), gradient / targets.size


# --- the network ----------------------------------------------------------------------------------


class GPT:
    """The decoder, without dropout; width, depth and vocabulary follow from the names and shapes of the parameters."""

    def __init__(self, parameters: Arrays, heads: int) -> None:
        self.parameters, self.heads = parameters, heads
        self.depth = sum(name.endswith("attn.qkv.weight") for name in parameters)

    def logits(self, ids: Ids) -> Array:
        """ids [batch, n] -> [batch, n, vocabulary]."""
        return self._forward(ids)[0]

    def loss_and_gradients(self, ids: Ids, targets: Ids) -> tuple[float, Arrays]:
        """ids, targets [batch, n] -> mean nats a token, a gradient for each parameter."""
        p = self.parameters
        g: Arrays = {}
        logits, top, z, inverse, saved = self._forward(ids)
        loss, dlogits = cross_entropy(logits, targets)
        # logits = top tokensᵀ: the tied weight gets a gradient here and, at the end, as an embedding.
        dtop, dturned, _ = linear_backward(dlogits, top, p["tokens.weight"].T)
        dx, g["norm.weight"], g["norm.bias"] = layer_norm_backward(
            dtop, z, inverse, p["norm.weight"]
        )
        for i in reversed(range(self.depth)):
            dx = self._layer_backward(f"blocks.{i}", dx, saved[i], g)
        g["positions.weight"] = np.zeros_like(p["positions.weight"])
        g["positions.weight"][: ids.shape[1]] = dx.sum(0)
        g["tokens.weight"] = embedding_backward(dx, ids, p["tokens.weight"]) + dturned.T
        return loss, g

    def _forward(self, ids: Ids) -> tuple[Array, Array, Array, Array, list[Arrays]]:
        p = self.parameters
        places = np.arange(ids.shape[1])
        x: Array = embedding(ids, p["tokens.weight"]) + embedding(places, p["positions.weight"])
        saved = []
        for i in range(self.depth):
            x, kept = self._layer(f"blocks.{i}", x)
            saved.append(kept)
        top, z, inverse = layer_norm(x, p["norm.weight"], p["norm.bias"])
        return top @ p["tokens.weight"].T, top, z, inverse, saved

    def _layer(self, name: str, x: Array) -> tuple[Array, Arrays]:
        """[batch, n, width] -> the same, and what the backward pass needs."""
        a, z1, inverse1 = layer_norm(x, *self._pair(f"{name}.norm1"))
        qkv = linear(a, *self._pair(f"{name}.attn.qkv"))  # [batch, n, 3 width]
        q, k, v = (self._split(part) for part in np.split(qkv, 3, -1))
        y, weights = attention(q, k, v)
        y = self._merge(y)
        x = x + linear(y, *self._pair(f"{name}.attn.proj"))
        b, z2, inverse2 = layer_norm(x, *self._pair(f"{name}.norm2"))
        h = linear(b, *self._pair(f"{name}.mlp.fc1"))  # [batch, n, 4 width]
        act = gelu(h)
        x = x + linear(act, *self._pair(f"{name}.mlp.fc2"))
        return x, {
            "a": a, "z1": z1, "inverse1": inverse1, "q": q, "k": k, "v": v, "weights": weights,
            "y": y, "b": b, "z2": z2, "inverse2": inverse2, "h": h, "act": act,
        }  # fmt: skip

    def _layer_backward(self, name: str, dx: Array, s: Arrays, g: Arrays) -> Array:
        """The lines of `_layer` from the last to the first; gradients of x and of what is added to it are summed."""
        p = self.parameters

        def back(part: str, dy: Array, x: Array) -> Array:
            into = f"{name}.{part}"
            d, g[f"{into}.weight"], g[f"{into}.bias"] = linear_backward(dy, x, p[f"{into}.weight"])
            return d

        def back_norm(part: str, dy: Array, z: Array, inverse: Array) -> Array:
            into, w = f"{name}.{part}", p[f"{name}.{part}.weight"]
            d, g[f"{into}.weight"], g[f"{into}.bias"] = layer_norm_backward(dy, z, inverse, w)
            return d

        dh = gelu_backward(back("mlp.fc2", dx, s["act"]), s["h"])
        dx = dx + back_norm("norm2", back("mlp.fc1", dh, s["b"]), s["z2"], s["inverse2"])
        dy = self._split(back("attn.proj", dx, s["y"]))
        dqkv = attention_backward(dy, s["q"], s["k"], s["v"], s["weights"])
        together = np.concatenate([self._merge(part) for part in dqkv], -1)  # [batch, n, 3 width]
        da = back("attn.qkv", together, s["a"])
        return dx + back_norm("norm1", da, s["z1"], s["inverse1"])

    def _pair(self, name: str) -> tuple[Array, Array]:
        return self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]

    def _split(self, x: Array) -> Array:
        """[batch, n, width] -> [batch, heads, n, d]"""
        return x.reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2)

    def _merge(self, x: Array) -> Array:
        """[batch, heads, n, d] -> [batch, n, width]"""
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


# --- training -------------------------------------------------------------------------------------


class SGD:
    """w ← w - lr · m, with m ← momentum · m + g, as ``torch.optim.SGD``."""

    def __init__(self, parameters: Arrays, *, momentum: float = 0.0) -> None:
        self.parameters, self.momentum = parameters, momentum
        self.m = {name: np.zeros_like(w) for name, w in parameters.items()}

    def step(self, gradients: Arrays, lr: float) -> None:
        """Change the parameters in place."""
        for name, w in self.parameters.items():
            self.m[name] = self.momentum * self.m[name] + gradients[name]
            w -= lr * self.m[name]


class AdamW:
    """Adam (arXiv:1412.6980, algorithm 1) with decoupled weight decay (arXiv:1711.05101), as ``torch.optim.AdamW``.

    ``decay`` 0 is Adam. Only matrices decay, not biases and norms.

    Parameters
    ----------
    amsgrad : divide by the largest average of squares so far, not by the present one (arXiv:1904.09237, algorithm 2).
        Adam forgets a rare large gradient, and its steps grow again, away from the minimum if such gradients are the only
        ones that point to it.
    """

    betas, eps = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Arrays, *, decay: float = 0.01, amsgrad: bool = False) -> None:
        self.parameters, self.decay, self.amsgrad = parameters, decay, amsgrad
        self.m = {name: np.zeros_like(w) for name, w in parameters.items()}
        self.v = {name: np.zeros_like(w) for name, w in parameters.items()}
        self.largest = {name: np.zeros_like(w) for name, w in parameters.items()}
        self.steps = 0

    def step(self, gradients: Arrays, lr: float) -> None:
        """Change the parameters in place."""
        self.steps += 1
        # Both averages start at 0, which the division corrects.
        warm = [1 - beta**self.steps for beta in self.betas]
        for name, w in self.parameters.items():
            g, m, v = gradients[name], self.m[name], self.v[name]
            m += (1 - self.betas[0]) * (g - m)
            v += (1 - self.betas[1]) * (g * g - v)
            if self.amsgrad:
                v = np.maximum(self.largest[name], v, out=self.largest[name])
            if w.ndim > 1:
                w *= 1 - lr * self.decay
            w -= lr * (m / warm[0]) / (np.sqrt(v / warm[1]) + self.eps)


def cosine(step: int, steps: int, *, peak: float, floor: float = 0.0, warmup: int = 0) -> float:
    """Learning rate that rises linearly over ``warmup`` steps, then falls along half a cosine to ``floor`` (arXiv:1608.03983)."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * min(1.0, done))) / 2


def cosine_restarts(
    step: int, first: int, *, peak: float, floor: float = 0.0, growth: int = 1
) -> float:
    """Learning rate of `cosine` that starts again at ``peak`` after each cycle (arXiv:1608.03983, equation 5).

    The first cycle has ``first`` steps, each further one ``growth`` times those of the one before. A restart leaves
    a minimum for others, and the weights at the end of each cycle can be kept. As
    ``torch.optim.lr_scheduler.CosineAnnealingWarmRestarts``.
    """
    while step >= first:
        step, first = step - first, first * growth
    return cosine(step, first, peak=peak, floor=floor)
