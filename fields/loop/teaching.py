"""Suggests which files of a pool to label next.

Files are chosen one after the other: each maximises its uncertainty times the squared distance of its
features to the nearest file chosen before. This is the greedy k-center algorithm of core-set selection
(arXiv:1708.00489) with distances weighted by uncertainty, as BADGE (arXiv:1906.03671) weights by gradient
length. So the files differ, and the first part of the list is also a good choice.

Uncertainty is 1 minus the margin between the two most probable classes (calibrated; arXiv:2210.03822 compares
such measures), for multi-label models that of the least certain label, and 1 for files out of distribution.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datasets.core.address import absolute
from datasets.core.errors import Rejected, SecondhandError
from datasets.core.file_state import FileState, read_states
from datasets.core.part import FileOrPart, Part, parts_of
from datasets.items.labels import UNKNOWN
from datasets.kinds.finding import some_files
from datasets.tables.cells import read_frame
from fields.loop.embeddings import nameable
from fields.loop.listing import check_out
from fields.loop.pool_settings import PoolSettings
from learners.cli import console
from learners.inference.predictions import DetailedPrediction, Floats
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.model.places import model_folder
from learners.rule.reasons import Reason, Why
from learners.rule.scores.base import normalise

log = logging.getLogger(__name__)

#: Largest number of candidates; of more files, the least certain are kept. At 1280 features they take 50 MB, and
#: a few times more during the choice.
KEPT = 10_000
_NEAR = 0.5  # s: of a moment in strain

#: Labelled part of a file, as (from, to) in seconds; from -inf to inf for the whole file.
Span = tuple[float, float]


@dataclass
class LabelledContent:
    """Files and spans that have a label.

    Attributes
    ----------
    contents : spans by `FileState.content`. So a copy of a labelled file counts as labelled, but not a file that has
        replaced one.
    paths : spans by absolute path, for files whose content is not known.
    """

    contents: dict[tuple[int, str], list[Span]] = field(default_factory=lambda: defaultdict(list))
    paths: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))

    def spans(self, path: str, state: FileState | None) -> Sequence[Span]:
        """Labelled spans of a file in this state."""
        content = self.contents.get(state.content, []) if state else []
        return [*content, *self.paths.get(absolute(path), [])]


class Suggestion(NamedTuple):
    """A file, or a window of a recording, to label.

    Attributes
    ----------
    part : the file, with its time span or the moment of strain.
    score : uncertainty, or with ``mine`` the probability; 0 to 1.
    why : the reason as text.
    guess : the best class; for multi-label models the labels assigned.
    """

    part: Part
    score: float
    why: str
    guess: str


@dataclass
class Pool:
    """Files of which some are to be labelled. Iterating yields the predictions of the files, or windows of long
    recordings, without a label; copies and silence are left out. Afterwards it knows their numbers.

    Attributes
    ----------
    taught : content that has a label already and is left out.
    rejected : bad files.
    skipped : other files in the folders that were named, by ending.
    count : number of files.
    judged, labelled, copies, silent : number of files or windows that are candidates, have a label already, are
        copies of an earlier file, and are silent.
    """

    predictor: Predictor
    files: Iterable[FileOrPart]
    taught: LabelledContent = field(default_factory=LabelledContent)
    rejected: list[Rejected] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    count: int = 0
    judged: int = 0
    labelled: int = 0
    copies: int = 0
    silent: int = 0

    @classmethod
    def open(cls, settings: PoolSettings, paths: Sequence[str], out: Path) -> Pool:
        """The pool of a command whose results go to ``out``; for a model of embeddings, the items in the files."""
        check_out(out, overwrite=settings.overwrite)
        settings.model = str(model_folder(settings.model))
        predictor = load_predictor(settings.model, **settings.computing)
        taught, skipped = labelled_in(settings.model), Counter[str]()
        files = some_files(paths, predictor.kind, skipped)
        items, rejected = predictor.decoder.items(files)
        return cls(predictor, items, taught, rejected, skipped)

    @property
    def unit(self) -> str:
        """What the numbers count: "windows" if a file has several, else "files"."""
        parts = self.judged + self.labelled + self.copies + self.silent
        return "windows" if parts + len(self.rejected) > self.count else "files"

    def __iter__(self) -> Iterator[DetailedPrediction]:
        before = set[tuple[int, str]]()
        files = nameable(self._counted(), self.rejected)
        for part, windows in self.predictor.predict_windows(files):
            bad = next((w.prediction.reason for w in windows if w.prediction.reason.failed), None)
            if bad is not None:
                self.rejected.append(Rejected(part.path, bad.detail))
                continue
            state = self.predictor.decoder.state(part.path)
            spans = self.taught.spans(part.path, state)
            copy = state is not None and state.content in before
            if state:
                before.add(state.content)
            for window in windows:
                if window.logits is None or window.features is None:
                    self.silent += 1
                elif any(_covers(span, window) for span in spans):
                    self.labelled += 1
                elif copy:
                    self.copies += 1
                else:
                    self.judged += 1
                    yield window

    def _counted(self) -> Iterator[FileOrPart]:
        for file in self.files:
            self.count += 1
            yield file


def suggest(pool: Pool, *, n: int = 50, mine: bool = False) -> list[Suggestion]:
    """The files, or windows of long recordings, whose labels would improve the model most; the most useful first.

    Parameters
    ----------
    n : number of suggestions.
    mine : suggest the answers with the highest probability instead, in this order. In files without events of the
        classes these are false alarms, to be learned as background (hard negative mining, arXiv:1604.03540).
    """
    if n < 1:
        raise SecondhandError(f"--n {n}: expected at least 1")
    candidates: list[tuple[float, Suggestion, Floats]] = []

    def least_certain() -> list[tuple[float, Suggestion, Floats]]:
        return sorted(candidates, key=lambda candidate: -candidate[0])[:KEPT]

    for window in pool:
        if mine and window.prediction.label == UNKNOWN:
            continue
        row = _suggestion(pool.predictor, window)
        if mine:
            row = row._replace(score=window.prediction.probability)
        assert window.features is not None
        # Copied, because a view would keep the features of its whole batch in memory.
        candidates.append((row.score, row, window.features.copy()))
        if len(candidates) > 2 * KEPT:
            candidates = least_certain()
    candidates = least_certain()
    if not candidates:
        return []
    scores, rows, features = zip(*candidates, strict=True)
    order = range(n) if mine else choose_diverse(scores, np.stack(features), n)
    return [rows[row] for row in order if row < len(rows)]


def choose_diverse(scores: ArrayLike, features: Floats, n: int) -> list[int]:
    """Indices of uncertain rows that differ from each other, in order.

    Parameters
    ----------
    scores : uncertainty of each row, [rows], 0 to 1.
    features : [rows, width]; only directions count.
    n : number of rows; fewer if there are fewer.
    """
    uncertainty, x = np.asarray(scores, dtype=float), normalise(features)
    distances = np.ones(len(x))  # squared distance to the nearest chosen row
    chosen: list[int] = []
    while len(chosen) < min(n, len(x)):
        gains = uncertainty * (distances + 1e-9)  # also ranks copies of chosen rows by uncertainty
        gains[chosen] = -1
        row = int(gains.argmax())
        # Not 2 less twice the cosine, which is rounding where rows are alike.
        to_row = np.square(x - x[row]).sum(axis=1)
        distances = np.minimum(distances, to_row) if chosen else to_row
        chosen.append(row)
    return chosen


def margin_uncertainty(probabilities: NDArray[np.floating]) -> NDArray[np.floating]:
    """1 minus the margin between the two largest probabilities of each row, [n].

    ``probabilities`` [n, classes] may sum to less than 1: the rest is the background class.
    """
    rest = np.clip(1 - probabilities.sum(axis=1, keepdims=True), 0, None)
    largest = np.sort(np.hstack([probabilities, rest]), axis=1)[:, -2:]
    return 1 - (largest[:, 1] - largest[:, 0])


def _suggestion(predictor: Predictor, window: DetailedPrediction) -> Suggestion:
    prediction, rule = window.prediction, predictor.rule
    assert window.logits is not None
    logits = np.asarray(window.logits, float)[None]
    classes, guess = predictor.classes, prediction.best
    probabilities = rule.probabilities(logits)
    if not rule.exclusive:  # the least certain label counts
        least = int(np.abs(probabilities[0] - 0.5).argmin())
        classes, probabilities = [classes[least]], probabilities[:, least : least + 1]
        guess = "" if prediction.label == UNKNOWN else prediction.label
    out_of_distribution = prediction.reason.why is Why.OUT_OF_DISTRIBUTION
    part = prediction.part
    score = 1.0 if out_of_distribution else float(margin_uncertainty(probabilities)[0])
    return Suggestion(part, score, _words(classes, probabilities[0], prediction.reason), guess)


def _words(classes: Sequence[str], probabilities: NDArray[np.floating], reason: Reason) -> str:
    """The reason of a suggestion, for example "ambiguous: Apple 48 % or Pear 41 %"."""
    candidates = [
        *zip(classes, probabilities, strict=True),
        ("none of them", 1 - probabilities.sum()),
    ]
    first, second = sorted(candidates, key=lambda candidate: -candidate[1])[:2]
    # Rounded down, as `learners.predict` shows them.
    text = f"{first[0]} {math.floor(100 * first[1] + 1e-9)} %"
    if second[1] >= 0.01:
        text += f" or {second[0]} {math.floor(100 * second[1] + 1e-9)} %"
    return f"{reason}: {text}" if reason else text


def labelled_in(model: str | os.PathLike[str]) -> LabelledContent:
    """The labelled content of the run of a model folder, RUN/model; empty without a run.

    Files are identified by their content when the run started, or by path if that is not known.
    """
    run, labelled = Path(model).parent, LabelledContent()
    file = run / "items.csv"
    if not file.is_file():
        return labelled
    try:
        rows = read_frame(file)
        states = read_states(run)
        for part in parts_of(rows):
            state, span = states.get(part.path), _span(part)
            if state is None:
                labelled.paths[absolute(part.path)].append(span)
            else:
                labelled.contents[state.content].append(span)
    except (ValueError, TypeError, KeyError, OSError) as error:
        log.warning(
            "%s cannot be read (%s), so labelled files may be suggested", file, str(error)[:100]
        )
        return LabelledContent()
    return labelled


def _span(part: Part) -> Span:
    """Span of a part in seconds, infinite where it has no limit."""
    if part.at is not None:
        return part.at - _NEAR, part.at + _NEAR
    return (
        -math.inf if part.start is None else part.start,
        math.inf if part.end is None else part.end,
    )


def _covers(span: Span, window: DetailedPrediction) -> bool:
    """Whether a labelled span overlaps the window."""
    first, last = _span(window.prediction.part)
    return span[0] < last and first < span[1]


def tell_pool(pool: Pool, paths: Sequence[str]) -> int:
    """Print which files of a pool were left out, and why; return the exit status of `learners.cli.console.tell_left_out`.

    Raises
    ------
    SecondhandError : all files are bad.
    """
    status = console.tell_left_out(pool.rejected, pool.count, pool.skipped)
    left_out = {
        "of the model's run (labelled or given as --unknown), and copies of them": pool.labelled,
        "copies of another file": pool.copies,
        "without signal": pool.silent,
    }
    for why, count in left_out.items():
        if count:
            print(f"Left out, {why}: {count} {pool.unit}", file=sys.stderr)
    if pool.rejected and not (pool.judged or pool.labelled or pool.silent):
        raise SecondhandError(f"{', '.join(paths)[:500]}: no file can be used")
    return status
