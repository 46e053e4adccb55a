"""Opens files ahead of the network, in other processes, which a broken file may crash: whole files, or the windows of
long recordings, or the pages of pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy.typing as npt

from datasets.core.address import read_ahead
from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.file_state import FileState
from datasets.core.part import FileOrPart, Part, as_part
from datasets.core.processes import CRASHED, IsolatedCalls, cores
from datasets.images.decoded import PictureOpener
from datasets.images.opening import pixels
from datasets.kinds.base import KINDS, Kind, find_kind
from datasets.spectrograms.pictures import PictureCache, no_signal, read_offset
from datasets.spectrograms.settings import SpectrogramSettings
from learners.inference.predictions import (
    NAN,
    NO_SIGNAL,
    DetailedPrediction,
    Floats,
    Prediction,
    pool_windows,
)
from learners.rule.reasons import Reason

#: The network's input before normalisation, uint8 [3, height, width], or an embedding, float32 [width]; or what is
#: wrong.
Opened = npt.NDArray[Any] | BadFile | Reason

#: Least number of full batches per round. The last bits of an output depend on the other items of its batch, so a
#: job that resumes after a round must make the same batches. A round therefore ends with a file, and no batch
#: crosses its end. Rounds of pictures have full batches only.
ROUND = 8
_AHEAD = 64  # recordings whose length is read ahead


class Piece(NamedTuple):
    """What is predicted for a file of a call: all of it, or one of its windows or other parts.

    Attributes
    ----------
    number : number of the file in the call, because a file may occur twice.
    file : the file, or the part of one, as the caller named it.
    part : it, or a part of it, with its moment once it is opened.
    refused : why it is not opened; None if it is.
    offset : once it is opened, seconds from the moment that was asked for to the energy; NaN without either.
    """

    number: int
    file: Part
    part: Part
    refused: BadFile | Reason | None = None
    offset: float = NAN


class Shown(NamedTuple):
    """An opened part: the network's input or what is wrong, the moment that it shows, and `Piece.offset`."""

    opened: Opened
    at: float | None = None
    offset: float = NAN


_DIED = Shown(BadFile("", CRASHED))
#: Seconds between moment and energy that a picture tolerates: searches, and simulations, are as far off.
AWAY = 0.05


class Pieces:
    """Which pieces of a file are predicted, and how they become one prediction; here all of it, or its windows."""

    def __call__(self, file: Part) -> Sequence[tuple[Part, BadFile | Reason | None]]:
        """The pieces of a picture, each with the reason why it is not predicted, or None."""
        return [(file, None)]

    def opens(self, path: str) -> bool:
        """Whether files such as this are opened for their pieces. That is done ahead, in a process of its own."""
        return False

    def pool(self, pieces: Sequence[DetailedPrediction]) -> tuple[Floats, Floats, bool]:
        """Logits [classes] and features [width] of a file of several pieces, and whether it was trained on."""
        return pool_windows(pieces)


@dataclass(frozen=True)
class Opener:
    """Opens a part of a file: the network's input before normalisation, uint8 [3, size, size], or what is wrong.

    ``recentre`` : show where the energy lies, if it is farther than `AWAY` from the moment that was asked for.
    """

    prepared: PictureOpener
    spectrogram: SpectrogramSettings | None
    recentre: bool = False

    def __call__(self, part: Part | None) -> Shown:
        if part is None:  # it is refused
            return Shown(NO_SIGNAL)
        at = part.at
        try:
            if self.spectrogram is None:
                return Shown(pixels(self.prepared.open_for_validation(part)), at)
            if (cached := self.stored(part)) is not None:
                offset = read_offset(cached)
                if no_signal(cached):
                    return Shown(NO_SIGNAL, at)
                if not self._moves(offset):
                    return Shown(pixels(self.prepared.open_spectrogram(cached)), at, offset)
            signal = self.spectrogram.read(part)
            if at is None:
                at = self.spectrogram.moment(signal)
            if self.spectrogram.no_signal(signal):
                return Shown(NO_SIGNAL, at)
            offset = self.spectrogram.offset(signal)
            if at is not None and self._moves(offset):
                with suppress(BadFile):  # too close to an end: the moment itself is shown
                    signal = self.spectrogram.read(Part(part.path, at=at + offset))
                    at += offset
            picture = self.spectrogram.image(signal).convert("RGB")
            return Shown(pixels(self.prepared.preprocessing.fit(picture)), at, offset)
        except BadFile as error:
            return Shown(self._reason(part, error), at)
        except SecondhandError as error:  # the file is fine, the requested span is not
            return Shown(BadFile(part.path, str(error)), at)

    def _reason(self, part: Part, error: BadFile) -> BadFile:
        """Why a part cannot be read; of a file of another kind, that it is one."""
        named_as = find_kind(part.path)
        if self.spectrogram is None or named_as is None or named_as.name == self.spectrogram.kind:
            return error
        try:
            KINDS[self.spectrogram.kind].look(part.path, False)
        except BadFile as named:
            return named
        return error

    def _moves(self, offset: float) -> bool:
        return self.recentre and abs(offset) > AWAY

    def stored(self, part: Part) -> Path | None:
        """Path of a cached spectrogram; None if there is none, or a part does not tell its own."""
        store, spectrogram = self.prepared.store, self.spectrogram
        if store is None or spectrogram is None or not spectrogram.tells_picture(part):
            return None
        return _cache_at(store.store.root).stored(part, spectrogram)


@cache
def _cache_at(root: Path) -> PictureCache:
    """The spectrogram cache. It is opened once per process, because opening reads an index of all its files."""
    return PictureCache(root)


@dataclass(frozen=True)
class Cutter(Pieces):
    """Cuts a long recording into windows; a part with a moment stays as it is.

    A recording that was cut off is refused unless ``allow_truncated``.
    """

    spectrogram: SpectrogramSettings
    overlap: float
    allow_truncated: bool

    def __call__(self, file: Part) -> Sequence[tuple[Part, BadFile | Reason | None]]:
        if file.at is not None:
            return [(file, None)]
        try:
            if file.end is None:
                KINDS[self.spectrogram.kind].look(file.path, not self.allow_truncated)
            windows = self.spectrogram.spans(file, overlap=self.overlap)
        except BadFile as error:
            return [(file, error)]
        return [(window, None) for window in windows]

    def opens(self, path: str) -> bool:
        return self.spectrogram.is_cut(path)


@dataclass(frozen=True)
class Pages(Pieces):
    """The pages of a picture, see `Kind.spans`. ``whole`` : what else a model says of pictures."""

    kind: Kind
    whole: Pieces

    def __call__(self, file: Part) -> Sequence[tuple[Part, BadFile | Reason | None]]:
        try:
            pages = self.kind.spans(file)
        except BadFile as error:
            return [(file, error)]
        return [piece for page in pages for piece in self.whole(page)]

    def opens(self, path: str) -> bool:
        return True

    def pool(self, pieces: Sequence[DetailedPrediction]) -> tuple[Floats, Floats, bool]:
        return self.whole.pool(pieces)


class AnyDecoder(Protocol):
    """What gives a network its inputs: `Decoder`, or that of a kind whose files are not opened.

    Attributes
    ----------
    no_map : why there can be no heat maps of what is opened; "" if there can.
    """

    no_map: ClassVar[str]

    def open(self, file: FileOrPart) -> Opened:
        """The input of a file, or what is wrong."""

    def open_all(self, files: Iterable[FileOrPart]) -> Iterator[Opened]:
        """`open` for each of the files, ahead."""

    def batches(self, files: Iterable[Part], bs: int) -> Iterator[list[tuple[Piece, Opened]]]:
        """Yield batches of ``bs`` opened pieces."""

    def items(self, files: Iterable[str]) -> tuple[Iterable[FileOrPart], list[Rejected]]:
        """What is predicted of the files of a pool, and the files that cannot be read."""

    def state(self, path: str) -> FileState | None:
        """The state of a file, by which copies are told; None where files are not opened."""

    def check_shown(self, part: Part) -> None:
        """Raise BadFile if a part cannot be shown as a picture whatever is in its file."""

    def stored(self, part: Part) -> Path | None:
        """The picture of a part in the cache; None without one."""

    def start(self) -> None:
        """Start what is needed to open files."""

    def close(self) -> None:
        """End it."""


class Decoder:
    """Opens files ahead of the network; a decoder that crashes or hangs loses only the file it reads.

    Parameters
    ----------
    prepared : how pictures are opened and cached.
    spectrogram : spectrogram settings of signals; None for pictures.
    overlap : overlap of the windows of a long recording, as a fraction of a window.
    pieces : the pieces of a picture.
    workers : number of processes; default: one per core.
    recentre : as in `Opener`.
    """

    no_map: ClassVar[str] = ""

    def __init__(
        self,
        prepared: PictureOpener,
        spectrogram: SpectrogramSettings | None,
        overlap: float,
        pieces: Pieces,
        workers: int | None = None,
        *,
        recentre: bool = False,
    ) -> None:
        self._pieces, self._workers = pieces, max(1, workers or cores())
        self._opener = Opener(prepared, spectrogram, recentre)
        self.stored = self._opener.stored
        self._cutter = (
            pieces
            if spectrogram is None
            else Cutter(spectrogram, overlap, prepared.allow_truncated)
        )
        self._openers: IsolatedCalls[Part | None, Shown] | None = None
        self._cutters: (
            IsolatedCalls[Part, Sequence[tuple[Part, BadFile | Reason | None]]] | None
        ) = None

    def open(self, file: FileOrPart) -> Opened:
        return self._opener(as_part(file)).opened

    def open_all(self, files: Iterable[FileOrPart]) -> Iterator[Opened]:
        calls = self._start_openers(self._workers)
        parts = read_ahead(map(as_part, files), attrgetter("path"))
        for _, shown in calls.ahead(parts, 8 * calls.workers, argument=lambda part: part):
            yield shown.opened

    def batches(self, files: Iterable[Part], bs: int) -> Iterator[list[tuple[Piece, Opened]]]:
        """Yield batches of ``bs`` opened files or windows, smaller at the end of a `ROUND`.

        Files are opened two batches ahead of the network.
        """
        pieces = self._cut(read_ahead(files, attrgetter("path")))
        first = list(islice(pieces, 2))
        # One file needs one process; processes that are running are used.
        alone = len(first) < 2 and self._openers is None
        calls = self._start_openers(1 if alone else self._workers)
        chunk = max(1, bs // (2 * calls.workers))
        batch: list[tuple[Piece, Opened]] = []
        in_round, last_number = 0, -1
        ahead = calls.ahead(
            chain(first, pieces),
            3 * bs,
            argument=lambda piece: piece.part if piece.refused is None else None,
            chunk=chunk,
        )
        with closing(ahead):
            for piece, (opened, at, offset) in ahead:
                if in_round >= ROUND * bs and piece.number != last_number:
                    if batch:
                        yield batch
                    batch, in_round = [], 0
                if piece.refused is None:
                    piece = piece._replace(part=piece.part._replace(at=at), offset=offset)
                batch.append((piece, opened if piece.refused is None else piece.refused))
                in_round, last_number = in_round + 1, piece.number
                if len(batch) == bs:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def items(self, files: Iterable[str]) -> tuple[Iterable[FileOrPart], list[Rejected]]:
        """The files themselves."""
        return files, []

    def state(self, path: str) -> FileState | None:
        return FileState.read(path)

    def check_shown(self, part: Part) -> None:
        """Every file can be shown."""

    def _cut(self, files: Iterable[Part]) -> Iterator[Piece]:
        """Yield the files, or the windows of long recordings or the pages of pictures, which are opened ahead, or other
        pieces of pictures."""
        files = iter(files)
        first = [*islice(files, 1)]
        files = chain(first, files)
        if not (first and self._cutter.opens(first[0].path)):
            for number, file in enumerate(files):
                for part, refused in self._pieces(file):
                    yield Piece(number, file, part, refused)
            return
        if self._cutters is None:
            self._cutters = IsolatedCalls(self._cutter, 1, [])
        for (number, file), windows in self._cutters.ahead(
            enumerate(files), _AHEAD, argument=itemgetter(1)
        ):
            for part, refused in windows or [(file, None)]:
                yield Piece(number, file, part, refused)

    def start(self) -> None:
        self._start_openers(self._workers).start()

    def close(self) -> None:
        for calls in (self._openers, self._cutters):
            if calls is not None:
                calls.close()

    def _start_openers(self, count: int) -> IsolatedCalls[Part | None, Shown]:
        if self._openers is None or self._openers.workers != count:
            self._openers = IsolatedCalls(self._opener, count, _DIED)
        return self._openers


def group_by_round(predictions: Iterable[Prediction], bs: int) -> Iterator[list[Prediction]]:
    """Group predictions by the rounds of `Decoder.batches`."""
    round_predictions: list[Prediction] = []
    count = 0
    for prediction in predictions:
        round_predictions.append(prediction)
        count += max(1, len(prediction.windows))
        if count >= ROUND * bs:
            yield round_predictions
            round_predictions, count = [], 0
    if round_predictions:
        yield round_predictions
