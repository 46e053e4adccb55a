"""The commands of the loop of predicting, labelling and training again."""

from __future__ import annotations

from collections.abc import Sequence

from secondhand.commands import command


@command("choose the files to label next")
def suggest(words: Sequence[str] | None = None) -> int:
    from fields.loop.suggest import main

    return main(words)


@command("estimate the accuracy at your site from a few labels")
def audit(words: Sequence[str] | None = None) -> int:
    from fields.loop.audit import main

    return main(words)


@command("fit a model to another place without labels")
def adapt(words: Sequence[str] | None = None) -> int:
    from fields.loop.adapt import main

    return main(words)


@command("find new classes among the files that a model refuses")
def discover(words: Sequence[str] | None = None) -> int:
    from fields.loop.discover import main

    return main(words)


@command("find files similar to an example")
def search(words: Sequence[str] | None = None) -> int:
    from fields.loop.search import main

    return main(words)
