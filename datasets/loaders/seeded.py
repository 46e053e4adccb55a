"""Reproducible DataLoaders, which also skip items that can no longer be read."""

from __future__ import annotations

import hashlib
import logging
import pickle
import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from contextvars import copy_context
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from fastai.data.core import TfmdDL
from fastai.data.load import DataLoader, fa_collate
from fastai.torch_core import to_device
from fasttransform import Pipeline

from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.processes import CRASHED, IsolatedCalls, call_isolated, may_fork
from datasets.core.shared import Shared
from datasets.loaders.upstream import draw_seed_of_workers, seed_workers_from

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Batches that are handed to each worker: one at work, one waiting.
AHEAD = 2
#: Bytes between the places of two batches that are shared. Only what is written takes memory.
ROOM_OF_BATCH = 1 << 40
#: Openings that a worker keeps.
OPENINGS = 4


def derive_seed(*parts: int | str | None) -> int:
    """Hash the parts to a 32-bit seed."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@contextmanager
def generators_preserved() -> Iterator[None]:
    """Restore the states of Python's, NumPy's and torch's random generators at the end of the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@contextmanager
def seeded(seed: int | None, number: int | None) -> Iterator[None]:
    """Seed all random generators by these two in the block."""
    with generators_preserved():
        of_item = derive_seed(seed, number)
        random.seed(of_item)
        np.random.seed(of_item)
        # torch.manual_seed would initialise CUDA in a worker.
        torch.default_generator.manual_seed(of_item)
        yield


class Opening(NamedTuple):
    """How the input of an item is opened: the transforms of the data set, and of the loader."""

    transforms: Pipeline
    after_item: Pipeline
    seed: int | None

    def open(self, number: int, item: Any) -> tuple[Any]:
        with seeded(self.seed, number):
            opened: tuple[Any] = self.after_item((self.transforms(item),))
            return opened


class Sent(NamedTuple):
    """An `Opening` that all tasks of a pass have in common: its bytes are shared, a worker reads them once."""

    shared: Shared
    size: int
    digest: str


class Task(NamedTuple):
    """A batch for a worker.

    Attributes
    ----------
    items : number and item of each.
    place : byte of what is shared at which the inputs begin, once they are opened.
    """

    sent: Sent
    items: list[tuple[int, Any]]
    place: int


class Opened(NamedTuple):
    """What a worker has opened of a batch; the inputs themselves are shared.

    Attributes
    ----------
    numbers : those of the items that could be opened.
    left_out : the other files, and why.
    shape, dtype, kind : of the inputs, a tensor of this subclass.
    """

    numbers: list[int]
    left_out: list[Rejected]
    shape: Sequence[int] = ()
    dtype: torch.dtype = torch.uint8
    kind: type[torch.Tensor] = torch.Tensor

    def read(self, shared: Shared, place: int, *, pinned: bool) -> torch.Tensor:
        inputs = torch.empty(self.shape, dtype=self.dtype, pin_memory=pinned)
        shared.read_into(_bytes_of(inputs), place)
        return inputs.as_subclass(self.kind)


def open_batch(task: Task) -> Opened:
    """Open the inputs of a batch, in a worker."""
    opening = _opening(task.sent)
    numbers, left_out, inputs = list[int](), list[Rejected](), list[tuple[Any]]()
    for number, item in task.items:
        task.sent.shared.check()
        try:
            inputs.append(opening.open(number, item))
        except BadFile as error:
            left_out.append(Rejected(error.path, error.reason))
        else:
            numbers.append(number)
    if not numbers:
        return Opened([], left_out)
    (batch,) = fa_collate(inputs)
    kind = type(inputs[0][0])
    batch = batch.as_subclass(torch.Tensor).contiguous()
    task.sent.shared.write(_bytes_of(batch), task.place)
    return Opened(numbers, left_out, batch.shape, batch.dtype, kind)


#: The last openings of this worker, by their digests: of training and validation, and of the passes before.
_openings: dict[str, Opening] = {}


def _opening(sent: Sent) -> Opening:
    if sent.digest not in _openings:
        torch.set_num_threads(1)
        content = bytearray(sent.size)
        sent.shared.read_into(content)
        while len(_openings) >= OPENINGS:
            del _openings[next(iter(_openings))]
        _openings[sent.digest] = pickle.loads(content)
    return _openings[sent.digest]


def _bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8).numpy()


def _left_out(path: str, reason: str) -> None:
    log.warning("%s: left out of this epoch, %s", path, reason)


def one_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield what an iterator gives; a thread asks it for the next meanwhile."""
    context, end = copy_context(), object()  # what holds in this thread holds in the other

    def following() -> Any:
        return context.run(next, items, end)

    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(following)
        while (item := coming.result()) is not end:
            coming = thread.submit(following)
            yield item


class Repeatable(DataLoader):
    """A fastai DataLoader with reproducible epochs.

    Attributes
    ----------
    seed : seed of the items; None uses the global generators.
    order : item numbers of the current epoch, in order.
    """

    seed: int | None = None
    order: Sequence[int] = ()
    _places: Sequence[int] | None = None

    def take_turns(self, places: Sequence[int]) -> None:
        """Load one of the items with the same place in each epoch, at random.

        ``places`` : place of each item, such as a call of which several items show other surroundings.
        """
        self._places, self.n = places, len({*places})

    def begin(self, seed: int) -> None:
        """Seed the order of the next epoch and the augmentation of its items."""
        self.seed, self.rng = seed, random.Random(seed)
        seed_workers_from(self, torch.Generator().manual_seed(seed))

    def get_idxs(self) -> list[int]:
        if self._places is None:
            order = list(super().get_idxs())
        else:  # the first of each place in a random order is a random one of it
            of_place: dict[int, int] = {}
            for number in self.shuffle_fn(range(len(self._places))):
                of_place.setdefault(self._places[number], number)
            order = [*of_place.values()]
        self.order = order
        return order


class SeededDL(Repeatable, TfmdDL):
    """A DataLoader that seeds each item by (seed, item number), in any process.

    So earlier random numbers and the number of workers do not matter. An item that can no longer be read, or that ends
    the process that reads it, is left out of its batch, with a warning.

    Its workers are those of `datasets.core.processes`, not torch's, which start anew for each pass: they open the inputs
    of a batch, the targets are made here.
    """

    #: Numbers of the items that have ended a process.
    _deadly: frozenset[int] = frozenset()

    def do_item(self, number: int | None) -> Any:
        if self.seed is None:
            return super().do_item(number)
        if number in self._deadly:
            return None
        with seeded(self.seed, number):
            try:
                return super().do_item(number)
            except BadFile as error:
                _left_out(error.path, error.reason)
                return None

    def create_batches(self, samps: Iterable[int]) -> Iterator[Any]:
        """Without those that are left out a batch is smaller, whoever opens it."""
        if self.seed is None:
            yield from super().create_batches(samps)
            return
        for numbers in self.chunkify(samps):
            if items := [item for item in map(self.do_item, numbers) if item is not None]:
                yield self.do_batch(items)

    def __iter__(self) -> Iterator[Any]:
        if not self._by_workers():
            yield from super().__iter__()
            return
        self.randomize()
        self.before_iter()
        numbers = [*self.chunkify(self.get_idxs())]
        draw_seed_of_workers(self)
        with ExitStack() as opened:
            batches = opened.enter_context(closing(self._opened(numbers)))
            if self._pinned:  # its thread ends before what it asks for batches is closed
                batches = opened.enter_context(closing(one_ahead(batches)))
            for batch in batches:
                yield self.after_batch(batch)
        self.after_iter()

    def _by_workers(self) -> bool:
        """Whether workers open the items: those of a data set of inputs and targets, each on its own."""
        return (
            self.fake_l.num_workers > 0
            and self.seed is not None
            and may_fork()
            and len(getattr(self.dataset, "tls", ())) == 2
            and not self.before_batch.fs
        )

    @property
    def _pinned(self) -> bool:
        """Whether batches pass through memory from which a GPU copies while others work."""
        return self.device is not None and self.device.type == "cuda"

    def _opened(self, batches: Sequence[Sequence[int]]) -> Generator[tuple[Any, ...], None, None]:
        """The batches of these items on the loader's device, before `after_batch`."""
        opening = Opening(self.dataset.tls[0].tfms, self.after_item, self.seed)
        workers, shared = self.fake_l.num_workers, Shared()
        ahead = AHEAD * workers
        content = pickle.dumps(opening)
        shared.write(content)
        sent = Sent(shared, len(content), hashlib.sha256(content).hexdigest())

        def task(numbered: tuple[int, Sequence[int]]) -> Task:
            # A place is free again when its batch has been read: before another is submitted.
            place, numbers = numbered
            alive = [(number, self.dataset.items[number]) for number in numbers]
            alive = [one for one in alive if one[0] not in self._deadly]
            return Task(sent, alive, (1 + place % ahead) * ROOM_OF_BATCH)

        calls: IsolatedCalls[Task, Opened | None] = IsolatedCalls(open_batch, workers, None)
        try:
            for numbered, found in calls.ahead(enumerate(batches), ahead, argument=task):
                asked = task(numbered)
                opened = self._without_deadly(asked) if found is None else found
                for path, reason in opened.left_out:
                    _left_out(path, reason)
                if opened.numbers:
                    inputs = opened.read(shared, asked.place, pinned=self._pinned)
                    targets = [(self.dataset.tls[1][number],) for number in opened.numbers]
                    yield (self._moved(inputs), *map(self._moved, self.do_batch(targets)))
        finally:
            shared.close()  # workers that are at work see it, and stop
            calls.close()

    def _moved(self, part: torch.Tensor) -> torch.Tensor:
        if self.device is None:
            return part
        if self._pinned and not part.is_pinned():
            part = part.pin_memory()
        return to_device(part, self.device, non_blocking=self._pinned)

    def _without_deadly(self, task: Task) -> Opened:
        """A batch that has ended its process, without the items that do so.

        Raises
        ------
        SecondhandError : all do, so it is not for what is in them.
        """
        alone = [
            (one, call_isolated(open_batch, task._replace(items=[one]), None)) for one in task.items
        ]
        deadly = [one for one, opened in alone if opened is None]
        if len(deadly) == len(alone) > 1:
            raise SecondhandError(
                "A process that opens files died, perhaps for lack of memory. Use fewer --workers, or --workers 0"
            )
        self._deadly |= {number for number, _ in deadly}
        alive = task._replace(items=[one for one, opened in alone if opened is not None])
        opened = call_isolated(open_batch, alive, None) or Opened([], [])
        paths = [Rejected(item.part.path, CRASHED) for _, item in deadly]
        return opened._replace(left_out=[*paths, *opened.left_out])
