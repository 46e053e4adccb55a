"""Plots of a report, as SVG inside the page in the page's colours.

Text stays text, so it is legible on a phone and on a dark page. Figures are matplotlib's, without pyplot.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from colorsys import hls_to_rgb
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from learners.rule.scores.base import normalise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Placeholder of the page's text colour.
INK = "#010203"
#: Blue, orange and green that are visible on white and on black.
BLUE, ORANGE, GREEN = "#3b82f6", "#f07b16", "#12a150"
#: The same for few classes: matplotlib's tab10, grey last because unknown files are grey.
FAR_APART = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#7f7f7f",
)  # fmt: skip
#: matplotlib's settings hold for the whole process: one plot at a time, in the web page too.
_ALONE = threading.Lock()
LONGEST = 20  # letters of a class's name beside an axis: Low_Frequency_Burst in full
PANELS = 12  # labels of a multi-label model that are plotted
DOTS = 1000  # files on a map
LOW = (4.2, 2.7)  # inches of a plot that may be low
LABELLED, COUNTED = 40, 20  # most classes with names at the axes, and with counts in the cells

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


def curves(epochs: pd.DataFrame, kept: Mapping[str, Any] | None = None) -> list[Markup]:
    """Loss, and each metric, by epoch, with a star at the kept weights.

    Epochs of the head alone stand left of a dotted line and are not joined to those of the whole network: their
    training loss is that of files without augmentation.

    Parameters
    ----------
    epochs : rows of history.csv.
    kept : ``phase``, ``epoch`` and ``reached`` of the kept weights (`learners.training`): ``valid_loss`` and
        ``accuracy``. A blend with an epoch is marked at that epoch.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    steps = np.arange(1, len(epochs) + 1)
    frozen = int(epochs["phase"].eq("frozen").sum()) if "phase" in epochs else 0
    step, reached = _kept_step(epochs, kept)
    epochs = epochs.dropna(axis=1, how="all")  # where all files teach there is no validation
    no_metrics = {"phase", "epoch", "train_loss", "valid_loss", "lr", "seconds"}
    metrics = [name for name in epochs.columns if name not in no_metrics]
    losses = {"train_loss": ("training", "o-", BLUE), "valid_loss": ("validation", "s-", ORANGE)}
    others = {
        name: (name, "s-", colour)
        for name, colour in zip(metrics, (GREEN, BLUE, ORANGE) * len(metrics), strict=False)
    }

    def epoch_name(step: float, _: object = None) -> str:
        number = round(step)
        if number < 1 or abs(step - number) > 1e-6:  # with a single epoch there are ticks between
            return ""
        if number > frozen:
            return str(number - frozen)
        return "head" if frozen == 1 else f"head {number}"

    def drawn(title: str, ylabel: str, lines: Mapping[str, tuple[str, str, str]]) -> Markup:
        with panel(title) as (axes, svg):
            for name, (label, marker, colour) in lines.items():
                if name not in epochs:
                    continue
                for phase in (slice(0, frozen), slice(frozen, len(steps))):
                    axes.plot(steps[phase], epochs[name][phase], marker, color=colour, label=label)
                    label = "_" if len(steps[phase]) else label  # one entry in the legend
            for name in lines:
                if step is not None and name in reached:
                    axes.plot(
                        step, reached[name], "*", color=INK, linestyle="", markersize=14,
                        markerfacecolor="none", label="kept",
                    )  # fmt: skip
            if lines is others and epochs[metrics].to_numpy().max(initial=0) <= 1:
                axes.set_ylim(min(0.5, float(epochs[metrics].min().min()) - 0.05), 1.02)
            axes.set(xlabel="epoch", ylabel=ylabel, xlim=(0.5, len(steps) + 0.5))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.xaxis.set_major_formatter(FuncFormatter(epoch_name))
            if 0 < frozen < len(epochs):
                axes.axvline(frozen + 0.5, color=INK, alpha=0.5, linestyle=":", linewidth=1)
            axes.legend()
        return svg()

    title = f"Cross-entropy of training and validation over {len(steps)} epochs"
    figures = [drawn(title, "loss: cross-entropy (nats)", losses)]
    if metrics:
        title = f"{', '.join(metrics)} on the validation split by epoch"
        figures.append(drawn(title, "validation files", others))
    return figures


def range_test(test: Mapping[str, Any]) -> Markup:
    """Loss by learning rate of ``--lr auto``, with the suggestions slide and valley, of which valley was taken.

    ``test`` : ``lrs``, ``losses``, ``slide`` and ``valley``.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    lrs, losses = (np.asarray(test[name], float) for name in ("lrs", "losses"))
    title = f"Loss by learning rate; slide {test['slide']:.2g}, valley {test['valley']:.2g}"
    with panel(title) as (axes, svg):
        axes.plot(lrs, losses, color=BLUE)
        for name, colour, line in (("slide", GREEN, "--"), ("valley", ORANGE, "-")):
            label = f"{name} {test[name]:.2g}" + (" (taken)" if name == "valley" else "")
            axes.axvline(test[name], color=colour, linestyle=line, label=label)
        # The end of the test, where the loss explodes, would flatten all that matters.
        finite = losses[np.isfinite(losses)]
        if len(finite):
            low, first = float(finite.min()), float(finite[0])
            axes.set_ylim(low - 0.1 * (first - low) - 0.01, first + 0.5 * (first - low) + 0.01)
        axes.set(xlabel="learning rate of the head", ylabel="loss (nats)", xscale="log")
        # matplotlib's own labels are formulas, which are not set here; every second power of ten has room.
        axes.xaxis.set_major_locator(FixedLocator([10.0**power for power in range(-9, 3, 2)]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.legend()
    return svg()


def _kept_step(
    epochs: pd.DataFrame, kept: Mapping[str, Any] | None
) -> tuple[int | None, dict[str, float]]:
    """Number of the row, from 1, of the kept epoch, and the figures that the kept weights reached."""
    if kept is None or "phase" not in epochs:
        return None, {}
    rows = np.flatnonzero(epochs["phase"].eq(kept["phase"]) & epochs["epoch"].eq(kept["epoch"]))
    return (int(rows[0]) + 1, dict(kept["reached"])) if len(rows) else (None, {})


def confusion(matrix: NDArray[np.int64], classes: Sequence[str], title: str) -> Markup:
    """Counts [classes, classes + 1] of true class by answer, "unknown" last; the shade is the share of the true class."""
    side = min(9.0, 1.9 + 0.28 * len(classes))
    names = [*shortened(classes), "unknown"]
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    shade = np.empty((*matrix.shape, 4))
    shade[..., :3] = np.array([0x3B, 0x82, 0xF6]) / 255
    shade[..., 3] = 0.8 * np.sqrt(shares)  # keeps single mistakes visible
    with panel(title, size=(min(9.0, side + 0.28), side)) as (axes, out):
        axes.imshow(shade, interpolation="none")
        axes.axvline(len(classes) - 0.5, color=INK, alpha=0.5, linewidth=1)  # left of "unknown"
        axes.set(xlabel="answer", ylabel="true")
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        if len(classes) <= LABELLED:
            axes.set_xticks(range(len(names)), names, rotation=90)
            axes.set_yticks(range(len(classes)), names[:-1])
        if len(classes) <= COUNTED:
            for (row, column), count in np.ndenumerate(matrix):
                if count:
                    axes.text(column, row, str(count), ha="center", va="center", fontsize=9)
    return out()


def colours(count: int) -> list[str]:
    """A colour for each class, far from the previous ones; visible on white and on black."""
    if count <= len(FAR_APART):
        return [*FAR_APART[:count]]
    turns = (hls_to_rgb(n * 0.382 % 1, 0.5, 0.7) for n in range(count))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in turns]


def embedding(
    features: NDArray[np.float32], labels: Sequence[str], classes: Sequence[str]
) -> Markup | None:
    """Map of files: the first two principal components of their normalised features.

    Parameters
    ----------
    features : [n, width]; at most `DOTS` rows are plotted, spread evenly. Rows with NaN are left out;
        fewer than three give None.
    labels : the class of each; others than ``classes`` are plotted as unknown.
    """
    from sklearn.decomposition import PCA

    good = np.flatnonzero(np.isfinite(features).all(axis=1))
    if len(good) < 3 or features.shape[1] < 2:
        return None
    chosen = good[np.unique(np.linspace(0, len(good) - 1, DOTS).astype(int))]
    names, pca = np.array(labels, dtype=object)[chosen], PCA(2, svd_solver="full")
    at = pca.fit_transform(normalise(features[chosen]))
    variance = np.nan_to_num(pca.explained_variance_ratio_)  # of equal features there is none
    title = f"Map of {len(at)} files: the two main directions of their features, one colour a class"
    names_at: dict[str, tuple[float, float]] = {}
    with panel(title, size=(4.9, 3.3)) as (axes, out):
        unknown = ~np.isin(names, list(classes))
        if unknown.any():
            axes.plot(*at[unknown].T, "x", color=INK, alpha=0.45, label="unknown")
            axes.legend(loc="best")
        named = zip(classes, shortened(classes), colours(len(classes)), strict=True)
        for name, in_short, colour in named:
            points = at[names == name]
            axes.plot(*points.T, "o", color=colour, alpha=0.75, markeredgewidth=0)
            if len(points) and len(classes) <= COUNTED:
                names_at[in_short] = tuple(np.median(points, axis=0))
        for name, (place_x, place_y) in _apart(names_at, *np.ptp(at, axis=0)):
            axes.text(place_x, place_y, name, fontsize=9, ha="center", va="center", gid="halo")
        axes.set(
            xticks=[], yticks=[], xlabel=f"main direction, {100 * variance[0]:.0f} % of the variance",
            ylabel=f"second direction, {100 * variance[1]:.0f} %",
        )  # fmt: skip
    return out()


def _apart(
    names_at: Mapping[str, tuple[float, float]], width: float, height: float
) -> list[tuple[str, tuple[float, float]]]:
    """Names from the top down, lowered where they would cover another one.

    Parameters
    ----------
    names_at : middle of each name.
    width, height : extent of the map, on which a letter takes 1/60 of the width and a line 1/17 of the height.
    """
    placed: list[tuple[str, tuple[float, float]]] = []
    for name, (x, y) in sorted(names_at.items(), key=lambda item: -item[1][1]):
        for other, (other_x, other_y) in placed:
            letters = (len(name) + len(other)) / 2
            if abs(x - other_x) < letters * width / 60 and abs(y - other_y) < height / 17:
                y = other_y - height / 17
        placed.append((name, (x, y)))
        placed.sort(key=lambda item: -item[1][1])
    return placed


def reliability(bins: dict[str, Any], when: str, ece: float) -> Markup:
    """Reliability diagram: accuracy against confidence in bins, with exact 95 % limits."""
    confidence, accuracy = np.array(bins["confidence"]), np.array(bins["accuracy"])
    errors = np.abs(np.stack([bins["low"], bins["high"]]) - accuracy)
    title = f"Reliability, {when}: accuracy against confidence, ECE {ece:.3f}"
    with panel(title, size=LOW) as (axes, out):
        axes.plot([0, 1], [0, 1], color=INK, alpha=0.5, linestyle=":", linewidth=1)
        axes.text(0.45, 0.5, "as stated", rotation=32, ha="center", va="bottom", fontsize=9)
        # No caps: those of several bins near 1 run together into what looks like a bin of its own.
        axes.errorbar(confidence, accuracy, yerr=errors, fmt="o", color=BLUE, elinewidth=1)
        axes.set(xlabel="stated probability", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.04))
        axes.set_title(f"{when}: ECE {ece:.3f}", fontsize=10)
    return out()


def risk_coverage(curve: dict[str, Any], files: str) -> Markup:
    """Error among answered ``files`` against the fraction answered, with the model's own operating point."""
    point = curve["point"]
    title = f"Risk against coverage, area {curve['aurc']:.4f}"
    if point["risk"] is not None:
        title += f"; this model: {100 * point['coverage']:.0f} % answered, {100 * point['risk']:.1f} % of these wrong"
    with panel(title, size=LOW) as (axes, out):
        axes.plot(curve["coverage"], curve["risk"], color=BLUE)
        if point["risk"] is not None:
            axes.plot(
                point["coverage"], point["risk"], "o", color=ORANGE, linestyle="", markersize=8,
                label="this model, with all its rules",
            )  # fmt: skip
            axes.legend(loc="upper left")
        axes.set(xlabel=f"fraction of {files} answered (coverage)", ylabel="wrong answers (risk)")
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, max(0.02, *curve["risk"], point["risk"] or 0) * 1.1)
    return out()


def histogram(bins: dict[str, Any], score: str, floor: float | None = None) -> Markup:
    """Histogram of a score of known and unknown classes, with a line at the ``floor`` below which files are refused."""
    edges = np.array(bins["edges"])
    title = f"Histogram of the score {score} of files of known and of unknown classes"
    with panel(title, size=(4.6, 2.7)) as (axes, out):
        for name, colour in (("known", BLUE), ("unknown", ORANGE)):
            counts = np.array(bins[name], float)
            if counts.sum():
                axes.stairs(
                    counts / counts.sum(), edges, fill=True, color=colour, alpha=0.5, label=name
                )
        axes.set(
            xlabel=f"score ({score}): higher is more like a known class", ylabel="fraction of files"
        )
        limit = np.inf if floor is None else floor
        if edges[0] < limit < edges[-1]:
            axes.axvline(limit, color=INK, linestyle="--", linewidth=1, label="refused to the left")
        if axes.patches:
            axes.set_ylim(top=1.45 * axes.get_ylim()[1])  # room for the legend
            axes.legend(loc="upper left")
    return out()


def short(name: str) -> str:
    """A class's name, cut to the length of an axis label."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def shortened(names: Sequence[str]) -> list[str]:
    """The names of all classes, each cut as by `short`, or in its middle where others begin alike."""
    cut = [short(name) for name in names]
    return [
        each if cut.count(each) == 1 else f"{name[: LONGEST - 9]}…{name[-8:]}"
        for name, each in zip(names, cut, strict=True)
    ]


@contextmanager
def panel(
    title: str, size: tuple[float, float] = (4.2, 2.8)
) -> Iterator[tuple[Axes, Callable[[], Markup]]]:
    """Context of axes to plot on, and a function that returns the SVG after the block."""
    import matplotlib
    from matplotlib.figure import Figure

    svgs: list[Markup] = []
    with _ALONE, matplotlib.rc_context():
        matplotlib.rcdefaults()  # gwpy changes them when it is imported
        matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": title})
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(), lambda: svgs[0]
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True)
    svgs.append(_inline(buffer.getvalue(), title, size))


def _inline(svg: str, title: str, size: tuple[float, float]) -> Markup:
    """An SVG file as part of a page: without name spaces, addresses and unused ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)  # it would style the whole page
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    svg = svg.replace('id="halo"', 'class="halo"')
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    view = Markup(box.group() if box else "")
    begun = Markup(
        '<svg {0} role="img" aria-label="{1}" style="width:{2:.0f}px;stroke-linejoin:round;'
        'stroke-linecap:butt"><title>{1}</title>'
    )
    svg = begun.format(view, title, size[0] * 96) + Markup(rest)
    return svg.replace(INK, "currentColor")
