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
from collections.abc import Sequence

from datasets.core.errors import counted
from learners.cli import console, result
from learners.cli.commands import EvaluateSettings
from learners.cli.flags import call_parser
from learners.elsewhere.judges import evaluate_settings, find_judge, sections
from learners.machine.acceleration import keep_memory_on_cpu


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    parser = call_parser(__doc__, EvaluateSettings, *sections(), files=True)
    settings = evaluate_settings(parser.chosen(argv))
    settings.check()

    console.log_to_terminal()
    keep_memory_on_cpu(settings.device)
    judge = find_judge(settings)
    evaluated = judge.judge(settings, console.as_typed("evaluate", argv))
    print()
    alarm = judge.is_alarming(evaluated.metrics)
    result.print_result(judge.sentences(evaluated), alarm=alarm)
    print(*evaluated.lines, sep="\n")
    for item in evaluated.bad:
        print(item, file=sys.stderr)
    if evaluated.bad:
        print(f"{counted(len(evaluated.bad), 'file')} could not be used", file=sys.stderr)
    print(f"Look at the report:  {evaluated.folder}/index.html")
    print(f"{judge.rows(evaluated.metrics) + ':':<20} {evaluated.folder}/predictions.csv")
    return 3 if evaluated.bad else 0


if __name__ == "__main__":
    console.run(main)
