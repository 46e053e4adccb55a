"""Contact sheets: pages of files to look at or to listen to."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.core.files import folder_beside
from datasets.core.part import Part
from learners.files.names import PathShortener
from learners.inference.predictor import Predictor
from learners.report.galleries import Pictures, page_picture, time_span
from learners.templates import render

INDEX = "index.html"


class Shot(NamedTuple):
    """A file of a contact sheet, the number before its caption, the caption, and the section of the page."""

    part: Part
    number: str
    caption: str
    section: str = ""


def write_sheet(
    folder: Path, predictor: Predictor, shots: Sequence[Shot], *, title: str, lead: str
) -> Path:
    """Write ``folder/index.html``, replacing an older sheet, and return its path.

    Pictures are inside the page; sounds lie beside it, as FLAC at the model's rate. A missing file is
    listed with the reason.
    """
    pictures = Pictures(predictor)
    names = PathShortener("", [shot.part.path for shot in shots])
    with folder_beside(folder, replace=True) as beside:
        cards = []
        for place, (part, number, caption, section) in enumerate(shots, start=1):
            card = {"number": number, "caption": caption, "picture": "", "sound": ""}
            card["section"] = section
            card["under"] = names(part.path) + time_span(part)
            try:
                card["picture"] = page_picture(pictures.render(part))
                if sound := flac(predictor, part):
                    card["sound"] = f"{place:04d}.flac"
                    (beside / card["sound"]).write_bytes(sound)
            except SecondhandError as error:
                card["caption"] = f"{caption} · {names(str(error))}"
            cards.append(card)
        page = render("learners.report", "sheet.html", title=title, lead=lead, shots=cards)
        (beside / INDEX).write_text(page, encoding="utf-8")
    return folder / INDEX


def flac(predictor: Predictor, part: Part) -> bytes:
    """A sound, or a span of one, as FLAC at the model's rate; b"" if the model is not of sounds."""
    if not isinstance(spectrogram := predictor.spectrogram, MelSettings):
        return b""
    import soundfile

    signal = spectrogram.read(part)
    written = io.BytesIO()
    soundfile.write(written, signal, spectrogram.rate, format="FLAC", subtype="PCM_16")
    return written.getvalue()
