"""The pictures of a report: items as they are, and where the network looked; and files side by side on a
page of their own, to be looked at or heard (a contact sheet)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from datasets.audio import MelSettings
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import folder_beside
from datasets.images import open_picture
from datasets.spectrograms import Source, source_of
from learners.evaluation import OPEN_SET_SPLITS, Changes, Evaluation, ScoredItems
from learners.files import PathShortener
from learners.inference import Predictor, heatmap, overlay
from learners.templates import data_uri, percent, render

SIDE = 240  # pixels of a picture on the page
WINDOWS = 32  # of a long recording, among which the one that speaks for the answer is looked for
SHOWN = 12  # figures in a gallery
SMALL = 96  # pixels of an example of a class
INDEX = "index.html"
EACH, MULTI = 3, 20  # examples of a class, and classes up to which they are shown


class Figure(NamedTuple):
    """Pictures side by side, each an address and what it shows; what is said, and the files' names."""

    pictures: list[tuple[str, str]]
    said: str
    under: str


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
        spectrogram = self.predictor.spectrogram
        if spectrogram is None:
            return self.predictor.prepared.open_for_page(source.path, SIDE)
        if (drawing := self.predictor.decoder.stored(source)) is not None:
            return open_picture(drawing)
        signal = spectrogram.read(source.path, start=source.start, end=source.end, at=source.at)
        return spectrogram.image(signal).convert("RGB")

    def moment(self, source: Source, class_index: int) -> Source:
        """Of a recording longer than the model's window, the window that speaks most for a class.

        At most `WINDOWS` of them, spread evenly, are listened to.
        """
        spectrogram = self.predictor.spectrogram
        if spectrogram is None or source.at is not None:
            return source
        try:
            spans = spectrogram.spans(
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

    def figure(self, source: Source, said: str, class_index: int | None = None) -> Figure:
        """An item under what is said of it, with its heat map for a class if one is named."""
        if class_index is not None:
            source = self.moment(source, class_index)
        try:
            pictures = [(shown(self.draw(source)), said)]
        except SecondhandError as error:
            return Figure([], said, PathShortener("", [source.path])(str(error)))
        heat = None if class_index is None else self.heat(source, class_index)
        if heat is not None:
            name = self.predictor.classes[class_index or 0]
            pictures.append((shown(heat), f"where the network looked for {name}"))
        return Figure(pictures, said, Path(source.path).name + when(source))

    def pair(self, sources: Sequence[Source], said: str, names: Sequence[str]) -> Figure:
        """Items side by side."""
        pictures = []
        for source, name in zip(sources, names, strict=True):
            try:
                pictures.append((shown(self.draw(source)), name))
            except SecondhandError:  # gone since it was compared
                continue
        under = " · ".join(Path(source.path).name + when(source) for source in sources)
        return Figure(pictures, said, under)


def when(source: Source) -> str:
    """The part of a file that is shown."""
    if source.at is not None:
        return f", GPS {source.at:.1f} s"
    if source.start is None or source.end is None:
        return ""
    return f", {source.start:.1f}–{source.end:.1f} s"  # noqa: RUF001


def shown(picture: Image.Image, side: int = SIDE) -> str:
    """As it stands in the page."""
    size = max(picture.size)
    if size < side:  # small pictures keep their pixels
        scale = -(-side // size)
        picture = picture.resize(
            (picture.width * scale, picture.height * scale), Image.Resampling.NEAREST
        )
    picture.thumbnail((side, side))
    return data_uri(picture)


def examples(pictures: Pictures, evaluation: Evaluation) -> list[Figure]:
    """A few held-out items of each class, spread over those that it has."""
    known = evaluation.predictions.loc[~evaluation.predictions["split"].isin(OPEN_SET_SPLITS)]
    drawn = []
    for name in pictures.predictor.classes[:MULTI]:
        own = known.loc[known["truth"].eq(name)]
        small = []
        for at in dict.fromkeys(np.linspace(0, len(own) - 1, EACH).astype(int) if len(own) else ()):
            try:
                picture = pictures.draw(source_of(own.iloc[at]))
            except SecondhandError:  # it is told of where it was asked
                continue
            small.append((shown(picture, SMALL), name))
        drawn.append(Figure(small, name, f"{len(own)} files"))
    return drawn


def mistakes(
    pictures: Pictures, evaluation: Evaluation, scored: ScoredItems, wrong: pd.DataFrame
) -> tuple[list[Figure], list[Figure]]:
    """The surest mistakes, then the worst of the others, with heat maps."""
    numbers = {name: i for i, name in enumerate(pictures.predictor.classes)}
    likely = np.full(len(evaluation.predictions), np.nan)
    has = scored.labels >= 0
    likely[scored.rows[has]] = scored.after[has, scored.labels[has]]
    own = pd.Series(likely, index=evaluation.predictions.index)
    wrong = wrong.assign(own=own.loc[wrong.index].to_numpy())
    surest = wrong.sort_values("probability", ascending=False, kind="stable").head(SHOWN)
    worst = wrong.drop(index=surest.index).sort_values("own", kind="stable").head(SHOWN)

    def shot(row: Any) -> Figure:
        taken = "accepted" if row["label"] == row["best"] else "refused"
        said = f"{row['best']} ({100 * row['probability']:.0f} %, {taken}) · is {row['truth']}"
        if row["own"] == row["own"]:
            said += f" ({100 * row['own']:.0f} %)"
        return pictures.figure(source_of(row), said, numbers[row["best"]])

    first = [shot(row) for row in surest.to_dict("records")]
    return first, [shot(row) for row in worst.to_dict("records")]


def changed(
    pictures: Pictures, changes: Changes | None, evaluation: Evaluation, what: str
) -> list[Figure]:
    """Items whose answer was ``what``, "spoilt" or "mended", since the model before; the surest first."""
    if changes is None:
        return []
    rows = changes.changed.loc[changes.changed["change"].eq(what)]
    drawn = []
    for row in rows.nlargest(SHOWN, "after_probability").to_dict("records"):
        words = (
            f"is {row['truth']}: {row['before'] or 'no answer'} ({percent(row['before_probability'])}) "
            f"→ {row['after'] or 'no answer'} ({percent(row['after_probability'])})"
        )
        drawn.append(pictures.figure(source_of(evaluation.predictions.iloc[row["row"]]), words))
    return drawn


def suspected(pictures: Pictures, suspects: pd.DataFrame, evaluation: Evaluation) -> list[Figure]:
    """Items whose label may be wrong."""
    drawn = []
    for row in suspects.head(SHOWN).to_dict("records"):
        words = f"labelled {row['truth']}; {row['suggested']}? {100 * row['suggested_probability']:.0f} %"
        drawn.append(pictures.figure(source_of(evaluation.predictions.iloc[row["row"]]), words))
    return drawn


def twinned(pictures: Pictures, twins: pd.DataFrame, evaluation: Evaluation) -> list[Figure]:
    """Held-out items beside the training items that they look like."""
    drawn = []
    for twin in twins.head(SHOWN).to_dict("records"):
        held = evaluation.predictions.iloc[twin["row"]]
        times = {name: twin[f"train_{name}"] for name in ("start", "end", "gps")}
        trained = source_of({"path": twin["train_path"], **times})
        words = f"{held['split']}: {held['truth']} · train: {twin['train_label']}"
        words += f" · likeness {twin['correlation']:.3f}"
        names = [f"held out: {held['truth']}", f"in training: {twin['train_label']}"]
        drawn.append(pictures.pair([source_of(held), trained], words, names))
    return drawn


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
    names = PathShortener("", [shot.source.path for shot in shots])
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
    if not isinstance(spectrogram := predictor.spectrogram, MelSettings):
        return b""
    import soundfile

    signal = spectrogram.read(source.path, start=source.start, end=source.end, at=source.at)
    written = io.BytesIO()
    soundfile.write(written, signal, spectrogram.rate, format="FLAC", subtype="PCM_16")
    return written.getvalue()
