"""``python -m learners.evaluate MODEL --data FOLDER --out FOLDER``: how good a model is on other data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields

from datasets.core.options import config_action
from learners.acceleration import keep_memory_on_cpu
from learners.cli import console
from learners.cli.flags import add_flags, bare_parser, check_once
from learners.cli.settings import EvaluateSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, evaluate, print. Returns 0, or 3 where some files were bad."""
    parser = bare_parser(
        "learners.evaluate",
        "Measure a model on other labelled files: accuracy, calibration, and how many files of unknown classes "
        "it refuses. Writes a report and a table of predictions. With --no-labels it estimates the accuracy. "
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
    given = parser.parse_args(argv)
    settings = EvaluateSettings(
        **{f.name: getattr(given, f.name) for f in fields(EvaluateSettings)}
    )

    console.log_to_terminal()
    keep_memory_on_cpu(settings.device)
    from learners.runs import estimate, evaluate

    judge = evaluate if settings.labels else estimate
    result = judge(settings, command=console.as_typed("learners.evaluate", argv))
    console.print_figures(result.metrics)
    print("", *result.lines, sep="\n")
    for item in result.bad:
        print(f"{item.path}: {item.reason}", file=sys.stderr)
    if result.bad:
        print(f"{len(result.bad)} files were bad", file=sys.stderr)
    print(f"\nreport  {result.folder}/index.html\nanswers {result.folder}/predictions.csv")
    return 3 if result.bad else 0


if __name__ == "__main__":
    console.run(main)
