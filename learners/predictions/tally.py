"""Counts the answers of a call as they pass, and says how many there are."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from datasets.core.errors import Rejected, counted
from datasets.items.labels import UNKNOWN
from learners.inference.predictions import Prediction
from learners.predictions.rows import refusals
from learners.rule.reasons import Why

log = logging.getLogger(__name__)


class Tally:
    """Counts predictions as they pass, and prints the files that could not be predicted to standard error.

    ``listed`` : False if these files are only counted, because the terminal shows their rows. ``window`` : length of
    the longest window in seconds; None until a recording is judged in windows.
    """

    window: float | None = None

    def __init__(self, at: float | None, *, listed: bool = True) -> None:
        self.at, self.listed = at, listed
        self.count, self.answered, self.whys = 0, 0, Counter[Why]()

    def __call__(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        for prediction in predictions:
            yield prediction
            self.count += 1
            for part in (window.part for window in prediction.windows):
                if part.start is not None and part.end is not None:
                    self.window = max(self.window or 0.0, part.end - part.start)
            if prediction.label != UNKNOWN:
                self.answered += 1
            else:
                self.whys[prediction.reason.why] += 1
            if prediction.reason.failed and self.listed:
                print(Rejected(prediction.path, str(prediction.reason)), file=sys.stderr)

    def counts(self) -> dict[str, int]:
        """Number of files, of the answered ones, and of the others by reason."""
        return {
            "files": self.count,
            "answered": self.answered,
            **{str(why): n for why, n in self.whys.most_common()},
        }

    def status(self, summary: str = "") -> int:
        """Log how many files were answered and refused, and print how many were not predicted.

        ``summary`` : says it, where the rows are not those of files.

        Returns the exit status: 0, or 3 if some files were not predicted.
        """
        if self.count:
            unknown, reasons = refusals(self.whys)
            files = counted(self.count, "file")
            text = summary or f"{files}: {self.answered} answered, {unknown} unknown{reasons}"
            if self.window is not None:
                stop = "." * text.endswith(".")
                text = f"{text.rstrip('.')}. Windows are {self.window:.4g} s long{stop}"
            log.info("%s", text)
        if bad := self.whys[Why.BAD_FILE]:
            print(f"{bad} of {self.count} files could not be read", file=sys.stderr)
        if outside := self.whys[Why.NO_MOMENT]:
            message = f"{outside} of {self.count} files do not contain the time --at {self.at}"
            print(message, file=sys.stderr)
        return 3 if bad or outside else 0
