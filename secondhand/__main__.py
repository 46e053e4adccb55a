"""``secondhand COMMAND ...``, from anywhere; in a clone that is not installed ``python -m secondhand COMMAND ...``."""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint, entry_points

import secondhand
from datasets.core.errors import did_you_mean
from datasets.core.program import CALLED
from datasets.core.shipped import needed_for
from secondhand.commands import COMMANDS


def main() -> None:
    """Give the rest of the line to the command: one of this program, or a function of another package."""
    command, *words = sys.argv[1:] or ["--help"]
    if command in ("--help", "-h"):
        _print_help()
        return
    if command == "--version":
        print(f"secondhand {secondhand.__version__}")
        return
    ours = COMMANDS.ours()
    others = {} if command in ours else _commands_of_others()
    if command not in {*ours, *others}:
        hint = did_you_mean(command, [*ours, *others]) or " secondhand --help lists the commands."
        hint = needed_for(command) or f".{hint}"
        print(f"error: there is no command {command}{hint}", file=sys.stderr)
        sys.exit(2)
    # For the processes that this one starts; those of multiprocessing are told sys.path.
    paths = [str(secondhand.HOME), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Messages then name commands as this one was typed.
    started = sys.argv[0] == __file__
    os.environ[CALLED] = "python -m secondhand" if started else "secondhand"
    sys.argv = [command, *words]
    if command in ours:
        from learners.cli import console

        console.run(lambda: ours[command].main(None))
    else:
        _run_of_others(others[command])


def _print_help() -> None:
    others = _commands_of_others().items()
    print("usage: secondhand COMMAND ...\n")
    print(*(f"  {one.name:9} {one.help}" for one in COMMANDS.ours().values()), sep="\n")
    if others:
        print("\nof other packages:")
    for name, point in others:
        print(f"  {name:9} {(point.dist and point.dist.metadata['Summary']) or point.value}")
    print("\nsecondhand COMMAND --help shows the flags and examples of a command;")
    print("secondhand --version shows the version.")


def _commands_of_others() -> dict[str, EntryPoint]:
    """Commands of other packages by name; none replaces one of ours."""
    points = entry_points(group="secondhand.commands")
    return {point.name: point for point in points if point.name not in COMMANDS.ours()}


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
