"""usage: python -m learners.evaluate MODEL --data SOURCE [flags]

Measure a model on labelled files that it was not trained on: accuracy, calibration, and how many files of unknown
classes it refuses. Writes a report and a table of predictions. With --no-labels it estimates the accuracy. Exit
status: 0; 3 if some files could not be used (they are listed); 2 for a wrong call.

examples:
  python -m learners.evaluate runs/photos/model --data other-site/ --out report
  python -m learners.evaluate runs/photos/model --data test.csv --unknown others/
  python -m learners.evaluate runs/photos/model --data unlabelled/ --no-labels
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from datasets.core import progress
from datasets.core.errors import counted
from learners.cli import console, result
from learners.cli.commands import EvaluateSettings
from learners.cli.flags import read_call
from learners.machine.acceleration import keep_memory_on_cpu


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    settings = read_call(EvaluateSettings, argv, __doc__, files=True)

    console.log_to_terminal()
    keep_memory_on_cpu(settings.device)
    with progress.step("Loading the program"):
        from learners.elsewhere.evaluation import estimate, evaluate
        from learners.events.evaluation import evaluate_events
        from learners.events.report import event_sentences

    judge = evaluate_events if settings.events else evaluate if settings.labels else estimate
    evaluated = judge(settings, command=console.as_typed("learners.evaluate", argv))
    metrics = evaluated.metrics
    if settings.events:
        lines, alarm = event_sentences(metrics), not metrics["found"]
    else:
        lines = result.sentences(
            metrics, evaluated.confusions, what="files", labels=evaluated.labels
        )
        alarm = result.answers_almost_nothing(metrics)
    if not settings.labels:
        lines = _expected(metrics)
    print()
    result.print_result(lines, alarm=alarm)
    print(*evaluated.lines, sep="\n")
    for item in evaluated.bad:
        print(item, file=sys.stderr)
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
