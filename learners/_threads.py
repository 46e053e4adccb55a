"""How many threads torch computes with, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads_kept(meanwhile: int | None = None) -> Iterator[None]:
    """Puts the number of threads back at the end; until then it is ``meanwhile``, if given.

    Two threads add up in another order than one, and the last bits differ: what one call leaves
    behind would change the results of the next in the same process.
    """
    import torch  # here, for those who only send work to others

    before = torch.get_num_threads()
    if meanwhile is not None:
        torch.set_num_threads(meanwhile)
    try:
        yield
    finally:
        torch.set_num_threads(before)
