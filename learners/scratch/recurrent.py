"""The recurrent network, which reads a sequence step by step, and a language model of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from learners.scratch.layers import Embedding, Linear, cross_entropy


class RNN(nn.Module):
    """h ← tanh(W x + b + U h + c) at each position: the state h holds all that is known of those before (Elman 1990).

    As ``torch.nn.RNN(batch_first=True)``, whose tensors have the same names: [batch, n, n_in] -> the states of the last
    layer [batch, n, width], and the last state of each layer [depth, batch, width].

    Each position waits for the one before, where a Transformer computes all at once; and the gradient of a state with
    respect to one t positions before is a product of t Jacobians, which shrinks or grows as a power of t.

    Parameters
    ----------
    n_in : width of the inputs.
    width : width of the state.
    depth : layers, each of which reads the states of the one before.
    """

    def __init__(self, n_in: int, width: int, depth: int = 1) -> None:
        super().__init__()
        self.width, self.depth = width, depth
        bound = 1 / math.sqrt(width)
        for layer in range(depth):
            sizes = {
                "weight_ih": (width, width if layer else n_in), "weight_hh": (width, width),
                "bias_ih": (width,), "bias_hh": (width,),
            }  # fmt: skip
            for name, size in sizes.items():
                weight = nn.Parameter(torch.empty(size).uniform_(-bound, bound))
                self.register_parameter(f"{name}_l{layer}", weight)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [batch, n, n_in], and the state [depth, batch, width] to go on from, 0 by default."""
        if state is None:
            state = x.new_zeros(self.depth, len(x), self.width)
        last = []
        for layer, h in enumerate(state):  # h [batch, width]
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            w, u, b, c = (self.get_parameter(f"{name}_l{layer}") for name in names)
            states = []
            for step in x.unbind(1):  # [batch, n_in]
                h = torch.tanh(step @ w.T + b + h @ u.T + c)
                states.append(h)
            x = torch.stack(states, dim=1)  # [batch, n, width]
            last.append(h)
        return x, torch.stack(last)


class RecurrentLanguageModel(nn.Module):
    """Logits of the next token at every position, from the tokens before: int64 [batch, n] -> [batch, n, vocabulary]."""

    def __init__(self, vocabulary: int, width: int, depth: int = 1) -> None:
        super().__init__()
        self.tokens = Embedding(vocabulary, width)
        self.rnn = RNN(width, width, depth)
        self.proj = Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.proj(self.rnn(self.tokens(ids))[0])

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats a token; ids and targets int64 [batch, n] -> []."""
        return cross_entropy(self(ids).flatten(0, 1), targets.flatten())
