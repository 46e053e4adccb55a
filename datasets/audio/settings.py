"""Settings of mel spectrograms, and their rendering."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from msgspec import Meta
from numpy.typing import DTypeLike, NDArray

from datasets.audio import decode, harmonic, mel
from datasets.audio.decode import RATES, ULTRASOUND
from datasets.audio.drawing import Levels, figure_png
from datasets.core.address import member
from datasets.core.checked import one_of
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import AnyPath, FileOrPart, Part, as_part
from datasets.spectrograms.axes import Axes, Panel
from datasets.spectrograms.settings import (
    COLOUR_MAPS,
    SpectrogramSettings,
    check_values,
    most_common_rate,
    sample_evenly,
)

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger(__name__)

LEVELS = ("clip", "fixed", "pcen")
QUIETEST_PEAK = -50.0  # dBFS; a clip with a lower peak is rendered as if it had this one
CLIP_RANGE = 60.0  # dB below the clip's peak that are shown
LEAST_OFFSET = 1e-6  # -120 dBFS; a smaller one is never visible
LOUDEST_PCEN = 4.0  # rendered white: an onset of 25 dB

LONGEST_SIDE = 2048  # pixels
Side = Annotated[int, Meta(ge=16, le=LONGEST_SIDE)]


@dataclass(frozen=True, kw_only=True)
class MelSettings(SpectrogramSettings):
    """Settings of a mel spectrogram, or one in notes: time to the right, low frequencies at the bottom.

    A file that is shorter than the window is centred, with silence on both sides. Of a longer one the middle
    is rendered; `spans` cuts it into windows instead. A span that is shorter than the window is rendered with what
    is around it (`shown`).

    Parameters
    ----------
    rate : rate in Hz that every file is resampled to, 1000 to 768 000.
    window : seconds in one spectrogram, 0.01 to 600.
    n_fft, hop : samples of a frame, and between frames. 0: in proportion to the rate, 2048 and 512 at
        44 100 Hz (n_fft is rounded up to a length with a fast transform).
    n_mels : number of mel bands, 8 to 1024.
    fmin, fmax : band in Hz. ``fmax`` 0: 16 kHz, or half the rate if that is less or the rate is above
        `ULTRASOUND`.
    level : white and black. "clip": the clip's peak (at least -50 dBFS) and ``range_db`` below it. "fixed":
        full scale and ``range_db`` below it. "pcen": per-channel energy normalisation, 4 and 0. Full scale
        is the mel power of a sine of amplitude 1 in the band with the largest weight.
    range_db : dB from black to white, 10 to 200.
    colour : "grey" (three equal channels), a colour map (viridis, magma, inferno, plasma, cividis), or
        "windows": frames of n_fft / 2, n_fft and 2 n_fft as the red, green and blue channel.
    size : height and width in pixels, 16 to 2048. With scale "yamnet" always a pixel for each band and frame.
    scale : filterbank: "slaney" (librosa's), "kaldi" (`datasets.audio.mel.kaldi_spectrogram`, where
        ``n_fft`` is the length of a frame), "yamnet" (`datasets.audio.mel.yamnet_spectrogram`, too), or "cqt": bands
        that are evenly spaced in notes from ``fmin``, the lowest one, on (`datasets.audio.harmonic.note_spectrogram`,
        which imports librosa; ``n_fft`` and ``n_mels`` have no effect). Only "slaney" goes with colour "windows", and
        only "slaney" and "yamnet" with level "pcen".
    bins_per_octave : bands in an octave with scale "cqt", 6 to 96; 12 for the notes of a piano.

    Raises
    ------
    SecondhandError : values are invalid; all of them are named.
    """

    kind: ClassVar[str] = "sound"
    drawings: ClassVar[str] = "spectrograms"
    silence: ClassVar[str] = "-60 dBFS"

    rate: Annotated[int, Meta(ge=RATES[0], le=RATES[1])] = 44_100
    window: Annotated[float, Meta(ge=0.01, le=600)] = 5.0
    n_fft: Annotated[int, Meta(ge=0, le=65_536)] = 0
    hop: Annotated[int, Meta(ge=0)] = 0
    n_mels: Annotated[int, Meta(ge=8, le=1024)] = 128
    fmin: Annotated[float, Meta(ge=0)] = 20.0
    fmax: Annotated[float, Meta(ge=0)] = 0.0
    level: Annotated[str, one_of(*LEVELS)] = "clip"
    range_db: Annotated[float, Meta(ge=10, le=200)] = 80.0
    colour: Annotated[str, one_of("grey", "windows", *COLOUR_MAPS)] = "grey"
    size: tuple[Side, Side] = (224, 224)
    scale: Annotated[str, one_of("slaney", "kaldi", "yamnet", "cqt")] = "slaney"
    bins_per_octave: Annotated[int, Meta(ge=6, le=96)] = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "n_fft", self.n_fft or mel.fast_even(2048 * self.rate / 44_100))
        set_field(self, "hop", self.hop or max(round(512 * self.rate / 44_100), 1))
        highest = self.rate / 2 if self.rate > ULTRASOUND else min(16_000.0, self.rate / 2)
        set_field(self, "fmax", self.fmax or highest)
        is_plain = self.level != "pcen" and self.colour != "windows"
        fits_scale = (
            self.scale == "slaney"
            or (self.scale == "yamnet" and self.colour != "windows")
            or (is_plain and (self.scale == "cqt" or self.rate * self.window >= self.n_fft))
        )
        lowest = 0 if self.scale != "cqt" else 5
        check_values(
            self,
            ranges={
                "n_fft": (16, 65_536),
                "hop": (1, self.n_fft),
                "fmin": (lowest, self.rate / 2),
                "fmax": (self.fmin, self.rate / 2),
            },
            rules={
                "n_fft": (self.n_fft % 2 == 0, "even"),
                "fmax": (
                    self.fmin < self.fmax and (self.scale != "cqt" or 2 * self.fmin <= self.fmax),
                    "above fmin, with scale cqt by an octave",
                ),
                "scale": (
                    fits_scale,
                    "slaney with level pcen, with colour windows, or with a window shorter than n_fft",
                ),
            },
        )
        if self.scale == "yamnet":
            frames = mel.patch_frames(self.samples, self.n_fft, self.hop)
            if frames > LONGEST_SIDE:
                raise SecondhandError(
                    f"invalid sound settings: window={self.window} s with hop={self.hop} at {self.rate} Hz and scale "
                    f"yamnet is {frames:,} pixels wide (must be at most {LONGEST_SIDE}). Shorten the window"
                )
            set_field(self, "size", (max(self.n_mels, 16), frames))
        # Settings may come from an untrusted file: limit the work to about a minute.
        size = self.n_fft
        if self.scale == "cqt":
            notes = harmonic.note_count(self.rate, self.fmin, self.fmax, self.bins_per_octave)
            size = max(size, 16 * notes)
        if self.rate * self.window / self.hop * size > 2e9:
            raise SecondhandError(
                f"invalid sound settings: window={self.window} s with hop={self.hop} and n_fft={self.n_fft} "
                f"at {self.rate} Hz takes too long for one spectrogram. Shorten the window or lengthen the hop"
            )
        if self.scale == "slaney":  # some of Kaldi's narrow filters are empty in training, too
            for n_fft in self._frame_lengths():
                mel.warn_of_empty_bands(self._bands(n_fft))

    @classmethod
    def infer(cls, paths: Iterable[AnyPath], **settings: Any) -> Self:
        """Settings inferred from files: their most common rate, and a window that holds most of them.

        With level "clip" the range is 60 dB; lower levels show the microphone rather than the sound. With scale "cqt"
        the lowest note is C1. The window holds the longest file, or the 95th percentile of the durations if the
        longest is more than half longer; at most 5 s. At most about 2000 evenly spaced files are opened; unreadable
        ones are skipped.

        Raises SecondhandError, with the first reason, if no file can be opened.
        """
        range_db = CLIP_RANGE if settings.get("level", "clip") == "clip" else 80.0
        lowest = {"fmin": harmonic.LOWEST_NOTE} if settings.get("scale") == "cqt" else {}
        settings = {"range_db": range_db, **lowest, **settings}
        if settings.get("rate") and settings.get("window"):
            return cls(**settings)
        probed, reason = list[decode.AudioInfo](), ""
        for path in sample_evenly(paths, 2000):
            try:
                probed.append(decode.probe(path))
            except BadFile as error:
                reason = reason or str(error)
        if not probed:
            reason = f"The first reason: {reason}" if reason else "There are no files"
            raise SecondhandError(f"no readable sound file to infer rate and window from. {reason}")
        window = infer_window([info.duration for info in probed])
        return cls(
            **{"rate": most_common_rate(info.rate for info in probed), "window": window, **settings}
        )

    def spans(self, file: FileOrPart, *, overlap: float = 0.0) -> list[Part]:
        """Windows of a recording, cut by `datasets.audio.decode.windows`.

        Raises BadFile if the file cannot be opened or ends before the part starts.
        """
        part = as_part(file)
        path, start, end = part.path, part.start, part.end
        first = start or 0.0
        if end is not None and first < end and not self._fills(first, end):
            return [part]  # the length of the file is not needed
        last = min(decode.probe(path).duration, math.inf if end is None else end)
        if last <= first:
            raise decode.outside(path, first, last)
        windows = decode.windows(last - first, self.window, overlap)
        if len(windows) > 100:  # a header may claim hours that are not there
            decode.read_audio(path, start=first + windows[-1][0], end=last)
        if len(windows) == 1:
            return [Part(path, start, end and last)]
        return [Part(path, first + begin, first + until) for begin, until in windows]

    @property
    def samples(self) -> int:
        """Number of samples in one spectrogram."""
        return max(round(self.rate * self.window), 1)

    def read(self, file: FileOrPart) -> NDArray[np.float32]:
        """Read the samples of one spectrogram, float32 [samples]: those of `shown`.

        Raises OutsideFile if the moment or start is outside the file, and BadFile as `read_audio`.
        """
        path, start, end, *_ = self.shown(file)
        signal, _ = decode.read_audio(
            path, start=start or 0.0, end=end, longest=self.window, rate=self.rate
        )
        return self.fit(signal)

    def shown(self, file: FileOrPart) -> Part:
        """What the picture of a span, or of a moment, shows.

        A window around the middle of a shorter span, moved inwards at the ends of the file. A span of at least a
        window is returned unchanged, and so is a whole file.

        Raises OutsideFile if the moment or start is outside the file.
        """
        path, start, end, at, _ = as_part(file)
        first, span = start or 0.0, Part(path, start, end)
        if at is None and ((start, end) == (None, None) or self._fills(first, end)):
            return span
        if at is None and end is not None and not 0 <= first < end:
            return span  # reading it says what is wrong
        duration = decode.probe(path).duration
        first, last = (first, min(end or math.inf, duration)) if at is None else (at, at)
        if not 0 <= first <= duration or first == duration != at:
            raise decode.outside(path, first, duration)
        if self._fills(first, last):
            return span
        begin = max(min((first + last - self.window) / 2, duration - self.window), 0.0)
        return Part(path, begin, begin + self.window)

    def _fills(self, start: float, end: float | None) -> bool:
        """Whether a span is as long as the window, to half a sample."""
        return end is not None and end - start >= self.window - 0.5 / self.rate

    def is_cut(self, path: AnyPath) -> bool:
        return True

    def places(
        self,
        part: Part,
        *,
        apart: Sequence[tuple[float, float]] = (),
        count: int,
        rng: np.random.Generator,
    ) -> list[Part]:
        """Windows that show a span of a recording at random places.

        All of the span is in each window; where it does not fit, or not without one of the spans ``apart``, at least
        half of it, or half a window. No window holds any of the spans ``apart``.
        """
        duration = decode.probe(part.path).duration
        first, last = part.start or 0.0, min(duration, math.inf if part.end is None else part.end)
        half = min(last - first, self.window) / 2
        whole = last - self.window, first if last - first < self.window else -math.inf
        for low, high in (whole, (first + half - self.window, last - half)):
            allowed = _without(
                (max(low, 0.0), min(high, duration - self.window)),
                [(begin - self.window, until) for begin, until in apart],
            )
            room = sum(b - a for a, b in allowed)
            if allowed:
                begins = [_along(allowed, room * (n + rng.random()) / count) for n in range(count)]
                return [Part(part.path, begin, begin + self.window) for begin in begins]
        return []

    def panels(self, signal: Any, picture: Image.Image, part: Part) -> list[Panel]:
        shown = f"{self.window:g} s, {self.fmin:g} Hz to {self.fmax:g} Hz"
        return [Panel(picture, shown, self.axes(part))]

    def axes(self, part: Part) -> Axes:
        """The axes of a recording's spectrogram.

        Row b of ``n_mels`` shows the band whose centre is the (b + 1)-th of ``n_mels + 2`` points spread
        evenly in mel over the band (`datasets.audio.mel.filterbank`).
        """
        if part.at is not None:
            middle = max(part.at, self.window / 2)
        else:
            duration = decode.probe(part.path).duration
            end = duration if part.end is None else min(part.end, duration)
            middle = ((part.start or 0.0) + end) / 2
        seconds = middle - self.window / 2, middle + self.window / 2
        in_notes = self.scale == "cqt"
        scale = np.log2 if in_notes else mel.hz_to_mel
        low, high = float(scale(self.fmin)), float(scale(self.fmax))
        edge = 0.0 if in_notes else (high - low) / (self.n_mels + 1) / 2
        frequency = "frequency (Hz)" if in_notes else "frequency (Hz, mel)"
        return Axes(
            "time in the recording (s)", seconds, frequency, scale, (low + edge, high - edge)
        )

    def drawn(self, signal: NDArray[np.floating], part: Part) -> bytes:
        """The spectrogram in all its bands and frames; ``size`` has no effect."""
        signal, lengths = self.fit(signal), self._frame_lengths()
        planes = [self.levels(signal, n_fft=n_fft) for n_fft in lengths]
        title = Path(member(part.path)).name
        if len(planes) > 1:
            short, usual, long = (f"{1000 * n_fft / self.rate:.3g} ms" for n_fft in lengths)
            title += f"\nframes of {short} red, {usual} green, {long} blue"
        return figure_png(planes, self.axes(part), self.bar(signal), title, colour=self.colour)

    def bar(self, signal: NDArray[np.float32]) -> Levels:
        """What black and white are in the picture of a signal [samples]: the colour bar of `drawn`."""
        if self.level == "pcen":
            return Levels("PCEN", 0.0, LOUDEST_PCEN)
        name = "dB relative to full scale"
        if self.level == "clip":
            peak = float(self.mel_db(signal).max()) - self.full_scale
            quiet = peak < QUIETEST_PEAK
            name = f"dB relative to {QUIETEST_PEAK:g} dBFS" if quiet else "dB relative to the peak"
        return Levels(name, -self.range_db, 0.0)

    def flac(self, file: FileOrPart) -> bytes:
        """A recording, or a span of one, as FLAC at `rate`."""
        import soundfile

        written = io.BytesIO()
        soundfile.write(written, self.read(file), self.rate, format="FLAC", subtype="PCM_16")
        return written.getvalue()

    def augmentations(self, strength: float = 1.0, *, mixed: bool = True) -> list[Any]:
        """Gain, equaliser and background mixing need levels that are proportional to dB, so they are left out for
        colour maps and PCEN."""
        from datasets.loaders import augment

        if not strength:
            return []
        tfms: list[Any] = [
            augment.TimeShift(min(0.25 * strength, 0.5)),
            augment.TimeScale(0.3 * strength),
        ]
        if self.level != "pcen" and self.colour in ("grey", "windows"):
            tfms.append(augment.Gain(6 * strength, range_db=self.range_db))
            tfms.append(augment.Equaliser(9 * strength, range_db=self.range_db))
            if mixed:
                tfms.append(augment.BackgroundMix(range_db=self.range_db, p=0.25 * strength))
        # One mask each: more could hide all of a word of half a second.
        tfms.append(augment.SpecAugment(0.15 * strength, 0.15 * strength, count=1, p=0.5))
        return tfms

    def fit(self, signal: NDArray[np.floating]) -> NDArray[np.float32]:
        """Cut the middle out of a longer signal, or pad a shorter one with silence on both sides.

        A microphone's offset, constant or drifting, is removed before (`_offset`): its edges at the silence and its
        leakage into the lowest bands would set the peak of the clip.
        """
        signal = np.asarray(signal, dtype=np.float32)
        missing = self.samples - len(signal)
        first = max(-missing // 2, 0)
        signal = signal[first : first + self.samples]
        offset = _offset(signal)
        if np.abs(offset).max(initial=0.0) > LEAST_OFFSET:
            signal = signal - offset
        return np.pad(signal, (missing // 2, missing - missing // 2)) if missing > 0 else signal

    def no_signal(self, signal: NDArray[np.floating]) -> bool:
        """Whether the whole signal is below -60 dBFS (`datasets.audio.decode.loudness`)."""
        return decode.loudness(signal, self.rate) < decode.NO_SIGNAL

    def mel_db(self, signal: NDArray[np.floating]) -> NDArray[np.float64]:
        """Mel power in dB, equal to librosa's `melspectrogram` and `power_to_db(top_db=None)`.

        Parameters
        ----------
        signal : [samples] at ``rate``, of any length.

        Returns
        -------
        float64 [n_mels, 1 + samples // hop], at least -100 dB; for scale "kaldi" see
        `datasets.audio.mel.kaldi_spectrogram`, for "yamnet" `datasets.audio.mel.yamnet_spectrogram`, for "cqt"
        `datasets.audio.harmonic.note_spectrogram`.
        """
        return mel.decibels(self._power(signal, self._bands(self.n_fft), np.float64))

    @property
    def full_scale(self) -> float:
        """Mel power (dB) of a full-scale sine, which is white with level "fixed"."""
        return self._full_scale(self._bands(self.n_fft))

    @property
    def floor(self) -> float:
        """Lowest power in dB."""
        floors = {"kaldi": mel.KALDI_FLOOR, "yamnet": mel.YAMNET_OFFSET**2}
        return 10 * math.log10(floors.get(self.scale, mel.FLOOR))

    def levels(self, signal: NDArray[np.floating], *, n_fft: int = 0) -> NDArray[np.floating]:
        """The spectrogram as brightness by `level`, [n_mels, frames] from 0 (black) to 1 (white)."""
        bands = self._bands(n_fft or self.n_fft)
        if self.level == "pcen":
            # Scaled as PCEN's settings expect. PCEN amplifies faint sounds, so float32 is not precise enough.
            scaled = np.asarray(signal, np.float64) * 2**31
            magnitude = (
                mel.yamnet_spectrogram(scaled, bands, self.hop)
                if self.scale == "yamnet"
                else mel.mel_spectrogram(scaled, bands, self.hop, power=1)
            )
            value: NDArray[np.floating] = harmonic.pcen(magnitude, rate=self.rate, hop=self.hop)
            value /= LOUDEST_PCEN
        else:
            # The error of float32 is 0.001 dB here, a three-hundredth of a grey level.
            power = self._power(signal, bands, np.float32)
            db = mel.decibels(power.astype(np.float32)) - np.float32(self._full_scale(bands))
            top = max(float(db.max()), QUIETEST_PEAK) if self.level == "clip" else 0.0
            value = (db - top) / self.range_db + 1
        return np.clip(value, 0.0, 1.0, out=value)

    def planes(self, signal: NDArray[np.floating]) -> list[NDArray[np.uint8]]:
        signal = self.fit(signal)
        return [self._plane(signal, n_fft) for n_fft in self._frame_lengths()]

    def _frame_lengths(self) -> tuple[int, ...]:
        if self.colour == "windows":
            return self.n_fft // 4 * 2, self.n_fft, self.n_fft * 2
        return (self.n_fft,)

    def _power(
        self, signal: NDArray[np.floating], bands: mel.MelBands, dtype: DTypeLike
    ) -> NDArray[np.float64]:
        if self.scale == "kaldi":
            return mel.kaldi_spectrogram(signal, bands, self.hop)
        if self.scale == "yamnet":
            magnitude = mel.yamnet_spectrogram(signal, bands, self.hop)
            power: NDArray[np.float64] = (magnitude + mel.YAMNET_OFFSET) ** 2
            return power
        if self.scale == "cqt":
            return harmonic.note_spectrogram(
                signal,
                rate=self.rate,
                hop=self.hop,
                fmin=self.fmin,
                fmax=self.fmax,
                bins_per_octave=self.bins_per_octave,
            )
        return mel.mel_spectrogram(signal, bands, self.hop, dtype=dtype)

    def _full_scale(self, bands: mel.MelBands) -> float:
        if self.scale == "cqt":
            return 0.0
        if self.scale == "slaney":
            return mel.full_scale(bands)
        # Filters of height 1. Of a sine a wide one sums the magnitudes of the neighbouring bins, too.
        return 20 * math.log10(self.n_fft / (2 if self.scale == "yamnet" else 4))

    def _bands(self, n_fft: int) -> mel.MelBands:
        return mel.MelBands(self.rate, n_fft, self.n_mels, self.fmin, self.fmax)

    def _plane(self, signal: NDArray[np.float32], n_fft: int) -> NDArray[np.uint8]:
        """One channel, uint8 [height, width], resized with Pillow's antialiased bilinear filter."""
        from PIL import Image

        value = self.levels(signal, n_fft=n_fft)[::-1] * 255
        height, width = self.size
        image = Image.fromarray(value.astype(np.float32)).resize(
            (width, height), Image.Resampling.BILINEAR
        )
        return np.rint(np.asarray(image)).astype(np.uint8)


def _offset(signal: NDArray[np.float32]) -> NDArray[np.float32]:
    """The straight line nearest to a signal, float32 [samples]: a constant offset, or one that drifts."""
    at = np.arange(len(signal), dtype=np.float32) - np.float32((len(signal) - 1) / 2)
    mean = signal.mean(dtype=np.float64) if len(signal) else 0.0
    slope = float(at @ (signal - np.float32(mean))) / max(float(at @ at), 1.0)
    return np.float32(mean) + np.float32(slope) * at


def _without(
    interval: tuple[float, float], others: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The parts of an interval, which may be a point, that are outside of the others."""
    parts, low = list[tuple[float, float]](), interval[0]
    for begin, until in sorted(others):
        if low <= min(begin, interval[1]):
            parts.append((low, min(begin, interval[1])))
        low = max(low, until)
    return [*parts, *([(low, interval[1])] if low <= interval[1] else [])]


def _along(intervals: Sequence[tuple[float, float]], distance: float) -> float:
    """The point at a distance from the first start, along the intervals."""
    for low, high in intervals:
        if distance <= high - low:
            break
        distance -= high - low
    return min(low + distance, high)


def infer_window(durations: Sequence[float]) -> float:
    """Window in seconds for items of these durations in seconds; see `MelSettings.infer`."""
    most, longest = np.percentile(durations, [95, 100]).tolist()
    longest = longest if longest <= 1.5 * most else most
    return max(min(math.ceil(longest * 100) / 100, 5.0), 0.05)
