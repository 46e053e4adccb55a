"""``python -m learners.share MODEL USER/NAME``: upload a model folder to the Hugging Face hub."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from datasets.core.errors import SecondhandError
from learners.cli import console
from learners.cli.flags import bare_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 if an existing repository was not replaced."""
    parser = bare_parser(
        "learners.share",
        "Share a model without its data. USER/NAME uploads the model folder to the Hugging Face hub, where others "
        "use it as hf:USER/NAME. Exit status: 0; 1 if an existing repository was not replaced; 2 for a wrong call.",
        usage="MODEL USER/NAME",
        examples=("python -m learners.share runs/photos/model USER/photos --private",),
    )
    parser.add_argument("model", help="Model folder, such as runs/photos/model.")
    parser.add_argument("to", help="Repository on the hub, as USER/NAME.")
    parser.add_argument(
        "--private", action="store_true", help="Make a new repository on the hub private."
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace an existing repository without asking."
    )
    options = parser.parse_args(argv)
    console.log_to_terminal()
    model, to = Path(options.model), options.to
    from learners.model.hub import publish

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


if __name__ == "__main__":
    console.run(main)
