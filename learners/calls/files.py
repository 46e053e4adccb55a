"""Calls that predict files, and of which an interrupted job goes on."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

from datasets.cli.options import flag
from datasets.core import progress
from datasets.core.address import is_address, is_folder
from datasets.core.scanning import skipped_line
from datasets.kinds.base import Kind
from datasets.kinds.finding import find_files, some_files
from learners.calls.base import Call
from learners.calls.sections.base import SECTIONS
from learners.calls.sections.candidates import CandidateSettings
from learners.cli.commands import FREE_OF_PREDICTION
from learners.inference.machines import Machines
from learners.inference.predictions import OPTIONAL, Prediction
from learners.inference.predictor import Predictor
from learners.model.bundle import model_digest
from learners.outputs.checks import check_call
from learners.outputs.journal import Journal
from learners.predictions.advice import Asked, advice
from learners.predictions.candidates import Candidates, Unreviewed
from learners.predictions.describe import refused_sentences
from learners.predictions.provenance import Provenance
from learners.predictions.refused import Refused, RefusedCount, usual_of
from learners.predictions.rows import Feature, Merge, RowSettings, Windows
from learners.predictions.tally import Tally

#: What shows the refused ones.
TO_LIST = "Add --candidates to list what is refused with its best guess, the most probable first."
#: Number of files, once it is known.
Count = Callable[[], int | None]


class FileCall(Call):
    """A call that predicts files.

    Attributes
    ----------
    fields : fields of `Prediction` that only some calls have, and this is one of them.
    unit, piece : as in `Windows`.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str] = "file"
    piece: ClassVar[str] = "window"

    def merge(self, predictor: Predictor) -> Merge:
        """The rows that predictions become."""
        return Windows(self.unit, self.piece) if self.in_windows else Merge()

    @classmethod
    def taken(cls) -> Sequence[str]:
        return [*super().taken(), "candidates"]

    @property
    def in_windows(self) -> bool:
        """Whether each window of a file has a row."""
        return bool(self.settings.windows or self.output.windows)

    def features(self) -> Sequence[Feature]:
        """What adds columns to the rows."""
        return ()

    def files(self, skipped: Counter[str]) -> Iterator[str]:
        """The files to predict; those of other kinds are counted in ``skipped``."""
        return some_files(self.settings.paths, self.bundle.kind, skipped)

    def count(self) -> Count:
        """Counts the files in a thread, as listing a large folder takes long; None until they are counted, and for
        addresses, of which a second listing would cost requests."""
        if any(map(is_address, self.settings.paths)):
            return lambda: None
        counts: list[int] = []
        threading.Thread(
            target=_count, args=([*self.settings.paths], self.bundle.kind, counts), daemon=True
        ).start()
        return lambda: counts[0] if counts else None

    def predicted(self, predictions: Iterator[Prediction]) -> Iterator[Prediction]:
        """The predictions with what the call knows of their files, before they are recorded."""
        return predictions

    def named(self, predictions: Iterable[Prediction]) -> Iterable[Prediction]:
        """The predictions under the names of the user's files."""
        return predictions

    def identity(self) -> dict[str, Any]:
        """What the predictions depend on beside the settings, and without which a job does not go on."""
        return {}

    def remarks(self) -> Iterable[str]:
        """Sentences for the user, once all is written."""
        return ()

    def shape(self, predictor: Predictor, provenance: Provenance) -> RowSettings:
        """Rows and fields to write; raises SecondhandError for those that the format does not support."""
        settings, merge, features = self.settings, self.merge(predictor), [*self.features()]
        unused = {*predictor.unused, *merge.unused}
        if settings.of(CandidateSettings).candidates:
            merge = Candidates(merge, by_file=self.output.folder)
            features.append(Unreviewed())
        hidden = {*OPTIONAL} - {*self.fields} | unused
        hidden |= {"known"} if settings.score is None else set()
        shape = RowSettings(
            merge=merge,
            features=features,
            top=self.top,
            lists_top=settings.top is not None,
            hidden=sorted(hidden),
            names=settings.paths,
            spectrogram=predictor.spectrogram,
            classes=predictor.names,
            exclusive=predictor.rule.exclusive,
            provenance=provenance,
        )
        check_call(self.output, shape, predictor.kind, settings.out, overwrite=settings.overwrite)
        return shape

    def run(self, predictor: Predictor, machines: Machines, provenance: Provenance) -> int:
        settings, output, shape = self.settings, self.output, self.shape(predictor, provenance)
        skipped: Counter[str] = Counter()
        files = self.files(skipped)
        # On a terminal a table shows its bad files by itself.
        shown = settings.out is None and output.lists_classes and sys.stdout.isatty()
        tally = Tally(settings.at, listed=not (shown and sys.stderr.isatty()))

        usual = usual_of(self.bundle, predictor.rule)
        pages = self.bundle.kind.photo
        refused = None if usual is None else RefusedCount(usual, shape.place, pages=pages)

        def rows_of(predictions: Iterable[Prediction]) -> Iterable[Prediction]:
            named = self.named(predictions)
            return shape.merge(tally(named if refused is None else refused(named)))

        def noticed() -> list[Refused]:
            return [] if refused is None else refused.found()

        if settings.out is None:
            predictions = self.predicted(machines.predict(predictor, files))
            if not sys.stdout.isatty():  # on a terminal the rows themselves show the progress
                predictions = _counted(predictions, self.count())
            output.write(rows_of(predictions), shape, None)
        else:
            identity = self._identity(predictor, machines)
            with Journal(settings.out, identity, overwrite=settings.overwrite) as journal:
                pending = journal.pending(files)
                predictions = self.predicted(machines.predict(predictor, pending))
                with progress.step("Predicting", 0) as advance:
                    count = self.count()
                    for done in journal.add(machines.rounds(predictions)):
                        advance(done, count())
                output.write(rows_of(journal), shape, settings.out)
                provenance.write(settings.out, tally.counts(), tally.window, noticed())
                journal.finish()
        for line in chain(self.remarks(), *(one.remarks() for one in shape.features)):
            print(line, file=sys.stderr)
        if skipped:
            print(skipped_line(skipped), file=sys.stderr)
        status = tally.status(shape.merge.summary())
        self._warn(noticed())
        return status

    def _warn(self, notices: Sequence[Refused]) -> None:
        """Say what is refused far more often than usual, and what to do."""
        if not notices:
            return
        settings = self.settings
        folders = [one.name for one in notices if is_folder(one.name)]
        files = folders if len(folders) == len(notices) else settings.paths
        asked = Asked(settings.model, files, notices[0].unit, not self.bundle.rule.exclusive)
        listed = settings.of(CandidateSettings).candidates
        lines = [*refused_sentences(notices), *([] if listed else [TO_LIST]), *advice(asked)]
        for line in lines:
            print(line, file=sys.stderr)

    def _identity(self, predictor: Predictor, machines: Machines) -> dict[str, Any]:
        """Everything that the predictions depend on, except the files."""
        settings, overrides = self.settings, machines.options.overrides
        free = {*FREE_OF_PREDICTION, *chain(*(one.free for one in SECTIONS.ours().values()))}
        named = {name: one.value for name, one in settings.call.items() if name not in free}
        return {
            "model": model_digest(settings.model)[:12],
            "folders": [name for name in settings.paths if is_folder(name)],
            **{flag(name): value for name, value in named.items()},
            "--classes": overrides.only,
            "--threshold-per-class": settings.threshold_per_class and overrides.threshold,
            "--format": self.output.name,
            **machines.record(predictor),
            **self.identity(),
        }


def _counted(predictions: Iterator[Prediction], total: Count) -> Iterator[Prediction]:
    """Yield the predictions and show their progress."""
    with progress.step("Predicting", 0) as advance:
        for done, prediction in enumerate(predictions, 1):
            yield prediction
            advance(done, total())


def _count(paths: Sequence[str], kind: Kind, counts: list[int]) -> None:
    # No method or closure of the call: its thread may outlive the command, and torch aborts the process if a thread
    # frees a network while the interpreter ends.
    counts.append(sum(1 for _ in find_files(paths, kind)))
