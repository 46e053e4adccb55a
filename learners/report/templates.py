"""Renders the HTML ``templates`` of a package; values are escaped, so they are never markup."""

from __future__ import annotations

import base64
import io
import math
import re
from functools import cache
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup, escape

if TYPE_CHECKING:
    from PIL import Image

SHARP = 40_000  # bytes up to which a picture may be a PNG


def render(package: str, name: str, **values: object) -> Markup:
    """Render a template of a package, which may use those of the report. A missing value is an error."""
    return Markup(_environment(package).get_template(name).render(values))


@cache
def _environment(package: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package), jinja2.PackageLoader("learners.report")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short, "number": number, "percent": percent, "flags": flags}
    return environment


def _printable(value: object) -> object:
    """Text without control characters and without characters that change the writing direction."""
    if isinstance(value, Markup) or not isinstance(value, str) or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c == "\u00a0" else " " for c in value)


def short(value: object, limit: int = 200) -> str:
    """Text, shortened to ``limit`` characters."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def flags(text: str) -> Markup:
    """Text whose flags, such as ``--unknown``, are code that no line breaks."""
    # The text is escaped, and flags are letters and hyphens.
    return Markup(
        re.sub(
            r"(?<!\S)(\(?)(--[a-z-]+)",
            r'\1<code class="flag">\2</code>',
            str(escape(str(_printable(text)))),  # Markup would escape the replacement
        )
    )


def number(value: object) -> object:
    """A fraction with three decimals; empty for None and NaN."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return f"{value:.3f}" if isinstance(value, float) else value


def percent(share: float) -> str:
    """A probability in percent, never rounded up to 100 %."""
    if math.isnan(share):
        return "?"
    value = 100 * share
    if 0 < value < 0.1:
        return "under 0.1\u00a0%"
    if 99.9 < value < 100:
        return "over 99.9\u00a0%"
    return f"{value:.0f}\u00a0%" if value in (0, 100) else f"{value:.1f}\u00a0%"


def data_uri(picture: Image.Image, quality: int = 82, *, sharp: bool = False) -> str:
    """A picture inside a page, as JPEG without the comment of its file; a small ``sharp`` one as PNG."""
    buffer, kind = io.BytesIO(), "png"
    if sharp:
        picture.save(buffer, "PNG")
    if not sharp or buffer.tell() > SHARP:
        buffer, kind = io.BytesIO(), "jpeg"
        picture.save(buffer, "JPEG", quality=quality, comment=b"")
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
