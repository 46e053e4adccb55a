"""The parts of a page: style, sections, tiles, tables. All that comes from outside is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #57606a;
  --panel: #f6f8fa; --warn: #9a6700; --link: #0550ae }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d;
  --soft: #9da7b1; --panel: #161b22; --warn: #e3b341; --link: #79b8ff } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 66rem; margin: 0 auto; padding: 1rem 1rem 4rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0 .2rem; overflow-wrap: anywhere }
h2 { font-size: 1.25rem; margin: 0 0 .4rem } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
section { margin-top: 2.6rem } p { margin: .4rem 0 .8rem; max-width: 46rem } a { color: var(--link) }
nav { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: 1rem 0 } nav a { padding: .25rem 0 }
.soft { color: var(--soft) } .wide { overflow-x: auto; max-width: 100% }
.notice { border-left: .3rem solid var(--warn); background: var(--panel); padding: .5rem .8rem;
  margin: .5rem 0; max-width: none; overflow-wrap: anywhere }
.tiles { margin-top: 1rem; display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .7rem }
.tile { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem;
  background: var(--panel) }
.tile b { display: block; font-size: 1.5rem; line-height: 1.3 }
.tile small { display: block; color: var(--soft) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem }
td, th { padding: .28rem .6rem; border-bottom: 1px solid var(--line); text-align: right }
td, th { white-space: nowrap; vertical-align: top } td.text, th.text { text-align: left }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; max-width: 26rem }
.plots { display: flex; flex-wrap: wrap; gap: 1rem } .plots svg { max-width: 100%; height: auto }
.wide > svg { max-width: none; height: auto; display: block }
.beside { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: flex-start }
.gallery { display: flex; flex-wrap: wrap; gap: 1.2rem .9rem; margin-top: .6rem }
figure { margin: 0; width: 9.2rem } figure.two { width: 18.6rem; max-width: 100% }
figure > div { display: flex; gap: .2rem } figure.two img { width: calc(50% - .1rem) }
figure img { width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--panel);
  border-radius: .3rem; min-width: 0 }
figcaption { font-size: .85rem; line-height: 1.35; margin-top: .25rem; overflow-wrap: anywhere }
code { overflow-wrap: anywhere; font-size: .9em } dt { font-weight: 600; margin-top: .5rem }
dd { margin: 0; overflow-wrap: anywhere }
@media (max-width: 30rem) { .tiles { grid-template-columns: 1fr 1fr } td, th { padding: .28rem .45rem }
  .tile b { font-size: 1.25rem } figure.two { width: 100% } }
"""


def text(value: object) -> str:
    """Escaped for content and for attributes in double quotes."""
    return html.escape(str(value), quote=True)


def document(title: str, head: str, sections: Sequence[tuple[str, str]]) -> str:
    """The whole page: a head, links to the sections, the sections. Empty sections are left out."""
    kept = [(name, body) for name, body in sections if body]
    links = "".join(
        f'<a href="#{_anchor(n, name)}">{text(name)}</a>' for n, (name, _) in enumerate(kept)
    )
    bodies = "\n".join(
        f'<section id="{_anchor(n, name)}"><h2>{text(name)}</h2>\n{body}</section>'
        for n, (name, body) in enumerate(kept)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        f'<h1>{text(title)}</h1>\n{head}\n<nav aria-label="sections">{links}</nav>\n{bodies}\n'
        "</body></html>\n"
    )


def notices(sentences: Iterable[str]) -> str:
    return "".join(f'<p class="notice" role="note">{text(s)}</p>' for s in sentences if s)


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Name, value and a word under it."""
    shown = "".join(
        f'<div class="tile">{text(name)}<b>{text(value)}</b><small>{text(under)}</small></div>'
        for name, value, under in entries
    )
    return f'<div class="tiles">{shown}</div>'


def plots(drawn: Sequence[str]) -> str:
    """SVGs side by side where there is room."""
    return f'<div class="plots">{"".join(drawn)}</div>'


def gallery(figures: Sequence[str]) -> str:
    return f'<div class="gallery">{"".join(figures)}</div>'


def table(frame: pd.DataFrame) -> str:
    """Rows under their names: text to the left, numbers to the right with three decimals.

    ``frame.attrs["note"]``, where it is set, stands above them.
    """
    left = [not pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns]

    def cell(tag: str, value: object, is_text: bool) -> str:
        kind = "text" if is_text else ""
        kind += " long" if is_text and len(str(value)) > 28 else ""
        return (
            f'<{tag} class="{kind}">{text(value)}</{tag}>'
            if kind
            else f"<{tag}>{text(value)}</{tag}>"
        )

    head = "".join(cell("th", name, is_text) for name, is_text in zip(frame, left, strict=True))
    rows = "".join(
        "<tr>" + "".join(cell("td", number(v), t) for v, t in zip(row, left, strict=True)) + "</tr>"
        for row in frame.itertuples(index=False)
    )
    said = f'<p class="soft">{text(frame.attrs["note"])}</p>' if "note" in frame.attrs else ""
    return f'{said}<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def number(value: object) -> object:
    """A fraction with three decimals; nothing for what is no number."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return f"{value:.3f}" if isinstance(value, float) else value


def definitions(entries: Mapping[str, Any]) -> str:
    """Names with what they stand for; mappings in one line, commands as code."""
    parts = []
    for name, value in entries.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        shown = f"<code>{text(value)}</code>" if "command" in name else text(value)
        parts.append(f"<dt>{text(name.replace('_', ' '))}</dt><dd>{shown}</dd>")
    return f"<dl>{''.join(parts)}</dl>"


def _anchor(n: int, name: str) -> str:
    return f"s{n}-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
