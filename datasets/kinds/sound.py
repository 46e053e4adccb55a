"""Sound: recordings, drawn as mel spectrograms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

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
        varied_by=("shift",),
        media="audio",
        recordings=True,
        mel=True,
        in_windows=True,
    )
)  # fmt: skip
