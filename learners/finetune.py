"""``python -m learners.finetune --data FOLDER``: a fine-tuned model, its report and its answers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from learners import _command
from learners.config import FINETUNE
from learners.flags import make_parser, parse


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print. Returns 0, or 130 where Ctrl-C ended the training early."""
    parser = make_parser(
        "learners.finetune",
        "Fine-tune a pretrained backbone on labelled files. Writes a run folder: the model, a "
        "report, the answers for what was held out.",
        FINETUNE,
    )
    settings = parse(parser, argv, FINETUNE)
    data, run_settings = settings[0], settings[-1]

    _command.log_to_terminal()
    from learners.folder import run_folder
    from learners.run import run

    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-m", "learners.finetune", *words])
    with run_folder(data.data, run_settings) as folder:
        _command.log_to_terminal(folder / "log.txt")
        result = run(folder, *settings, command=command)
    print()
    for name, value in result.metrics.items():
        if isinstance(value, float):
            print(f"{name.replace('_', ' '):34} {value:.3f}")
    print(f"\nmodel   {result.folder}/model\nreport  {result.folder}/report/index.html")
    print(f"answers python -m learners.predict {result.folder}/model FILE...")
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    _command.run(main)
