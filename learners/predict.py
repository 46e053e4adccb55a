"""``python -m learners.predict MODEL PATH...``: one answer a file, on standard output."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from datasets.core.errors import SecondhandError
from datasets.core.options import flag
from learners.acceleration import keep_memory_on_cpu
from learners.cli import console
from learners.cli.flags import add_flags, bare_parser
from learners.cli.settings import OutputSettings, PredictSettings, check_replaced

if TYPE_CHECKING:
    from learners.inference import Predictor
    from learners.model import Bundle
    from learners.predictions import Events, RowSettings

#: Flags that the help shows by itself.
USUAL = (
    "format", "out", "overwrite", "classes", "threshold", "windows", "events", "at", "sets",
    "triggers", "bs", "device",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, predict, print. Returns 0, or 3 where some files were bad."""
    argv = sys.argv[1:] if argv is None else argv
    settings = _parser(argv).parse_args(argv)
    check_replaced(settings)

    console.log_to_terminal()
    keep_memory_on_cpu("cpu" if settings.engine == "onnx" else settings.device)
    from learners.inference import Predictor
    from learners.model import load_bundle, model_folder
    from learners.predictions import predict_files

    settings.model = str(model_folder(settings.model))
    bundle = load_bundle(settings.model, network=False)
    options = _options(settings, bundle)
    device = "cpu" if settings.cluster else settings.device
    predictor = Predictor(bundle, device=device, **options)
    if settings.sets and predictor.confidence.sets is None:
        raise SecondhandError(
            f"--sets: {settings.model} makes no sets; fine-tune with --coverage 0.9 for them"
        )
    if settings.triggers is not None:
        from learners.predictions import predict_triggers  # with pandas

        return predict_triggers(predictor, settings)
    if settings.strain is not None:
        raise SecondhandError(f"--strain {settings.strain}: of which --triggers?")
    format = settings.format or ("csv" if settings.out or not sys.stdout.isatty() else "table")
    return predict_files(predictor, settings, options, format, _shape(predictor, settings, format))


def _parser(argv: Sequence[str]) -> Any:
    parser = bare_parser(
        "learners.predict",
        "Predict the class of each file, or unknown with a reason: ambiguous (the probability is too low), unusual "
        "(the OOD score is too low) or out of distribution (too far from the training data). Writes one row per file to standard "
        "output and messages to standard error. Exit status: 0; 3 if some files could not be used (they are "
        "listed) or do not contain the time --at; 2 for a wrong call.",
        USUAL,
        usage="MODEL PATH...",
        examples=(
            "python -m learners.predict runs/photos/model new/            # a table on the terminal",
            "python -m learners.predict runs/photos/model new/ --out predictions.csv",
            "python -m learners.predict runs/birds/model night.wav --events --format raven --out night.txt",
            "python -m learners.predict runs/glitches/model H1.hdf5 --at 1126259462.4",
        ),
    )
    parser.add_argument("model", help="Model folder, such as runs/photos/model or hf:USER/NAME.")
    flags = {word.partition("=")[0] for word in argv}
    # With "*" argparse takes no path that stands behind a flag.
    some = "*" if "--triggers" in flags else "+"
    parser.add_argument("paths", nargs=some, help="Files, folders, or patterns in quotes.")
    add_flags(parser.add_argument_group("output"), OutputSettings)
    add_flags(parser.add_argument_group(PredictSettings.__doc__), PredictSettings)
    return parser


def _options(settings: Any, bundle: Bundle) -> dict[str, Any]:
    """Those of the `Predictor`."""
    from learners.predictions import check_class_names, read_class_names

    options = {
        name: getattr(settings, name) for name in ("threshold", "score", "top", "engine", "tta")
    }
    if settings.events and settings.top > 0:
        options["top"] = sys.maxsize  # an event's probability is made of all classes'
    apart = [name for name in ("events", "threshold_per_class") if getattr(settings, name)]
    if apart and bundle.decider.tree is not None:
        raise SecondhandError(f"{flag(apart[0])}: not with the tree of {settings.model}'s classes")
    if settings.sets and settings.classes is not None:
        raise SecondhandError("--sets: their coverage is that of all classes; leave --classes out")
    if settings.classes is not None:
        options["only"] = read_class_names(settings.classes)
        check_class_names(options["only"], settings.model, bundle.classes, "--classes")
    if settings.threshold_per_class is not None:
        options["threshold"] = _thresholds(settings, bundle)
    return options


def _shape(predictor: Predictor, settings: Any, format: str) -> RowSettings:
    """What is shown of each answer; SecondhandError for what this model or format cannot show."""
    from learners.inference import check_moment
    from learners.predictions import RowSettings, check_out

    exclusive = predictor.confidence.exclusive
    if not exclusive and format == "camtrap-dp":
        raise SecondhandError("--format camtrap-dp: not with several labels an item; leave it out")
    check_out(format, predictor.kind, settings.out, overwrite=settings.overwrite)
    check_moment(predictor.kind, settings.at)
    _check_asked(settings, predictor.kind, format)
    tree = predictor.confidence.tree
    shown = {"set": settings.sets, "known": settings.score is not None, "branch": tree is not None}
    return RowSettings(
        windows=settings.windows or format in ("raven", "audacity"),
        events=_events(settings, exclusive),
        top=settings.top,
        hidden=[name for name, asked in shown.items() if not asked],
        names=settings.paths,
        band=(
            getattr(predictor.spectrogram, "fmin", 0.0),
            getattr(predictor.spectrogram, "fmax", 0.0),
        ),
        classes=predictor.classes if tree is None else tree.names,
        gps=predictor.kind == "strain",
    )


def _events(settings: Any, exclusive: bool) -> Events | None:
    """How windows become events; SecondhandError where that cannot be."""
    from learners.predictions import Events

    if not settings.events:
        if settings.gap or settings.min_length:
            raise SecondhandError("--gap and --min-length are of events: give --events too")
        return None
    for name in ("gap", "min_length"):
        if not 0 <= (value := getattr(settings, name)) < math.inf:
            raise SecondhandError(f"{flag(name)} {value:g}: seconds, 0 or more")
    return Events(settings.gap, settings.min_length, exclusive)


def _check_asked(settings: Any, kind: str, format: str) -> None:
    """Raise SecondhandError for flags that would do nothing beside the others, or for this kind."""
    wanted = [flag(name) for name in ("windows", "events") if getattr(settings, name)]
    if wanted and kind != "sound":
        moments = ", each asked about at one moment: --at, or the loudest"
        raise SecondhandError(
            f"{wanted[0]}: recordings of sound are cut into windows, and this is a model of {kind}"
            f"{moments if kind == 'strain' else ''}; leave it out"
        )
    if len(wanted) > 1:
        raise SecondhandError("--windows, --events: a row is a window or an event; leave one out")
    if format in ("raven", "audacity"):
        wanted.append(f"--format {format}")
    if wanted and settings.at is not None:
        raise SecondhandError(
            f"{wanted[0]}: the windows of a recording are answered, and --at {settings.at:g} asks "
            "about one moment; leave one of them out"
        )
    if settings.sets and format not in ("csv", "jsonl", "table"):
        raise SecondhandError(f"--sets: {format} has no place for them; give --format csv or jsonl")


def _thresholds(settings: Any, bundle: Bundle) -> tuple[float | None, ...]:
    """One for each class: the file's, for those that it leaves out --threshold or None, the model's rule."""
    from learners.predictions import check_class_names, read_thresholds

    given = read_thresholds(settings.threshold_per_class)
    check_class_names([*given], settings.model, bundle.classes, "--threshold-per-class")
    return tuple(given.get(name, settings.threshold) for name in bundle.classes)


if __name__ == "__main__":
    console.run(main)
