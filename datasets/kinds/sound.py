"""Sound: recordings, drawn as mel spectrograms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Part
from datasets.core.processes import call_isolated
from datasets.kinds.base import KINDS, Kind, PictureInfo, find_kind
from datasets.kinds.facts import spread
from datasets.kinds.views import TTAView, several

if TYPE_CHECKING:
    import pandas as pd

    from datasets.audio.settings import MelSettings
    from datasets.core.recorded import Recorded


class Sound(Kind):
    name, help = "sound", "recordings"
    suffixes = (
        ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".w64", ".rf64", ".m4a",
    )  # fmt: skip
    parts = ("start", "end")
    media = "audio"
    lr_mult = 2.0
    recordings = True

    def look(
        self, path: str, whole: bool, settings: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Read the header; damaged samples are found when the file is rendered."""
        from datasets.audio.decode import NotDecoded, check_whole

        try:
            check_whole(path, allow_truncated=not whole)
        except NotDecoded as error:
            named = find_kind(path)
            if named is None or named.recordings:
                raise
            article = "an" if named.name[0] in "aeiou" else "a"
            reason = f"this is {article} {named} file by its ending, not a sound"
            raise BadFile(error.path, reason) from None

    def recorded(self, path: str) -> Iterable[Recorded]:
        from datasets.audio.recorders import recorder_notes

        return recorder_notes(path)

    def expansion(self, path: str, notes: Iterable[Recorded]) -> float:
        from datasets.audio.recorders import find_expansion

        return find_expansion(path, notes)

    def duration(self, path: str) -> float:
        return call_isolated(_duration, path, 0.0)

    def describe(self, paths: Sequence[str], looks: Mapping[str, PictureInfo]) -> dict[str, str]:
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

    def cells(self, part: Part) -> dict[str, str]:
        """Start and end of a span; nothing for a whole recording."""
        if part.start is None or part.end is None:
            return {}
        return {"start": repr(float(part.start)), "end": repr(float(part.end))}

    def settings(self) -> type[MelSettings]:
        from datasets.audio.settings import MelSettings

        return MelSettings

    def spectrogram(self, frame: pd.DataFrame, settings: Mapping[str, Any]) -> MelSettings:
        """Settings with a window for the labelled spans, where all items are spans, and with the band of their labels."""
        from datasets.audio.band import label_limits, labelled_band, show_band
        from datasets.audio.settings import MelSettings, infer_window

        chosen = dict(settings)
        times = frame.reindex(columns=["start", "end"])
        spans = times["end"] - times["start"]
        if spans.notna().all():  # the items are these, not their files
            chosen.setdefault("window", infer_window(spans.tolist()))
        spectrogram = MelSettings.infer(frame["path"], **chosen)
        band = labelled_band(*label_limits(frame))
        return spectrogram if band is None else show_band(spectrogram, band, chosen)

    def remarks(self, spectrogram: MelSettings, frame: pd.DataFrame) -> Iterable[tuple[int, str]]:
        from datasets.audio.describe import frequencies

        return frequencies(spectrogram, frame)

    def views(
        self, count: int, *, flip: bool = True, min_scale: float = 0.35, strength: float = 1.0
    ) -> list[TTAView]:
        """Shifted in time by at most half the shift of training."""
        reach = min(0.25 * strength, 0.5) / 2
        steps = count // 2  # on either side
        shifts = [0.0, *(reach * n / steps * side for n in range(1, steps + 1) for side in (1, -1))]
        views = [TTAView(shift=round(shift, 4)) for shift in (shifts if reach else [0.0])]
        return several(views, count, "--augment-strength 0")

    def has_view(self, view: TTAView) -> bool:
        return view == TTAView(shift=view.shift)


def _duration(path: str) -> float:
    from datasets.audio.decode import probe

    return probe(path).duration


KINDS.add(Sound())
