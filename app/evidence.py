"""What is known of a model from items that it was not trained on, as the page shows it.

The held-out answers lie beside the model, in the run's ``predictions.csv``; a model folder that was
moved away from its run has none, and the page says so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from datasets.tables import UNKNOWN

log = logging.getLogger(__name__)
COLUMNS = {"path", "label", "best", "probability", "truth", "split"}


@dataclass(frozen=True)
class Bought:
    """What a rule gives on the calibration items: of ``items``, ``answered``, and of those ``right``."""

    items: int
    answered: int
    right: int


@dataclass(frozen=True)
class Examples:
    """A file of a class, as the run's table names it."""

    label: str
    path: str
    gps: float | None = None


class Evidence:
    """The held-out answers and the items of the run that a model folder lies in.

    Parameters
    ----------
    folder : the model folder; None for a model that has none.
    classes : the model's classes.
    """

    def __init__(self, folder: Path | None, classes: list[str]) -> None:
        self.run = None if folder is None else folder.parent
        self.classes = classes

    @cached_property
    def answers(self) -> pd.DataFrame:
        """Held-out known items: truth, best, probability, distance_p, split. May be empty."""
        frame = self._table("predictions.csv", COLUMNS)
        known = frame["truth"].isin(self.classes) & frame["best"].isin(self.classes)
        frame = frame.loc[known & frame["probability"].between(0, 1)]
        if "distance_p" not in frame:
            frame = frame.assign(distance_p=np.nan)
        return frame.reset_index(drop=True)

    @cached_property
    def calibration(self) -> pd.DataFrame:
        """Those of `answers` that the threshold was set on."""
        return self.answers.loc[self.answers["split"].eq("calibration")]

    def buys(self, threshold: float | None, alpha: float) -> Bought | None:
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
            taken = held["label"].ne(UNKNOWN)
        else:
            taken = held["probability"].ge(threshold) & ~held["distance_p"].lt(alpha)
        right = taken & held["best"].eq(held["truth"])
        return Bought(len(held), int(taken.sum()), int(right.sum()))

    def as_strict(self) -> float:
        """The threshold that takes as many calibration items as the model's own rule; else a half."""
        own = self.buys(None, 0.0)
        if own is None or not own.answered:
            return 0.5
        return float(self.calibration["probability"].nlargest(own.answered).iloc[-1])

    def judged(self) -> tuple[pd.DataFrame, str]:
        """The answers that a confusion matrix and a reliability diagram are drawn of, and of what.

        The test split where the run has one, else everything that was held out.
        """
        test = self.answers.loc[self.answers["split"].eq("test")]
        if len(test):
            return test, f"{len(test)} items of the test split"
        names = ", ".join(sorted(self.answers["split"].unique()))
        return self.answers, f"{len(self.answers)} held-out items ({names})"

    def confusion(self) -> npt.NDArray[np.int64]:
        """Counts [true, answered] of `judged`."""
        rows, _ = self.judged()
        number = {name: i for i, name in enumerate(self.classes)}
        matrix = np.zeros((len(number), len(number)), np.int64)
        np.add.at(matrix, (rows["truth"].map(number), rows["best"].map(number)), 1)
        return matrix

    @cached_property
    def items(self) -> pd.DataFrame:
        """The run's table of items; may be empty. Held-out ones first."""
        frame = self._table("items.csv", {"path", "label", "split"})
        order = (
            frame["split"].map({"test": 0, "calibration": 1, "valid": 2, "unknown": 3}).fillna(4)
        )
        return frame.loc[order.sort_values(kind="stable").index]

    def examples(
        self, per_class: int = 1, *, limit: int = 40, strangers: int = 0
    ) -> list[Examples]:
        """Files of each class that are still there, held-out ones before training ones."""
        found = []
        wanted = {**dict.fromkeys(self.classes, per_class), "unknown": strangers}
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
            frame = pd.read_csv(self.run / name, dtype=text, keep_default_na=False)
        except (OSError, ValueError, pd.errors.ParserError) as error:
            log.warning("%s: cannot be read (%s); the page does without", self.run / name, error)
            return empty
        if not columns <= set(frame):
            return empty
        for column in {"probability", "distance_p", "gps"} & set(frame):
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
        return frame
