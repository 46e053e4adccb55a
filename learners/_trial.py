"""How long a training step takes, tried on a copy of the network."""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from learners.config import SpeedSettings
from learners.machine import threads_kept


class Trial:
    """A copy of the network, and a batch for it."""

    def __init__(self, network: nn.Module, x: Tensor, y: Tensor, device: str) -> None:
        self.network = copy.deepcopy(network).to(device).train()
        self.x, self.y, self.device = x.to(device), y.to(device), device
        self.all: list[float] = []

    def seconds(self, way: SpeedSettings) -> float:
        """What a forward and a backward pass take."""
        layout = torch.channels_last if way.channels_last else torch.contiguous_format
        self.network.to(memory_format=layout)
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(str(way.precision))
        autocast: Any = torch.autocast(self.device.split(":")[0], half) if half else nullcontext()
        if way.compile and self.network._compiled_call_impl is None:
            self.network.compile(dynamic=False)
        with threads_kept(way.threads or 1):
            self._wait()
            began = time.perf_counter()
            with autocast:
                logits = self.network(self.x)
            functional.cross_entropy(logits.float(), self.y).backward()
            self.network.zero_grad()
            self._wait()
            self.all.append(time.perf_counter() - began)
            return self.all[-1]

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
