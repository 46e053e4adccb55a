"""The command that shares a model."""

from __future__ import annotations

from collections.abc import Sequence

from secondhand.commands import command


@command("upload a model to the Hugging Face hub")
def share(words: Sequence[str] | None = None) -> int:
    from fields.remote.share import main

    return main(words)
