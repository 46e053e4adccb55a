"""The tab on a model: its card, and its predictions for the validation, calibration and test files.

These predictions and the report lie beside the model, in its run's folder; the page says so if they are
missing, as for a model folder that was moved.
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
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from learners.cli.result import part_name
from learners.evaluation.calibration_metrics import fraction
from learners.evaluation.held_out import is_correct
from learners.inference.predictions import decisions_of
from learners.report.galleries import Pictures, page_picture
from learners.report.plots import reliability
from learners.templates import render

if TYPE_CHECKING:
    from learners.inference.predictor import Predictor
    from learners.rule.base import AnyRule

log = logging.getLogger(__name__)
_TILES = {
    "valid_accuracy": "named right, validation files",
    "calibration_accuracy": "named right, calibration files",
    "test_accuracy": "named right, test files",
    "calibration_coverage": "answered, calibration files",
    "calibration_accuracy_of_accepted": "right when answered, calibration files",
    "unknown_accepted": "answered, files of unknown classes",
    "valid_map": "mean average precision, validation files",
    "calibration_map": "mean average precision, calibration files",
    "test_map": "mean average precision, test files",
    "test_precision": "precision, test files",
}
_FACTS = {
    "data": "data", "protocol": "evaluation protocol", "note": "note", "items": "items", "trained": "trained at",
    "seconds": "training time (s)", "machine": "machine",
}  # fmt: skip
COLUMNS = {"path", "label", "best", "probability", "truth", "split", "distance_p"}


@dataclass(frozen=True)
class RuleEffect:
    """What a rule answers of the calibration files, and how well.

    Attributes
    ----------
    accepted, right : ``[n]`` files that are answered, and those that are answered rightly.
    units : ``[n]`` equal for files of one group, which widens the limits; None: each file is independent.
    """

    accepted: npt.NDArray[np.bool_]
    right: npt.NDArray[np.bool_]
    units: npt.NDArray[np.int64] | None = None

    @property
    def items(self) -> int:
        return len(self.accepted)

    @property
    def answered(self) -> int:
        return int(self.accepted.sum())

    @property
    def coverage(self) -> tuple[float, float, float]:
        """Share of the files that is answered, and its 95 % limits."""
        return fraction(self.accepted, self.units)

    @property
    def accuracy(self) -> tuple[float, float, float]:
        """Share of the answers that is right, and its 95 % limits; NaN, 0 and 1 without answers."""
        units = None if self.units is None else self.units[self.accepted]
        return fraction(self.right[self.accepted], units)


class Example(NamedTuple):
    """A file of a class, from the run's item table."""

    label: str
    path: str
    gps: float | None = None


class Evidence:
    """Predictions and items of the run that a model folder lies in.

    Parameters
    ----------
    folder : the model folder; None for a model without one.
    classes : the model's classes.
    """

    def __init__(self, folder: Path | None, classes: list[str]) -> None:
        self.run = None if folder is None else folder.parent
        self.classes = classes

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """Predictions for known classes: truth, best, probability, distance_p, split. May be empty."""
        frame = self._table("predictions.csv", COLUMNS)
        of_known = frame["truth"].isin(self.classes) & frame["best"].isin(self.classes)
        return frame.loc[of_known & frame["probability"].between(0, 1)].reset_index(drop=True)

    @cached_property
    def calibration(self) -> pd.DataFrame:
        """The predictions for calibration files, on which the threshold was chosen."""
        return self.predictions.loc[self.predictions["split"].eq("calibration")]

    def rule_effect(self, rule: AnyRule | None) -> RuleEffect | None:
        """Coverage and accuracy of a rule without a floor of the score, which the run's table does not hold; None for the
        model's rule, which the run used.

        None without predictions for calibration files.
        """
        rows = self.calibration
        if rows.empty:
            return None
        label = rows["label"]
        if rule is not None:
            decisions = rule.again(decisions_of([*rows.itertuples()], self.classes))
            label = pd.Series(decisions.labels(rule.names(self.classes)), rows.index, dtype=object)
        accepted = label.ne(UNKNOWN)
        right = accepted & is_correct(rows.assign(label=label))
        units = pd.factorize(rows["unit"])[0] if "unit" in rows else None
        return RuleEffect(accepted.to_numpy(bool), right.to_numpy(bool), units)

    def matching_threshold(self) -> float:
        """The threshold that answers as many calibration files as the model's rule; 0.5 without any."""
        point = self.rule_effect(None)
        if point is None or not point.answered:
            return 0.5
        return float(self.calibration["probability"].nlargest(point.answered).iloc[-1])

    @cached_property
    def report(self) -> Mapping[str, Any]:
        """The run's report.json; empty if it is missing or has other classes."""
        if self.run is None or not (file := self.run / "report" / "report.json").is_file():
            return {}
        try:
            report = json.loads(file.read_text(encoding="utf-8"))
            fits = [row["class"] for row in report["classes"]] == self.classes
            return report if fits and isinstance(report["splits"], dict) else {}
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            log.warning("%s: cannot be read (%s); the page does without", file, error)
            return {}

    @cached_property
    def confusion(self) -> npt.NDArray[np.int64]:
        """Counts [true, answer] of the run's report, the last column refused files; all 0 without one."""
        shape = (len(self.classes), len(self.classes) + 1)
        try:
            counts = np.asarray(self.report["answers"], np.int64)
        except (LookupError, TypeError, ValueError, OverflowError):
            return np.zeros(shape, np.int64)
        return counts if counts.shape == shape else np.zeros(shape, np.int64)

    def matrix_files(self) -> str:
        """Number and splits of the files in the confusion matrix; "" without any."""
        splits = sorted(self.report.get("splits") or self.predictions["split"].unique())
        names = " and ".join(part_name(name) for name in splits)
        return f"{self.confusion.sum()} {names} files" if self.confusion.any() else ""

    def reliability(self) -> Markup | None:
        """The reliability diagram, from the bins of the run's report; None without one."""
        try:
            split, bins = self.report["evaluated_split"], self.report["reliability"]["after"]
            ece = self.report["splits"][split]["calibration"]["after"]["ece"]["value"]
            return reliability(bins, f"{part_name(str(split))} files", ece)
        except (LookupError, TypeError, ValueError) as error:
            log.info("no reliability diagram: %r", error)
            return None

    @cached_property
    def items(self) -> pd.DataFrame:
        """The run's item table, training files last; may be empty."""
        frame = self._table("items.csv", {"path", "label", "split"})
        first = {"test": 0, "calibration": 1, "valid": 2, "unknown": 3}
        order = frame["split"].map(first).fillna(len(first))
        return frame.loc[order.sort_values(kind="stable").index]

    def examples(self, *, limit: int = 40, ood: int = 0) -> list[Example]:
        """An existing file of each class, training files last, and ``ood`` of unknown classes."""
        examples = []
        counts = {**dict.fromkeys(self.classes, 1), UNKNOWN: ood}
        for label, rows in self.items.groupby("label", sort=False):
            missing = counts.get(str(label), 0)
            for row in rows.to_dict("records"):
                if not missing:
                    break
                path = Path(str(row["path"]))
                if path.is_file():
                    gps = row.get("gps")
                    has_time = isinstance(gps, float) and np.isfinite(gps)
                    examples.append(Example(str(label), str(path), gps if has_time else None))
                    missing -= 1
        order = [*self.classes, UNKNOWN]
        return sorted(examples, key=lambda item: order.index(item.label))[:limit]

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


def about_html(predictor: Predictor, evidence: Evidence) -> Markup:
    """The tab on the model: its card, a picture of each class, and its figures."""
    bundle = predictor.bundle
    (height, width), trained = bundle.spec.shape, bundle.provenance
    confusion = evidence.confusion
    refused = confusion[:, -1].sum()
    examples = {item.label: item for item in evidence.examples()}
    return render(
        "app",
        "about.html",
        tiles=[
            (name, float(bundle.metrics[key]), _limits(bundle.metrics.get(f"{key}_interval")))
            for key, name in _TILES.items()
            if isinstance(bundle.metrics.get(key), int | float)
            # Validation files chose the weights: others show better how good the model is.
            and not (
                key.startswith("valid_") and key.replace("valid", "calibration") in bundle.metrics
            )
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
        notes=predictor.rule.notes,
        classes=[
            (name, _thumbnail(predictor, examples[name]) if name in examples else "")
            for name in predictor.classes
        ],
        examples=examples,
        matrix_files=evidence.matrix_files(),
        wrong=confusion.sum() - np.trace(confusion) - refused,
        refused=refused,
        confusion=confusion.tolist(),
        reliability=evidence.reliability(),
    )


def _limits(interval: object) -> tuple[float, float] | None:
    """The 95 % limits of a figure; None if the run has none."""
    match interval:
        case [float() | int() as low, float() | int() as high]:
            return low, high
    return None


def _thumbnail(predictor: Predictor, item: Example) -> str:
    try:
        return page_picture(Pictures(predictor).render(Part(item.path, at=item.gps)), 160)
    except SecondhandError as error:
        log.info("no example: %s", error)
        return ""
