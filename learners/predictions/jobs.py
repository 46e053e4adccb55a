"""Files -> predictions -> a table: what ``learners.predict`` does once it knows the model and the
format; and what a question says of classes: which may be answered, and each from what probability on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.core import progress
from datasets.core.cells import read_dicts
from datasets.core.errors import SecondhandError, quoted
from datasets.core.options import flag
from datasets.core.scanning import find_files, skipped_line, some_files
from learners.inference import Prediction, group_by_round, model_digest
from learners.predictions.formats import write
from learners.predictions.journal import Journal
from learners.predictions.rows import RowSettings
from learners.uncertainty import Why

if TYPE_CHECKING:
    from learners.inference import Predictor

#: Settings that no prediction depends on, and the files, some of which may come while a job is stopped.
_FREE = ("model", "paths", "out", "overwrite", "workers", "device", "engine", "cluster")


def predict_files(
    predictor: Predictor, settings: Any, options: Mapping[str, Any], format: str, shape: RowSettings
) -> int:
    """Answer the files of the call, in this format, at ``--out`` or on standard output. Returns the command's
    exit status.

    Parameters
    ----------
    settings : the command's, as it has parsed them.
    options : of the `Predictor`, for those of a cluster.
    """
    skipped: Counter[str] = Counter()
    files = some_files(settings.paths, predictor.kind, skipped)
    tally = Tally(settings.at)
    if settings.out is None:
        answers = tally(_predict(predictor, files, settings, options))
        if not sys.stdout.isatty():  # else the rows themselves show how far it is
            answers = _counted(answers, settings.paths, predictor.kind)
        write(format, answers, shape, None)
    else:
        question = _question(settings, predictor, format, options)
        with Journal(settings.out, question, overwrite=settings.overwrite) as journal:
            answers = _predict(predictor, journal.left(files), settings, options)
            with progress.step("Predicting", 0) as advance:
                total = _total(settings.paths, predictor.kind)
                for done in journal.add(_rounds(answers, settings)):
                    advance(done, total())
            write(format, tally(journal), shape, settings.out)
            journal.finish()
    if shape.events is not None:
        print(shape.events.summary(), file=sys.stderr)
    if skipped:
        print(skipped_line(skipped), file=sys.stderr)
    return tally.status()


def _total(paths: Sequence[str], kind: str) -> Callable[[], int | None]:
    """Counts the files in a thread, as listing a large folder takes long; None until they are counted."""
    counts: list[int] = []

    def count() -> None:
        counts.append(sum(1 for _ in find_files(paths, kind)))

    threading.Thread(target=count, daemon=True).start()
    return lambda: counts[0] if counts else None


def _counted(
    answers: Iterator[Prediction], paths: Sequence[str], kind: str
) -> Iterator[Prediction]:
    with progress.step("Predicting", 0) as advance:
        total = _total(paths, kind)
        for done, answer in enumerate(answers, 1):
            yield answer
            advance(done, total())


class Tally:
    """Counts answers on their way, and lists the files that have none on standard error."""

    def __init__(self, at: float | None) -> None:
        self.at = at
        self.count, self.whys = 0, Counter[Any]()

    def __call__(self, answers: Iterable[Prediction]) -> Iterator[Prediction]:
        for answer in answers:
            yield answer
            self.count += 1
            if answer.reason.unanswered:
                self.whys[answer.reason.why] += 1
                print(f"{answer.path}: {answer.reason}", file=sys.stderr)

    def status(self) -> int:
        """The command's exit status, after a word on what was not answered."""
        if bad := self.whys[Why.BAD_FILE]:
            print(f"{bad} of {self.count} files were bad", file=sys.stderr)
        if outside := self.whys[Why.NO_MOMENT]:
            print(f"{outside} of {self.count} files do not hold --at {self.at}", file=sys.stderr)
        return 3 if bad or outside else 0


def _predict(
    predictor: Predictor, files: Iterator[str], settings: Any, options: Mapping[str, Any]
) -> Iterator[Prediction]:
    """The model's answers from here, or from the workers of a cluster."""
    if settings.cluster is None:
        workers = settings.workers
        yield from predictor.predict(files, at=settings.at, bs=settings.bs, workers=workers)
        return
    from datasets.cluster import connect
    from learners.inference import predict_on

    with connect(settings.cluster, workers=settings.workers) as cluster:
        how = {"at": settings.at, "bs": settings.bs, "device": settings.device, **options}
        yield from predict_on(cluster, settings.model, files, **how)


def _rounds(answers: Iterator[Prediction], settings: Any) -> Iterator[list[Prediction]]:
    """Answers that the journal keeps together: on a cluster a task, which is a batch of files, however
    many windows they have."""
    if settings.cluster is not None:
        return iter(lambda: list(islice(answers, settings.bs)), [])
    return group_by_round(answers, settings.bs)


def _question(
    settings: Any, predictor: Predictor, format: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """All that the answers depend on, but for the files."""
    named = {flag(name): value for name, value in vars(settings).items() if name not in _FREE}
    return {
        "the model of config.json": model_digest(settings.model)[:12],
        "the folders": [name for name in settings.paths if os.path.isdir(name)],
        **named,
        "--classes": options.get("only"),
        "--threshold-per-class": settings.threshold_per_class and options["threshold"],
        "--format": format,
        "--device": settings.device if settings.cluster else predictor.device,
        "--engine": settings.engine if settings.cluster else predictor.engine,
        "--cluster": "given" if settings.cluster else "not given",
    }


def read_class_names(classes: str) -> tuple[str, ...]:
    """Those in a file, one a line, or those with commas between them."""
    named = (
        _text(classes, "--classes").splitlines() if os.path.isfile(classes) else classes.split(",")
    )
    if not (names := tuple(name for line in named if (name := line.strip()))):
        raise SecondhandError(
            f"--classes {classes}: names no class; give some with commas between them, or a file with a "
            "name a line"
        )
    return names


def check_class_names(names: Sequence[str], model: str, classes: Sequence[str], flag: str) -> None:
    """Raise SecondhandError for names that are no classes of the model."""
    if strange := [name for name in names if name not in classes]:
        raise SecondhandError(
            f"{flag}: {model} has no {', '.join(strange)[:300]}; it has {', '.join(classes)[:500]}"
        )


def read_thresholds(file: Path) -> dict[str, float]:
    """Of a CSV file with the columns label and threshold: probabilities in [0, 1] by class.

    Raises
    ------
    SecondhandError : a column is missing, a class is there twice, or a threshold is none.
    """
    begin = f"--threshold-per-class {file}"
    columns, rows = read_dicts(_text(str(file), "--threshold-per-class").splitlines())
    found: dict[str, float] = {}
    if not {"label", "threshold"} <= {*columns}:
        raise SecondhandError(
            f"{begin}: columns {', '.join(columns)[:200] or '(none)'}; label and "
            "threshold are needed"
        )
    for row in rows:
        label, value = (row["label"] or "").strip(), row["threshold"]
        if label in found:
            raise SecondhandError(f"{begin}: {quoted(label)} is there twice")
        try:
            found[label] = float(value)
        except (TypeError, ValueError):
            found[label] = -1.0
        if not 0 <= found[label] <= 1:
            raise SecondhandError(
                f"{begin}: {quoted(value)} of {quoted(label)} is no probability from 0 to 1"
            )
    return found


def _text(file: str, flag: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise SecondhandError(f"{flag} {file}: cannot be read as text in UTF-8 ({error})") from None
