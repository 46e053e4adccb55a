"""Sound: recordings, drawn as mel spectrograms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS, Kind, PictureInfo
from datasets.kinds.facts import spread

if TYPE_CHECKING:
    from datasets.audio.settings import MelSettings
    from datasets.core.recorded import Recorded


def _settings() -> type[MelSettings]:
    from datasets.audio.settings import MelSettings

    return MelSettings


def _look(path: str, whole: bool) -> None:
    """Read the header; damaged samples are found when the file is rendered."""
    from datasets.audio.decode import check_whole

    check_whole(path, allow_truncated=not whole)


def _recorded(path: str) -> Iterable[Recorded]:
    from datasets.audio.recorders import recorder_notes

    return recorder_notes(path)


def _expansion(path: str, notes: Iterable[Recorded]) -> float:
    from datasets.audio.recorders import find_expansion

    return find_expansion(path, notes)


def _duration(path: str) -> float:
    from datasets.audio.decode import probe

    return probe(path).duration


def _facts(paths: Sequence[str], looks: Mapping[str, PictureInfo]) -> dict[str, str]:
    from datasets.audio.decode import probe

    headers = []
    for path in paths:
        try:
            headers.append(probe(path))
        except SecondhandError:  # gone or changed since
            continue
    if not headers:
        return {}
    rates = Counter(header.rate for header in headers).most_common(4)
    return {
        "duration": spread([header.duration for header in headers], "s", 2),
        "rate": ", ".join(f"{rate} Hz in {count}" for rate, count in rates),
    }


def _augment(spectrogram: MelSettings, strength: float, mixed: bool) -> list[Any]:
    """Gain, equaliser and background mixing need levels that are proportional to dB, so they are left out for
    colour maps and PCEN."""
    from datasets.loaders import augment

    tfms: list[Any] = [
        augment.TimeShift(min(0.25 * strength, 0.5)),
        augment.TimeScale(0.3 * strength),
    ]
    if spectrogram.level != "pcen" and spectrogram.colour in ("grey", "windows"):
        tfms.append(augment.Gain(6 * strength, range_db=spectrogram.range_db))
        tfms.append(augment.Equaliser(9 * strength, range_db=spectrogram.range_db))
        if mixed:
            tfms.append(augment.BackgroundMix(range_db=spectrogram.range_db, p=0.25 * strength))
    # One mask each: more could hide all of a word of half a second.
    tfms.append(augment.SpecAugment(0.15 * strength, 0.15 * strength, count=1, p=0.5))
    return tfms


KINDS.add(
    Kind(
        name="sound",
        help="recordings",
        suffixes=(
            ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".w64", ".rf64", ".m4a",
        ),
        parts=("start", "end"),
        settings=_settings,
        look=_look,
        recorded=_recorded,
        expansion=_expansion,
        duration=_duration,
        facts=_facts,
        augment=_augment,
        varied_by=("shift",),
        silence="-60 dBFS",
        drawings="spectrograms",
        media="audio",
        recordings=True,
        mel=True,
        in_windows=True,
    )
)  # fmt: skip
