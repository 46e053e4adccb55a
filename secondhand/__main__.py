"""``secondhand COMMAND ...``: what ``python -m learners.COMMAND ...`` does in a checkout, from anywhere."""

from __future__ import annotations

import os
import runpy
import sys
from difflib import get_close_matches

import secondhand

#: The module of each command, and what it is for.
COMMANDS = {
    "finetune": ("learners.finetune", "fit a pretrained network to labelled files"),
    "predict": ("learners.predict", "answers for files"),
    "evaluate": ("learners.evaluate", "how good a model is elsewhere"),
    "app": ("app", "a web page over models"),
    "suggest": ("learners.suggest", "which files to label next"),
    "search": ("learners.search", "more files like an example; embeddings of a pool"),
    "export": ("learners.export", "a model as one file for other programs"),
    "share": ("learners.share", "a model and a program that asks it, in one archive"),
    "render": ("datasets.render", "spectrograms and Q-scans as pictures"),
    "catalog": ("datasets.catalog", "public data sets by name"),
    "cache": ("datasets.cache", "look at the cache, check or empty it"),
}


def main() -> None:
    """Give the rest of the line to the command's module, run as ``python -m`` runs it."""
    command, *words = sys.argv[1:] or ["--help"]
    if command in ("--help", "-h"):
        print("usage: secondhand COMMAND ...\n")
        print(*(f"  {name:9} {purpose}" for name, (_, purpose) in COMMANDS.items()), sep="\n")
        print("\nsecondhand COMMAND --help: its flags; secondhand --version")
    elif command == "--version":
        print(f"secondhand {secondhand.__version__}")
    elif command not in COMMANDS:
        near = get_close_matches(command, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else "secondhand --help lists them"
        print(f"error: there is no command {command}; {hint}", file=sys.stderr)
        sys.exit(2)
    else:
        # For the processes that this one starts; those of multiprocessing are told sys.path.
        paths = [str(secondhand.HOME), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        sys.argv = [command, *words]
        runpy.run_module(COMMANDS[command][0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
