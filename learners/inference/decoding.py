"""Files -> batches of a network's input, opened in processes that a decoder may end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datasets.audio import AudioRecipe
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.processes import CRASHED, Apart, cores
from datasets.images import pixels
from datasets.spectrograms import Prepared, Recipe, Source
from learners.inference.answers import NO_SIGNAL, Prediction
from learners.uncertainty import Reason

Asked = str | os.PathLike[str] | Source
Opened = npt.NDArray[np.uint8] | BadFile | Reason

#: Full batches in a round, at least. What a network gives for an item depends, in its last bits, on the
#: batch it comes in. A round ends where a file does, and no batch reaches beyond its end: who goes on from
#: there later asks in the same batches. Pictures never make a smaller batch.
ROUND = 8
_AHEAD = 64  # files of sound looked into before they are cut
_DIED = BadFile("", CRASHED), None


class Part(NamedTuple):
    """A file, or a window of it.

    Attributes
    ----------
    number : of the file, among those that were asked about: one may be asked about twice.
    file : what was asked.
    source : the whole, or the window; once it is opened with its moment.
    """

    number: int
    file: Source
    source: Source


def as_source(asked: Asked, at: float | None = None) -> Source:
    """A file, a table's row or a source; ``at`` is for what names no moment itself."""
    if isinstance(asked, Source):
        # A table's empty cells are NaN.
        times = (None if t is None or t != t else t for t in asked[1:])
        return Source(asked.path, *times)
    return Source(os.fspath(asked), at=at)


class Decoder:
    """Opens files for one network, ahead of it. A decoder that dies of a file, or never ends, costs that
    file and nothing else.

    Parameters
    ----------
    prepared : how pictures are opened, and through what store.
    recipe : how signals are drawn; None for pictures.
    overlap : of the windows of a long recording, as a part of a window.
    """

    def __init__(self, prepared: Prepared, recipe: Recipe | None, overlap: float) -> None:
        self._opener = Opener(prepared, recipe)
        self._cutter = Cutter(recipe, overlap) if isinstance(recipe, AudioRecipe) else None
        self._openers: Apart[Source, tuple[Opened, float | None]] | None = None
        self._cutters: Apart[Source, list[Source]] | None = None

    @property
    def workers(self) -> int:
        """Processes that open files by now."""
        return 0 if self._openers is None else self._openers.workers

    def open(self, source: Asked) -> Opened:
        """The network's input before normalisation, uint8 [3, size, size]; or what is wrong. Here."""
        return self._opener(as_source(source))[0]

    def open_all(self, sources: Iterable[Asked], workers: int | None = None) -> Iterator[Opened]:
        """As `open`, in processes of their own; some are opened ahead."""
        apart = self._apart(workers)
        for _, (opened, _) in apart.ahead(sources, 8 * apart.workers, of=as_source):
            yield opened

    def batches(
        self, files: Iterable[Source], bs: int, workers: int | None = None
    ) -> Iterator[list[tuple[Part, Opened]]]:
        """Files, or their windows, in batches of ``bs``, and of less where a `ROUND` ends; two batches
        ahead of the network."""
        parts = self._cut(files)
        first = list(islice(parts, 2))
        # For one alone no second process is started; one that is there stays.
        apart = self._apart(1 if len(first) < 2 and not self.workers else workers)
        chunk = max(1, bs // (2 * apart.workers))
        batch: list[tuple[Part, Opened]] = []
        of_round, last = 0, -1
        ahead = apart.ahead(chain(first, parts), 3 * bs, of=attrgetter("source"), chunk=chunk)
        with closing(ahead):
            for part, (opened, at) in ahead:
                if of_round >= ROUND * bs and part.number != last:
                    if batch:
                        yield batch
                    batch, of_round = [], 0
                batch.append((part._replace(source=part.source._replace(at=at)), opened))
                of_round, last = of_round + 1, part.number
                if len(batch) == bs:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _cut(self, files: Iterable[Source]) -> Iterator[Part]:
        """The files, or the windows of long recordings, which are looked into a little ahead."""
        if self._cutter is None:
            yield from (Part(number, file, file) for number, file in enumerate(files))
            return
        if self._cutters is None:
            self._cutters = Apart(self._cutter, 1, [])
        for (number, file), windows in self._cutters.ahead(
            enumerate(files), _AHEAD, of=itemgetter(1)
        ):
            for source in windows or [file]:
                yield Part(number, file, source)

    def start(self) -> None:
        """Start the processes that open files, where the first question shall not have to."""
        self._apart(None).start()

    def close(self) -> None:
        """End them; another question starts new ones."""
        for apart in (self._openers, self._cutters):
            if apart is not None:
                apart.close()

    def _apart(self, workers: int | None) -> Apart[Source, tuple[Opened, float | None]]:
        count = max(1, workers or cores())
        if self._openers is None or self._openers.workers != count:
            self._openers = Apart(self._opener, count, _DIED)
        return self._openers


@dataclass(frozen=True)
class Opener:
    """The network's input before normalisation, uint8 [3, size, size], or what is wrong; and the
    moment of it: as it was asked for, or the one that was found in strain."""

    prepared: Prepared
    recipe: Recipe | None

    def __call__(self, source: Source) -> tuple[Opened, float | None]:
        path, start, end, at = source
        try:
            if self.recipe is None:
                return pixels(self.prepared.open_for_validation(path)), at
            signal = self.recipe.read(path, start=start, end=end, at=at)
            if at is None:
                at = self.recipe.moment(signal)
            if self.recipe.no_signal(signal):
                return NO_SIGNAL, at
            picture = self.recipe.image(signal).convert("RGB")
            return pixels(self.prepared.preprocessing.fit(picture)), at
        except BadFile as error:
            return error, at
        except SecondhandError as error:  # the file is fine, the span asked for is not
            return BadFile(path, str(error)), at


@dataclass(frozen=True)
class Cutter:
    """The windows of a long recording; else what was asked, as of a moment."""

    recipe: Recipe
    overlap: float

    def __call__(self, source: Source) -> list[Source]:
        path, start, end, at = source
        if at is not None:
            return [source]
        try:
            spans = self.recipe.spans(path, start=start, end=end, overlap=self.overlap)
        except BadFile:  # it is opened once more, and answered with what is wrong
            return [source]
        return [Source(path, *span) for span in spans]


def in_rounds(answers: Iterable[Prediction], bs: int) -> Iterator[list[Prediction]]:
    """Answers by the rounds that `Decoder.batches` made of their parts."""
    taken: list[Prediction] = []
    count = 0
    for answer in answers:
        taken.append(answer)
        count += max(1, len(answer.windows))
        if count >= ROUND * bs:
            yield taken
            taken, count = [], 0
    if taken:
        yield taken
