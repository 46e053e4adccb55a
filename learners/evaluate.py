"""``python -m learners.evaluate MODEL --data FOLDER --out FOLDER``: how good a model is on other data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from datasets.core import progress
from datasets.core.errors import SecondhandError, counted
from datasets.core.options import config_action
from learners.acceleration import keep_memory_on_cpu
from learners.cli import console, result
from learners.cli.flags import add_flags, bare_parser, check_once
from learners.cli.settings import EvaluateSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    parser = bare_parser(
        "learners.evaluate",
        "Measure a model on labelled files that it was not trained on: accuracy, calibration, and how many files of "
        "unknown classes it refuses. Writes a report and a table of predictions. With --no-labels it estimates "
        "the accuracy. "
        "Exit status: 0; 3 if some files could not be used (they are listed); 2 for a wrong call.",
        usage="MODEL --data SOURCE",
        examples=(
            "python -m learners.evaluate runs/photos/model --data other-site/ --out report",
            "python -m learners.evaluate runs/photos/model --data test.csv --unknown others/",
            "python -m learners.evaluate runs/photos/model --data unlabelled/ --no-labels",
        ),
    )
    parser.add_argument("model", help="Model folder, such as runs/photos/model.")
    text = "YAML file of settings, one name: value per line. Flags override it."
    parser.add_argument("--config", action=config_action(), metavar="FILE", help=text)
    add_flags(parser, EvaluateSettings)
    check_once(argv, "--data", "--unknown")
    namespace = parser.parse_args(argv)
    settings = EvaluateSettings(
        **{f.name: getattr(namespace, f.name) for f in fields(EvaluateSettings)}
    )

    console.log_to_terminal()
    keep_memory_on_cpu(settings.device)
    with progress.step("Loading the program"):
        from learners.events.evaluation import evaluate_events
        from learners.events.report import event_sentences
        from learners.runs.evaluation import estimate, evaluate

    if settings.events and not settings.labels:
        raise SecondhandError("--events needs labels. Leave --no-labels or --events out")
    if settings.gap and not settings.events:
        raise SecondhandError("--gap needs --events. Give it too, or leave --gap out")
    judge = evaluate_events if settings.events else evaluate if settings.labels else estimate
    evaluated = judge(settings, command=console.as_typed("learners.evaluate", argv))
    metrics = evaluated.metrics
    if settings.events:
        lines, alarm = event_sentences(metrics), not metrics["found"]
    else:
        lines = result.sentences(metrics, evaluated.confusions, what="files")
        alarm = result.answers_almost_nothing(metrics)
    if not settings.labels:
        lines = _expected(metrics)
    print()
    result.print_result(lines, alarm=alarm)
    print(*evaluated.lines, sep="\n")
    for item in evaluated.bad:
        print(f"{item.path}: {item.reason}", file=sys.stderr)
    if evaluated.bad:
        print(f"{counted(len(evaluated.bad), 'file')} could not be used", file=sys.stderr)
    print(f"Look at the report:  {evaluated.folder}/index.html")
    predictions = f"{evaluated.folder}/predictions.csv"
    if settings.events:
        print(f"{counted(metrics['predicted'], 'predicted event') + ':':<20} {predictions}")
    else:
        print(f"All predictions:     {predictions}")
    return 3 if evaluated.bad else 0


def _expected(metrics: Mapping[str, Any]) -> list[str]:
    """Sentences on the expected result for files without labels."""
    names = {
        "expected_accuracy": "Expected accuracy: {}.",
        "accepted": "Answers {} of the files.",
    }
    return [
        text.format(result.percent(metrics[n]))
        for n, text in names.items()
        if metrics.get(n) is not None
    ]


if __name__ == "__main__":
    console.run(main)
