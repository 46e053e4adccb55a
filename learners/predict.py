"""usage: python -m learners.predict MODEL PATH... [flags]

Predict the class of each file, or unknown with a reason: ambiguous (the probability is too low), unusual (the
overall score is too low) or out of distribution (too far from the training data). Writes one row per file to
standard output and messages to standard error. Exit status: 0; 3 if some files could not be used (they are listed)
or do not contain the time --at; 2 for a wrong call.

examples:
  python -m learners.predict runs/photos/model new/            # a table on the terminal
  python -m learners.predict runs/photos/model new/ --out predictions.csv
  python -m learners.predict runs/animals/model camera/detections.json --windows --out boxes.csv
  python -m learners.predict runs/birds/model night.wav --events --format raven --out night.txt
  python -m learners.predict runs/glitches/model H1.hdf5 --at 1126259462.4
  python -m learners.predict runs/glitches/model frames/ --events --out events.csv
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from learners.calls.sections.base import SECTIONS, predict_settings
from learners.cli import console
from learners.cli.commands import PredictSettings
from learners.cli.flags import call_parser
from learners.machine.acceleration import few_collections

if TYPE_CHECKING:
    from learners.calls.base import Call
    from learners.inference.machines import Machines
    from learners.inference.options import Options
    from learners.inference.predictor import Predictor
    from learners.model.bundle import Bundle

log = logging.getLogger(__name__)

#: Flags that the help shows by itself, beside those of the sections.
USUAL = (
    "format", "out", "overwrite", "classes", "threshold", "keep_known", "windows", "at", "bs", "device",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    sections = SECTIONS.ours().values()
    usual = [*USUAL, *(name for section in sections for name in section.usual)]
    parser = call_parser(__doc__, PredictSettings, *sections, usual=usual)
    settings = predict_settings(parser.chosen(argv))
    settings.check()

    console.start(settings)
    if settings.out is None:
        console.require_output()
    from learners.files.published import published
    from learners.predictions.provenance import Provenance

    command, out = console.as_typed("predict", argv), settings.out
    with few_collections() as loaded:
        call, predictor, machines = _loaded(settings)
        loaded()
        provenance = Provenance.record(predictor, settings.model, command)
        with published(out, overwrite=settings.overwrite) as settings.out:
            status = call.run(predictor, machines, provenance)
    if out is not None:
        log.info("Written: %s", out)
    return status


def _loaded(settings: PredictSettings) -> tuple[Call, Predictor, Machines]:
    """How a call predicts, the predictor of its model, and the machines that compute."""
    from learners.calls.base import find_call
    from learners.inference.machines import machines_for
    from learners.inference.predictor import Predictor
    from learners.model.bundle import load_bundle
    from learners.model.places import model_folder
    from learners.outputs.base import OUTPUTS

    default = "csv" if settings.out or not sys.stdout.isatty() else "table"
    output = OUTPUTS.find(settings.format or default, "--format")
    settings.model = str(model_folder(settings.model))
    bundle = load_bundle(settings.model, network=False)
    call = find_call(settings, bundle, output)
    # The probability of merged rows depends on all classes.
    top = sys.maxsize if call.lists_all and call.top > 0 else call.top
    options = call.options(replace(_options(settings, bundle), top=top))
    machines = machines_for(settings, options)
    predictor = Predictor(
        bundle,
        rule=options.overrides.rule(bundle),
        pieces=call.pieces(),
        top=options.top,
        opening=options.opening,
        computing=replace(options.computing, device=machines.device),
    )
    return call, predictor, machines


def _options(settings: PredictSettings, bundle: Bundle) -> Options:
    """The options that all calls have."""
    from learners.inference.options import Computing, Opening, Options, Overrides
    from learners.predictions.classes import check_class_names, read_class_names, read_thresholds

    only: tuple[str, ...] | None = None
    threshold: float | Sequence[float | None] | None = settings.threshold
    if settings.classes is not None:
        only = tuple(read_class_names(settings.classes))
        check_class_names(only, settings.model, bundle.classes, "--classes")
    if settings.threshold_per_class is not None:
        # Classes that are not in the file have that of --threshold, or of the model.
        thresholds = read_thresholds(settings.threshold_per_class)
        check_class_names([*thresholds], settings.model, bundle.classes, "--threshold-per-class")
        threshold = tuple(thresholds.get(name, settings.threshold) for name in bundle.classes)
    return Options(
        overrides=Overrides(
            threshold=threshold, keep_known=settings.keep_known, score=settings.score, only=only
        ),
        opening=Opening(workers=settings.workers, allow_truncated=settings.allow_truncated),
        computing=Computing(
            bs=settings.bs, device=settings.device, engine=settings.engine, tta=settings.tta
        ),
    )


if __name__ == "__main__":
    console.run(main)
