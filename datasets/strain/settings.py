"""Settings of Q-scans, and their rendering."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor, inf
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.processes import check_files_isolated
from datasets.spectrograms import (
    COLOUR_MAPS,
    AnyPath,
    Seconds,
    SpectrogramSettings,
    check_types,
    check_values,
    most_common_rate,
    sample_evenly,
)
from datasets.strain.files import SHORTEST_CONTEXT, Strain, read_strain
from datasets.strain.formats import open_strain
from datasets.strain.frames import CACHE, read_cache
from datasets.strain.qscan import highest_frequency, qtransform, settling, whiten

log = logging.getLogger(__name__)

#: Layouts, and the views of each unless others are given, in seconds.
LAYOUTS = {"channels": (0.5, 1.0, 4.0), "row": (0.5, 1.0, 2.0, 4.0), "one": (1.0,)}
COLOURS = ("grey", *COLOUR_MAPS)

#: Durations (s) of the channels for detectors together, by the number of detectors.
TOGETHER = {2: (1.0, 1.0, 4.0), 3: (1.0, 1.0, 1.0)}
#: Light travel time through the Earth in seconds, the largest delay between two detectors.
TRAVEL = 0.0425

#: The plane is the one with the loudest tile within this many seconds of the trigger.
_SEARCH = 0.25


@dataclass(frozen=True, kw_only=True)
class QScanSettings(SpectrogramSettings):
    """A Q-scan of whitened strain on a log2 frequency axis, low frequencies at the bottom.

    Attributes
    ----------
    context : seconds that are whitened and transformed, 16 to 256. Tile energies depend on it.
    qlow, qhigh : range of Q.
    fmin, fmax : the band in Hz. `fmax` 0: 2048 Hz, or 1200 Hz in proportion to 4096 Hz sampling
        where that is less; `infer` settles it for a set of files.
    durations : seconds around the trigger that a picture shows, 1 to 8 of them; none: by the layout.
    layout : `channels`, three views as the red, green and blue channel, each with all the pixels;
        `row`, the views side by side; `one`, a single view.
    clip : normalised energy that is drawn brightest. 25.5 makes one grey level a tenth.
    size : height and width of the whole picture, in pixels; one number makes it square.
    together : two or three detectors, whose strain at one time is drawn: the first channel is of the
        first, and so on in turn. What is read is a `write_cache` of a file of each. A wave needs
        up to `TRAVEL` seconds from one to another, which the search for its plane allows for.
    colour : table for `row` and `one`: viridis, grey, magma, inferno, plasma or cividis.

    A SecondhandError names a value out of range.
    """

    kind: ClassVar[str] = "strain"

    context: float = 32.0
    qlow: float = 4.0
    qhigh: float = 64.0
    fmin: float = 10.0
    fmax: float = 0.0
    durations: tuple[float, ...] = ()
    layout: str = "channels"
    clip: float = 25.5
    size: tuple[int, int] = (224, 224)
    colour: str = "viridis"
    together: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        if not self.durations:
            usual = TOGETHER.get(len(self.together)) or LAYOUTS.get(self.layout, ())
            object.__setattr__(self, "durations", usual)  # it is frozen else
        count, width = len(self.durations), self.size[-1] if self.size else 0
        wide = -(-width // max(count, 1)) * max(count, 1)
        detectors = {name for name in self.together if re.fullmatch(r"[A-Z]\d", name)}
        check_values(
            self,
            ranges={
                "context": (SHORTEST_CONTEXT, 256),
                "qlow": (3.5, 256),
                "qhigh": (max(3.5, self.qlow), 256),
                "fmin": (max(1, self.qhigh / max(self.context, 1)), 8192),  # qhigh / context
                "fmax": (2 * self.fmin if self.fmax else 0, 32_768),
                "durations": (0.05, self.context - 2 * settling(4096)),
                "clip": (0.1, 1e6),
                "size": (16, 4096),
            },
            choices={"layout": LAYOUTS, "colour": COLOURS},
            rules={
                "durations": (
                    count == {"channels": 3, "one": 1}.get(self.layout, count) and 1 <= count <= 8,
                    "three for the layout channels, a single one for one, 1 to 8 for row",
                ),
                "size": (
                    len(self.size) == 2 and (self.layout != "row" or width == wide),
                    f"height and width; as wide as {count} views can share: {wide}",
                ),
                "together": (
                    not self.together
                    or (
                        (len(self.together) in TOGETHER and self.layout == "channels")
                        and len(detectors) == len(self.together)
                    ),
                    "two or three detectors, as H1, L1, in the layout channels",
                ),
            },
        )

    @classmethod
    def infer(cls, paths: Iterable[AnyPath], **settings: Any) -> Self:
        """A recipe for these files: `fmax` by their most common sampling rate, `context` by length.

        The context is 32 s, or what all but a twentieth of the files hold where that is less, 16 s
        at least. Of more than 50 files, 50 spread evenly over the list are looked at; those that
        cannot be opened are passed over. SecondhandError, with the first reason, where none can.
        """
        if settings.pop("detectors", "separate") == "together":
            paths = list(paths)
            settings["together"] = tuple(read_cache(Path(paths[0]))) if paths else ()
        spectrogram = cls(**settings)
        if spectrogram.fmax and "context" in settings:
            return spectrogram
        probed = check_files_isolated(_probe, sample_evenly(paths, 50), 1)
        opened = [file for file in probed if not isinstance(file, Rejected)]
        if not opened:
            bad = [": ".join(file) for file in probed if isinstance(file, Rejected)]
            reason = bad[0] if bad else "none were given"
            raise SecondhandError(f"no strain file to infer the band from: {reason}")
        rate = most_common_rate(rate for rate, _ in opened)
        lengths = sorted(seconds for _, seconds in opened)
        held_seconds = max(floor(lengths[len(lengths) // 20]), SHORTEST_CONTEXT)
        context = (
            spectrogram.context if "context" in settings else min(spectrogram.context, held_seconds)
        )
        return replace(spectrogram, fmax=spectrogram._band(rate)[1], context=context)

    @property
    def reach(self) -> float:
        """Seconds of strain needed on either side of the trigger."""
        return max(self.durations) / 2 + settling(4096)

    def read(
        self, path: AnyPath, *, start: Seconds = None, end: Seconds = None, at: Seconds = None
    ) -> Strain:
        """The strain that a picture needs: see `read_strain`, also for what is a BadFile.

        It is centred on ``at``, a GPS time, or on the loudest tile between the seconds ``start`` and
        ``end`` of the file.
        """
        if self.together:
            return self._read_together(path, (start, end), at)
        return read_strain(
            path,
            at=at,
            context=self.context,
            reach=self.reach,
            within=(start or 0.0, inf if end is None else end),
            qrange=(self.qlow, self.qhigh),
            frange=(self.fmin, self.fmax or 2048.0),
        )

    def _read_together(self, path: AnyPath, span: tuple[Seconds, Seconds], at: Seconds) -> Strain:
        files, alone = read_cache(Path(path)), replace(self, together=(), durations=self.durations)
        strains: list[Strain] = []
        for name in self.together:
            if name not in files:
                raise BadFile(path, f"no strain of {name} in it")
            try:
                strains.append(alone.read(files[name], start=span[0], end=span[1], at=at))
            except BadFile as error:
                raise type(error)(path, f"{name}: {error.reason}") from None
            at, span = strains[0].trigger, (None, None)
        return replace(strains[0], path=str(path), others=tuple(strains[1:]))

    def moment(self, signal: Strain) -> float:
        return signal.trigger

    def planes(self, signal: Strain) -> list[NDArray[np.uint8]]:
        levels = self.levels(signal)
        return levels if self.layout == "channels" else [np.concatenate(levels, axis=1)]

    def levels(self, signal: Strain) -> list[NDArray[np.uint8]]:
        """Grey levels of each view, uint8 [height, width of a view], highest frequency first.

        BadFile where there is no noise to whiten, or the strain does not cover the views.
        """
        if self.together:
            alone = replace(self, together=(), durations=self.durations)
            levels_by_detector = [
                alone._levels(one, _SEARCH + TRAVEL) for one in (signal, *signal.others)
            ]
            return [
                levels_by_detector[n % len(levels_by_detector)][n]
                for n in range(len(self.durations))
            ]
        return self._levels(signal, _SEARCH)

    def _levels(self, signal: Strain, around: float) -> list[NDArray[np.uint8]]:
        height, width = self.size
        bottom, top = self._band(signal.rate)
        qrange = (self.qlow, self.qhigh)
        limit = highest_frequency(signal.rate, *qrange)
        axis = np.geomspace(bottom, top, height)
        rows = int(np.count_nonzero(axis <= limit))
        if rows < height:
            _warn_of_band(signal.path, signal.rate, limit, top)
        centre = signal.trigger - signal.start
        try:
            gram = qtransform(
                whiten(signal.values, signal.rate),
                signal.rate,
                qrange=qrange,
                frange=(bottom, float(axis[max(rows, 1) - 1])),
                search=(centre - around, centre + around),
            )
            durations = gram.images(
                [(centre - seconds / 2, centre + seconds / 2) for seconds in self.durations],
                width=width // len(self.durations) if self.layout == "row" else width,
                height=rows,
            )
        except ValueError as error:
            raise BadFile(signal.path, str(error)) from error
        return [self._grey(seconds) for seconds in durations]

    def _band(self, rate: float) -> tuple[float, float]:
        top = self.fmax or min(2048.0, rate * 1200 / 4096)
        return self.fmin, max(top, 2 * self.fmin)

    def _grey(self, energy: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Energies, lowest frequency first, to grey levels [height, width], highest first."""
        grey = np.zeros((self.size[0], energy.shape[1]), dtype=np.uint8)
        scaled = np.clip(energy, 0, self.clip) * np.float32(255 / self.clip)
        grey[self.size[0] - len(energy) :] = np.rint(scaled).astype(np.uint8)[::-1]
        return grey


@lru_cache(maxsize=4096)
def _warn_of_band(path: str, rate: float, limit: float, top: float) -> None:
    """Warn once per file that its sampling rate limits the band."""
    log.warning(
        "%s: %g Hz sampling ends the band at %.0f Hz, not at %g Hz: the picture stays dark above",
        *(path, rate, limit, top),
    )


def _probe(path: str) -> tuple[float, float]:
    """Sampling rate (Hz) and duration (s) of a file, or of the first file of a cache."""
    if path.endswith(CACHE):
        path = next(iter(read_cache(Path(path)).values()))
    with open_strain(path) as source:
        return source.rate, source.duration
