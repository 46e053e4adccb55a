"""The work of ``learners.predict``: checks the call, predicts files and writes them; reads class subsets and thresholds."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.core import progress
from datasets.core.cells import check_not_spreadsheet, read_csv, read_text, with_points
from datasets.core.errors import SecondhandError, counted, quoted
from datasets.core.files import is_replaceable
from datasets.core.options import flag
from datasets.core.scanning import skipped_line
from datasets.items.labels import UNKNOWN
from datasets.kinds.base import KINDS
from datasets.kinds.finding import find_files, some_files
from learners.inference.cluster import model_digest
from learners.inference.decoding import group_by_round
from learners.inference.predictions import Prediction
from learners.outputs.journal import Journal, journal_file
from learners.predictions.boxes import with_detections
from learners.predictions.provenance import check_record
from learners.predictions.rows import RowSettings, refusals
from learners.uncertainty.gates import Why

if TYPE_CHECKING:
    from datasets.sources.megadetector import Detections
    from learners.inference.predictor import Predictor
    from learners.outputs.base import Output

log = logging.getLogger(__name__)

#: Embeddings that are predicted at once.
EMBEDDINGS = 256
#: Settings that may change when a job resumes: they do not affect predictions, or name files.
_FREE = (
    "model", "paths", "out", "overwrite", "workers", "device", "engine", "cluster", "deployments",
)  # fmt: skip


def check_call(
    output: Output, shape: RowSettings, kind: str, out: Path | None, *, overwrite: bool
) -> None:
    """Check what a format shall write, and where.

    Raises
    ------
    SecondhandError : the rows, the ``kind`` of data or ``out`` do not suit it, or ``out`` exists without ``overwrite``
        and is not an unfinished job.
    """
    if problem := output.check(shape, kind):
        raise SecondhandError(f"--format {output.name} {problem}")
    if out is None:
        if output.needs_out:
            raise SecondhandError(f"--format {output.name} writes {output.needs_out} as --out")
        return
    if not output.folder and out.is_dir():
        raise SecondhandError(
            f"--out {out} is a folder. Give a file, such as {out / 'predictions.csv'}"
        )
    if output.folder and out.exists() and not out.is_dir():
        raise SecondhandError(
            f"--out {out} is a file, but --format {output.name} writes a folder. Give a folder"
        )
    if not out.is_dir() and not is_replaceable(out):
        raise SecondhandError(f"--out {out} is a pipe or a device. Give a file")
    if not output.folder:
        check_not_spreadsheet(out)
    occupied = any(out.iterdir()) if out.is_dir() else out.exists()
    if occupied and not overwrite and not journal_file(out).exists():
        raise SecondhandError(
            f"--out {out} already exists. Choose another name or give --overwrite"
        )
    check_record(out, overwrite=overwrite)


def predict_files(
    predictor: Predictor,
    settings: Any,
    options: Mapping[str, Any],
    output: Output,
    shape: RowSettings,
) -> int:
    """Predict the files of the call; write them to ``--out`` or standard output; return the exit status.

    Parameters
    ----------
    settings : parsed settings of the command.
    options : options of the `Predictor`, for the workers of a cluster.
    """
    skipped: Counter[str] = Counter()
    detections = shape.detections
    if detections is None:
        files = some_files(settings.paths, predictor.kind, skipped)
        if not KINDS[predictor.kind].opened:
            return _predict_embeddings(predictor, files, settings, output, shape)
    else:
        files = iter(detections.frames)
        for file in detections.rejected:
            print(f"{file.path}: {file.reason}", file=sys.stderr)
    total: Callable[[], Callable[[], int | None]]
    total, strain = partial(_total, settings.paths, predictor.kind, detections), shape.strain
    if strain is not None:
        listed = strain.paths(files)
        files, total = iter(listed), lambda: lambda: len(listed)
    name_files = strain or iter
    # On a terminal a table shows its bad files by itself.
    shown = settings.out is None and output.lists_classes and sys.stdout.isatty()
    tally = Tally(settings.at, listed=not (shown and sys.stderr.isatty()))
    if settings.out is None:
        predictions = _predict(predictor, files, settings, options, detections)
        if not sys.stdout.isatty():  # on a terminal the rows themselves show the progress
            predictions = _counted(predictions, total())
        output.write(_merged(tally(name_files(predictions)), shape), shape, None)
    else:
        job_settings = _job_settings(settings, predictor, output.name, options, detections)
        with Journal(settings.out, job_settings, overwrite=settings.overwrite) as journal:
            pending = journal.pending(files)
            predictions = _predict(predictor, pending, settings, options, detections)
            with progress.step("Predicting", 0) as advance:
                count = total()
                for done in journal.add(_rounds(predictions, settings)):
                    advance(done, count())
            output.write(_merged(tally(name_files(journal)), shape), shape, settings.out)
            if shape.provenance is not None:
                shape.provenance.write(settings.out, tally.counts())
            journal.finish()
    if strain is not None and strain.summary():
        print(strain.summary(), file=sys.stderr)
    for line in shape.clock.remarks() if shape.clock else ():
        print(line, file=sys.stderr)
    if skipped:
        print(skipped_line(skipped), file=sys.stderr)
    merged = shape.events or shape.bursts
    return tally.status("" if merged is None else merged.summary())


def _predict_embeddings(
    predictor: Predictor, files: Iterator[str], settings: Any, output: Output, shape: RowSettings
) -> int:
    """`predict_files` for files of embeddings: a row for each item in them. It takes seconds, so none is resumed."""
    if settings.cluster is not None:
        raise SecondhandError(
            f"--cluster {settings.cluster}: embeddings are predicted on this machine, in seconds. Leave it out"
        )
    from datasets.sources.embeddings import add_embeddings  # with pandas

    rejected = add_embeddings(files, predictor.lookup)
    for item in rejected:
        print(f"{item.path}: {item.reason}", file=sys.stderr)
    tally = Tally(None)
    sources = predictor.lookup.parts()
    predictions = predictor.predict(sources, bs=max(settings.bs, EMBEDDINGS))
    counted = progress.counted(predictions, "Predicting", len(sources), "items")
    output.write(tally(counted), shape, settings.out)
    return tally.status() or (3 if rejected else 0)


def _merged(predictions: Iterable[Prediction], shape: RowSettings) -> Iterable[Prediction]:
    return predictions if shape.bursts is None else shape.bursts(predictions)


def _total(
    paths: Sequence[str], kind: str, detections: Detections | None
) -> Callable[[], int | None]:
    """Counts the files in a thread, as listing a large folder takes long; None until they are counted."""
    if detections is not None:
        return lambda: len(detections.frames)
    counts: list[int] = []

    def count() -> None:
        counts.append(sum(1 for _ in find_files(paths, kind)))

    threading.Thread(target=count, daemon=True).start()
    return lambda: counts[0] if counts else None


def _counted(
    predictions: Iterator[Prediction], total: Callable[[], int | None]
) -> Iterator[Prediction]:
    """Yield the predictions and show their progress."""
    with progress.step("Predicting", 0) as advance:
        for done, prediction in enumerate(predictions, 1):
            yield prediction
            advance(done, total())


class Tally:
    """Counts predictions as they pass, and prints the files that could not be predicted to standard error.

    ``listed`` : False if these files are only counted, because the terminal shows their rows.
    """

    def __init__(self, at: float | None, *, listed: bool = True) -> None:
        self.at, self.listed = at, listed
        self.count, self.answered, self.whys = 0, 0, Counter[Why]()

    def __call__(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        for prediction in predictions:
            yield prediction
            self.count += 1
            if prediction.label != UNKNOWN:
                self.answered += 1
            else:
                self.whys[prediction.reason.why] += 1
            if prediction.reason.failed and self.listed:
                print(f"{prediction.path}: {prediction.reason}", file=sys.stderr)

    def counts(self) -> dict[str, int]:
        """Number of files, of the answered ones, and of the others by reason."""
        return {
            "files": self.count,
            "answered": self.answered,
            **{str(why): n for why, n in self.whys.most_common()},
        }

    def status(self, summary: str = "") -> int:
        """Log how many files were answered and refused, and print how many were not predicted.

        ``summary`` : says it of events, if these are the rows.

        Returns the exit status: 0, or 3 if some files were not predicted.
        """
        if self.count:
            unknown, reasons = refusals(self.whys)
            files = counted(self.count, "file")
            log.info(
                "%s",
                summary or f"{files}: {self.answered} answered, {unknown} unknown{reasons}",
            )
        if bad := self.whys[Why.BAD_FILE]:
            print(f"{bad} of {self.count} files could not be read", file=sys.stderr)
        if outside := self.whys[Why.NO_MOMENT]:
            message = f"{outside} of {self.count} files do not contain the time --at {self.at}"
            print(message, file=sys.stderr)
        return 3 if bad or outside else 0


def _predict(
    predictor: Predictor,
    files: Iterator[str],
    settings: Any,
    options: Mapping[str, Any],
    detections: Detections | None,
) -> Iterator[Prediction]:
    """Predictions from this machine or from the workers of a cluster, with the detector's confidences."""
    if settings.cluster is None:
        workers = settings.workers
        predictions = predictor.predict(files, at=settings.at, bs=settings.bs, workers=workers)
        if detections is not None:
            predictions = (with_detections(one, detections) for one in predictions)
        yield from predictions
        return
    from datasets.cluster import connect
    from learners.inference.cluster import predict_on

    with connect(settings.cluster, workers=settings.workers) as cluster:
        how = {"at": settings.at, "bs": settings.bs, "device": settings.device, **options}
        yield from predict_on(cluster, settings.model, files, **how)


def _rounds(predictions: Iterator[Prediction], settings: Any) -> Iterator[list[Prediction]]:
    """Groups of predictions that the journal writes together: rounds, on a cluster batches of files."""
    if settings.cluster is not None:
        return iter(lambda: list(islice(predictions, settings.bs)), [])
    return group_by_round(predictions, settings.bs)


def _job_settings(
    settings: Any,
    predictor: Predictor,
    format: str,
    options: Mapping[str, Any],
    detections: Detections | None,
) -> dict[str, Any]:
    """Everything that the predictions depend on, except the files."""
    named = {flag(name): value for name, value in vars(settings).items() if name not in _FREE}
    return {
        "model": model_digest(settings.model)[:12],
        "detections": detections and hashlib.sha256(detections.file.read_bytes()).hexdigest()[:12],
        "folders": [name for name in settings.paths if os.path.isdir(name)],
        **named,
        "--classes": options.get("only"),
        "--threshold-per-class": settings.threshold_per_class and options["threshold"],
        "--format": format,
        "--device": settings.device if settings.cluster else predictor.device,
        "--engine": settings.engine if settings.cluster else predictor.engine,
        "--cluster": "on" if settings.cluster else "off",
    }


def read_class_names(classes: str) -> tuple[str, ...]:
    """Class names from a file with one per line, or from a comma-separated list.

    Raises
    ------
    SecondhandError : there is no name.
    """
    parts = classes.split(",")
    if os.path.isfile(classes):
        parts = read_text(Path(classes)).splitlines()
    if not (names := tuple(name for line in parts if (name := line.strip()))):
        raise SecondhandError(
            f"--classes {classes} contains no class name. Give names separated by commas, or a file with one name per "
            "line"
        )
    return names


def check_class_names(names: Sequence[str], model: str, classes: Sequence[str], flag: str) -> None:
    """Raise SecondhandError for names that are not classes of the model."""
    if unknown := [name for name in names if name not in classes]:
        raise SecondhandError(
            f"{flag}: the model {model} has no class {', '.join(unknown)[:300]}. Its classes are "
            f"{', '.join(classes)[:500]}"
        )


def read_thresholds(file: Path) -> dict[str, float]:
    """Thresholds by class, probabilities in [0, 1], from a CSV file with the columns label and threshold.

    Raises
    ------
    SecondhandError : a column is missing, a class appears twice, or a threshold is not a probability.
    """
    prefix = f"--threshold-per-class {file}"
    cells = read_csv(file)
    thresholds: dict[str, float] = {}
    if not {"label", "threshold"} <= {*cells}:
        raise SecondhandError(
            f"{prefix} has the columns {', '.join(map(str, cells))[:200] or '(none)'}; it needs the columns label and threshold"
        )
    for label, value in zip(
        cells["label"].str.strip(), with_points(cells["threshold"]), strict=True
    ):
        if label in thresholds:
            raise SecondhandError(f"{prefix}: the class {quoted(label)} has two rows. Delete one")
        try:
            thresholds[label] = float(value)
        except (TypeError, ValueError):
            thresholds[label] = -1.0
        if not 0 <= thresholds[label] <= 1:
            raise SecondhandError(
                f"{prefix}: the threshold {quoted(value)} of {quoted(label)} is not a number from 0 to 1"
            )
    return thresholds
