"""``python -m learners.predict MODEL PATH...``: one prediction per file, on standard output."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.core.errors import SecondhandError
from datasets.core.options import flag
from datasets.kinds.base import KINDS, Kind
from learners.cli import console
from learners.cli.flags import add_flags, bare_parser
from learners.cli.settings import OutputSettings, PredictSettings, check_replaced

if TYPE_CHECKING:
    from datasets.items.clock import Clock
    from datasets.sources.megadetector import Detections
    from learners.inference.bursts import Bursts
    from learners.inference.predictor import Predictor
    from learners.model.bundle import Bundle
    from learners.outputs.base import Output
    from learners.predictions.rows import Events, RowSettings
    from learners.predictions.strain_files import StrainFiles

log = logging.getLogger(__name__)

#: Flags that the help shows by itself.
USUAL = (
    "format", "out", "overwrite", "classes", "threshold", "keep_known", "windows", "events", "at",
    "triggers", "bs", "device",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    argv = sys.argv[1:] if argv is None else argv
    settings = _parser(argv).parse_args(argv)
    check_replaced(settings)

    console.start(settings)
    if settings.out is None:
        console.require_output()
    from learners.inference.predictor import Predictor
    from learners.model.bundle import load_bundle
    from learners.model.hub import model_folder
    from learners.outputs.base import OUTPUTS
    from learners.predictions.boxes import boxes_of
    from learners.predictions.jobs import predict_files
    from learners.predictions.provenance import Provenance

    usual = "csv" if settings.out or not sys.stdout.isatty() else "table"
    output = OUTPUTS.find(settings.format or usual, "--format")
    settings.model = str(model_folder(settings.model))
    bundle = load_bundle(settings.model, network=False)
    options = _options(settings, bundle, output)
    device = "cpu" if settings.cluster else settings.device
    detections = _detections(settings, bundle)
    parts = None if detections is None else boxes_of(detections, bundle.classes)
    predictor = Predictor(bundle, device=device, **options, parts=parts, recentre=settings.recentre)
    command = console.as_typed("learners.predict", argv)
    provenance = Provenance.of(predictor, settings.model, command)
    if settings.triggers is not None:
        from learners.predictions.triggers import predict_triggers  # with pandas

        return _told(predict_triggers(predictor, settings, provenance), settings.out)
    if settings.strain is not None:
        raise SecondhandError(
            f"--strain {settings.strain} needs a table of triggers. Give it as --triggers"
        )
    shape = _shape(predictor, settings, output, detections)._replace(provenance=provenance)
    return _told(predict_files(predictor, settings, options, output, shape), settings.out)


def _told(status: int, out: Path | None) -> int:
    """The exit status, after a line on where the predictions are."""
    if out is not None:
        log.info("Written: %s", out)
    return status


def _parser(argv: Sequence[str]) -> Any:
    parser = bare_parser(
        "learners.predict",
        "Predict the class of each file, or unknown with a reason: ambiguous (the probability is too low), unusual "
        "(the overall score is too low) or out of distribution (too far from the training data). Writes one row per file to standard "
        "output and messages to standard error. Exit status: 0; 3 if some files could not be used (they are "
        "listed) or do not contain the time --at; 2 for a wrong call.",
        USUAL,
        usage="MODEL PATH...",
        examples=(
            "python -m learners.predict runs/photos/model new/            # a table on the terminal",
            "python -m learners.predict runs/photos/model new/ --out predictions.csv",
            "python -m learners.predict runs/animals/model camera/detections.json --windows --out boxes.csv",
            "python -m learners.predict runs/birds/model night.wav --events --format raven --out night.txt",
            "python -m learners.predict runs/glitches/model H1.hdf5 --at 1126259462.4",
            "python -m learners.predict runs/glitches/model frames/ --events --out events.csv",
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


def _options(settings: Any, bundle: Bundle, output: Output) -> dict[str, Any]:
    """Options of the `Predictor`."""
    from learners.predictions.jobs import check_class_names, read_class_names

    options = {
        name: getattr(settings, name)
        for name in ("threshold", "keep_known", "score", "engine", "tta")
    }
    options["top"] = top = _top(settings)
    if (settings.events or settings.scores) and top > 0:
        options["top"] = sys.maxsize  # the probability of an event depends on all classes
    in_windows = settings.windows or settings.events or output.windows
    options["allow_truncated"] = settings.allow_truncated or (
        in_windows and KINDS[bundle.kind].recordings
    )
    if settings.classes is not None:
        options["only"] = read_class_names(settings.classes)
        check_class_names(options["only"], settings.model, bundle.classes, "--classes")
    if settings.threshold_per_class is not None:
        options["threshold"] = _thresholds(settings, bundle)
    return options


def _top(settings: Any) -> int:
    """Number of classes to list."""
    return 3 if settings.top is None else int(settings.top)


def _detections(settings: Any, bundle: Bundle) -> Detections | None:
    """The results of a detector, if the call names such a file; raises SecondhandError for settings without one."""
    from datasets.sources.megadetector import has_detections, is_detections, read_detections

    files = [Path(path) for path in settings.paths if is_detections(Path(path))]
    if not files:
        if settings.min_box_confidence is not None:
            raise SecondhandError(
                "--min-box-confidence needs the JSON of MegaDetector as the file to predict. Give it, or leave the flag out"
            )
        folders = [Path(path) for path in settings.paths if bundle.of_boxes and os.path.isdir(path)]
        for file in filter(has_detections, chain.from_iterable(map(Path.iterdir, folders))):
            log.warning("%s has the boxes of a detector. To predict them, name it instead", file)
        return None
    if len(settings.paths) > 1:
        raise SecondhandError(
            f"{files[0]} names its pictures itself. Give it alone, and call once for each such file"
        )
    if not KINDS[bundle.kind].photo:
        raise SecondhandError(
            f"{files[0]} lists pictures, but {settings.model} is for {bundle.kind}"
        )
    if settings.cluster is not None:
        raise SecondhandError(
            f"--cluster {settings.cluster} does not predict the boxes of {files[0]}. Leave it out"
        )
    return read_detections(files[0], settings.min_box_confidence)


def _shape(
    predictor: Predictor, settings: Any, output: Output, detections: Detections | None
) -> RowSettings:
    """Rows and fields to write; raises SecondhandError for those that this model or format does not support."""
    from datasets.items.clock import Clock
    from datasets.items.deployments import read_deployments
    from learners.inference.predictions import check_moment
    from learners.predictions.jobs import check_call
    from learners.predictions.rows import RowSettings

    exclusive = predictor.confidence.exclusive
    check_moment(predictor.kind, settings.at)
    kind = KINDS[predictor.kind]
    _check_flags(settings, kind, output, of_boxes=detections is not None)
    strain = _strain(predictor, settings)
    clockless = kind.gps or not kind.opened
    if settings.deployments is not None and clockless:
        raise SecondhandError(
            f"--deployments {settings.deployments} is for pictures and sound, but this is a model for {predictor.kind}. "
            "Leave it out"
        )
    deployments = settings.deployments and read_deployments(settings.deployments)
    clock = None if clockless else Clock(deployments, settings.paths)
    events, bursts = _events(settings, exclusive), None
    if events is not None and kind.photo:
        assert clock is not None
        if detections is not None:
            clock.sequences = {path: one.sequence for path, one in detections.frames.items()}
        events, bursts = None, _bursts(predictor, settings, clock)
    if events is not None and strain is not None:
        events.unit = ""
    hidden = {*predictor.unused} | ({"offset"} if events is not None else set())
    hidden |= {"known"} if settings.score is None else set()
    hidden |= {"box", "detection"} if detections is None else set()
    low, high = (getattr(predictor.spectrogram, name, 0.0) for name in ("fmin", "fmax"))
    shape = RowSettings(
        windows=settings.windows or output.windows or (detections is not None and output.parts),
        events=events,
        bursts=bursts,
        top=_top(settings),
        lists_top=settings.top is not None,
        hidden=sorted(hidden),
        names=settings.paths,
        band=(low, high),
        classes=predictor.names,
        gps=kind.gps,
        clock=clock,
        detections=detections,
        strain=strain,
        exclusive=exclusive,
    )
    check_call(output, shape, predictor.kind, settings.out, overwrite=settings.overwrite)
    return shape


def _strain(predictor: Predictor, settings: Any) -> StrainFiles | None:
    """How the strain of the call is read; None if each file is judged by itself, at one moment."""
    from datasets.strain.settings import QScanSettings
    from learners.predictions.strain_files import StrainFiles

    scan = settings.windows or settings.events
    if not isinstance(predictor.spectrogram, QScanSettings):
        names = [flag(n) for n in ("channel", "recentre", "scores") if getattr(settings, n)]
        if names:
            raise SecondhandError(
                f"{names[0]} is for strain, but this is a model for {predictor.kind}. Leave it out"
            )
        return None
    if settings.scores:
        raise SecondhandError("--scores needs --triggers. Give it too, or leave it out")
    joins = settings.at is not None and settings.cluster is None
    if not (scan or joins) and settings.channel is None:
        return None
    if settings.cluster is not None:
        name = flag("channel" if settings.channel else "windows" if settings.windows else "events")
        raise SecondhandError(
            f"--cluster {settings.cluster} cannot be combined with {name}. Leave one of them out"
        )
    gap = (settings.gap or 0.0) if settings.events else None
    return StrainFiles(predictor.spectrogram, settings.channel or "", settings.at, scan, gap)


def _events(settings: Any, exclusive: bool) -> Events | None:
    """How windows are merged into events, or None; raises SecondhandError for invalid settings."""
    from learners.predictions.rows import Events

    if not settings.events:
        if settings.gap is not None or settings.min_length:
            raise SecondhandError(
                "--gap and --min-length need --events. Give it too, or leave them out"
            )
        return None
    for name in ("gap", "min_length"):
        if not 0 <= (value := getattr(settings, name) or 0.0) < math.inf:
            raise SecondhandError(f"{flag(name)} {value:g}: expected seconds, 0 or more")
    return Events(settings.gap or 0.0, settings.min_length, exclusive)


def _check_flags(settings: Any, kind: Kind, output: Output, *, of_boxes: bool) -> None:
    """Raise SecondhandError for flags that contradict each other or do not suit the kind of data."""
    row_flags = [flag(name) for name in ("windows", "events") if getattr(settings, name)]
    if of_boxes and row_flags == ["--windows"]:
        row_flags = []
    if kind.photo and row_flags == ["--events"]:
        _check_bursts(settings)
        row_flags = []
    if row_flags and not kind.in_windows:
        raise SecondhandError(
            f"{row_flags[0]} is for recordings of sound and for strain, but this is a model for {kind.name}. Leave it out"
        )
    if len(row_flags) > 1:
        raise SecondhandError(
            "--windows and --events cannot be combined: a row is either a window or an event. Leave one of them out"
        )
    if output.windows:
        row_flags.append(f"--format {output.name}")
    if row_flags and settings.at is not None:
        raise SecondhandError(
            f"{row_flags[0]} predicts all windows of a recording, but --at {settings.at:g} selects one moment. Leave one "
            "of them out"
        )
    if settings.top is not None and not output.lists_classes:
        raise SecondhandError(
            f"--top: --format {output.name} has no column for it. Use --format csv or jsonl"
        )


def _check_bursts(settings: Any) -> None:
    """Raise SecondhandError for flags that events of pictures do not support."""
    unsupported = {
        "--min-length": bool(settings.min_length),
        "--threshold-per-class": settings.threshold_per_class is not None,
    }
    if names := [name for name, given in unsupported.items() if given]:
        raise SecondhandError(
            f"{names[0]} cannot be combined with --events of pictures. Leave one of them out"
        )


def _bursts(predictor: Predictor, settings: Any, clock: Clock) -> Bursts:
    """How frames are merged into events: by the threshold of the call, else by the model's for events."""
    from learners.inference.bursts import GAP, Bursts

    confidence, threshold, problem = predictor.confidence, settings.threshold, ""
    if not confidence.exclusive:
        problem = "has several labels. Leave --events out"
    elif threshold is None and confidence.events is None:
        problem = "has no threshold for events. Leave it out, or give --threshold"
    if problem:
        raise SecondhandError(f"--events: the model {settings.model} {problem}")
    if threshold is None and confidence.events is not None:
        threshold = confidence.events.value
    return Bursts(clock, threshold, GAP if settings.gap is None else settings.gap, _top(settings))


def _thresholds(settings: Any, bundle: Bundle) -> tuple[float | None, ...]:
    """The threshold of each class: from the file, else from --threshold, else None for the model's thresholds."""
    from learners.predictions.jobs import check_class_names, read_thresholds

    thresholds = read_thresholds(settings.threshold_per_class)
    check_class_names([*thresholds], settings.model, bundle.classes, "--threshold-per-class")
    return tuple(thresholds.get(name, settings.threshold) for name in bundle.classes)


if __name__ == "__main__":
    console.run(main)
