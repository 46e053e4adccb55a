"""Panels of the page: the model's input with axes in seconds and hertz, its heat map, and the windows."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from app.views import UNKNOWN, Seen, note_html, span, without_paths
from datasets.audio.decode import probe
from datasets.audio.mel import hz_to_mel
from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.images.opening import open_picture, pixels
from datasets.spectrograms.settings import colour_table
from datasets.strain.settings import QScanSettings
from learners.inference.gradcam import heatmap, overlay
from learners.report.galleries import Pictures, page_picture, time_span
from learners.templates import data_uri, render

if TYPE_CHECKING:
    from PIL import Image

    from learners.inference.predictor import Predictor

log = logging.getLogger(__name__)

Tick = tuple[float, str]


@dataclass(frozen=True)
class Panel:
    """A picture and its axes.

    Attributes
    ----------
    picture : the model's input.
    title : its caption.
    x, y : ticks, (place, text), places from 0 (left, bottom) to 1; without ticks there is no axis.
    x_label, y_label : quantity and unit.
    """

    picture: Image.Image
    title: str
    x: tuple[Tick, ...] = ()
    y: tuple[Tick, ...] = ()
    x_label: str = ""
    y_label: str = ""


def panel_svg(panel: Panel) -> Markup:
    """A panel as an SVG figure with a caption."""
    picture = data_uri(panel.picture, 90, sharp=True)
    return render("app", "panel.html", panel=panel, picture=picture)


def timeline(windows: Sequence[Any], classes: Sequence[str], duration: float) -> Markup:
    """The windows of a long recording, as a strip and as a table.

    Parameters
    ----------
    windows : predictions with ``start`` and ``end`` in seconds.
    duration : length of the recording in seconds.
    """
    duration = max(duration, *(w.part.end or 0.0 for w in windows), 1e-9)
    colours = {n: f"hsl({(i * 137.5) % 360:.0f} 55% 42%)" for i, n in enumerate(classes)}
    return render(
        "app", "timeline.html", windows=windows, duration=duration, ticks=seconds(0, duration, 8),
        colours=colours,
    )  # fmt: skip


def panels_html(
    predictor: Predictor,
    seen: Seen,
    window: str | None,
    rendering: AbstractContextManager[object],
) -> str:
    """The model's input of a file, its heat map, similar training files, and the windows of a long recording.

    Parameters
    ----------
    window : name of the window that is shown; by default that with the highest probability of the predicted class.
    rendering : context that is entered while pictures are rendered.
    """
    if not seen.answers or not seen.answers[0].best:
        return ""
    answer, windows = seen.answers[0], seen.answers[0].windows
    chosen = next((w for w in windows if span(w) == window), None)
    surest = max(windows, key=lambda w: dict(w.top).get(answer.best, 0.0), default=answer)
    displayed = chosen or surest
    number = predictor.classes.index(displayed.best) if displayed.best else None
    part = displayed.part._replace(path=answer.path)
    try:
        with rendering:
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
        "app", "seen.html", strip=strip, panels=[panel_svg(panel) for panel in panels],
        plain=predictor.spectrogram is None, similar=similar, answered=displayed.label != UNKNOWN,
    )  # fmt: skip


def resembling(predictor: Predictor, part: Part) -> list[dict[str, Any]]:
    """The training files most similar to a file: name, class and picture ("" if the file is gone)."""
    pictures, cards = Pictures(predictor), []
    for similar in predictor.similar_files(part, 4):
        file = similar.part
        card = {"name": Path(file.path).name + time_span(file), "label": similar.label}
        try:
            card["picture"] = page_picture(pictures.render(file), 120)
        except SecondhandError:  # gone since
            card["picture"] = ""
        cards.append(card)
    return cards


def input_panels(predictor: Predictor, part: Part, class_index: int | None) -> list[Panel]:
    """The panels of a file: the model's input, and the heat map of a class.

    Raises
    ------
    BadFile : the file cannot be read. SecondhandError : the backbone gives no heat map.
    """
    preprocessing, spectrogram = predictor.bundle.preprocessing, predictor.spectrogram
    if spectrogram is None:
        picture = preprocessing.fit(open_picture(part.path, at_least=preprocessing.needs))
        whole = Panel(picture, f"Input of the model: {picture.width} x {picture.height} pixels")
        panels = [whole]
    else:
        signal = spectrogram.read(part)
        image = spectrogram.image(signal)
        picture = preprocessing.fit(image.convert("RGB"))
        if isinstance(spectrogram, QScanSettings):
            whole, panels = _strain_panels(spectrogram, signal, image)
        else:
            assert isinstance(spectrogram, MelSettings)
            whole = _sound_panel(spectrogram, part, image)
            panels = [whole]
    if class_index is None:
        return panels
    network, name = predictor.network, predictor.classes[class_index]
    heat = heatmap(network, pixels(picture), class_index, preprocessing=preprocessing)
    hot = replace(
        whole,
        picture=overlay(whole.picture, heat),
        title=f"Where it looked for “{name}”: bright regions raised its score. The map is coarse.",
    )
    return [*panels, hot]


def mel_ticks(spectrogram: MelSettings) -> tuple[Tick, ...]:
    """Round frequencies at their places on the mel axis of a spectrogram.

    Row b of ``n_mels`` shows the band whose centre is the (b + 1)-th of ``n_mels + 2`` points spread
    evenly in mel over the band (`datasets.audio.mel.filterbank`).
    """
    low, high = (float(hz_to_mel(f)) for f in (spectrogram.fmin, spectrogram.fmax))
    ticks, last = [], -1.0
    for value in _round_frequencies(spectrogram.fmin, spectrogram.fmax):
        share = (float(hz_to_mel(value)) - low) / (high - low)
        place = (share * (spectrogram.n_mels + 1) - 0.5) / spectrogram.n_mels
        if 0 <= place <= 1 and place - last > 0.06:
            ticks.append((place, hertz(value)))
            last = place
    return tuple(ticks)


def log_ticks(low: float, high: float) -> tuple[Tick, ...]:
    """Round frequencies at their places on a logarithmic axis."""
    span = np.log(high / low)
    return tuple(
        (float(np.log(value / low) / span), hertz(value))
        for value in _round_frequencies(low, high)
        if span / np.log(2) < 12 or str(value)[0] in "15"
    )


def _round_frequencies(low: float, high: float) -> list[float]:
    decades = range(6)
    return [v for d in decades for k in (1, 2, 5) if low <= (v := float(k * 10**d)) <= high]


def _sound_panel(spectrogram: MelSettings, part: Part, image: Image.Image) -> Panel:
    duration = probe(part.path).duration
    if part.at is not None:
        middle = max(part.at - spectrogram.window / 2, 0) + spectrogram.window / 2
    else:
        end = duration if part.end is None else min(part.end, duration)
        middle = ((part.start or 0.0) + end) / 2
    low, high = middle - spectrogram.window / 2, middle + spectrogram.window / 2
    in_notes = spectrogram.scale == "cqt"
    return Panel(
        image.convert("RGB"),
        f"Input of the model: {spectrogram.window:g} s, {spectrogram.fmin:g} Hz to {spectrogram.fmax:g} Hz",
        seconds(low, high),
        log_ticks(spectrogram.fmin, spectrogram.fmax) if in_notes else mel_ticks(spectrogram),
        "time in the recording (s)",
        "frequency (Hz)" if in_notes else "frequency (Hz, mel)",
    )


def _strain_panels(
    spectrogram: QScanSettings, signal: Any, image: Image.Image
) -> tuple[Panel, list[Panel]]:
    """The model's input as one picture, and its Q-scans, each with its own time axis."""
    from PIL import Image

    bottom = spectrogram.fmin
    top = max(spectrogram.fmax or min(2048.0, signal.rate * 1200 / 4096), 2 * bottom)
    y, y_label = log_ticks(bottom, top), "frequency (Hz)"
    where = f"time from GPS {signal.trigger:.3f} (s)"

    def scan(picture: Image.Image, title: str, duration: float) -> Panel:
        return Panel(picture, title, seconds(-duration / 2, duration / 2), y, where, y_label)

    rgb = image.convert("RGB")
    if spectrogram.layout == "row":
        count = len(spectrogram.durations)
        marks = [
            ((i + place) / count, f"{value:.4g}")
            for i, duration in enumerate(spectrogram.durations)
            for place, value in ticks(-duration / 2, duration / 2, 3)
            if 0.05 < place < 0.95
        ]
        row = Panel(rgb, "Input of the model", tuple(marks), y, where, y_label)
        return row, [row]
    if spectrogram.layout == "grid":
        half = (rgb.width // 2, rgb.height // 2)
        scans = []
        for n, duration in enumerate(spectrogram.durations):
            left, above = n % 2 * half[0], n // 2 * half[1]
            view = rgb.crop((left, above, left + half[0], above + half[1]))
            scans.append(scan(view, f"Input of the model: {duration:g} s", duration))
        return Panel(rgb, "The four Q-scans"), scans
    if spectrogram.layout == "one":
        one = scan(rgb, "Input of the model", spectrogram.durations[0])
        return one, [one]
    palette = colour_table("viridis")
    scans = []
    for name, duration, plane in zip(
        ("red", "green", "blue"), spectrogram.durations, rgb.split(), strict=True
    ):
        picture = Image.fromarray(palette[np.asarray(plane)])
        scans.append(scan(picture, f"Input of the model, {name} channel: {duration:g} s", duration))
    shared = ((0.0, "-½"), (0.25, "-¼"), (0.5, "0"), (0.75, "¼"), (1.0, "½"))
    label = "time (in lengths of each Q-scan)"
    return Panel(rgb, "The three Q-scans", shared, y, label, y_label), scans


def ticks(low: float, high: float, count: int = 5) -> list[tuple[float, float]]:
    """Round values between two limits, with their places from 0 to 1."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return []
    step = 10 ** math.floor(math.log10(span / count))
    step = next(step * k for k in (1, 2, 5, 10) if span / (step * k) <= count)
    first = math.ceil(low / step - 1e-9)
    values = [i * step for i in range(first, first + count + 2) if i * step <= high + 1e-9 * span]
    return [((value - low) / span, value) for value in values]


def seconds(low: float, high: float, count: int = 5) -> tuple[Tick, ...]:
    """Ticks of a time axis."""
    return tuple((place, f"{value:.6g}") for place, value in ticks(low, high, count))


def hertz(value: float) -> str:
    """A frequency as an axis label."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
