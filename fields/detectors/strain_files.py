"""The strain of a call as the predictor reads it, and its predictions under the names of the user's files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from datasets.core.errors import BadFile, Rejected
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from datasets.spectrograms.settings import SpectrogramSettings
from datasets.strain.frames import (
    STRIDE,
    file_at,
    lists_to_scan,
    parse_series,
    paths_at,
    read_scan,
    with_channel,
)
from learners.inference.predictions import refused_prediction

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction

#: Windows that are held at most, because an event may go on: six hours.
_MOST_HELD = round(6 * 3600 / STRIDE)


@dataclass
class StrainFiles:
    """Gives the files of a call to the predictor, and names its predictions after them.

    Attributes
    ----------
    spectrogram : settings of the model.
    channel : channel to read; "" for the calibrated strain.
    at : GPS time to judge; None for the loudest moment of each file.
    scan : judge windows of all the strain, across the borders of neighbouring files; else one moment of each file.
    gap : longest interruption of an event, in seconds; None for a row per window.
    rejected : files that cannot be opened.
    total, judged : seconds of strain in the files, and in windows that were judged.
    """

    spectrogram: SpectrogramSettings
    channel: str = ""
    at: float | None = None
    scan: bool = False
    gap: float | None = None
    rejected: list[Rejected] = field(default_factory=list)
    total: float = 0.0
    judged: float = 0.0

    def paths(self, files: Iterable[str]) -> list[str]:
        """Paths to predict, each for a piece of strain or a file."""
        if self.at is not None:
            context = self.spectrogram.context
            return paths_at(files, self.at, channel=self.channel, context=context)
        if not self.scan:
            return [with_channel(f, self.channel) if self.channel else f for f in files]
        lists, self.rejected = lists_to_scan(
            files, channel=self.channel, context=self.spectrogram.context
        )
        spans = [read_scan(path) or (0.0, 0.0) for path in lists]
        self.total = sum(end - start for start, end in spans)
        return lists

    def __call__(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Predictions of files or pieces, named after the file with the moment; of events those of whole stretches.

        Neighbouring pieces become one prediction, because an event may cross their border. It ends where no event can go
        on, so little is held.
        """
        for one in self.rejected:
            yield refused_prediction(Part(one.path), BadFile(*one))
        held: list[Prediction] = []
        for piece in predictions:
            windows = [named(w) for w in piece.windows or (piece,) if not w.reason.failed]
            self.judged += STRIDE * len(windows)
            if self.gap is None:
                yield named(piece)
                continue
            if piece.reason.failed:  # its other windows count
                yield named(piece).with_more(windows=())
            for window in windows:
                if held and not self._goes_on(held, window):
                    yield held[0].with_more(windows=tuple(held))
                    held = []
                held.append(window)
        if held:
            yield held[0].with_more(windows=tuple(held))

    def _goes_on(self, held: list[Prediction], window: Prediction) -> bool:
        """Whether the event of the last windows may go on in the next one."""
        last = held[-1]
        start, end = window.part.start or 0.0, last.part.end or 0.0
        follows = start <= end and parse_series(window.path) == parse_series(last.path)
        answered = next((one.part.end for one in reversed(held) if one.label != UNKNOWN), None)
        quiet = answered is None or end - answered > (self.gap or 0.0)
        return follows and not quiet and len(held) < _MOST_HELD

    def summary(self) -> str:
        """Sentence on the strain that was scanned; "" without a scan."""
        if not self.scan:
            return ""
        text = f"Strain: {self.judged:.0f} of {self.total:.0f} s judged"
        if self.total - self.judged < STRIDE:
            return f"{text}."
        return (
            f"{text}. The others are within {self.spectrogram.reach:g} s of a gap or an end, or in less than "
            f"{self.spectrogram.context:g} s without a gap."
        )


def named(prediction: Prediction) -> Prediction:
    """The prediction of a list of files under the name of the file with its moment."""
    part = prediction.part
    part = part._replace(path=file_at(part.path, part.at))
    return prediction._replace(part=part).with_more(windows=tuple(map(named, prediction.windows)))
