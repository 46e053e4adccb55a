"""What is known of a model beside its answers: its card, and what its run held out, as the page shows it.

The held-out answers and the report lie beside the model, in its run's folder; a model folder that was
moved away from its run has none, and the page says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

from datasets.core.cells import read_frame
from datasets.core.errors import SecondhandError
from datasets.images import open_picture
from datasets.items import UNKNOWN
from learners.evaluation import fraction
from learners.inference import deepest_label
from learners.report import reliability
from learners.templates import data_uri, render

if TYPE_CHECKING:
    from learners.inference import Predictor
    from learners.uncertainty import Tree

log = logging.getLogger(__name__)
_TILES = {
    "valid_accuracy": "accuracy, valid",
    "calibration_accuracy": "accuracy, calibration",
    "test_accuracy": "accuracy, test",
    "calibration_coverage": "answered, calibration",
    "calibration_accuracy_of_accepted": "accuracy of what is answered",
    "unknown_accepted": "strangers that got an answer",
    "valid_map": "mean average precision, valid",
    "calibration_map": "mean average precision, calibration",
    "test_map": "mean average precision, test",
    "test_precision": "labels said that are there, test",
}
_FACTS = {
    "data": "data", "protocol": "figures rest on", "note": "note", "items": "items", "trained": "trained",
    "seconds": "seconds", "machine": "machine",
}  # fmt: skip
COLUMNS = {"path", "label", "best", "probability", "truth", "split", "distance_p"}


@dataclass(frozen=True)
class OperatingPoint:
    """What a rule gives on the calibration items.

    Attributes
    ----------
    taken, right : ``[n]`` which of them are answered, and which of them are answered rightly.
    units : ``[n]`` equal for items that belong together, whose limits are wider; None: each is by itself.
    """

    taken: npt.NDArray[np.bool_]
    right: npt.NDArray[np.bool_]
    units: npt.NDArray[np.int64] | None = None

    @property
    def items(self) -> int:
        return len(self.taken)

    @property
    def answered(self) -> int:
        return int(self.taken.sum())

    @property
    def coverage(self) -> tuple[float, float, float]:
        """The part that is answered, and its 95 % limits."""
        return fraction(self.taken, self.units)

    @property
    def accuracy(self) -> tuple[float, float, float]:
        """The part of the answers that is right, and its 95 % limits; nan, 0, 1 of none."""
        units = None if self.units is None else self.units[self.taken]
        return fraction(self.right[self.taken], units)


class Examples(NamedTuple):
    """A file of a class, as the run's table names it."""

    label: str
    path: str
    gps: float | None = None


class Evidence:
    """The held-out answers and the items of the run that a model folder lies in.

    Parameters
    ----------
    folder : the model folder; None for a model that has none.
    classes : the model's classes; ``tree`` what stands above them.
    """

    def __init__(self, folder: Path | None, classes: list[str], tree: Tree | None = None) -> None:
        self.run = None if folder is None else folder.parent
        self.classes, self.tree = classes, tree

    @cached_property
    def answers(self) -> pd.DataFrame:
        """Held-out known items: truth, best, probability, distance_p, split. May be empty."""
        frame = self._table("predictions.csv", COLUMNS)
        known = frame["truth"].isin(self.classes) & frame["best"].isin(self.classes)
        frame = frame.loc[known & frame["probability"].between(0, 1)].reset_index(drop=True)
        ways = frame.get("branch", pd.Series("[]", frame.index)).map(_branch)
        return frame.assign(branch=ways)

    @cached_property
    def calibration(self) -> pd.DataFrame:
        """Those of `answers` that the threshold was set on."""
        return self.answers.loc[self.answers["split"].eq("calibration")]

    def buys(self, threshold: float | None, alpha: float) -> OperatingPoint | None:
        """What a rule gives; None where nothing is known.

        Parameters
        ----------
        threshold : on the probability; None for the model's own rule, by which its run answered.
        alpha : items whose ``distance_p`` is below it are refused whatever their probability.
        """
        held = self.calibration
        if held.empty:
            return None
        if threshold is None:
            label = held["label"]
            taken = label.ne(UNKNOWN)
        else:
            rows = zip(held["best"], held["probability"], held["branch"], strict=True)
            label = pd.Series(
                [deepest_label(*row, threshold) for row in rows], held.index, dtype=object
            )
            taken = label.ne("") & ~held["distance_p"].lt(alpha)
        right = taken & label.eq(held["truth"])
        if self.tree is not None:
            right = taken & pd.Series(self.tree.right(label, held["truth"]).tolist(), held.index)
        units = pd.factorize(held["unit"])[0] if "unit" in held else None
        return OperatingPoint(taken.to_numpy(bool), right.to_numpy(bool), units)

    def as_strict(self) -> float:
        """The threshold that takes as many calibration items as the model's own rule; else a half."""
        own = self.buys(None, 0.0)
        if own is None or not own.answered:
            return 0.5
        return float(self.calibration["probability"].nlargest(own.answered).iloc[-1])

    @cached_property
    def report(self) -> Mapping[str, Any]:
        """The figures of the run's report; none where it has none, or of other classes."""
        if self.run is None or not (file := self.run / "report" / "report.json").is_file():
            return {}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            ours = [row["class"] for row in found["classes"]] == self.classes
            return found if ours and isinstance(found["splits"], dict) else {}
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            log.warning("%s: cannot be read (%s); the page does without", file, error)
            return {}

    @cached_property
    def confusion(self) -> npt.NDArray[np.int64]:
        """Counts [true, answered] of the held-out items that could be judged, by the run's report; all 0
        where it has none."""
        shape = (len(self.classes),) * 2
        try:
            counts = np.asarray(self.report["confusion"], np.int64)
        except (LookupError, TypeError, ValueError, OverflowError):
            return np.zeros(shape, np.int64)
        return counts if counts.shape == shape else np.zeros(shape, np.int64)

    def judged(self) -> str:
        """How many items the confusion matrix is of, and which; "" for none."""
        names = ", ".join(sorted(self.report.get("splits") or self.answers["split"].unique()))
        return f"{self.confusion.sum()} held-out items ({names})" if self.confusion.any() else ""

    def reliability(self) -> Markup | None:
        """The reliability diagram of the run's report, from its own bins; None where it has none."""
        try:
            split, bins = self.report["judged_on"], self.report["reliability"]["after"]
            ece = self.report["splits"][split]["calibration"]["after"]["ece"]["value"]
            return reliability(bins, str(split), ece)
        except (LookupError, TypeError, ValueError) as error:
            log.info("no reliability diagram: %r", error)
            return None

    @cached_property
    def items(self) -> pd.DataFrame:
        """The run's table of items; may be empty. Held-out ones first."""
        frame = self._table("items.csv", {"path", "label", "split"})
        order = (
            frame["split"].map({"test": 0, "calibration": 1, "valid": 2, "unknown": 3}).fillna(4)
        )
        return frame.loc[order.sort_values(kind="stable").index]

    def examples(self, per_class: int = 1, *, limit: int = 40, ood: int = 0) -> list[Examples]:
        """Files of each class that are still there, held-out ones before training ones."""
        found = []
        wanted = {**dict.fromkeys(self.classes, per_class), "unknown": ood}
        for label, rows in self.items.groupby("label", sort=False):
            left = wanted.get(str(label), 0)
            for row in rows.to_dict("records"):
                if not left:
                    break
                path = Path(str(row["path"]))
                if path.is_file():
                    gps = row.get("gps")
                    known = isinstance(gps, float) and np.isfinite(gps)
                    found.append(Examples(str(label), str(path), gps if known else None))
                    left -= 1
        place = {name: i for i, name in enumerate([*self.classes, "unknown"])}
        return sorted(found, key=lambda item: place[item.label])[:limit]

    def _table(self, name: str, columns: set[str]) -> pd.DataFrame:
        empty = pd.DataFrame({column: [] for column in sorted(columns)})
        if self.run is None or not (self.run / name).is_file():
            return empty
        try:
            text = dict.fromkeys(("path", "label", "best", "truth", "split", "group"), str)
            # A class may be called "NA".
            frame = read_frame(self.run / name, dtype=text)
        except (OSError, ValueError, pd.errors.ParserError) as error:
            log.warning("%s: cannot be read (%s); the page does without", self.run / name, error)
            return empty
        if not columns <= set(frame):
            return empty
        for column in {"probability", "distance_p", "gps"} & set(frame):
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
        return frame


def _branch(cell: str) -> list[tuple[str, float]]:
    """A cell of answers with a tree; nothing where it is none."""
    try:
        return [(str(name), float(p)) for name, p in json.loads(cell)]
    except (ValueError, TypeError):
        return []


def about_html(predictor: Predictor, evidence: Evidence) -> Markup:
    """The tab on the model: its card, its classes with a picture each, and how it did in its run."""
    bundle = predictor.bundle
    (height, width), trained = bundle.spec.shape, bundle.provenance
    examples = {item.label: item for item in evidence.examples()}
    return render(
        "app",
        "about.html",
        tiles=[
            (name, float(bundle.metrics[key]), _limits(bundle.metrics.get(f"{key}_interval")))
            for key, name in _TILES.items()
            if isinstance(bundle.metrics.get(key), int | float)
        ],
        facts={
            "backbone": bundle.spec.backbone,
            "input": f"{height} x {width} pixels",
            "kind": predictor.kind,
            **{
                name: value
                for key, name in _FACTS.items()
                if (value := trained.get(key)) not in (None, "")
            },
        },
        notes=predictor.confidence.notes,
        classes=[
            (name, _thumbnail(predictor, examples[name]) if name in examples else "")
            for name in predictor.classes
        ],
        examples=examples,
        judged=evidence.judged(),
        wrong=evidence.confusion.sum() - np.trace(evidence.confusion),
        confusion=evidence.confusion.tolist(),
        reliability=evidence.reliability(),
    )


def _limits(interval: object) -> tuple[float, float] | None:
    """The 95 % limits of a figure, where its run wrote them."""
    match interval:
        case [float() | int() as low, float() | int() as high]:
            return low, high
    return None


def _thumbnail(predictor: Predictor, item: Examples) -> str:
    spectrogram = predictor.spectrogram
    try:
        if spectrogram is None:
            picture = open_picture(item.path, at_least=160)
        else:
            picture = spectrogram.image(spectrogram.read(item.path, at=item.gps)).convert("RGB")
    except SecondhandError as error:
        log.info("no example: %s", error)
        return ""
    picture.thumbnail((160, 160))
    return data_uri(picture, 80)
