"""``python -m learners.predict MODEL PATH...``: one answer a file, on standard output."""

from __future__ import annotations

import csv
import glob
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from datasets.errors import SecondhandError, one_line
from learners import console
from learners.asking import AskSettings, TriggerSettings
from learners.flags import add_flags, bare_parser
from learners.machine import keep_memory_on_cpu

if TYPE_CHECKING:
    from learners.prediction import Prediction, Predictor


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, predict, print. Returns 0, or 3 where some files were bad."""
    parser = bare_parser(
        "learners.predict",
        "Answers for files: a header and a row each on standard output, messages on "
        "standard error. Exit status 0, 3 if some files were bad or do not hold the moment --at (they "
        "are listed), 2 for a wrong call.",
    )
    parser.add_argument("model", help="model folder, as RUN/model")
    said = {word.partition("=")[0] for word in (sys.argv[1:] if argv is None else argv)}
    # With "*" argparse takes no path that stands behind a flag.
    some = "*" if "--triggers" in said else "+"
    parser.add_argument("paths", nargs=some, help="files, folders, or patterns in quotes")
    answers = parser.add_argument_group("answers")
    answers.add_argument(
        "--format", type=Literal["csv", "jsonl"], default="csv", help="of the rows"
    )
    answers.add_argument("--top", type=int, default=3, help="best classes listed")
    answers.add_argument(
        "--at",
        type=float | None,
        default=None,
        help="moment that every file is asked about: GPS time in seconds of strain (its loudest moment "
        "if not given), seconds from the beginning of a sound (all of it if not given)",
    )
    answers.add_argument(
        "--windows",
        action="store_true",
        help="a row for each window of a long recording, instead of one for the file",
    )
    answers.add_argument(
        "--sets",
        action="store_true",
        help="also the set of classes that holds the right one with the coverage fine-tuned for",
    )
    answers.add_argument(
        "--no-tta",
        action="store_true",
        help="look at each file once, where the model was calibrated to look at it several times",
    )
    add_flags(answers, TriggerSettings)
    answers.add_argument(
        "--out", type=Path | None, default=None, help="of --triggers: .csv, .hdf5 or .ecsv file"
    )
    answers.add_argument("--overwrite", action="store_true", help="replace what is at --out")
    add_flags(parser, AskSettings)
    parser.add_argument(
        "--engine",
        type=Literal["auto", "torch", "onnx"],
        default="auto",
        help="what does the network's arithmetic; onnx is ONNX Runtime on the CPU, and what auto takes "
        "there for a model that holds model.onnx",
    )
    parser.add_argument(
        "--cluster",
        type=str | None,
        default=None,
        help="Dask scheduler whose workers answer, as tcp://10.0.0.1:8786; or local",
    )
    settings = parser.parse_args(argv)

    console.log_to_terminal()
    keep_memory_on_cpu("cpu" if settings.engine == "onnx" else settings.device)
    from learners.confidence import Why
    from learners.prediction import Predictor, check_moment

    options = {name: getattr(settings, name) for name in ("threshold", "score", "top", "engine")}
    options["tta"] = not settings.no_tta
    device = "cpu" if settings.cluster else settings.device
    predictor = Predictor(settings.model, device=device, **options)
    if settings.sets and predictor.confidence.sets is None:
        raise SecondhandError(
            f"--sets: {settings.model} makes no sets; fine-tune with --coverage 0.9 for them"
        )
    if settings.triggers is not None:
        return _triggers(predictor, settings)
    if settings.strain is not None:
        raise SecondhandError(f"--strain {settings.strain}: of which --triggers?")
    skipped: Counter[str] = Counter()
    files = some_files(settings.paths, predictor.kind, skipped)
    check_moment(predictor.kind, settings.at)
    shown = {"set": settings.sets, "known": settings.score is not None}
    hidden = [name for name, asked in shown.items() if not asked]
    write = _csv_writer(hidden) if settings.format == "csv" else _jsonl_writer(hidden)
    bad = outside = count = 0
    for prediction in _predictions(predictor, files, settings, options):
        for row in (settings.windows and prediction.windows) or [prediction]:
            write(row)
        count += 1
        if prediction.reason.unanswered:
            bad += prediction.reason.why is Why.BAD_FILE
            outside += prediction.reason.why is Why.NO_MOMENT
            print(f"{prediction.path}: {prediction.reason}", file=sys.stderr)
    if skipped:
        print(told(skipped), file=sys.stderr)
    if bad:
        print(f"{bad} of {count} files were bad", file=sys.stderr)
    if outside:
        print(f"{outside} of {count} files do not hold --at {settings.at}", file=sys.stderr)
    return 3 if bad or outside else 0


def _triggers(predictor: Predictor, settings: Any) -> int:
    """The table of --triggers with an answer a row, to --out or standard output."""
    from datasets.strain import read_frames
    from datasets.triggers import check_table, read_triggers, write_table
    from learners.prediction import answer_triggers

    other = ("at", "windows", "sets", "cluster")
    wrong = [*settings.paths[:1], *(f"--{name}" for name in other if getattr(settings, name))]
    if wrong or settings.strain is None or predictor.kind != "strain":
        said = f"not with {', '.join(wrong)}" if wrong else "with --strain, of a model of strain"
        raise SecondhandError(f"--triggers {settings.triggers}: {said}")
    if settings.out is not None:
        check_table(settings.out, overwrite=settings.overwrite)
    triggers, frames = read_triggers(settings.triggers), read_frames(settings.strain)
    for file in frames.rejected:
        print(f"{file.path}: {file.reason}", file=sys.stderr)
    table, bad = answer_triggers(
        predictor, triggers, frames, bs=settings.bs, workers=settings.workers
    )
    write_table(table, settings.out or sys.stdout)
    for row in bad:
        print(f"{row.path}: {row.reason}", file=sys.stderr)
    if bad:
        print(f"{len(bad)} of {len(table)} triggers were not answered", file=sys.stderr)
    return 3 if bad else 0


def _predictions(
    predictor: Predictor, files: Iterator[str], settings: Any, options: dict[str, Any]
) -> Iterator[Prediction]:
    """The model's answers from here, or from the workers of a cluster."""
    if settings.cluster is None:
        yield from predictor.predict(
            files, at=settings.at, bs=settings.bs, workers=settings.workers
        )
        return
    from datasets.drawings import connect
    from learners.prediction import predict_on

    with connect(settings.cluster, workers=settings.workers) as cluster:
        asked = {"at": settings.at, "bs": settings.bs, "device": settings.device, **options}
        yield from predict_on(cluster, settings.model, list(files), **asked)


def find_files(
    names: Sequence[str], kind: str | None = None, skipped: Counter[str] | None = None
) -> Iterator[str]:
    """The files behind names: themselves, a pattern's matches, or those in a folder and below.

    In a folder only files of the kind count; a file named outright is always answered, if only with
    what is wrong with it.

    Parameters
    ----------
    kind : what the model is asked about, "picture", "sound" or "strain"; None for all that is read.
    skipped : counts, by the endings of their names, what a folder holds besides.
    """
    from datasets.kinds import kind_of
    from datasets.scanning import visible

    for name in names:
        if os.path.isdir(name):
            for folder, folders, files in os.walk(name):
                folders.sort()
                for file in sorted(files):
                    if not visible(Path(file)):
                        continue
                    if (found := kind_of(file)) and kind in (None, found):
                        yield str(Path(folder, file))
                    elif skipped is not None:
                        skipped[Path(file).suffix.lower() or "without an ending"] += 1
        elif not os.path.exists(name) and glob.has_magic(name):
            # A pattern that matches nothing is answered as a file that is not there.
            yield from sorted(glob.glob(name, recursive=True)) or [name]
        else:
            yield name


def some_files(names: Sequence[str], kind: str, skipped: Counter[str]) -> Iterator[str]:
    """`find_files` where there must be one; raises SecondhandError at once where there is none."""
    files = find_files(names, kind, skipped)
    first = next(files, None)
    if first is None:
        raise SecondhandError(
            f"{', '.join(names)[:500]}: no {kind} of a kind that is read"
            f"{f' ({told(skipped)})' if skipped else ''}; name files, folders that hold some, "
            "or patterns"
        )
    return chain([first], files)


def told(skipped: Counter[str]) -> str:
    """What a folder held besides, in words."""
    counts = [f"{count} {ending}" for ending, count in skipped.most_common(10)]
    more = ["…"] if len(skipped) > 10 else []
    return one_line(
        f"skipped {skipped.total()} files of other kinds: {', '.join([*counts, *more])}"
    )


def _csv_writer(hidden: Sequence[str]) -> Callable[[Prediction], None]:
    from learners.prediction import Prediction, cell

    writer = csv.writer(sys.stdout, lineterminator="\n")
    # Windows are rows of their own.
    columns = [name for name in Prediction._fields if name not in ("windows", *hidden)]
    writer.writerow(columns)
    return lambda row: writer.writerow([cell(getattr(row, name)) for name in columns])


def _jsonl_writer(hidden: Sequence[str]) -> Callable[[Prediction], None]:
    return lambda row: print(json.dumps(_as_json(row, hidden), ensure_ascii=False))


def _as_json(row: Prediction, hidden: Sequence[str]) -> dict[str, object]:
    from learners.files import jsonable

    known = row._asdict() | {"windows": [_as_json(window, hidden) for window in row.windows]}
    return {name: jsonable(value) for name, value in known.items() if name not in hidden}


if __name__ == "__main__":
    console.run(main)
