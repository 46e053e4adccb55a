"""What programs use: embeddings of files, pools, and what to label next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secondhand.names import NAMES, Name

if TYPE_CHECKING:
    from collections.abc import Callable

    from fields.loop.embeddings import Embeddings
    from fields.loop.teaching import Pool, Suggestion


def _embeddings() -> type[Embeddings]:
    from fields.loop.embeddings import Embeddings

    return Embeddings


def _pool() -> type[Pool]:
    from fields.loop.teaching import Pool

    return Pool


def _suggest() -> Callable[..., list[Suggestion]]:
    from fields.loop.teaching import suggest

    return suggest


NAMES.add(Name("Embeddings", _embeddings))
NAMES.add(Name("Pool", _pool))
NAMES.add(Name("suggest", _suggest))
