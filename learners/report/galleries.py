"""Pictures of a report: files, and heat maps of the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Part
from datasets.images.opening import open_picture
from datasets.images.standalone import Samples, draw, extremes
from datasets.items.labels import UNKNOWN
from learners.evaluation.figures import ScoredItems
from learners.evaluation.held_out import Evaluation
from learners.files.names import PathShortener
from learners.inference.gradcam import heatmap, overlay
from learners.inference.predictor import Predictor
from learners.report.templates import data_uri

SIDE = 240  # pixels of a picture on the page
WINDOWS = 32  # of a long recording, among which that with the highest logit is searched
SEARCHED = 40  # pictures among which one is searched that is not of 8 bits
SHOWN = 12  # figures in a gallery
SMALL = 96  # pixels of an example of a class
EXAMPLES, CLASSES = 3, 20  # example files of a class, and most classes with examples


class Figure(NamedTuple):
    """Pictures of a file (data URIs), the facts of its caption, and the text below it.

    ``looked_for`` : the class of a heat map, which is the second picture.
    """

    pictures: list[str]
    row: Mapping[Any, Any]
    under: str
    looked_for: str = ""


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
        self.predictor.decoder.check_shown(part)
        if spectrogram is None:
            return self.predictor.prepared.open_for_page(part, SIDE)
        if (stored := self.predictor.decoder.stored(part)) is not None:
            return open_picture(stored)
        signal = spectrogram.read(part)
        return spectrogram.image(signal).convert("RGB")

    def thumbnail(self, part: Part, side: int = SIDE) -> str:
        """Data URI of a file's picture; "" if it cannot be read."""
        try:
            return page_picture(self.render(part), side)
        except SecondhandError:
            return ""

    def as_stored(self, part: Part) -> Image.Image | None:
        """A picture from the lowest to the highest value that its samples can have, or floats and signed numbers have, as
        most programs show it; None for one of 8 bits.

        Raises
        ------
        SecondhandError : it cannot be read.
        """
        settings, stored = self.predictor.bundle.preprocessing.samples, list[Samples]()
        open_picture(part.path, samples=settings, found=stored.append)
        if not stored or settings is None or stored[0].bits == 8:
            return None
        low, high = extremes(stored[0])
        return draw(stored[0], {**settings.to_dict(), "low": [low], "high": [high]})

    def pair(self, parts: Iterable[Part]) -> list[str]:
        """The first of some pictures that is not of 8 bits, as it is stored and as the network sees it; empty without any."""
        for part in islice(parts, SEARCHED):
            try:
                if (stored := self.as_stored(part)) is not None:
                    return [page_picture(stored), page_picture(self.render(part))]
            except SecondhandError:
                continue
        return []

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
        self.no_map = self.no_map or self.predictor.decoder.no_map
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

    def figure(self, part: Part, row: Mapping[Any, Any], class_index: int | None = None) -> Figure:
        """A file, with its heat map for a class if one is given."""
        if class_index is not None:
            part = self.moment(part, class_index)
        try:
            figure = Figure([page_picture(self.render(part))], row, name_of(part))
        except SecondhandError as error:
            return Figure([], row, PathShortener("", [part.path])(str(error)))
        if class_index is None or (heat := self.heat(part, class_index)) is None:
            return figure
        pictures = [*figure.pictures, page_picture(heat)]
        return figure._replace(pictures=pictures, looked_for=self.predictor.classes[class_index])


def name_of(part: Part) -> str:
    """A file's name without its folder, and the part of it that is shown."""
    return Path(part.path).name + time_span(part)


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
        places = np.linspace(0, len(rows) - 1, EXAMPLES).astype(int) if len(rows) else ()
        parts = [Part.from_row(rows.iloc[place]) for place in dict.fromkeys(places)]
        # Those that cannot be read are listed among the files that could not be judged.
        small = [uri for part in parts if (uri := pictures.thumbnail(part, SMALL))]
        figures.append(Figure(small, {"label": name}, f"{len(rows)} files"))
    return figures


def gallery(pictures: Pictures, evaluation: Evaluation, rows: pd.DataFrame) -> list[Figure]:
    """The first of the ``rows``.

    Their column ``row`` is the index in the predictions; with a column ``class_index`` there are heat maps for it.
    """
    predictions = evaluation.predictions
    return [
        pictures.figure(Part.from_row(predictions.iloc[row["row"]]), row, row.get("class_index"))
        for row in rows.head(SHOWN).to_dict("records")
    ]


def mistakes(evaluation: Evaluation, scored: ScoredItems, classes: Sequence[str]) -> pd.DataFrame:
    """Files of known classes whose most probable class is wrong, the surest first."""
    known = evaluation.known
    wrong = known.loc[known["best"].ne(known["truth"]) & known["best"].ne("")]
    probability = scored.after[np.arange(len(scored.rows)), scored.labels]
    of_label = pd.Series(np.where(scored.labels < 0, np.nan, probability), index=scored.rows)
    return wrong.assign(
        row=wrong.index,
        class_index=[classes.index(name) for name in wrong["best"]],
        label_probability=of_label.reindex(wrong.index),
    ).sort_values("probability", ascending=False, kind="stable")


def refused_although_right(evaluation: Evaluation) -> pd.DataFrame:
    """Files that are refused although their most probable class is right: the surest of each class in turn."""
    rows = evaluation.predictions
    rows = rows.loc[rows["label"].eq(UNKNOWN) & rows["best"].eq(rows["truth"])]
    rows = rows.sort_values("probability", ascending=False, kind="stable")
    rows = rows.assign(turn=rows.groupby("truth").cumcount(), row=rows.index)
    return rows.sort_values("turn", kind="stable")
