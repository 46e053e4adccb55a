"""``secondhand COMMAND ...``: what ``python -m learners.COMMAND ...`` does in a checkout, from anywhere."""

from __future__ import annotations

import os
import runpy
import sys
from difflib import get_close_matches

import secondhand

#: The module of each command, and what it is for.
COMMANDS = {
    "finetune": ("learners.finetune", "fine-tune a pretrained network on labelled files"),
    "predict": ("learners.predict", "predict the class of files"),
    "evaluate": ("learners.evaluate", "measure a model on other data"),
    "app": ("app", "serve a web page for models"),
    "suggest": ("learners.suggest", "choose the files to label next"),
    "audit": ("learners.audit", "estimate the accuracy at your site from a few labels"),
    "discover": ("learners.discover", "find new classes among the files that a model refuses"),
    "adjust": ("learners.adjust", "copy a model with another rule for unknown"),
    "search": ("learners.search", "find files similar to an example"),
    "export": ("learners.export", "write a model as an ONNX file"),
    "share": ("learners.share", "upload a model to the Hugging Face hub"),
    "render": ("datasets.render", "write spectrograms and Q-scans as pictures"),
    "catalog": ("datasets.catalog", "list and download public data sets"),
    "cache": ("datasets.cache", "inspect, verify or empty the cache"),
}


def main() -> None:
    """Give the rest of the line to the command's module, run as ``python -m`` runs it."""
    command, *words = sys.argv[1:] or ["--help"]
    if command in ("--help", "-h"):
        print("usage: secondhand COMMAND ...\n")
        print(*(f"  {name:9} {purpose}" for name, (_, purpose) in COMMANDS.items()), sep="\n")
        print("\nsecondhand COMMAND --help shows the flags and examples of a command;")
        print("secondhand --version shows the version.")
    elif command == "--version":
        print(f"secondhand {secondhand.__version__}")
    elif command not in COMMANDS:
        near = get_close_matches(command, COMMANDS, 1)
        hint = f"Did you mean {near[0]}?" if near else "secondhand --help lists the commands."
        print(f"error: there is no command {command}. {hint}", file=sys.stderr)
        sys.exit(2)
    else:
        # For the processes that this one starts; those of multiprocessing are told sys.path.
        paths = [str(secondhand.HOME), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ["SECONDHAND_COMMAND"] = "1"  # messages then name commands as they were typed
        sys.argv = [command, *words]
        runpy.run_module(COMMANDS[command][0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
