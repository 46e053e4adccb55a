"""Reads with FFmpeg what libsndfile does not: AAC and Apple Lossless in MP4 containers (`.m4a`, as phones record it), and
MP3 streams whose header does not say how long they are.

FFmpeg gets an open file without a name, may open no other file, and may decode these three codecs only. It allocates
what a container claims, up to 2 GiB for a table; the processes that open files for the commands have less than that
to give several times (`datasets.core.processes.ROOM`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from datasets.core.address import local
from datasets.core.errors import BadFile

#: Samples to decode before the requested one: four packets of AAC, whose windows overlap and whose bands may
#: be predicted from earlier packets; seven of MP3, which uses bits of earlier ones.
_BEFORE = 8192  # samples
_MAX_BOXES = 4096  # of a container, on its first level; phones write a handful


def is_mp4(head: bytes) -> bool:
    """Whether a file that begins like this is an MP4 or MOV container."""
    return head[4:8] == b"ftyp"


class FfmpegSound:
    """An open recording, with the used part of the interface of `soundfile.SoundFile`.

    Attributes
    ----------
    format : as libsndfile calls it.
    demuxers, codecs : those of FFmpeg that may run, of which the first demuxer does.
    options : further ones of the demuxer.

    Raises
    ------
    BadFile : no sound, another codec, or an implausible container; also raised by `read`.
    """

    format: ClassVar[str]
    demuxers: ClassVar[tuple[str, ...]]
    codecs: ClassVar[tuple[str, ...]]
    options: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._container: Any = None
        self._file = open(local(path), "rb")  # noqa: SIM115 it is closed by __exit__
        try:
            self.check()
            self.samplerate = self.channels = 0
            self.seek(0)
            first = next(self._frames, None)  # AAC may have twice the rate of its header
            length = self.length()
            if first is None or length is None:
                raise BadFile(path, "damaged or truncated: it contains no sound")
            self.samplerate, self.channels = int(first.sample_rate), first.layout.nb_channels
            self.frames = round(length * self._stream.time_base * self.samplerate)
            self.subtype = self._stream.codec_context.name.upper()
            self.seek(0)
        except BaseException:
            self.__exit__()
            raise

    def check(self) -> None:
        """Raise BadFile if the file was cut off where FFmpeg would take what is there for all."""

    def length(self) -> int | None:
        """Length of the stream in its own units; None if it is not known."""
        length: int | None = self._stream.duration
        return length

    @classmethod
    def opened(cls, file: BinaryIO) -> Any:
        """A container of FFmpeg."""
        import av

        options = {
            "codec_whitelist": ",".join(cls.codecs),
            "format_whitelist": ",".join(cls.demuxers),
            "protocol_whitelist": "",
            **cls.options,
        }
        return av.open(file, "r", format=cls.demuxers[0], options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._container is not None:
            self._container.close()
        self._file.close()

    def tell(self) -> int:
        """Number of the next sample."""
        return self._at

    def seek(self, sample: int) -> None:
        """Make this sample the next one to read."""
        self._at, self._begun = sample, False
        self._rest: NDArray[np.float32] = np.empty((0, self.channels), np.float32)
        self._frames = self._decoded(sample - _BEFORE)

    def read(self, count: int, **_: object) -> NDArray[np.float32]:
        """Read the next samples, float32 [count, channels]; fewer at the end."""
        blocks, missing = [self._rest[:0]], min(count, self.frames - self._at)
        while missing > 0:
            if not len(self._rest):
                frame = next(self._frames, None)
                if frame is None:
                    break
                self._rest = self._values(frame)
                if not self._begun:
                    began = (frame.pts or 0) - (self._stream.start_time or 0)
                    skip = self._at - round(began * frame.time_base * self.samplerate)
                    self._begun = skip < len(self._rest)
                    self._rest = self._rest[max(skip, 0) :]
            blocks.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(blocks[-1])
        signal = np.concatenate(blocks)
        self._at += len(signal)
        return signal

    def _decoded(self, sample: int) -> Iterator[Any]:
        """Yield frames from the one with this sample on; samples below 0 are the encoder's padding.

        Each call uses a new decoder, because AAC's noise substitution depends on everything decoded before.
        """
        import av

        try:
            if self._container is not None:
                self._container.close()
            self._file.seek(0)
            self._container = self.opened(self._file)
            self._stream = self._sound()
            if self.samplerate and sample > 0:
                at = int(sample / self.samplerate / self._stream.time_base)
                at += self._stream.start_time or 0
                self._container.seek(at, stream=self._stream)
            yield from self._container.decode(self._stream)
        except (av.FFmpegError, ValueError, MemoryError) as error:
            if isinstance(error, BadFile):
                raise
            reason = getattr(error, "strerror", None) or error
            raise BadFile(
                self._path, f"cannot be decoded ({reason}): damaged or truncated"
            ) from None

    def _sound(self) -> Any:
        """The stream to read: the first sound; BadFile for a video or another codec."""
        from av.stream import Disposition

        streams = self._container.streams
        if any(not video.disposition & Disposition.attached_pic for video in streams.video):
            raise BadFile(
                self._path, "a video, not an audio file: extract its sound as WAV or FLAC"
            )
        if not streams.audio:
            raise BadFile(self._path, "an MP4 container without sound")
        context = streams.audio[0].codec_context
        name = context.name if context else "an unknown codec"
        if name not in self.codecs:
            raise BadFile(
                self._path,
                f"{name} in an MP4 container is not supported: convert it to WAV or FLAC",
            )
        context.thread_count = 1
        return streams.audio[0]

    def _values(self, frame: Any) -> NDArray[np.float32]:
        """Samples of a frame, float32 [samples, channels]."""
        if (frame.sample_rate, frame.layout.nb_channels) != (self.samplerate, self.channels):
            raise BadFile(self._path, "damaged: its rate or number of channels changes")
        values = frame.to_ndarray()
        if not frame.format.is_planar:
            values = values.reshape(-1, self.channels).T
        if values.dtype.kind == "i":
            values = values * np.float32(2.0 ** (1 - 8 * values.itemsize))
        return values.T.astype(np.float32)


class Mp4Sound(FfmpegSound):
    """AAC or Apple Lossless in an MP4 or MOV container."""

    format = "M4A"
    demuxers = ("mov", "mp4", "m4a", "3gp", "3g2", "mj2")
    codecs = ("aac", "alac")
    options = MappingProxyType({
        "enable_drefs": "0",  # samples in another file
        "use_absolute_path": "0",
        "ignore_chapters": "1",
        "max_streams": "8",
    })  # fmt: skip

    def check(self) -> None:
        if _is_cut(self._file):
            raise BadFile(
                self._path, "damaged or truncated: a box of its container is longer than it"
            )


class Mp3Sound(FfmpegSound):
    """MP3, whose frames are counted."""

    format = "MP3"
    demuxers = ("mp3",)
    codecs = ("mp3float",)

    def length(self) -> int | None:
        state = os.fstat(self._file.fileno())
        return _length_of_mp3(self._file.name, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)  # once for a recording of many windows
def _length_of_mp3(path: str, _size: int, _changed: int) -> int:
    """Length of all frames in the units of their stream."""
    with open(path, "rb") as file, Mp3Sound.opened(file) as container:
        return sum(packet.duration or 0 for packet in container.demux(audio=0))


def _is_cut(file: BinaryIO) -> bool:
    """Whether a container ends within a box, as if its recorder had stopped; FFmpeg takes what is there for all."""
    size, at = os.fstat(file.fileno()).st_size, 0
    for _ in range(_MAX_BOXES):
        if at + 8 > size:
            break
        file.seek(at)
        head = file.read(16)
        length = int.from_bytes(head[:4])
        at += max({0: size - at, 1: int.from_bytes(head[8:])}.get(length, length), 8)
    return at > size
