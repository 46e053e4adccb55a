"""Routing: a mixture of experts chooses networks for a token, a mixture of depths chooses tokens for a layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from learners.scratch.layers import Linear, SwiGLU, softmax


class Routing(NamedTuple):
    """Where a mixture of experts sent its n tokens.

    Attributes
    ----------
    probabilities : [n, experts] of the router; rows sum to 1.
    chosen : int64 [n, k], the experts of each token, the likeliest first.
    weights : [n, k] of the chosen ones; rows sum to 1.
    """

    probabilities: Tensor
    chosen: Tensor
    weights: Tensor

    @property
    def load(self) -> Tensor:
        """Fraction of all assignments that each expert got: [experts], sums to 1."""
        counts = torch.bincount(self.chosen.flatten(), minlength=self.probabilities.shape[1])
        return counts / self.chosen.numel()

    @property
    def balance_loss(self) -> Tensor:
        """experts · Σ load · mean probability (arXiv:2101.03961, equation 4): 1 if all experts are used alike, at most
        ``experts``.

        Added to the loss with a small factor, it keeps the router from sending all tokens to a few experts.
        """
        return len(self.load) * (self.load * self.probabilities.mean(0)).sum()


class MixtureOfExperts(nn.Module):
    """k of several SwiGLU networks work on each token (arXiv:1701.06538, equation 1): […, width] -> […, width].

    As Mixtral (arXiv:2401.04088, section 2.1): weights are the softmax over the logits of the k chosen experts.

    Parameters
    ----------
    hidden : width inside each expert.
    experts : number of experts.
    k : how many of them each token passes through, 1 to ``experts``.
    """

    #: Routing of the last forward pass, for its statistics and its loss.
    routing: Routing

    def __init__(self, width: int, hidden: int, *, experts: int, k: int) -> None:
        super().__init__()
        if not 1 <= k <= experts:
            raise ValueError(f"k {k} is not from 1 to the number of experts, {experts}")
        self.router = Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(width, hidden) for _ in range(experts))
        self.k = k

    def init_weights(self, std: float) -> None:
        """Draw all weights anew from normal distributions, as torchtitan's Llama does.

        The gates W of the experts have standard deviation 0.02; the values V, the outputs W₂ and the router have ``std``.
        That is 0.02 / √(2 · depth) as a rule, so that the sum over all layers of a network keeps its size. Numbers
        beyond ±2 are drawn again; at such deviations there are none.
        """
        for expert in self.experts:
            assert isinstance(expert, SwiGLU)
            gate, values = expert.fc1.weight.chunk(2)  # [hidden, width] each
            for weight, deviation in ((gate, 0.02), (values, std), (expert.fc2.weight, std)):
                nn.init.trunc_normal_(weight, std=deviation)
        nn.init.trunc_normal_(self.router.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)  # [n, width]
        self.routing = self.route(tokens)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = (self.routing.chosen == number).nonzero(
                as_tuple=True
            )  # both [its tokens]
            if len(rows):  # each expert sees its own tokens only
                weight = self.routing.weights[rows, places, None]  # [its tokens, 1]
                out = out.index_add(0, rows, weight * expert(tokens[rows]))
        return out.view_as(x)

    def route(self, tokens: Tensor) -> Routing:
        """Choose the experts of tokens [n, width]."""
        probabilities = softmax(self.router(tokens))  # [n, experts]
        weights, chosen = probabilities.topk(self.k)  # [n, k] each
        return Routing(probabilities, chosen, weights / weights.sum(-1, keepdim=True))


class MixtureOfDepths(nn.Module):
    """A layer for the tokens that a router chooses; the others skip it (arXiv:2404.02258, equation 1).

    A chosen token becomes x + r · f(x), with the router's score r, which the gradient reaches through the product; the
    layer adds f(x) to x, and sees the chosen tokens only, in their order. With capacity 1 there is nothing to choose,
    no router, and the layer is as without.

    The choice compares all tokens of a sequence, so it looks ahead: a language model needs a second, causal router
    to generate text (section 3.5 of the paper).

    Parameters
    ----------
    layer : maps [batch, n, width] to the same, with a residual connection.
    capacity : fraction of the tokens of each sequence that pass the layer, above 0, at most 1.
    """

    def __init__(self, layer: nn.Module, width: int, capacity: float) -> None:
        super().__init__()
        if not 0 < capacity <= 1:
            raise ValueError(f"capacity {capacity} is not above 0 and at most 1")
        self.layer, self.capacity = layer, capacity
        self.router = Linear(width, 1, bias=False) if capacity < 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, n, width] -> the same."""
        if self.router is None:
            return self.layer(x)
        scores = self.router(x)  # [batch, n, 1]
        chosen = self.choose(scores).expand(-1, -1, x.shape[2])  # [batch, k, width]
        tokens = x.gather(1, chosen)  # [batch, k, width]
        change = scores.gather(1, chosen[..., :1]) * (self.layer(tokens) - tokens)
        return x.scatter_add(1, chosen, change)

    def choose(self, scores: Tensor) -> Tensor:
        """Places of the k highest scores [batch, n, 1] in ascending order: int64 [batch, k, 1]."""
        k = max(1, round(self.capacity * scores.shape[1]))
        return scores.topk(k, dim=1).indices.sort(dim=1).values
