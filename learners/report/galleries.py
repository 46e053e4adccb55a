"""The pictures of a report: items as they are, and where the network looked."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from datasets.drawings import Source
from datasets.errors import BadFile, SecondhandError
from datasets.pictures import open_picture
from learners.files import Names
from learners.prediction import Predictor, heatmap, overlay

SIDE = 240  # pixels of a picture on the page
WINDOWS = 32  # of a long recording, among which the one that speaks for the answer is looked for


@dataclass
class Pictures:
    """Draws items for the page, as the model saw them.

    Attributes
    ----------
    predictor : the model.
    maps_left : how many heat maps may still be made; each costs a pass through the network.
    no_map : why there are none, where the backbone gives none.
    """

    predictor: Predictor
    maps_left: int = 24
    no_map: str = ""

    def draw(self, source: Source) -> Image.Image:
        """An item as RGB: a picture, or the drawing of a signal.

        Raises
        ------
        SecondhandError : it cannot be read.
        """
        recipe = self.predictor.recipe
        if recipe is None:
            return open_picture(source.path, at_least=SIDE)
        signal = recipe.read(source.path, start=source.start, end=source.end, at=source.at)
        return recipe.image(signal).convert("RGB")

    def moment(self, source: Source, class_index: int) -> Source:
        """Of a recording longer than the model's window, the window that speaks most for a class.

        At most `WINDOWS` of them, spread evenly, are listened to.
        """
        recipe = self.predictor.recipe
        if recipe is None or source.at is not None:
            return source
        try:
            spans = recipe.spans(
                source.path,
                start=source.start,
                end=source.end,
                overlap=self.predictor.bundle.overlap,
            )
        except BadFile:
            return source
        parts = [Source(source.path, *span) for span in spans[:: -(-len(spans) // WINDOWS)]]
        if len(parts) == 1:
            return parts[0]
        opened = [(part, self.predictor.open(part)) for part in parts]
        good = [(part, seen) for part, seen in opened if isinstance(seen, np.ndarray)]
        if not good:
            return source
        logits, _ = self.predictor.forward(np.stack([seen for _, seen in good]))
        return good[int(logits[:, class_index].argmax())][0]

    def heat(self, source: Source, class_index: int) -> Image.Image | None:
        """The network's input under its Grad-CAM for a class; None where there is no map."""
        if self.no_map or self.maps_left <= 0:
            return None
        seen = self.predictor.open(source)
        if not isinstance(seen, np.ndarray):
            return None
        self.maps_left -= 1
        try:
            found = heatmap(
                self.predictor.network,
                seen,
                class_index,
                preprocessing=self.predictor.bundle.preprocessing,
            )
        except SecondhandError as error:
            self.no_map = str(error)
            return None
        return overlay(seen, found)

    def figure(self, source: Source, said: str, class_index: int | None = None) -> str:
        """An item under what is said of it, with its heat map for a class if one is named."""
        if class_index is not None:
            source = self.moment(source, class_index)
        try:
            pictures = [(self.draw(source), said)]
        except SecondhandError as error:
            return _figure([], said, Names("", [source.path])(str(error)))
        heat = None if class_index is None else self.heat(source, class_index)
        if heat is not None:
            name = self.predictor.classes[class_index or 0]
            pictures.append((heat, f"where the network looked for {name}"))
        return _figure(pictures, said, Path(source.path).name + _when(source))

    def pair(self, sources: Sequence[Source], said: str, names: Sequence[str]) -> str:
        """Items side by side."""
        pictures = []
        for source, name in zip(sources, names, strict=True):
            try:
                pictures.append((self.draw(source), name))
            except SecondhandError:  # gone since it was compared
                continue
        under = " · ".join(Path(source.path).name + _when(source) for source in sources)
        return _figure(pictures, said, under)


def _when(source: Source) -> str:
    """The part of a file that is shown."""
    if source.at is not None:
        return f", GPS {source.at:.1f} s"
    if source.start is None or source.end is None:
        return ""
    return f", {source.start:.1f}–{source.end:.1f} s"  # noqa: RUF001


def _figure(pictures: Sequence[tuple[Image.Image, str]], said: str, under: str) -> str:
    shown = "".join(
        f'<img alt="{html.escape(alt)}" src="{_data_uri(picture)}" loading="lazy">'
        for picture, alt in pictures
    )
    kind = "two" if len(pictures) == 2 else "one"
    return (
        f'<figure class="{kind}"><div>{shown}</div><figcaption>{html.escape(said)}<br>'
        f'<span class="soft">{html.escape(under)}</span></figcaption></figure>'
    )


def _data_uri(picture: Image.Image) -> str:
    size = max(picture.size)
    if size < SIDE:  # small pictures keep their pixels
        scale = -(-SIDE // size)
        picture = picture.resize(
            (picture.width * scale, picture.height * scale), Image.Resampling.NEAREST
        )
    picture.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82, comment=b"")  # a file's own stays its own
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
