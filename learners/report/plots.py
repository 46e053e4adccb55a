"""The plots of a report, as SVG that stands in the page and takes its colours.

Text stays text, so a phone and a dark page can read it. Figures are matplotlib's, without pyplot.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from colorsys import hls_to_rgb
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from learners.uncertainty import normalise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Stands for the colour of the page's own text, until it is replaced.
INK = "#010203"
#: Blue, orange and green that are seen on white and on black.
BLUE, ORANGE, GREEN = "#3b82f6", "#f07b16", "#12a150"
#: matplotlib's settings are the whole process's: one plot at a time, also of a page with visitors.
_ALONE = threading.Lock()
LONGEST = 18  # letters of a class's name beside an axis
PANELS = 12  # classes whose learning curve is drawn
DOTS = 1000  # items on a map
LABELLED, COUNTED = 40, 20  # classes up to which they are named, and counts written into cells

_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(_INKED, INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "svg.fonttype": "none",
    "font.size": 10,
    "legend.fontsize": 9,
    "lines.markersize": 4,
    "text.parse_math": False,  # a label may hold dollar signs
}


def curves(epochs: pd.DataFrame) -> list[Markup]:
    """Loss, and each metric, by epoch."""
    from matplotlib.ticker import MaxNLocator

    steps = np.arange(1, len(epochs) + 1)
    frozen = int(epochs["phase"].eq("frozen").sum()) if "phase" in epochs else 0
    plain = {"phase", "epoch", "train_loss", "valid_loss", "lr", "seconds"}

    def finish(axes: Axes) -> None:
        axes.set_xlabel("epoch")
        axes.set_xlim(0.5, len(steps) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if 0 < frozen < len(epochs):
            axes.axvline(frozen + 0.5, color=INK, alpha=0.5, linestyle=":", linewidth=1)

    with panel(f"Cross-entropy of training and validation over {len(steps)} epochs") as (
        axes,
        out,
    ):
        axes.plot(steps, epochs["train_loss"], "o-", color=BLUE, label="train")
        axes.plot(steps, epochs["valid_loss"], "s-", color=ORANGE, label="valid")
        axes.set(ylabel="cross-entropy (nats)")
        axes.legend()
        finish(axes)
    drawn = [out()]
    metrics = [name for name in epochs.columns if name not in plain]
    if metrics:
        with panel(f"{', '.join(metrics)} on the validation split by epoch") as (axes, out):
            for name, colour in zip(metrics, (GREEN, BLUE, ORANGE) * len(metrics), strict=False):
                axes.plot(steps, epochs[name], "s-", color=colour, label=name)
            if epochs[metrics].to_numpy().max(initial=0) <= 1:
                axes.set_ylim(min(0.5, float(epochs[metrics].min().min()) - 0.05), 1.02)
            axes.set(ylabel="valid")
            axes.legend()
            finish(axes)
        drawn.append(out())
    return drawn


def learning(curve: dict[str, Any]) -> list[Markup]:
    """Accuracy against labels with limits: of all with what is foretold, and of the worst classes."""
    drawn: list[Markup] = []
    worst = sorted(curve["classes"].items(), key=lambda one: one[1][-1]["value"])[:PANELS]
    for name, points in [("all classes", curve["points"]), *worst]:
        small = bool(drawn)
        x, y, low, high = (
            np.array([p[k] for p in points], float) for k in ("labels", "value", "low", "high")
        )
        said = f"Accuracy of {name}: " + ", ".join(
            f"{100 * p['value']:.0f} % by {p['labels']} labels" for p in points
        )
        with panel(said, size=(2.7, 2.1) if small else (4.9, 3.1)) as (axes, out):
            axes.errorbar(x, y, yerr=[y - low, high - y], fmt="o-", color=BLUE, lw=1, capsize=2)
            ahead = None if small else curve["forecast"]
            if ahead is not None:
                axes.plot([x[-1], ahead["labels"]], [y[-1], ahead["value"]], "--", color=ORANGE)
                limits = [[ahead["value"] - ahead["low"]], [ahead["high"] - ahead["value"]]]
                axes.errorbar(
                    ahead["labels"], ahead["value"], yerr=limits, fmt="o", color=ORANGE, capsize=2,
                    label="probably",
                )  # fmt: skip
                axes.legend(loc="lower right")
            ends = [*x, *([ahead["labels"]] if ahead else [])]
            axes.set_xscale("log", base=2)
            axes.set_xticks(ends, [f"{end:.0f}" for end in ends])
            axes.set_xticks([], minor=True)
            axes.set(xlabel="labels, of all classes" if small else "labels", ylim=(-0.02, 1.04))
            if small:
                axes.set_title(short(name), fontsize=10)
            else:
                axes.set(ylabel="accuracy of a linear probe", ylim=(max(0, min(low) - 0.05), 1.02))
        drawn.append(out())
    return drawn


def confusion(matrix: NDArray[np.int64], classes: Sequence[str]) -> Markup:
    """Counts of true class by answered class; the shade is the share of the true class."""
    side = min(9.0, 1.9 + 0.28 * len(classes))
    names = [short(name) for name in classes]
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    shade = np.empty((*matrix.shape, 4))
    shade[..., :3] = np.array([0x3B, 0x82, 0xF6]) / 255
    shade[..., 3] = 0.8 * np.sqrt(shares)  # single mistakes are to be seen
    wrong = int(matrix.sum() - np.trace(matrix))
    said = f"Confusion matrix: {wrong} of {matrix.sum()} answers are off the diagonal"
    with panel(said, size=(side, side)) as (axes, out):
        axes.imshow(shade, interpolation="none")
        axes.set(xlabel="answered", ylabel="true")
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        if len(classes) <= LABELLED:
            axes.set_xticks(range(len(names)), names, rotation=90)
            axes.set_yticks(range(len(names)), names)
        if len(classes) <= COUNTED:
            for (row, column), count in np.ndenumerate(matrix):
                if count:
                    axes.text(column, row, str(count), ha="center", va="center", fontsize=9)
    return out()


def colours(count: int) -> list[str]:
    """One for each class, as far from those before it as can be; seen on white and on black."""
    turns = (hls_to_rgb(n * 0.382 % 1, 0.5, 0.7) for n in range(count))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in turns]


def embedding(
    features: NDArray[np.float32], of: Sequence[str], classes: Sequence[str]
) -> Markup | None:
    """Items as the network sees them: its features of length 1, along their two main directions.

    Parameters
    ----------
    features : [n, width]; of more than `DOTS` items as many, spread evenly. Rows with NaN are left
        out; of fewer than three there is no map.
    of : the class of each; what is none of the ``classes`` is a stranger.
    """
    good = np.flatnonzero(np.isfinite(features).all(axis=1))
    if len(good) < 3 or features.shape[1] < 2:
        return None
    chosen = good[np.unique(np.linspace(0, len(good) - 1, DOTS).astype(int))]
    x, names = normalise(features[chosen]), np.array(of, dtype=object)[chosen]
    x = x - x.mean(axis=0)
    across, sizes, _ = np.linalg.svd(x, full_matrices=False)
    at, held = across[:, :2] * sizes[:2], np.square(sizes) / max(np.square(sizes).sum(), 1e-12)
    said = f"Map of {len(x)} items: the two main directions of their features, one colour a class"
    with panel(said, size=(5.6, 4.0)) as (axes, out):
        strange = ~np.isin(names, list(classes))
        if strange.any():
            axes.plot(*at[strange].T, "x", color=INK, alpha=0.45, label="unknown")
            axes.legend(loc="best")
        for name, colour in zip(classes, colours(len(classes)), strict=True):
            own = at[names == name]
            axes.plot(*own.T, "o", color=colour, alpha=0.75, markeredgewidth=0)
            if len(own) and len(classes) <= COUNTED:
                middle = np.median(own, axis=0)
                axes.text(middle[0], middle[1], short(name), fontsize=9, ha="center", va="center")
        axes.set(
            xticks=[], yticks=[], xlabel=f"first direction, {100 * held[0]:.0f} % of what differs",
            ylabel=f"second, {100 * held[1]:.0f} %",
        )  # fmt: skip
    return out()


def reliability(bins: dict[str, Any], when: str, ece: float) -> Markup:
    """Accuracy against confidence, in bins, with the exact limits of each."""
    confidence, accuracy = np.array(bins["confidence"]), np.array(bins["accuracy"])
    errors = np.abs(np.stack([bins["low"], bins["high"]]) - accuracy)
    said = f"Reliability {when}: accuracy against confidence, ECE {ece:.3f}"
    with panel(said) as (axes, out):
        axes.plot([0, 1], [0, 1], color=INK, alpha=0.5, linestyle=":", linewidth=1)
        axes.errorbar(
            confidence, accuracy, yerr=errors, fmt="o", color=BLUE, elinewidth=1, capsize=2
        )
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.04))
        axes.set_title(f"{when}: ECE {ece:.3f}", fontsize=10)
    return out()


def risk_coverage(curve: dict[str, Any]) -> Markup:
    """Error among accepted items against the part accepted, and where the model was cut."""
    point = curve["point"]
    said = f"Risk against coverage, area {curve['aurc']:.4f}"
    if point["risk"] is not None:
        said += f"; chosen: {100 * point['coverage']:.0f} % accepted, {100 * point['risk']:.1f} % of these wrong"
    with panel(said) as (axes, out):
        axes.plot(curve["coverage"], curve["risk"], color=BLUE)
        if point["risk"] is not None:
            axes.plot(
                point["coverage"], point["risk"], "o", color=ORANGE, markersize=8, label="chosen"
            )
            axes.legend(loc="upper left")
        axes.set(xlabel="coverage: part accepted", ylabel="risk: part of these wrong")
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, max(0.02, *curve["risk"], point["risk"] or 0) * 1.1)
    return out()


def specificity(curves: dict[str, Any]) -> Markup:
    """Part of wrong answers against how much the answers say, with the tree and without."""
    with panel("Risk against specificity, with the tree of classes and without it") as (axes, out):
        for (name, curve), colour in zip(curves.items(), (BLUE, ORANGE), strict=True):
            axes.plot(curve["specificity"], curve["risk"], color=colour, label=name)
        axes.set(xlabel="specificity: how much is said", ylabel="risk: part of answers wrong")
        axes.set_xlim(0, 1.02)
        axes.legend(loc="upper left")
    return out()


def histogram(bins: dict[str, Any], score: str) -> Markup:
    """Known items and strangers by the model's own score."""
    edges = np.array(bins["edges"])
    said = f"Histogram of the score {score} of known items and of strangers"
    with panel(said, size=(5.2, 3.0)) as (axes, out):
        for name, colour in (("known", BLUE), ("unknown", ORANGE)):
            counts = np.array(bins[name], float)
            if counts.sum():
                axes.stairs(
                    counts / counts.sum(), edges, fill=True, color=colour, alpha=0.5, label=name
                )
        axes.set(xlabel=f"{score}: higher is more known", ylabel="part of each")
        if axes.patches:
            axes.legend(loc="upper left")
    return out()


def short(name: str) -> str:
    """A class's name as it stands at an axis."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


@contextmanager
def panel(
    said: str, size: tuple[float, float] = (4.2, 3.1)
) -> Iterator[tuple[Axes, Callable[[], Markup]]]:
    """Axes to draw on, and a function that gives the SVG, to be called after the block."""
    import matplotlib
    from matplotlib.figure import Figure

    written: list[Markup] = []
    with _ALONE, matplotlib.rc_context({**_STYLE, "svg.hashsalt": said}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(), lambda: written[0]
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True)
    written.append(_inline(buffer.getvalue(), said, size))


def _inline(svg: str, said: str, size: tuple[float, float]) -> Markup:
    """An SVG file as a part of a page: no name spaces or addresses, no ids but those referred to."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)  # it would hold for all of the page
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    head, rest = svg.split(">", 1)
    found = re.search(r'viewBox="[^"]*"', head)
    box = Markup(found.group() if found else "")
    begun = Markup(
        '<svg {0} role="img" aria-label="{1}" style="width:{2:.0f}px;stroke-linejoin:round;'
        'stroke-linecap:butt"><title>{1}</title>'
    )
    shown = begun.format(box, said, size[0] * 96) + Markup(rest)
    return shown.replace(INK, "currentColor")
