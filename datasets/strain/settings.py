"""Settings of Q-scans, and their rendering."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, floor, inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from datasets.core.checked import one_of
from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.part import AnyPath, FileOrPart, Part, as_part
from datasets.core.processes import check_files_isolated
from datasets.spectrograms.axes import Axes, Panel
from datasets.spectrograms.settings import (
    COLOUR_MAPS,
    SpectrogramSettings,
    check_values,
    colour_table,
    most_common_rate,
    sample_evenly,
)
from datasets.strain.drawing import DRAWN, Scan, figure_png
from datasets.strain.files import SHORTEST_CONTEXT, Strain, read_strain, usable_spans
from datasets.strain.frames import STRIDE, open_strain, read_scan
from datasets.strain.qscan import QGram, highest_frequency, qtransform, settling, whiten

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger(__name__)

#: Layouts, and the default durations (s) of each.
LAYOUTS = {
    "grid": (0.5, 1.0, 2.0, 4.0),
    "channels": (0.5, 2.0, 4.0),
    "row": (0.5, 1.0, 2.0, 4.0),
    "one": (1.0,),
}
COLOURS = ("grey", *COLOUR_MAPS)
Side = Annotated[int, Meta(ge=16, le=4096)]

#: Seconds around the trigger in which the loudest tile is searched for; it chooses the Q plane.
_SEARCH = 0.25
#: Seconds around the trigger in which the loudest tile of `QScanSettings.offset` is searched for, and the energy from
#: which a tile is hardly noise: in Gaussian noise about one trigger in a hundred has one as loud.
_NEARBY, _LOUD = 1.0, 25.0
#: Most seconds by which training shifts the moment of a trigger.
SHIFT = 0.5
#: Largest step (s) between the energies that are averaged to a pixel; shorter than the shortest glitches.
_STEP = 1 / 512


@dataclass(frozen=True, kw_only=True)
class QScanSettings(SpectrogramSettings):
    """Settings of a Q-scan of whitened strain, with a log2 frequency axis and low frequencies at the bottom.

    Attributes
    ----------
    context : seconds that are whitened and transformed, 16 to 256. Tile energies depend on it.
    qlow, qhigh : range of Q, 3.5 to 256.
    fmin, fmax : band in Hz. ``fmax`` 0: 1200 Hz at a rate of 4096 Hz, in proportion at other rates, at most
        2048 Hz; `infer` sets it for a set of files.
    durations : 1 to 8 durations in seconds around the trigger, each of which gives one Q-scan. Empty: by the
        layout.
    layout : "grid": four Q-scans in two rows. "channels": three Q-scans as the red, green and blue channels,
        each at full size. "row": the Q-scans side by side. "one": a single Q-scan. Empty: by the number of
        durations; without durations "grid".
    clip : normalised energy of the brightest level. With 25.5 a grey level is a tenth.
    size : height and width of the whole picture in pixels, 16 to 4096; one number for a square.
    colour : colour map for all layouts but "channels": magma, grey, viridis, inferno, plasma or cividis.

    Raises
    ------
    SecondhandError : values are invalid; all of them are named.
    """

    kind: ClassVar[str] = "strain"
    drawings: ClassVar[str] = "Q-scans"
    by_gps: ClassVar[bool] = True

    context: Annotated[float, Meta(ge=SHORTEST_CONTEXT, le=256)] = 32.0
    qlow: Annotated[float, Meta(ge=3.5, le=256)] = 4.0
    qhigh: Annotated[float, Meta(ge=3.5, le=256)] = 64.0
    fmin: Annotated[float, Meta(ge=1, le=8192)] = 10.0
    fmax: Annotated[float, Meta(ge=0, le=32_768)] = 0.0
    durations: Annotated[tuple[Annotated[float, Meta(ge=0.05)], ...], Meta(max_length=8)] = ()
    layout: Annotated[str, one_of(*LAYOUTS, "")] = ""
    clip: Annotated[float, Meta(ge=0.1, le=1e6)] = 25.5
    size: tuple[Side, Side] = (224, 224)
    colour: Annotated[str, one_of(*COLOURS)] = "magma"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layout:
            count = len(self.durations or LAYOUTS["grid"])
            layout = {4: "grid", 3: "channels", 1: "one"}.get(count, "row")
            object.__setattr__(self, "layout", layout)  # the dataclass is frozen
        if not self.durations:
            object.__setattr__(self, "durations", LAYOUTS.get(self.layout, ()))
        count = len(self.durations)
        rows, columns = self._rows_and_columns
        fitting = tuple(-(-n // m) * m for n, m in zip(self.size, (rows, columns), strict=True))
        check_values(
            self,
            ranges={
                "qhigh": (self.qlow, 256),
                "fmin": (self.qhigh / self.context, 8192),
                "fmax": (2 * self.fmin if self.fmax else 0, 32_768),
                "durations": (0.05, self.context - 2 * settling(4096)),
            },
            rules={
                "durations": (
                    count == {"grid": 4, "channels": 3, "one": 1}.get(self.layout, count)
                    and 1 <= count <= 8,
                    "four for the layout grid, three for the layout channels, a single one for the layout "
                    "one, 1 to 8 for row",
                ),
                "size": (
                    self.size == fitting,
                    f"height and width that {rows} x {columns} Q-scans can share: {list(fitting)}",
                ),
            },
        )

    @classmethod
    def infer(cls, paths: Iterable[AnyPath], **settings: Any) -> Self:
        """Settings for these files: ``fmax`` by their most common sampling rate, ``context`` by their length.

        The context is 32 s, or what 95 % of the files contain if that is less, but at least 16 s. About 50
        evenly spaced files are opened; unreadable ones are skipped.

        Raises
        ------
        SecondhandError : no file can be opened; the message has the first reason.
        """
        spectrogram = cls(**settings)
        if spectrogram.fmax and "context" in settings:
            return spectrogram
        probed = check_files_isolated(_probe, sample_evenly(paths, 50), 1)
        opened = [file for file in probed if not isinstance(file, Rejected)]
        if not opened:
            bad = [file for file in probed if isinstance(file, Rejected)]
            reason = f"The first reason: {bad[0]}" if bad else "There are no files"
            raise SecondhandError(f"no readable strain file to infer the band from. {reason}")
        rate = most_common_rate(rate for rate, _ in opened)
        lengths = sorted(seconds for _, seconds in opened)
        held_seconds = max(floor(lengths[len(lengths) // 20]), SHORTEST_CONTEXT)
        context = (
            spectrogram.context if "context" in settings else min(spectrogram.context, held_seconds)
        )
        return replace(spectrogram, fmax=spectrogram.band(rate)[1], context=context)

    @property
    def _rows_and_columns(self) -> tuple[int, int]:
        """Numbers of rows and columns of Q-scans in the picture."""
        return {"grid": (2, 2), "row": (1, max(1, len(self.durations)))}.get(self.layout, (1, 1))

    @property
    def reach(self) -> float:
        """Seconds of strain needed on either side of the trigger."""
        return max(self.durations) / 2 + settling(4096)

    def read(self, file: FileOrPart) -> Strain:
        """Read the strain for one Q-scan with `read_strain`, which says what is a BadFile.

        A part without a moment shows the loudest tile between its start and end, in seconds of the file.
        """
        path, start, end, at, _ = as_part(file)
        return read_strain(
            path,
            at=at,
            context=self.context,
            reach=self.reach,
            within=(start or 0.0, inf if end is None else end),
            qrange=(self.qlow, self.qhigh),
            frange=(self.fmin, self.fmax or 2048.0),
        )

    def spans(self, file: FileOrPart, *, overlap: float = 0.0) -> list[Part]:
        """Windows of continuous strain as GPS times, each with its middle as its moment, if the path is a list to scan;
        else the part itself.

        A window is the time to which its picture is the nearest. Their middles are the multiples of `STRIDE` that have
        ``reach`` seconds of strain on either side, within ``context`` seconds without a gap. ``overlap`` has no effect.
        """
        part = as_part(file)
        scan = read_scan(part.path)
        if scan is None:
            return [part]
        middles = STRIDE * np.arange(ceil(scan[0] / STRIDE), ceil(scan[1] / STRIDE))
        with open_strain(part.path, at=sum(scan) / 2) as source:
            runs = usable_spans(source, self.context, self.reach)
        usable = np.any([(a <= middles) & (middles <= b) for a, b in runs], axis=0)
        return [
            Part(part.path, t - STRIDE / 2, t + STRIDE / 2, t) for t in middles[usable].tolist()
        ]

    def is_cut(self, path: AnyPath) -> bool:
        return read_scan(path) is not None

    def drawn(self, signal: Strain, part: Part) -> bytes:
        title = f"{Path(signal.path).name}\ntrigger at GPS {signal.trigger:.3f}"
        return figure_png(
            self.scans(signal, width=DRAWN, height=DRAWN), title, colour=self.colour, clip=self.clip
        )

    def places(
        self,
        part: Part,
        *,
        apart: Sequence[tuple[float, float]] = (),
        count: int,
        rng: np.random.Generator,
    ) -> list[Part]:
        """Moments up to `SHIFT` from the trigger, because searches place a long glitch as far from its peak.

        The longest duration shows at least a quarter of itself on either side of the trigger.
        """
        if part.at is None:
            return []
        limit = min(SHIFT, max(self.durations) / 4)
        shifts = [limit * (2 * (n + rng.random()) / count - 1) for n in range(count)]
        return [part._replace(at=part.at + shift) for shift in shifts]

    def panels(self, signal: Strain, picture: Image.Image, part: Part) -> list[Panel]:
        """The Q-scans of which the picture consists."""
        from PIL import Image

        channels = self.layout == "channels"
        palette = colour_table("viridis" if channels else self.colour)
        names = ("red channel: ", "green channel: ", "blue channel: ") if channels else ("",) * 8
        low, high = np.log2(self.band(signal.rate))
        where = f"time from GPS {signal.trigger:.3f} (s)"
        return [
            Panel(
                Image.fromarray(palette[levels]),
                f"{name}{duration:g} s",
                Axes(where, (-duration / 2, duration / 2), "frequency (Hz)", np.log2, (low, high)),
            )
            for name, duration, levels in zip(
                names, self.durations, self.levels(signal), strict=False
            )
        ]

    def augmentations(self, strength: float = 1.0, *, mixed: bool = True) -> list[Any]:
        """Position and energy stay, which are relative to the trigger and the noise; one frequency band is masked. Times
        are not masked, because a short glitch in the middle could be hidden completely."""
        from datasets.loaders.augment import SpecAugment

        return [SpecAugment(0.15 * strength, 0.0, count=1)] if strength else []

    def tells_picture(self, part: Part) -> bool:
        """A file without a moment shows its loudest, which only its strain tells."""
        return part.at is not None

    def moment(self, signal: Strain) -> float:
        return signal.trigger

    def offset(self, signal: Strain) -> float:
        """Seconds from the trigger to the loudest tile within a second of it; NaN if that could be noise."""
        loudest = self._gram(signal).nearby
        if loudest.energy < _LOUD:
            return nan
        return signal.start + loudest.time - signal.trigger

    def planes(self, signal: Strain) -> list[NDArray[np.uint8]]:
        levels = self.levels(signal)
        if self.layout == "channels":
            return levels
        columns = self._rows_and_columns[1]
        rows = [levels[n : n + columns] for n in range(0, len(levels), columns)]
        return [np.block(rows)]

    def levels(self, signal: Strain) -> list[NDArray[np.uint8]]:
        """Grey levels of each duration, uint8 [height, width], highest frequency first.

        Raises BadFile if there is no noise to whiten, or the strain does not cover the durations.
        """
        width = self.size[1] // self._rows_and_columns[1]
        scans = self._energies(signal, width, self._rows(signal))
        return [self._grey(energy, self._height) for energy in scans]

    def _energies(self, signal: Strain, width: int, height: int) -> list[NDArray[np.float32]]:
        centre = signal.trigger - signal.start
        spans = [(centre - seconds / 2, centre + seconds / 2) for seconds in self.durations]
        try:
            return self._gram(signal).images(spans, width=width, height=height, step=_STEP)
        except ValueError as error:
            raise BadFile(signal.path, str(error)) from error

    def scans(self, signal: Strain, *, width: int, height: int) -> list[Scan]:
        """The energies that `levels` shows, at another size."""
        band, energies = self._gram(signal).frange, self._energies(signal, width, height)
        return [
            Scan(seconds, signal.detector, band, energy)
            for seconds, energy in zip(self.durations, energies, strict=True)
        ]

    @property
    def _height(self) -> int:
        """Height of one Q-scan in pixels."""
        return self.size[0] // self._rows_and_columns[0]

    def _axis(self, signal: Strain) -> NDArray[np.float64]:
        """Frequency of each row of pixels, lowest first."""
        return np.geomspace(*self.band(signal.rate), self._height)

    def _rows(self, signal: Strain) -> int:
        """Number of rows of pixels that the sampling rate allows."""
        axis, limit = self._axis(signal), highest_frequency(signal.rate, self.qlow, self.qhigh)
        rows = int(np.count_nonzero(axis <= limit))
        if rows < len(axis):
            _warn_of_band(signal.path, signal.rate, limit, float(axis[-1]))
        return rows

    @lru_cache(maxsize=4)  # noqa: B019 (both are immutable; picture and offset of a signal share it)
    def _gram(self, signal: Strain) -> QGram:
        """Q-transform around the trigger. Raises BadFile if there is no noise to whiten."""
        wide = min(_NEARBY, max(self.durations) / 2)
        centre, axis = signal.trigger - signal.start, self._axis(signal)
        try:
            return qtransform(
                whiten(signal.values, signal.rate),
                signal.rate,
                qrange=(self.qlow, self.qhigh),
                frange=(float(axis[0]), float(axis[max(self._rows(signal), 1) - 1])),
                search=(centre - _SEARCH, centre + _SEARCH),
                nearby=(centre - wide, centre + wide),
            )
        except ValueError as error:
            raise BadFile(signal.path, str(error)) from error

    def band(self, rate: float) -> tuple[float, float]:
        """Lowest and highest frequency in Hz that are shown of strain with this sampling rate."""
        top = self.fmax or min(2048.0, rate * 1200 / 4096)
        return self.fmin, max(top, 2 * self.fmin)

    def _grey(self, energy: NDArray[np.float32], height: int) -> NDArray[np.uint8]:
        """Convert energies, lowest frequency first, to grey levels [height, width], highest first."""
        grey = np.zeros((height, energy.shape[1]), dtype=np.uint8)
        scaled = np.clip(energy, 0, self.clip) * np.float32(255 / self.clip)
        grey[height - len(energy) :] = np.rint(scaled).astype(np.uint8)[::-1]
        return grey


@lru_cache(maxsize=4096)
def _warn_of_band(path: str, rate: float, limit: float, top: float) -> None:
    """Warn once per file that its sampling rate limits the band."""
    log.warning(
        "%s: a sampling rate of %g Hz limits the band to %.0f Hz, so its Q-scan is dark above, up to %g Hz",
        *(path, rate, limit, top),
    )


def _probe(path: str) -> tuple[float, float]:
    """Sampling rate (Hz) and duration (s) of a file."""
    with open_strain(path) as source:
        return source.rate, source.duration
