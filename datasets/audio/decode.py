"""Opens audio files safely: WAV, FLAC, OGG, Opus, MP3 and AIFF with soundfile; M4A, and MP3 of unknown length, with av.

Headers are untrusted. Their values are checked against the limits below and the size of the file before
memory is allocated, and samples are decoded in blocks. So a WAV file whose header claims 80 GB costs no more than
its real content. Of a recording that was cut off, what is there is read; `check_whole` refuses it.
"""

from __future__ import annotations

import io
import logging
import math
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.audio.ffmpeg import Mp3Sound, Mp4Sound, is_mp4
from datasets.audio.lengths import Stated, flac_length, stated_length
from datasets.core.address import local
from datasets.core.errors import ALLOW_TRUNCATED, BadFile, OutsideFile, SecondhandError, counted
from datasets.core.limits import unread

log = logging.getLogger(__name__)

MAX_SAMPLES = 2**28  # in one reading: 1 GiB of float32, 1.7 h at 44.1 kHz
BLOCK = 2**20  # samples decoded at a time, over all channels
_LOSSY = {"OGG", "MP3", "MPEG", "M4A"}  # the length in the header is an estimate
NO_SIGNAL = -60.0  # dBFS; a quieter recording has no signal
FORMATS = {"WAV", "WAVEX", "RF64", "W64", "FLAC", "OGG", "MP3", "MPEG", "AIFF", "M4A"}
ULTRASOUND = 96_000  # Hz; recordings of a higher rate are made for what is above the audible
RATES = (1_000, 768_000)  # Hz
MAX_CHANNELS = 64
_CONVERT = "convert it to WAV or FLAC"
MIN_SAMPLES = 16  # a shorter file holds no sound
#: Power of the channels' mean, as a fraction of that of unrelated channels, below which they cancel: a channel and its
#: opposite at 0.55 to 1.8 times its amplitude. Unrelated channels have 1, a delay between microphones hardly less.
CANCELLED = 0.15
#: A recording that is longer than the window by this fraction of it is one window: codecs pad their ends, and what is
#: cut off at each end is one column of a picture.
LONGER = 0.01
# Largest number of samples per byte. PCM and ADPCM need at least 2 bits per sample, FLAC at least 8 bytes per
# frame of up to 65 535 samples, Opus at least one byte per 120 ms.
_FRAMES_PER_BYTE = dict.fromkeys(("WAV", "WAVEX", "RF64", "W64", "AIFF"), 8)
_COMPRESSED_FRAMES_PER_BYTE = 8192

_VIDEO = (  # (offset, bytes, name)
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM container"),
    (8, b"AVI ", "an AVI video"),
    (0, b"FLV\x01", "a Flash video"),
    (0, b"\0\0\1\xba", "an MPEG video"),
    (0, b"\0\0\1\xb3", "an MPEG video"),
    (28, b"\x80theora", "an Ogg video"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "a Windows Media container"),
)
_FOREIGN = (
    (28, b"\x7fFLAC", "FLAC in an Ogg container"),
    (28, b"fLaC", "FLAC in an Ogg container"),
    (28, b"Speex   ", "Speex in an Ogg container"),
    (0, b"#!AMR", "AMR"),
    (0, b"wvpk", "WavPack"),
    (0, b"MAC ", "Monkey's Audio"),
    (0, b"\x0bw", "AC-3"),
    (0, b"\xff\xf1", "AAC without a container"),
    (0, b"\xff\xf9", "AAC without a container"),
)
_LOST = (
    4 * 1152
)  # samples of an MP3 file that was cut off: frames that need the next, and the decoder's delay
#: libsndfile's number of errors of the system, of which it does not say which.
_SYSTEM_ERROR = 2
_FLAC_BITS = (12, 20, 32)  # bits of a sample that libsndfile does not decode


class NotDecoded(BadFile):
    """A file that the decoder does not know as sound: damaged, or of another kind."""


class AudioInfo(NamedTuple):
    """Checked contents of a file's header: rate in Hz, channels, frames, duration in s.

    Frames and duration are those that are there; ``missing`` seconds more are stated.
    """

    rate: int
    channels: int
    frames: int
    duration: float
    missing: float = 0.0


def probe(path: str | os.PathLike[str]) -> AudioInfo:
    """Read rate, channels and length of an audio file from its header.

    Raises BadFile if it is not audio, has an implausible header, or has no samples.
    """
    with _open(path) as (_, info):
        return info


def check_whole(path: str | os.PathLike[str], allow_truncated: bool = False) -> None:
    """Raise BadFile as `probe`, and for a recording that was cut off, unless that is allowed; then it is logged."""
    info = probe(path)
    if not info.missing:
        return
    text = f"the last {info.missing:.3g} of {info.duration + info.missing:.4g} s are missing"
    if not allow_truncated:
        raise BadFile(path, f"truncated: {text}. {ALLOW_TRUNCATED}")
    log.warning("%s: truncated recording, what is there is used; %s", path, text)


def read_audio(
    path: str | os.PathLike[str],
    *,
    start: float = 0.0,
    end: float | None = None,
    longest: float | None = None,
    rate: int | None = None,
) -> tuple[NDArray[np.float32], int]:
    """Read the samples between `start` and `end` seconds, as one channel.

    Channels are averaged. If they cancel (the mean has less than `CANCELLED` of the power expected of unrelated
    channels, constant offsets aside) the loudest channel is used, with a warning.

    Parameters
    ----------
    path : WAV, FLAC, OGG, Opus, MP3, AIFF or M4A (AAC or Apple Lossless).
    start, end : span in seconds. None, or an ``end`` beyond the file, means the end of the file.
    longest : maximum duration in seconds; of a longer span the middle is read.
    rate : rate in Hz to resample to (soxr, high quality). None keeps the rate of the file.

    Returns
    -------
    float32 [samples] in [-1, 1], and the rate in Hz.

    Raises
    ------
    OutsideFile : the file ends before ``start``.
    BadFile : unreadable, damaged, empty, with NaN or infinite samples, or with an implausible header.
    SecondhandError : ``start`` and ``end`` are not a span, ``rate`` is out of range, or the span is too long
        to read at once.
    """
    if not (math.isfinite(start) and start >= 0 and (end is None or end > start)):
        raise SecondhandError(
            f"{path}: {start} s to {end} s is not a valid span (start must be 0 or more, and before end)"
        )
    if rate is not None and not RATES[0] <= rate <= RATES[1]:
        raise SecondhandError(
            f"invalid settings: rate={rate} Hz (must be {RATES[0]} to {RATES[1]})"
        )
    with _open(path) as (file, info):
        file_rate = info.rate
        first = round(start * file_rate)
        last = info.frames if end is None else min(info.frames, round(end * file_rate))
        if first >= info.frames:
            raise outside(path, start, info.duration)
        count = max(last - first, 1)
        if longest is not None and count > round(longest * file_rate):
            first += (count - round(longest * file_rate)) // 2
            count = max(round(longest * file_rate), 1)
        if max(count, count * (rate or file_rate) // file_rate) > MAX_SAMPLES:
            raise SecondhandError(
                f"{path}: {count / file_rate:g} s is too long to read at once. Read it in windows (start, end)"
            )
        signal = _mono(file, path, first, count)
    if rate is not None and rate != file_rate:
        import soxr

        # Resampling overshoots at steps.
        signal = np.clip(soxr.resample(signal, file_rate, rate), -1.0, 1.0)
    return signal, rate or file_rate


def outside(path: str | os.PathLike[str], second: float, duration: float) -> OutsideFile:
    """The error for a time outside of a recording of ``duration`` seconds."""
    return OutsideFile(
        path, f"{second:.15g} s is outside the recording, which lasts {duration:g} s"
    )


def windows(duration: float, window: float, overlap: float = 0.0) -> list[tuple[float, float]]:
    """Cut a recording into overlapping windows: [(start, end), ...] in seconds.

    Parameters
    ----------
    duration, window : seconds, above 0. All windows have the length `window`; the last one ends with the
        recording. A recording up to `LONGER` longer than `window` is one window.
    overlap : fraction of a window that the next one shares, in [0, 1).
    """
    if not (duration > 0 and window > 0 and 0 <= overlap < 1 and math.isfinite(duration)):
        raise SecondhandError(
            f"invalid settings: duration={duration}, window={window}, overlap={overlap} (duration and window "
            "must be above 0, and overlap 0 to below 1)"
        )
    if duration <= window * (1 + LONGER):
        return [(0.0, duration)]
    step = window * (1 - overlap)
    count = math.ceil((duration - window) / step - 1e-9)
    starts = [i * step for i in range(count)] + [duration - window]
    return [(start, start + window) for start in starts]


def loudness(signal: NDArray[np.floating], rate: int) -> float:
    """Level of the loudest tenth of a second in dBFS (RMS without the offset), of samples in [-1, 1].

    Above a rate of `ULTRASOUND` of the loudest hundredth: calls of bats take milliseconds.

    So a short call in a quiet recording counts, and a microphone's offset does not. At most 0; -inf for
    digital silence; -3 for a full-scale sine.
    """
    size = min(max(rate // (100 if rate > ULTRASOUND else 10), 1), len(signal))
    if size == 0:
        return -math.inf
    blocks = np.asarray(signal[: len(signal) // size * size]).reshape(-1, size)
    # The offset is removed first: a quiet call on a large one is lost in the difference of its square and the power.
    around = blocks - blocks.mean(axis=1, keepdims=True, dtype=np.float64).astype(blocks.dtype)
    loudest = float(np.einsum("ij,ij->i", around, around).max()) / size
    return 10 * math.log10(loudest) if loudest > 1e-14 else -math.inf


class _Patched(io.FileIO):
    """A file some bytes of which are read as others."""

    def __init__(self, path: str | os.PathLike[str], patches: Iterable[tuple[int, bytes]]) -> None:
        super().__init__(path)
        self._patches = patches

    def readinto(self, buffer: Any) -> int:
        begin = self.tell()
        count = super().readinto(buffer) or 0
        view = memoryview(buffer).cast("B")
        for at, content in self._patches:
            first, last = max(at, begin), min(at + len(content), begin + count)
            if first < last:
                view[first - begin : last - begin] = content[first - at : last - at]
        return count


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[tuple[Any, AudioInfo]]:
    """Open a soundfile.SoundFile or FfmpegSound and check its header; errors become BadFile."""
    import soundfile

    try:
        with ExitStack() as stack:
            try:
                here = local(path)
                if not stat.S_ISREG(os.stat(here).st_mode):  # opening a pipe would wait
                    raise BadFile(path, "not a file, but a folder, a pipe or a device")
                stream = stack.enter_context(open(here, "rb"))
                size, head = _checked_head(path, stream)
                stated = stated_length(stream, size)
            except OSError as error:
                raise unread(path, error) or BadFile(path, f"cannot be opened: {error}") from None

            def patched() -> Any:
                content = stack.enter_context(_Patched(here, stated.patches))
                return stack.enter_context(soundfile.SoundFile(io.BufferedReader(content)))

            if is_mp4(head):
                file: Any = stack.enter_context(Mp4Sound(path))
            elif stated.guessed:
                file = stack.enter_context(Mp3Sound(path))
            elif stated.patches:
                file = patched()
            else:
                file = stack.enter_context(soundfile.SoundFile(os.fsencode(here)))
                if file.format == "FLAC":
                    stated = flac_length(stream, file)
                    file = patched() if stated.patches else file
            yield file, _checked_info(file, path, size, stated)
    except soundfile.LibsndfileError as error:
        detail = str(error.error_string).rstrip(".").lower()
        damaged = NotDecoded(
            path, f"cannot be decoded ({detail}): it is damaged, truncated or not audio"
        )
        of_system = _of_system(path) if error.code == _SYSTEM_ERROR else None
        raise of_system or damaged from None


def _of_system(path: str | os.PathLike[str]) -> BadFile | None:
    """The error with which the system does not read a file to its end; None if it does."""
    try:
        with open(local(path), "rb") as stream:
            while stream.read(BLOCK):
                pass
    except OSError as error:
        return unread(path, error)
    return None


def _checked_head(path: str | os.PathLike[str], stream: BinaryIO) -> tuple[int, bytes]:
    """Size of a file in bytes and its first 64 bytes, after the checks that need no decoder."""
    head = stream.read(64)
    if not head:
        raise BadFile(path, "empty file")
    if os.fsdecode(path).lower().endswith(".raw"):
        raise BadFile(path, "samples without a header, by its ending: convert it to WAV or FLAC")
    for known, remedy in (
        (_VIDEO, ", not an audio file: extract its sound as WAV or FLAC"),
        (_FOREIGN, f" is not supported: {_CONVERT}"),
    ):
        for offset, magic, name in known:
            if head[offset : offset + len(magic)] == magic:
                raise BadFile(path, name + remedy)
    bits = (int.from_bytes(head[20:22]) >> 4 & 31) + 1
    if head.startswith(b"fLaC") and bits in _FLAC_BITS:
        raise BadFile(path, f"FLAC with {bits} bits a sample is not supported: {_CONVERT}")
    return os.fstat(stream.fileno()).st_size, head


def _checked_info(file: Any, path: str | os.PathLike[str], size: int, stated: Stated) -> AudioInfo:
    """What the header says; raises BadFile if it is implausible."""
    if file.format not in FORMATS:
        kind = f"{file.subtype} without a header" if file.format == "RAW" else file.format
        raise BadFile(path, f"{kind} is not supported: {_CONVERT}")
    if not RATES[0] <= file.samplerate <= RATES[1]:
        raise BadFile(
            path,
            f"implausible header: {file.samplerate} Hz ({RATES[0]} to {RATES[1]} Hz are supported)",
        )
    if not 1 <= file.channels <= MAX_CHANNELS:
        raise BadFile(
            path,
            f"implausible header: {file.channels} channels (at most {MAX_CHANNELS} are supported)",
        )
    frames = file.frames
    per_byte = _FRAMES_PER_BYTE.get(file.format, _COMPRESSED_FRAMES_PER_BYTE)
    if frames > size * per_byte:
        raise BadFile(path, f"implausible header: {frames} samples in a file of {size} bytes")
    total = frames if file.format in _LOSSY else frames / (1 - stated.missing or 1)
    if stated.missing and file.format in _LOSSY:  # libsndfile takes the header at its word
        frames = int(frames * (1 - stated.missing)) - _LOST
    if frames < MIN_SAMPLES:
        samples = counted(max(frames, 0), "sample")
        raise BadFile(path, f"too short: {samples} (at least {MIN_SAMPLES})")
    rate = int(file.samplerate)
    missing = (total - frames) / rate
    return AudioInfo(rate, int(file.channels), frames, frames / rate, missing)


def _mono(file: Any, path: str | os.PathLike[str], first: int, count: int) -> NDArray[np.float32]:
    """Read `count` frames from `first` on: the mean of the channels, or the loudest one (see `read_audio`)."""
    channels = int(file.channels)
    power, mixed, mean = np.zeros(channels), 0.0, np.zeros(channels)
    blocks, done = list[NDArray[np.float32]](), 0
    for block in _blocks(file, path, first, count):
        if channels == 1:
            blocks.append(block[:, 0])
            continue
        rows = np.ascontiguousarray(block.T)  # sums along rows are ten times as fast
        blocks.append(rows.mean(axis=0))
        # Powers are those about the mean, never a difference of sums of squares: that is rounding of a constant, in
        # which no channel is the loudest, and processors round in different ways. Blocks are joined as Chan, Golub
        # and LeVeque do (1983, doi:10.1080/00031305.1983.10483115).
        size = rows.shape[1]
        middle = rows.mean(axis=1, dtype=np.float64)
        step, share = middle - mean, done * size / max(done + size, 1)
        power += _power(rows, middle) + share * step**2
        mixed += float(_power(blocks[-1][None], middle.mean(keepdims=True))[0])
        mixed += share * step.mean() ** 2
        mean += step * size / max(done + size, 1)
        done += size
    signal = np.concatenate(blocks) if len(blocks) != 1 else blocks[0]
    if channels > 1 and 1e-9 * len(signal) < power.sum() > mixed * channels**2 / CANCELLED:
        loudest = int(power.argmax())  # and this is not silence
        _say_cancelled(os.fspath(path), loudest + 1)
        return np.concatenate([block[:, loudest] for block in _blocks(file, path, first, count)])
    return signal


def _power(rows: NDArray[np.float32], middle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of the squared deviations of each row [n, samples] from its ``middle`` [n]."""
    around = rows - middle[:, None].astype(np.float32)
    return np.array([float(np.dot(row, row)) for row in around])


@lru_cache(maxsize=4096)  # once for a recording of many windows
def _say_cancelled(path: str, channel: int) -> None:
    log.warning("%s: the channels cancel when averaged, so only channel %d is used", path, channel)


def _blocks(
    file: Any, path: str | os.PathLike[str], first: int, count: int
) -> Iterator[NDArray[np.float32]]:
    """Decoded blocks float32 [frames, channels], finite and within full scale."""
    if file.subtype == "GSM610":  # libsndfile cannot seek in it
        for done in range(0, first, BLOCK):
            file.read(min(BLOCK, first - done))
    elif first or file.tell():
        file.seek(first)
    pcm16 = file.subtype == "PCM_16"  # the most common by far; scaling it here is twice as fast
    integer = file.subtype.startswith("PCM_")
    decoded = 0
    while decoded < count:
        requested = min(count - decoded, max(BLOCK // file.channels, 1))
        block = file.read(requested, dtype="int16" if pcm16 else "float32", always_2d=True)
        if pcm16:
            block = block.astype(np.float32)
            block *= np.float32(1 / 32768)
        elif not integer:
            peak = float(np.abs(block).max(initial=0.0))
            if not math.isfinite(peak):
                raise BadFile(path, "contains NaN or infinite samples")
            if peak > 4:  # 12 dB above full scale is not an overshoot but another scale
                raise BadFile(
                    path, f"has samples up to {peak:g}, but full scale is 1: rescale the file"
                )
            if peak > 1:
                block = np.clip(block, -1.0, 1.0)
        yield block
        decoded += len(block)
        if len(block) < requested:
            lossy = file.format in _LOSSY or file.subtype.startswith("MPEG")
            if decoded < (0.95 * count if lossy else count) or not decoded:
                raise BadFile(
                    path, f"truncated: only {decoded} of {count} samples from sample {first} on"
                )
            return
