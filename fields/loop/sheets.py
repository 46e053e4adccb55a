"""Contact sheets: pages of files to look at or to listen to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from datasets.core.errors import SecondhandError
from datasets.core.files import folder_beside
from datasets.core.part import Part
from learners.files.names import PathShortener
from learners.inference.predictor import Predictor
from learners.report.galleries import Pictures, page_picture, time_span
from learners.report.templates import render

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
    pictures, spectrogram = Pictures(predictor), predictor.spectrogram
    names = PathShortener("", [shot.part.path for shot in shots])
    with folder_beside(folder, replace=True) as beside:
        cards = []
        for place, (part, number, caption, section) in enumerate(shots, start=1):
            card = {"number": number, "caption": caption, "picture": "", "sound": ""}
            card["section"] = section
            card["under"] = names(part.path) + time_span(part)
            try:
                card["picture"] = page_picture(pictures.render(part))
                if spectrogram is not None and (sound := spectrogram.flac(part)):
                    card["sound"] = f"{place:04d}.flac"
                    (beside / card["sound"]).write_bytes(sound)
            except SecondhandError as error:
                card["caption"] = f"{caption} · {names(str(error))}"
            cards.append(card)
        page = render("fields.loop", "sheet.html", title=title, lead=lead, shots=cards)
        (beside / INDEX).write_text(page, encoding="utf-8")
    return folder / INDEX
