"""The report of a run: ``index.html``, one file that needs no network, and the same as JSON."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from datasets.errors import SecondhandError
from datasets.images import open_picture
from datasets.recipe import Recipe
from datasets.spectrogram import recipe_from_dict
from datasets.table import ItemTable
from learners.bundle import Bundle
from learners.heldout import Evaluation
from learners.measure import class_table, figures, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #57606a }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #9da7b1 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.2rem; margin-top: 2.2rem }
.soft { color: var(--soft) } .wide { overflow-x: auto }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0 }
.tile { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem; min-width: 8rem }
.tile b { display: block; font-size: 1.5rem }
table { border-collapse: collapse } td, th { padding: .25rem .7rem; border-bottom: 1px solid var(--line);
  text-align: right } td:first-child, th:first-child { text-align: left }
img { max-width: 100%; height: auto; border-radius: .3rem } .plot { background: #fff; padding: .3rem }
figure { margin: 0; width: 9.5rem } figcaption { font-size: .85rem; overflow-wrap: anywhere }
.gallery { display: flex; flex-wrap: wrap; gap: 1rem } code { overflow-wrap: anywhere }
"""


def write_report(
    folder: Path,
    bundle: Bundle,
    evaluation: Evaluation,
    table: ItemTable,
    *,
    history: Path | None = None,
    title: str = "",
    checks: Sequence[str] = (),
    tables: Mapping[str, pd.DataFrame] | None = None,
    twins: pd.DataFrame | None = None,
    command: str = "",
) -> Path:
    """Write the report of a training run, or of an evaluation.

    Parameters
    ----------
    folder : made if it is not there.
    evaluation : the bundle's answers for what was held out, as `learners.heldout.answer` gives them.
    table : the items, as they were asked about.
    history : the run's history.csv; without it there are no curves.
    title : by default the data's name and the backbone.
    checks : sentences that stand on top of the page.
    tables : more tables, each under its title.
    twins : near-duplicates across splits, as `learners.suspects.near_duplicates` gives them; without
        it no names of training items are known.
    command : what was typed, where it was not the training.

    Returns
    -------
    Path of ``index.html``; ``report.json`` beside it holds the same figures.
    """
    predictions = evaluation.predictions
    recipe = None if bundle.recipe is None else recipe_from_dict(bundle.recipe)
    folder.mkdir(parents=True, exist_ok=True)
    known = predictions.loc[predictions["split"].ne("unknown")]
    epochs = None if history is None else pd.read_csv(history)
    per_class = class_table(known, bundle.classes)
    everything = {
        "history": [] if epochs is None else epochs.to_dict("records"),
        "checks": list(checks),
        **figures(evaluation, bundle),
        "provenance": bundle.provenance,
        "left_out": [item._asdict() for item in table.rejected],
    }
    (folder / "report.json").write_text(json.dumps(plain(everything), indent=1, default=str) + "\n")
    mistakes = known.loc[known["best"].ne(known["truth"])].sort_values(
        "probability", ascending=False
    )
    title = title or f"{Path(table.source).name or table.source}: {bundle.spec.backbone}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="soft">{_text(table.note)}</p>' if table.note else "",
        _tiles(bundle.metrics),
        *(f"<p>{_text(check)}</p>" for check in checks),
        "" if epochs is None else _plot(_curves(epochs), "Loss and accuracy by epoch"),
        "<h2>Confusion</h2>",
        _plot(_confusion(known, bundle.classes), "Confusion matrix: true class by answered class"),
        "<h2>Classes</h2>",
        _table(per_class),
        f"<h2>Mistakes, the surest first ({len(mistakes)} of {len(known)})</h2>",
        _gallery(mistakes.head(12), recipe),
        f"<h2>Left out ({len(table.rejected)})</h2>",
        _table(pd.DataFrame(table.rejected[:50])) if table.rejected else "<p>Nothing.</p>",
        *(f"<h2>{_text(name)}</h2>" + _table(frame) for name, frame in (tables or {}).items()),
        "<h2>How it came about</h2>",
        _provenance(bundle.provenance),
    ]
    page = folder / "index.html"
    page.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style>\n" + "\n".join(parts) + "</html>\n",
        encoding="utf-8",
    )
    return page


def _tiles(metrics: dict[str, Any]) -> str:
    names = {
        "valid_accuracy": "accuracy, valid",
        "calibration_accuracy": "accuracy, calibration",
        "test_accuracy": "accuracy, test",
        "calibration_coverage": "accepted, calibration",
        "calibration_accuracy_of_accepted": "accuracy of accepted",
        "unknown_accepted": "unknowns accepted",
    }
    tiles = [
        f'<div class="tile"><b>{100 * metrics[key]:.1f} %</b>{name}</div>'
        for key, name in names.items()
        if key in metrics
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _curves(epochs: pd.DataFrame) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = np.arange(1, len(epochs) + 1)
    left.plot(steps, epochs["train_loss"], "o-", label="train")
    left.plot(steps, epochs["valid_loss"], "s-", label="valid")
    left.set(xlabel="epoch", ylabel="cross-entropy (nats)")
    left.legend()
    right.plot(steps, epochs["accuracy"], "s-", color="C1")
    right.set(xlabel="epoch", ylabel="accuracy, valid", ylim=(0, 1.02))
    frozen = int(epochs["phase"].eq("frozen").sum())
    for axes in (left, right):
        axes.set_xticks(steps)
        if 0 < frozen < len(epochs):
            axes.axvline(frozen + 0.5, color="grey", linestyle=":")
    return figure


def _confusion(known: pd.DataFrame, classes: list[str]) -> Figure:
    from matplotlib.figure import Figure
    from sklearn.metrics import confusion_matrix

    matrix = confusion_matrix(known["truth"], known["best"], labels=classes)
    side = min(10.0, 3 + 0.35 * len(classes))
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.subplots()
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="answered", ylabel="true")
    if len(classes) <= 40:
        axes.set_xticks(range(len(classes)), classes, rotation=90)
        axes.set_yticks(range(len(classes)), classes)
    if len(classes) <= 20:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color)
    return figure


def _plot(figure: Figure, alt: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return f'<img class="plot" alt="{_text(alt)}" src="{_data_uri(buffer.getvalue(), "png")}">'


def _gallery(mistakes: pd.DataFrame, recipe: Recipe | None) -> str:
    if mistakes.empty:
        return "<p>None.</p>"
    figures = []
    for row in mistakes.to_dict("records"):
        said = f"{row['best']} ({100 * row['probability']:.0f} %), is {row['truth']}"
        try:
            if recipe is None:
                picture = open_picture(row["path"], at_least=300)
            else:
                picture = recipe.image(recipe.read(row["path"], at=row["gps"])).convert("RGB")
        except SecondhandError:  # gone since it was answered
            continue
        picture.thumbnail((300, 300))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=85)
        uri = _data_uri(buffer.getvalue(), "jpeg")
        figures.append(
            f'<figure><img alt="{_text(said)}" src="{uri}"><figcaption>{_text(said)}<br>'
            f'<span class="soft">{_text(Path(row["path"]).name)}</span></figcaption></figure>'
        )
    return f'<div class="gallery">{"".join(figures)}</div>'


def _table(frame: pd.DataFrame) -> str:
    text = frame.to_html(index=False, border=0, float_format="{:.3f}".format, escape=True)
    return f'<div class="wide">{text}</div>'


def _provenance(provenance: dict[str, Any]) -> str:
    rows = []
    for key, value in provenance.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {number}" for name, number in value.items())
        rows.append(
            f"<p><b>{_text(key.replace('_', ' '))}</b> <code>{_text(str(value))}</code></p>"
        )
    return "\n".join(rows)


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _text(value: str) -> str:
    return html.escape(value, quote=True)
