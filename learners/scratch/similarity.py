"""Which words an embedding puts beside each other."""

from __future__ import annotations

from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between vectors […, width], from -1 to 1, as ``torch.nn.functional.cosine_similarity``: […]."""
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    return (a * b).sum(-1) / lengths.clamp(min=1e-12)


def nearest(vectors: Tensor, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k rows of an embedding [n, width] whose directions are most like a query [width], which may be one of them.

    Lengths do not count, because frequent words have longer vectors. A difference of two words is a direction, too:
    the vector of king - man + woman has queen among its neighbours where the embedding has learnt that.

    Returns
    -------
    Their numbers, int64 [k], the most similar first, and their cosines [k].
    """
    similar = cosine(vectors, query).topk(k)
    return similar.indices, similar.values
