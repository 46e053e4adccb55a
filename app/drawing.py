"""What the model saw of a file, with axes in seconds and hertz, where it looked, and its windows."""

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

from app.views import UNKNOWN, Asked, note_html, span, without_paths
from datasets import audio
from datasets.audio import MelSettings
from datasets.core.errors import SecondhandError
from datasets.images import open_picture, pixels
from datasets.spectrograms import Source, colour_table
from datasets.strain import QScanSettings
from learners.inference import heatmap, overlay
from learners.report import Pictures, shown, when
from learners.templates import data_uri, render

if TYPE_CHECKING:
    from PIL import Image

    from learners.inference import Predictor

log = logging.getLogger(__name__)

Tick = tuple[float, str]


@dataclass(frozen=True)
class Panel:
    """A picture and its axes.

    Attributes
    ----------
    picture : as the model saw it.
    title : what it is.
    x, y : ticks, (place, text), places from 0 (left, bottom) to 1; none leave the axis away.
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
    """The windows of a long recording, in a strip and as a list that can be read.

    Parameters
    ----------
    windows : predictions with ``start`` and ``end`` in seconds.
    duration : of the recording, s.
    """
    duration = max(duration, *(w.end for w in windows), 1e-9)
    return render(
        "app",
        "timeline.html",
        windows=windows,
        duration=duration,
        ticks=seconds(0, duration, 8),
        colours={n: f"hsl({(i * 137.5) % 360:.0f} 55% 42%)" for i, n in enumerate(classes)},
    )


def seen_html(
    predictor: Predictor, asked: Asked, window: str | None, drawing: AbstractContextManager[object]
) -> str:
    """What the model saw of a file, where it looked, what it is like, and the windows of a long
    recording.

    Parameters
    ----------
    window : the name of the one that is shown; else the one that decides.
    drawing : entered while it is drawn.
    """
    answer = asked.answer
    if answer is None or not answer.best:
        return ""
    windows = answer.windows
    chosen = next((w for w in windows if span(w) == window), None)
    loudest = max(
        (w for w in windows if w.best == answer.best), key=lambda w: w.probability, default=answer
    )
    part = chosen or loudest
    start, end = (part.start, part.end) if windows else (None, None)
    number = predictor.classes.index(part.best) if part.best else None
    try:
        with drawing:
            source = trigger(predictor, Source(asked.file, start, end, asked.at))
            try:
                panels = look(predictor, source, number)
            except SecondhandError as error:
                panels = look(predictor, source, None)
                log.info("no heat map: %s", error)
            near = resembling(predictor, source)
    except SecondhandError as error:
        return note_html(without_paths(str(error), asked.file))
    return render(
        "app",
        "seen.html",
        strip=timeline(windows, predictor.classes, windows[-1].end) if windows else "",
        panels=[panel_svg(panel) for panel in panels],
        plain=predictor.spectrogram is None,
        near=near,
        known=part.label != UNKNOWN,
    )


def resembling(predictor: Predictor, source: Source) -> list[dict[str, Any]]:
    """The training files that a file is most like: name, class, and a picture of those that are there."""
    pictures, cards = Pictures(predictor), []
    for near in predictor.similar_files(source, 4):
        card = {"name": Path(near.source.path).name + when(near.source), "label": near.label}
        try:
            card["picture"] = shown(pictures.draw(near.source), 120)
        except SecondhandError:  # gone since
            card["picture"] = ""
        cards.append(card)
    return cards


def look(predictor: Predictor, source: Source, class_index: int | None) -> list[Panel]:
    """The panels of a file: what the model saw, then, for a class, where it looked.

    Raises
    ------
    BadFile : the file cannot be read. SecondhandError : the backbone gives no heat map.
    """
    fit = predictor.bundle.preprocessing.fit
    spectrogram = predictor.spectrogram
    if spectrogram is None:
        opened = open_picture(source.path, at_least=predictor.bundle.preprocessing.needs)
        picture = fit(opened)
        whole = Panel(picture, f"What the model saw: {picture.width} x {picture.height} pixels")
        panels = [whole]
    else:
        signal = spectrogram.read(source.path, start=source.start, end=source.end, at=source.at)
        drawn = spectrogram.image(signal)
        picture = fit(drawn.convert("RGB"))
        if isinstance(spectrogram, QScanSettings):
            whole, panels = _strain_panels(spectrogram, signal, drawn)
        else:
            assert isinstance(spectrogram, MelSettings)
            whole = _sound_panel(spectrogram, source, drawn)
            panels = [whole]
    if class_index is None:
        return panels
    heat = heatmap(
        predictor.network,
        pixels(picture),
        class_index,
        preprocessing=predictor.bundle.preprocessing,
    )
    name = predictor.classes[class_index]
    hot = replace(
        whole, picture=overlay(whole.picture, heat), title=f"Where it looked for “{name}”"
    )
    return [*panels, hot]


def trigger(predictor: Predictor, source: Source) -> Source:
    """A strain file's loudest moment is looked for once: the source with its GPS time filled in."""
    spectrogram = predictor.spectrogram
    if not isinstance(spectrogram, QScanSettings) or source.at is not None:
        return source
    signal = spectrogram.read(source.path, start=source.start, end=source.end)
    return source._replace(at=float(signal.trigger), start=None, end=None)


def mel_ticks(spectrogram: MelSettings) -> tuple[Tick, ...]:
    """Round frequencies at their places on the mel axis of a recipe's pictures.

    Row b of ``n_mels`` shows the band whose centre is the (b + 1)-th of ``n_mels + 2`` points spread
    evenly in mel over the band (`datasets.audio.mel.filterbank`).
    """
    low, high = (float(audio.hz_to_mel(f)) for f in (spectrogram.fmin, spectrogram.fmax))
    found, last = [], -1.0
    for value in _round_frequencies(spectrogram.fmin, spectrogram.fmax):
        share = (float(audio.hz_to_mel(value)) - low) / (high - low)
        place = (share * (spectrogram.n_mels + 1) - 0.5) / spectrogram.n_mels
        if 0 <= place <= 1 and place - last > 0.06:
            found.append((place, hertz(value)))
            last = place
    return tuple(found)


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


def _sound_panel(spectrogram: MelSettings, source: Source, drawn: Image.Image) -> Panel:
    duration = audio.probe(source.path).duration
    if source.at is not None:
        middle = max(source.at - spectrogram.window / 2, 0) + spectrogram.window / 2
    else:
        end = duration if source.end is None else min(source.end, duration)
        middle = ((source.start or 0.0) + end) / 2
    low, high = middle - spectrogram.window / 2, middle + spectrogram.window / 2
    return Panel(
        drawn.convert("RGB"),
        f"What the model saw: {spectrogram.window:g} s, {spectrogram.fmin:g} Hz to {spectrogram.fmax:g} Hz",
        seconds(low, high),
        mel_ticks(spectrogram),
        "time in the recording (s)",
        "frequency (Hz, mel)",
    )


def _strain_panels(
    spectrogram: QScanSettings, signal: Any, drawn: Image.Image
) -> tuple[Panel, list[Panel]]:
    """The model's input as one picture, and its views, each with a time axis of its own."""
    from PIL import Image

    bottom = spectrogram.fmin
    top = max(spectrogram.fmax or min(2048.0, signal.rate * 1200 / 4096), 2 * bottom)
    y = log_ticks(bottom, top)
    where = f"time from GPS {signal.trigger:.3f} (s)"
    rgb = drawn.convert("RGB")
    if spectrogram.layout == "row":
        count = len(spectrogram.durations)
        marks = [
            ((i + place) / count, f"{value:.4g}")
            for i, view in enumerate(spectrogram.durations)
            for place, value in ticks(-view / 2, view / 2, 3)
            if 0.05 < place < 0.95
        ]
        row = Panel(rgb, "What the model saw", tuple(marks), y, where, "frequency (Hz)")
        return row, [row]
    if spectrogram.layout == "one":
        x = seconds(-spectrogram.durations[0] / 2, spectrogram.durations[0] / 2)
        one = Panel(rgb, "What the model saw", x, y, where, "frequency (Hz)")
        return one, [one]
    palette = colour_table("viridis")
    views = []
    for name, view, plane in zip(
        ("red", "green", "blue"), spectrogram.durations, rgb.split(), strict=True
    ):
        picture = Image.fromarray(palette[np.asarray(plane)])
        title = f"What the model saw as its {name} channel: {view:g} s"
        x = seconds(-view / 2, view / 2)
        views.append(Panel(picture, title, x, y, where, "frequency (Hz)"))
    shared = ((0.0, "-½"), (0.25, "-¼"), (0.5, "0"), (0.75, "¼"), (1.0, "½"))
    label = "time (in lengths of each view)"
    return Panel(rgb, "The three views together", shared, y, label, "frequency (Hz)"), views


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
    """A frequency on an axis."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
