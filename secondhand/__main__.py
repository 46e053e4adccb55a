"""``secondhand COMMAND ...``: what ``python -m learners.COMMAND ...`` does in a checkout, from anywhere."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.metadata import EntryPoint, entry_points

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
    """Give the rest of the line to the command: a module that is run as ``python -m`` runs it, or a function of
    another package."""
    command, *words = sys.argv[1:] or ["--help"]
    if command in ("--help", "-h"):
        _print_help()
        return
    if command == "--version":
        print(f"secondhand {secondhand.__version__}")
        return
    others = {} if command in COMMANDS else _commands_of_others()
    if command not in {*COMMANDS, *others}:
        from datasets.core.errors import did_you_mean

        hint = did_you_mean(command, [*COMMANDS, *others])
        hint = hint or " secondhand --help lists the commands."
        print(f"error: there is no command {command}.{hint}", file=sys.stderr)
        sys.exit(2)
    # For the processes that this one starts; those of multiprocessing are told sys.path.
    paths = [str(secondhand.HOME), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["SECONDHAND_COMMAND"] = "1"  # messages then name commands as they were typed
    sys.argv = [command, *words]
    if command in COMMANDS:
        runpy.run_module(COMMANDS[command][0], run_name="__main__", alter_sys=True)
    else:
        _run_of_others(others[command])


def _print_help() -> None:
    others = _commands_of_others().items()
    print("usage: secondhand COMMAND ...\n")
    print(*(f"  {name:9} {purpose}" for name, (_, purpose) in COMMANDS.items()), sep="\n")
    if others:
        print("\nof other packages:")
    for name, point in others:
        print(f"  {name:9} {(point.dist and point.dist.metadata['Summary']) or point.value}")
    print("\nsecondhand COMMAND --help shows the flags and examples of a command;")
    print("secondhand --version shows the version.")


def _commands_of_others() -> dict[str, EntryPoint]:
    """Commands of other packages by name; none replaces one of ours."""
    points = entry_points(group="secondhand.commands")
    return {point.name: point for point in points if point.name not in COMMANDS}


def _run_of_others(point: EntryPoint) -> None:
    """Call the function that another package names, with the words of the call in ``sys.argv``."""
    from learners.cli import console

    try:
        function = point.load()
    except Exception as error:  # of another's package: anything
        package = point.dist.name if point.dist else point.module
        print(f"error: {point.name} of the package {package}: {error}", file=sys.stderr)
        sys.exit(2)
    console.run(lambda: function() or 0)


if __name__ == "__main__":
    main()
