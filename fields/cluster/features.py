"""What a frozen body makes of files, on the workers of a cluster: each task is a batch of the training.

A worker opens the files of a batch and passes them through the body as the training would, on one thread, so that with
``--threads 1`` the features are those of this machine to the last digit.
"""

from __future__ import annotations

import hashlib
import io
import logging
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastai.data.core import TfmdDL
from fastai.torch_core import to_device
from fastcore.basics import chunked
from fasttransform import Pipeline
from numpy.typing import NDArray
from torch import Tensor, nn

from datasets.core.address import absolute
from datasets.core.errors import BadFile, Rejected
from datasets.core.processes import CRASHED
from datasets.loaders.blocks import LabelledItem
from datasets.loaders.seeded import SeededDL
from fields.cluster.client import Cluster, sent
from learners.machine.acceleration import keep_memory_on_cpu
from learners.machine.hardware import keep_float32, keep_thread_count
from learners.training.elsewhere import Batch

log = logging.getLogger(__name__)

_loading = threading.Lock()
#: Pipelines of a loader, by their names in fastai.
_STEPS = ("after_item", "before_batch", "after_batch")

#: What a body makes of an item; or why it cannot be opened.
Row = NDArray[np.float32] | Rejected


@dataclass(frozen=True)
class Passing:
    """What turns the items of a loader into features; it is sent to the workers.

    Attributes
    ----------
    body : in eval mode.
    opening, steps : the transforms that open an item, and those of the loader.
    precision : device and type of autocast; None for float32.
    device : where it is computed: cpu, or cuda where a worker has it.
    """

    body: nn.Module
    opening: Pipeline
    steps: dict[str, Pipeline]
    precision: tuple[str, torch.dtype] | None
    device: str

    @classmethod
    def of(cls, body: nn.Module, loader: SeededDL, precision: Any) -> Passing:
        """That of a loader which has been made ready for an epoch."""
        opening = loader.dataset.tls[0].tfms
        steps = {name: getattr(loader, name) for name in _STEPS}
        half = None if precision is None else (precision.device, precision.fast_dtype)
        return cls(body, opening, steps, half, torch.device(loader.device).type)

    @cached_property
    def loader(self) -> TfmdDL:
        """A loader that opens and collates what it is given."""
        device = self.device if torch.cuda.is_available() else "cpu"
        self.body.to(device)
        keep_memory_on_cpu(device)
        keep_float32(device)
        options = {"num_workers": 0, "do_setup": False, "device": torch.device(device)}
        return TfmdDL([], bs=1, **options, **self.steps)

    def open(self, item: LabelledItem) -> Any:
        """The input of an item, or why it cannot be opened."""
        try:
            return self.loader.after_item((self.opening(item),))
        except BadFile as error:
            return Rejected(error.path, error.reason)

    @torch.no_grad()
    def compute(self, items: list[LabelledItem]) -> list[Row]:
        """The row of each item of a batch."""
        rows: list[Any] = [*map(self.open, items)]
        opened = [number for number, row in enumerate(rows) if not isinstance(row, Rejected)]
        if not opened:
            return rows
        batch = self.loader.do_batch([rows[number] for number in opened])
        batch = self.loader.after_batch(to_device(batch, self.loader.device))
        (inputs,) = (part.as_subclass(Tensor) for part in batch)
        autocast = nullcontext() if self.precision is None else torch.autocast(*self.precision)
        with autocast:
            x = self.body(inputs)
        for number, row in zip(opened, x.float().cpu().numpy(), strict=True):
            rows[number] = row
        return rows


def batches_on(
    cluster: Cluster,
    body: nn.Module,
    loader: SeededDL,
    precision: Any,
    *,
    left_out: list[Rejected],
) -> Iterator[Batch]:
    """The batches of a loader as a body computes them: `learners.training.elsewhere.Computing`.

    Each batch is a task, with the same files as on this machine. If its workers die, its files are passed one by one.

    Parameters
    ----------
    left_out : gets the files that cannot be opened, or that kill their workers, with the reasons.

    Raises
    ------
    SecondhandError : a worker does not see a file, or the cluster is lost.
    """
    # As fastai's loader begins an epoch.
    loader.randomize()
    loader.before_iter()
    dataset, kept = loader.dataset, list[int]()
    batches = [*chunked(loader.get_idxs(), loader.bs)]
    chunks = [[_absolute(dataset.items[number]) for number in batch] for batch in batches]
    name = _send(cluster, Passing.of(body, loader, precision))
    ready: dict[int, list[Row | None]] = {}
    following = iter(zip(batches, chunks, strict=True))
    next_chunk = 0
    for place, rows in cluster.map_chunks(
        partial(compute_chunk, name), chunks, None, path_of=_path_of
    ):
        ready[place] = rows
        while next_chunk in ready:
            numbers, items = next(following)
            x = dict(_computed(numbers, items, ready.pop(next_chunk), left_out))
            if x:
                y = loader.create_batch([dataset.tls[1][number] for number in x])
                yield np.stack([*x.values()]), y.as_subclass(Tensor)
            kept += x
            next_chunk += 1
    loader.order = kept


def compute_chunk(name: str, items: list[LabelledItem]) -> list[Row | None]:
    """The rows of a batch, in the worker; ``name`` : that of the file that was sent."""
    with _loading:  # the threads of a worker share the body
        passing = _passing(name)
        passing.loader  # noqa: B018  (it is made once)
    with keep_thread_count(1):
        return [*passing.compute(items)]


@lru_cache(2)  # those of the training files and of the validation files
def _passing(name: str) -> Passing:
    passing: Passing = torch.load(sent(name), map_location="cpu", weights_only=False)
    return passing


def _send(cluster: Cluster, passing: Passing) -> str:
    """Send what the workers need; returns the name of its file there."""
    content = io.BytesIO()
    torch.save(passing, content)
    name = f"{hashlib.sha256(content.getbuffer()).hexdigest()}.pt"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(content.getbuffer())
        cluster.send(file)
    return name


def _computed(
    numbers: Sequence[int],
    items: Sequence[LabelledItem],
    rows: Sequence[Row | None],
    left_out: list[Rejected],
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The items of a batch that could be computed, each by its number; the others are added to ``left_out``."""
    for number, item, row in zip(numbers, items, rows, strict=True):
        if row is None:
            row = Rejected(item.part.path, CRASHED)
        if isinstance(row, Rejected):
            log.warning("%s: left out, %s", row.path, row.reason)
            left_out.append(row)
        else:
            yield number, row


def _absolute(item: LabelledItem) -> LabelledItem:
    return item._replace(part=item.part._replace(path=absolute(item.part.path)))


def _path_of(item: LabelledItem) -> str:
    return item.part.path
