"""Panels of the page: the model's input with axes in seconds and hertz, its heat map, and the windows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from app.views import UNKNOWN, Seen, note_html, span, without_paths
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.images.opening import open_picture, pixels
from datasets.spectrograms.axes import Panel
from learners.inference.gradcam import heatmap, overlay
from learners.report import plots
from learners.report.galleries import Pictures, name_of
from learners.report.templates import data_uri, render

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction
    from learners.inference.predictor import Predictor

log = logging.getLogger(__name__)

#: Heat maps or spectrograms that are rendered at a time.
RENDERING = threading.Semaphore(2)


def panel_html(panel: Panel) -> Markup:
    """A panel as a figure with a caption."""
    picture, svg = data_uri(panel.picture, 90, sharp=True), None
    if panel.axes is not None:
        with plots.panel(panel.title, size=(3.4, 3.2)) as (axes, drawn):
            axes.imshow(
                np.asarray(panel.picture), extent=(*panel.axes.seconds, *panel.axes.rows), aspect="auto",
                interpolation="none",
            )  # fmt: skip
            ticks = panel.axes.ticks
            axes.set_yticks([*ticks.values()], [*ticks])
            axes.set(xlabel=panel.axes.time, ylabel=panel.axes.frequency)
        svg = drawn()
    return render("app", "panel.html", title=panel.title, picture=picture, svg=svg)


def timeline(windows: Sequence[Any], classes: Sequence[str], duration: float) -> Markup:
    """The windows of a long recording, as a strip and as a table.

    Parameters
    ----------
    windows : predictions with ``start`` and ``end`` in seconds.
    duration : length of the recording in seconds.
    """
    from matplotlib.ticker import MaxNLocator

    duration = max(duration, *(w.part.end or 0.0 for w in windows), 1e-9)
    colours = {n: f"hsl({(i * 137.5) % 360:.0f} 55% 42%)" for i, n in enumerate(classes)}
    ticks = [
        tick
        for tick in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(0, duration)
        if tick <= duration
    ]
    return render(
        "app", "timeline.html", windows=windows, duration=duration, ticks=ticks, colours=colours
    )


def panels_html(predictor: Predictor, seen: Seen, window: str | None) -> str:
    """The model's input of a file, its heat map, similar training files, and the windows of a long recording.

    Parameters
    ----------
    window : name of the window that is shown; by default that with the highest probability of the predicted class.
    """
    if not seen.answers or not seen.answers[0].best:
        return ""
    answer, windows = seen.answers[0], seen.answers[0].windows
    displayed = shown_window(answer, window)
    number = predictor.classes.index(displayed.best) if displayed.best else None
    part = displayed.part._replace(path=answer.path)
    try:
        with RENDERING:
            try:
                panels = input_panels(predictor, part, number)
            except SecondhandError as error:
                panels = input_panels(predictor, part, None)
                log.info("no heat map: %s", error)
            similar = resembling(predictor, part)
    except SecondhandError as error:
        return note_html(without_paths(str(error), part.path))
    strip = timeline(windows, predictor.classes, windows[-1].part.end or 0.0) if windows else ""
    return render(
        "app", "seen.html", strip=strip, panels=[panel_html(panel) for panel in panels],
        plain=predictor.spectrogram is None, similar=similar, answered=displayed.label != UNKNOWN,
    )  # fmt: skip


def shown_window(answer: Prediction, window: str | None) -> Prediction:
    """The window of this name; else that with the highest probability of the predicted class, or a short file itself."""
    windows = answer.windows
    chosen = next((w for w in windows if span(w) == window), None)
    return chosen or max(windows, key=lambda w: dict(w.top).get(answer.best, 0.0), default=answer)


def resembling(predictor: Predictor, part: Part) -> list[dict[str, Any]]:
    """The training files most similar to a file: name, class and picture ("" if the file is gone)."""
    pictures = Pictures(predictor)
    return [
        {
            "name": name_of(similar.part),
            "label": similar.label,
            "picture": pictures.thumbnail(similar.part, 120),
        }
        for similar in predictor.similar_files(part, 4)
    ]


def input_panels(predictor: Predictor, part: Part, class_index: int | None) -> list[Panel]:
    """The panels of a file: the model's input, and the heat map of a class.

    Raises
    ------
    BadFile : the file cannot be read. SecondhandError : the backbone gives no heat map.
    """
    preprocessing, spectrogram = predictor.bundle.preprocessing, predictor.spectrogram
    whole = None
    if spectrogram is None:
        picture = preprocessing.fit(
            open_picture(part.path, at_least=preprocessing.needs, samples=preprocessing.samples)
        )
        panels = [Panel(picture, f"Input of the model: {picture.width} x {picture.height} pixels")]
    else:
        signal = spectrogram.read(part)
        image = spectrogram.image(signal).convert("RGB")
        picture, whole = preprocessing.fit(image), spectrogram.axes(part)
        of = ", " if whole is None else ": "  # a part of the picture, or all of it
        panels = [
            panel._replace(title=f"Input of the model{of}{panel.title}")
            for panel in spectrogram.panels(signal, image, part)
        ]
    if class_index is None:
        return panels
    network, name = predictor.network, predictor.classes[class_index]
    heat = heatmap(network, pixels(picture), class_index, preprocessing=preprocessing)
    title = f"Where it looked for “{name}”: bright regions raised its score. The map is coarse."
    return [*panels, Panel(overlay(picture if spectrogram is None else image, heat), title, whole)]
