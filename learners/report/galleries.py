"""Pictures of a report: files, heat maps of the network, and contact sheets (pages of files to look at or
listen to)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from datasets.audio.settings import MelSettings
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import folder_beside
from datasets.core.part import Part
from datasets.images.opening import open_picture
from datasets.items.labels import UNKNOWN
from datasets.kinds.base import KINDS, find_kind
from learners.evaluation.figures import ScoredItems
from learners.evaluation.held_out import Evaluation
from learners.files.names import PathShortener
from learners.inference.gradcam import heatmap, overlay
from learners.inference.predictor import Predictor
from learners.templates import data_uri, percent, render

SIDE = 240  # pixels of a picture on the page
WINDOWS = 32  # of a long recording, among which that with the highest logit is searched
SHOWN = 12  # figures in a gallery
SMALL = 96  # pixels of an example of a class
INDEX = "index.html"
EXAMPLES, CLASSES = 3, 20  # example files of a class, and most classes with examples


class Figure(NamedTuple):
    """Pictures side by side (data URI and alternative text of each), their caption, and the files' names."""

    pictures: list[tuple[str, str]]
    caption: str
    under: str


@dataclass
class Pictures:
    """Renders files for the page, as the network sees them.

    Attributes
    ----------
    predictor : the model.
    no_map : why the backbone gives no heat maps; "" if it does.
    """

    predictor: Predictor
    no_map: str = ""

    def render(self, part: Part) -> Image.Image:
        """A file as an RGB picture: the photo, or the spectrogram of a signal.

        Raises
        ------
        SecondhandError : it cannot be read.
        """
        spectrogram = self.predictor.spectrogram
        if not (
            KINDS[self.predictor.kind].opened or ((kind := find_kind(part.path)) and kind.photo)
        ):
            raise BadFile(part.path, "only its embedding was read")
        if spectrogram is None:
            return self.predictor.prepared.open_for_page(part, SIDE)
        if (stored := self.predictor.decoder.stored(part)) is not None:
            return open_picture(stored)
        signal = spectrogram.read(part)
        return spectrogram.image(signal).convert("RGB")

    def moment(self, part: Part, class_index: int) -> Part:
        """The window of a long recording with the highest logit of a class.

        At most `WINDOWS` windows, spread evenly, are predicted.
        """
        spectrogram = self.predictor.spectrogram
        if spectrogram is None or part.at is not None:
            return part
        try:
            windows = spectrogram.spans(part, overlap=self.predictor.bundle.overlap)
        except BadFile:
            return part
        windows = windows[:: -(-len(windows) // WINDOWS)]
        if len(windows) == 1:
            return windows[0]
        readable = [
            (window, pixels)
            for window in windows
            if isinstance(pixels := self.predictor.open(window), np.ndarray)
        ]
        if not readable:
            return part
        logits, _ = self.predictor.forward(np.stack([pixels for _, pixels in readable]))
        return readable[int(logits[:, class_index].argmax())][0]

    def heat(self, part: Part, class_index: int) -> Image.Image | None:
        """The network's input with its Grad-CAM for a class; None where there is no map."""
        if not KINDS[self.predictor.kind].opened:
            self.no_map = "the network was given embeddings, not pictures"
        if self.no_map:
            return None
        pixels = self.predictor.open(part)
        if not isinstance(pixels, np.ndarray):
            return None
        network, preprocessing = self.predictor.network, self.predictor.bundle.preprocessing
        try:
            heat = heatmap(network, pixels, class_index, preprocessing=preprocessing)
        except SecondhandError as error:
            self.no_map = str(error)
            return None
        return overlay(pixels, heat)

    def figure(self, part: Part, caption: str, class_index: int | None = None) -> Figure:
        """A file with a caption, and with its heat map for a class if one is given."""
        if class_index is not None:
            part = self.moment(part, class_index)
        try:
            pictures = [(page_picture(self.render(part)), caption)]
        except SecondhandError as error:
            return Figure([], caption, PathShortener("", [part.path])(str(error)))
        heat = None if class_index is None else self.heat(part, class_index)
        if heat is not None:
            name = self.predictor.classes[class_index or 0]
            pictures.append((page_picture(heat), f"where the network looked for {name}"))
        return Figure(pictures, caption, Path(part.path).name + time_span(part))


def time_span(part: Part) -> str:
    """Suffix of a file's name: the GPS time or the seconds that are shown; "" for a whole file."""
    if part.at is not None:
        return f", GPS {part.at:.1f} s"
    if part.start is None or part.end is None:
        return ""
    return f", {part.start:.1f}–{part.end:.1f} s"  # noqa: RUF001


def page_picture(picture: Image.Image, side: int = SIDE) -> str:
    """Data URI of a picture, at most ``side`` pixels wide and high."""
    size = max(picture.size)
    if size < side:  # enlarge small pictures without smoothing
        scale = -(-side // size)
        picture = picture.resize(
            (picture.width * scale, picture.height * scale), Image.Resampling.NEAREST
        )
    picture.thumbnail((side, side))
    return data_uri(picture)


def examples(pictures: Pictures, evaluation: Evaluation) -> list[Figure]:
    """A few validation, calibration or test files of each class, spread over those that it has."""
    figures, known = [], evaluation.known
    for name in pictures.predictor.classes[:CLASSES]:
        rows = known.loc[known["truth"].eq(name)]
        small = []
        places = np.linspace(0, len(rows) - 1, EXAMPLES).astype(int) if len(rows) else ()
        for place in dict.fromkeys(places):
            try:
                picture = pictures.render(Part.of_row(rows.iloc[place]))
            except SecondhandError:  # listed among the files that could not be judged
                continue
            small.append((page_picture(picture, SMALL), name))
        figures.append(Figure(small, name, f"{len(rows)} files"))
    return figures


def gallery(
    pictures: Pictures,
    evaluation: Evaluation,
    rows: pd.DataFrame,
    caption: Callable[[Mapping[str, Any]], str],
) -> list[Figure]:
    """The first of the ``rows``, whose column ``row`` is the index in the predictions, with captions."""
    predictions = evaluation.predictions
    return [
        pictures.figure(Part.of_row(predictions.iloc[row["row"]]), caption(row))
        for row in rows.head(SHOWN).to_dict("records")
    ]


def mistakes(
    pictures: Pictures, evaluation: Evaluation, scored: ScoredItems, wrong: pd.DataFrame
) -> list[Figure]:
    """The surest mistakes, with heat maps."""
    numbers = {name: i for i, name in enumerate(pictures.predictor.classes)}
    of_label = np.full(len(evaluation.predictions), np.nan)
    known = scored.labels >= 0
    of_label[scored.rows[known]] = scored.after[known, scored.labels[known]]
    probability = pd.Series(of_label, index=evaluation.predictions.index)
    wrong = wrong.assign(label_probability=probability.loc[wrong.index].to_numpy())
    surest = wrong.sort_values("probability", ascending=False, kind="stable").head(SHOWN)

    def figure(row: Any) -> Figure:
        outcome = "answered" if row["label"] == row["best"] else "refused"
        caption = f"{row['best']} ({100 * row['probability']:.0f} %, {outcome}) · is {row['truth']}"
        if row["label_probability"] == row["label_probability"]:
            caption += f" ({100 * row['label_probability']:.0f} %)"
        return pictures.figure(Part.of_row(row), caption, numbers[row["best"]])

    return [figure(row) for row in surest.to_dict("records")]


def refused_although_right(evaluation: Evaluation) -> pd.DataFrame:
    """Files that are refused although their most probable class is right: the surest of each class in turn."""
    rows = evaluation.predictions
    rows = rows.loc[rows["label"].eq(UNKNOWN) & rows["best"].eq(rows["truth"])]
    rows = rows.sort_values("probability", ascending=False, kind="stable")
    rows = rows.assign(turn=rows.groupby("truth").cumcount(), row=rows.index)
    return rows.sort_values("turn", kind="stable")


def refused(row: Mapping[str, Any]) -> str:
    """Caption of a file that is refused although its most probable class is right."""
    return f"{row['truth']} ({percent(row['probability'])}) · {row['reason']}"


def changed(row: Mapping[str, Any]) -> str:
    """Caption of a file whose prediction has changed since the earlier model."""
    before, after = row["before"] or "no prediction", row["after"] or "no prediction"
    return (
        f"is {row['truth']}: {before} ({percent(row['before_probability'])}) "
        f"→ {after} ({percent(row['after_probability'])})"
    )


def suspected(row: Mapping[str, Any]) -> str:
    """Caption of a file whose label may be wrong."""
    return (
        f"labelled {row['truth']}; {row['suggested']}? {100 * row['suggested_probability']:.0f} %"
    )


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
