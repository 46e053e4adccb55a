"""usage: secondhand share MODEL USER/NAME [flags]

Share a model without its data. USER/NAME uploads the model folder to the Hugging Face hub, where others use it as
hf:USER/NAME. Exit status: 0; 1 if an existing repository was not replaced; 2 for a wrong call.

examples:
  secondhand share runs/photos/model USER/photos --private
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets.cli.options import Checked, option, positional
from datasets.core.errors import SecondhandError
from learners.cli import console
from learners.cli.flags import read_call


@dataclass(kw_only=True)
class ShareSettings(Checked):
    """hub"""

    model: Path = positional("Model folder, such as runs/photos/model.")
    to: str = positional("Repository on the hub, as USER/NAME.")
    private: bool = option(False, "Make a new repository on the hub private.")
    overwrite: bool = option(False, "Replace an existing repository without asking.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 if an existing repository was not replaced."""
    options = read_call(ShareSettings, argv, __doc__)
    console.log_to_terminal()
    model, to = options.model, options.to
    from fields.remote.models import publish

    address = publish(model, to, private=options.private, overwrite=options.overwrite)
    if address is None:
        if not replaced(f"{to} on the hub"):
            return 1
        address = publish(model, to, private=options.private, overwrite=True)
    print(address)
    return 0


def replaced(what: str) -> bool:
    """Ask on the terminal whether to replace an existing target; without a terminal raise SecondhandError."""
    if not sys.stdin.isatty():
        raise SecondhandError(f"{what} already exists. Give --overwrite or another name")
    print(f"{what} already exists. Replace it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
