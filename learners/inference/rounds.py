"""Rounds: places among many answers from which a later call goes on as if none had been before.

What a network gives for an item depends, in its last bits, on the batch it comes in. So no batch
reaches beyond the end of a round, and who asks again from there asks in the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from learners.inference.answers import Prediction

T = TypeVar("T")

#: Full batches in a round, at least: it ends where a file does. Pictures never make a smaller batch.
ROUND = 8


def in_batches(parts: Iterable[T], bs: int, file_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Parts of files in batches of ``bs``, and of less where a round ends."""
    batch: list[T] = []
    count, last = 0, -1
    for part in parts:
        if count >= ROUND * bs and file_of(part) != last:
            if batch:
                yield batch
            batch, count = [], 0
        batch.append(part)
        count, last = count + 1, file_of(part)
        if len(batch) == bs:
            yield batch
            batch = []
    if batch:
        yield batch


def in_rounds(answers: Iterable[Prediction], bs: int) -> Iterator[list[Prediction]]:
    """Answers by the rounds that `in_batches` made of their parts."""
    taken: list[Prediction] = []
    count = 0
    for answer in answers:
        taken.append(answer)
        count += max(1, len(answer.windows))
        if count >= ROUND * bs:
            yield taken
            taken, count = [], 0
    if taken:
        yield taken
