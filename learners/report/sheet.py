"""Files side by side on one page, to be looked at or heard: a contact sheet."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from datasets.audio import AudioRecipe
from datasets.core.errors import SecondhandError
from datasets.core.files import folder_beside
from datasets.spectrograms import Source
from learners.files import Names
from learners.inference import Predictor
from learners.report.galleries import Pictures, shown, when
from learners.templates import render

INDEX = "index.html"


class Shot(NamedTuple):
    """A file of a sheet, what stands before its words, and these."""

    source: Source
    number: str
    said: str


def write_sheet(
    folder: Path, predictor: Predictor, shots: Sequence[Shot], *, title: str, lead: str
) -> Path:
    """Write ``folder/index.html``, which takes the place of an older sheet; the page's path.

    Pictures stand in the page; what is heard, as FLAC at the model's rate, lies beside it. A file
    that is gone meanwhile is named with the reason.
    """
    pictures = Pictures(predictor)
    names = Names("", [shot.source.path for shot in shots])
    with folder_beside(folder, replace=True) as beside:
        cards = []
        for place, (source, number, said) in enumerate(shots, start=1):
            card = {"number": number, "said": said, "picture": "", "sound": ""}
            card["under"] = names.file(source.path) + when(source)
            try:
                card["picture"] = shown(pictures.draw(source))
                if sound := heard(predictor, source):
                    card["sound"] = f"{place:04d}.flac"
                    (beside / card["sound"]).write_bytes(sound)
            except SecondhandError as error:
                card["said"] = f"{said} · {names(str(error))}"
            cards.append(card)
        page = render("learners.report", "sheet.html", title=title, lead=lead, shots=cards)
        (beside / INDEX).write_text(page, encoding="utf-8")
    return folder / INDEX


def heard(predictor: Predictor, source: Source) -> bytes:
    """A sound, or a span of one, at the model's rate as FLAC; nothing of what does not sound."""
    if not isinstance(recipe := predictor.recipe, AudioRecipe):
        return b""
    import soundfile

    signal = recipe.read(source.path, start=source.start, end=source.end, at=source.at)
    written = io.BytesIO()
    soundfile.write(written, signal, recipe.rate, format="FLAC", subtype="PCM_16")
    return written.getvalue()
