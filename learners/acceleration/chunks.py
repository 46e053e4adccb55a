"""A batch in chunks, each on a core of its own, forward and backward.

Threads that share a batch wait for the slowest of them after every layer; with chunks they wait twice
a step, once the body has made its features and once their gradients are there.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import torch
from fastai.callback.core import Callback
from torch import Tensor, nn

from learners.acceleration.cores import CoreEach
from learners.acceleration.process import is_on
from learners.backbones import batch_norms
from learners.machine import threads

log = logging.getLogger(__name__)

#: Cores up to which each takes a chunk: the gradients of every chunk are as large as the network,
#: and are added one after the other.
MOST = 4
#: Items that a chunk has at least.
LEAST = 4


class Chunks(Callback):
    """The body computes each batch in chunks, the head what they make together.

    Only where that is the same arithmetic: a BatchNorm in training mode would see a chunk instead of
    the batch, and what draws random numbers would draw them in another order each time.
    """

    order = 60  # after everything that changes the model
    network: nn.Sequential | None = None

    def __init__(self) -> None:
        self.cores = CoreEach()

    def before_fit(self) -> None:
        self.draws: bool | None = None

    def before_train(self) -> None:
        self.follows = any(norm.training for norm in batch_norms(self.learn.model[0]))

    def before_batch(self) -> None:
        network, x = self.learn.model, self.xb[0]
        if chunks_of(x) == 1:
            return
        if self.training and not self.follows and self.draws is None:
            self.draws = _draws(network[0], x[:1])
            if not self.draws:
                log.info("each of %d threads computes its part of a batch", chunks_of(x))
        if not (self.training and (self.follows or self.draws)):
            self.network = network
            self.learn.model = partial(_forward, network, self.cores)

    def after_pred(self) -> None:
        if self.network is not None:
            self.learn.model, self.network = self.network, None

    after_cancel_batch = after_fit = after_pred


def chunks_of(x: Tensor) -> int:
    """How many chunks a batch on the CPU is computed in."""
    count = threads()
    fits = x.device.type == "cpu" and count <= min(MOST, len(x) // LEAST)
    return count if fits and is_on() else 1


def in_chunks(body: nn.Module, x: Tensor, cores: CoreEach) -> Tensor:
    """``body(x)`` for a body that treats items one by one and draws no random numbers."""
    if chunks_of(x) == 1:
        return body(x)
    weights = [weight for weight in body.parameters() if weight.requires_grad]
    if torch.is_grad_enabled() and weights:
        return _Chunks.apply(body, cores, x, *weights)
    return torch.cat(_features(body, cores, x))


def _forward(network: nn.Sequential, cores: CoreEach, x: Tensor) -> Tensor:
    head: nn.Module = network[1]
    logits: Tensor = head(in_chunks(network[0], x, cores))
    return logits


def _draws(body: nn.Module, x: Tensor) -> bool:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        body(x)
        return not torch.equal(before, torch.get_rng_state())


def _features(body: nn.Module, cores: CoreEach, x: Tensor, *, graph: bool = False) -> list[Tensor]:
    # Modes are a thread's own.
    half = torch.is_autocast_enabled("cpu")

    def one(chunk: Tensor) -> Tensor:
        with (
            torch.set_grad_enabled(graph),
            torch.autocast("cpu", torch.bfloat16, enabled=half, cache_enabled=False),
        ):
            features: Tensor = body(chunk)
            return features

    return cores.map(one, x.tensor_split(chunks_of(x)))


class _Chunks(torch.autograd.Function):
    """Each chunk has a graph of its own; their gradients are added in order, to the same bits always."""

    @staticmethod
    def forward(ctx: Any, body: nn.Module, cores: CoreEach, x: Tensor, *weights: Tensor) -> Tensor:
        features = _features(body, cores, x, graph=True)
        ctx.features, ctx.cores, ctx.weights = features, cores, weights
        return torch.cat([chunk.detach() for chunk in features])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        features, ctx.features = ctx.features, None

        def one(pair: tuple[Tensor, Tensor]) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(pair[0], ctx.weights, pair[1], allow_unused=True)

        shares = gradients[0].split([len(chunk) for chunk in features])
        first, *others = ctx.cores.map(one, list(zip(features, shares, strict=True)))
        for other in others:
            for into, share in zip(first, other, strict=True):
                if into is not None:
                    into.add_(share)
        return None, None, None, *first
