"""``python -m learners.evaluate MODEL --data FOLDER --out FOLDER``: how good a model is elsewhere."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Literal

from datasets.config_file import config_action
from learners import console
from learners.flags import check_once
from learners.machine import keep_memory_on_cpu
from learners.settings import EvaluateSettings, ScoreName


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, evaluate, print. Returns 0, or 3 where some files were bad."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(
        prog="python -m learners.evaluate",
        description="Judge a model on labelled files, with or without strangers: a report, the "
        "answers as a table, and whether its confidence holds there. Exit status 0, 3 if some "
        "files were bad (they are listed), 2 for a wrong call.",
    )
    parser.add_argument("model", help="model folder, as RUN/model")
    parser.add_argument("--config", action=config_action(), help="YAML file of settings")
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", type=str, required=True, help="labelled files, named as for learners.finetune"
    )
    data.add_argument(
        "--unknown",
        type=str | None,
        default=None,
        help="strangers: a folder, or a table with the column path",
    )
    data.add_argument(
        "--kind",
        type=Literal["auto", "picture", "sound", "strain"],
        default="auto",
        help="kind of the files; what the model judges",
    )
    answers = parser.add_argument_group("answers")
    console.add_threshold_flag(answers)
    answers.add_argument(
        "--score",
        type=ScoreName | None,
        default=None,
        help="what tells known files from strangers; the model's own if not given",
    )
    console.add_speed_flags(parser)
    run = parser.add_argument_group("run")
    run.add_argument("--out", type=str, default="report", help="folder of the report")
    run.add_argument("--overwrite", action="store_true", help="replace an older report there")
    check_once(argv)
    given = parser.parse_args(argv)
    settings = EvaluateSettings(
        **{f.name: getattr(given, f.name) for f in fields(EvaluateSettings)}
    )

    console.log_to_terminal()
    keep_memory_on_cpu(settings.device)
    from learners.runs import evaluate

    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-m", "learners.evaluate", *words])
    result = evaluate(settings, command=command)
    for name, value in result.metrics.items():
        if isinstance(value, float):
            print(f"{name.replace('_', ' '):34} {value:.3f}")
    print()
    for line in result.lines:
        print(line)
    for item in result.bad:
        print(f"{item.path}: {item.reason}", file=sys.stderr)
    if result.bad:
        print(f"{len(result.bad)} files were bad", file=sys.stderr)
    print(f"\nreport  {result.folder}/index.html\nanswers {result.folder}/predictions.csv")
    return 3 if result.bad else 0


if __name__ == "__main__":
    console.run(main)
