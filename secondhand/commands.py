"""The commands: what ``secondhand NAME ...`` runs, by name; those of fields register themselves (`fields`).

The module of a command is imported when it runs, so that a list of them, or the help of one, waits for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from datasets.core.registry import Registry

#: A command: it takes the words of the call (by default those of ``sys.argv``) and returns the exit status.
Main = Callable[[Sequence[str] | None], int]


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes
    ----------
    help : a line for ``secondhand --help``, which says what it is for.
    main : runs it.
    """

    name: str
    help: str
    main: Main


COMMANDS: Registry[Command] = Registry("secondhand.commands")


def command(help: str) -> Callable[[Main], Main]:
    """Register a function as the command of its name."""

    def registered(main: Main) -> Main:
        COMMANDS.add(Command(main.__name__, help, main))
        return main

    return registered


@command("fine-tune a pretrained network on labelled files")
def finetune(words: Sequence[str] | None = None) -> int:
    from learners.finetune import main

    return main(words)


@command("predict the class of files")
def predict(words: Sequence[str] | None = None) -> int:
    from learners.predict import main

    return main(words)


@command("measure a model on other data")
def evaluate(words: Sequence[str] | None = None) -> int:
    from learners.evaluate import main

    return main(words)


@command("serve a web page for models")
def app(words: Sequence[str] | None = None) -> int:
    from app.__main__ import main

    return main(words)


@command("copy a model with another rule for unknown")
def adjust(words: Sequence[str] | None = None) -> int:
    from learners.adjust import main

    return main(words)


@command("write a model as an ONNX file")
def export(words: Sequence[str] | None = None) -> int:
    from learners.export import main

    return main(words)


@command("write spectrograms and Q-scans as pictures")
def render(words: Sequence[str] | None = None) -> int:
    from datasets.render import main

    return main(words)


@command("list and download public data sets")
def catalog(words: Sequence[str] | None = None) -> int:
    from datasets.catalog import main

    return main(words)


@command("inspect, verify or empty the cache")
def cache(words: Sequence[str] | None = None) -> int:
    from datasets.cache import main

    return main(words)
