"""Pictures with axes, diagrams and timelines as SVG and HTML text: sharp, light, in the page's colours.

Every text that comes from outside goes through :func:`text`.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

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


def text(value: object, limit: int = 200) -> str:
    """Outside text for HTML: escaped, without control characters, cut to a length."""
    plain = "".join(c if c.isprintable() else " " for c in str(value))
    cut = plain if len(plain) <= limit else plain[: limit - 1] + "…"
    return html.escape(cut, quote=True)


def data_uri(picture: Image.Image) -> str:
    """A picture inside the page: PNG for spectrograms, JPEG for what looks like a photo."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    kind = "png"
    if buffer.tell() > 40_000 and picture.mode == "RGB":
        buffer, kind = io.BytesIO(), "jpeg"
        picture.save(buffer, "JPEG", quality=90)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def panel_svg(panel: Panel, *, width: int = 340) -> str:
    """A panel as an SVG figure with a caption."""
    aspect = panel.picture.height / panel.picture.width
    left, bottom, right = (58, 46, 12) if panel.x or panel.y else (0, 0, 0)
    top = 8 if panel.y else 0
    w = width - left - right
    h = round(w * min(aspect, 1.5))
    marks = []
    for place, label in panel.x:
        x = left + place * w
        marks.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + h}" y2="{top + h + 5}"/>')
        marks.append(_svg_text(x, top + h + 19, label, "middle"))
    for place, label in panel.y:
        y = top + (1 - place) * h
        marks.append(f'<line x1="{left - 5}" x2="{left}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(_svg_text(left - 8, y + 4, label, "end"))
    if panel.x_label:
        marks.append(_svg_text(left + w / 2, top + h + 38, panel.x_label, "middle"))
    if panel.y_label:
        turn = f"rotate(-90 13 {top + h / 2:.1f})"
        marks.append(_svg_text(13, top + h / 2, panel.y_label, "middle", turn))
    return (
        f'<figure class="sh-panel"><svg viewBox="0 0 {width} {top + h + bottom}" role="img" '
        f'aria-label="{text(panel.title)}"><image x="{left}" y="{top}" width="{w}" height="{h}" '
        f'preserveAspectRatio="none" href="{data_uri(panel.picture)}"/>{"".join(marks)}</svg>'
        f"<figcaption>{text(panel.title)}</figcaption></figure>"
    )


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


def timeline(windows: Sequence[Any], classes: Sequence[str], duration: float) -> str:
    """The windows of a long recording, in a strip and as a list that can be read.

    Parameters
    ----------
    windows : predictions with ``start`` and ``end`` in seconds.
    duration : of the recording, s.
    """
    colours = {name: f"hsl({(i * 137.5) % 360:.0f} 55% 42%)" for i, name in enumerate(classes)}
    duration = max(duration, *(w.end for w in windows), 1e-9)
    blocks, rows = [], []
    for i, window in enumerate(windows):
        x = 600 * window.start / duration
        # Windows overlap: a block ends where the next one begins.
        until = windows[i + 1].start if i + 1 < len(windows) else window.end
        width = max(600 * (until - window.start) / duration - 1.5, 1)
        said = f"{window.start:.1f} to {window.end:.1f} s: {window.label}"
        known = window.label in colours
        height = 44 * (window.probability if window.probability == window.probability else 0)
        blocks.append(
            f'<g><title>{text(said)}</title><rect class="sh-back" x="{x:.1f}" y="0" '
            f'width="{width:.1f}" height="44"/><rect x="{x:.1f}" y="{44 - height:.1f}" '
            f'width="{width:.1f}" height="{height:.1f}" '
            f'fill="{colours[window.label] if known else "#8b8f97"}"/></g>'
        )
        share = f"{100 * window.probability:.0f} %" if height else ""
        rows.append(
            f"<tr><td>{window.start:.1f} to {window.end:.1f} s</td><td>{text(window.label)}</td>"
            f"<td>{text(window.best)}</td><td>{share}</td></tr>"
        )
    marks = "".join(
        _svg_text(min(max(600 * place, 8), 588), 62, label, "middle")
        for place, label in seconds(0, duration, 8)
    )
    named = [name for name in classes if any(w.label == name for w in windows)]
    legend = "".join(
        f'<li><span class="sh-dot" style="background:{colours[name]}"></span>{text(name)}</li>'
        for name in named
    )
    return (
        f'<h3>Windows of the recording</h3><svg class="sh-strip" viewBox="0 0 600 66" role="img" '
        f'aria-label="{len(windows)} windows over {duration:.1f} seconds">{"".join(blocks)}{marks}'
        f'</svg><ul class="sh-legend">{legend}<li><span class="sh-dot" style="background:#8b8f97">'
        "</span>unknown</li></ul><details><summary>As a table</summary>"
        '<div class="sh-wide" tabindex="0" role="region" aria-label="Windows"><table>'
        "<thead><tr><th>seconds</th><th>answer</th><th>best class</th>"
        f"<th>probability</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def confusion_table(matrix: npt.NDArray[np.int64], classes: Sequence[str]) -> str:
    """A confusion matrix as a table: rows are true classes, columns answers."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    head = "".join(f'<th scope="col"><span>{text(name, 24)}</span></th>' for name in classes)
    rows = []
    for name, counts, part in zip(classes, matrix, shares, strict=True):
        cells = "".join(
            # Beyond a half the cell is dark enough for white letters (contrast above 4.5).
            f'<td style="background:rgb(30 74 140 / {share:.2f})"'
            f"{' class=sh-dark' if share > 0.5 else ''}>{count or '·'}</td>"
            for count, share in zip(counts, part, strict=True)
        )
        rows.append(f'<tr><th scope="row">{text(name, 24)}</th>{cells}</tr>')
    return (
        '<div class="sh-wide" tabindex="0" role="region" aria-label="Confusion matrix">'
        '<table class="sh-confusion"><thead><tr><th>true \\ answered</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def reliability_svg(
    confidence: npt.ArrayLike,
    accuracy: npt.ArrayLike,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    *,
    side: int = 320,
) -> str:
    """Accuracy against mean probability, in bins, with 95 % intervals and the ideal diagonal."""
    left, bottom, w = 52, 44, side - 64

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * w, 8 + (1 - y) * w

    marks = []
    for place, value in ticks(0, 1, 5):
        x, _ = at(place, 0)
        _, y = at(0, place)
        marks.append(_svg_text(x, 8 + w + 18, f"{value:.1f}", "middle"))
        marks.append(_svg_text(left - 8, y + 4, f"{value:.1f}", "end"))
    marks.append(_svg_text(left + w / 2, 8 + w + 36, "probability", "middle"))
    turn = f"rotate(-90 13 {8 + w / 2:.0f})"
    marks.append(_svg_text(13, 8 + w / 2, "accuracy", "middle", turn))
    (x0, y0), (x1, y1) = at(0, 0), at(1, 1)
    lines = [f'<line class="sh-ideal" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}"/>']
    points = np.stack([np.asarray(v, float) for v in (confidence, accuracy, low, high)], axis=1)
    for c, a, lo, hi in points.tolist():
        x, y = at(c, a)
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{at(c, lo)[1]:.1f}" y2="{at(c, hi)[1]:.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        )
    return (
        f'<svg class="sh-plot" viewBox="0 0 {side} {8 + w + bottom}" role="img" aria-label='
        f'"Reliability diagram"><rect class="sh-frame" x="{left}" y="8" width="{w}" height="{w}"/>'
        f"{''.join(lines)}{''.join(marks)}</svg>"
    )


def _svg_text(x: float, y: float, label: str, anchor: str, turn: str = "") -> str:
    turned = f' transform="{turn}"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{text(label)}</text>'
