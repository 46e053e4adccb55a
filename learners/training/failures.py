"""What ends a training, in words: a dead worker, no memory, an error inside fastai's loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from datasets.errors import SecondhandError


@contextmanager
def in_plain_words() -> Iterator[None]:
    """Errors of the machine as a SecondhandError that names the remedy; others pass as they are."""
    try:
        yield
    except SecondhandError as error:
        raise SecondhandError(_own_words(str(error))) from None
    except (MemoryError, torch.cuda.OutOfMemoryError) as error:
        raise SecondhandError(f"out of memory ({_first(error)}): {LESS}") from None
    except RuntimeError as error:
        text = str(error)
        if "DataLoader worker" in text and "Caught" not in text:
            raise SecondhandError(
                f"a process that opens files died ({_first(error)}), perhaps for want of memory: "
                "try fewer --workers, or 0"
            ) from None
        if any(
            words in text for words in ("can't allocate memory", "out of memory", "MemoryError")
        ):
            raise SecondhandError(f"out of memory ({_first(error)}): {LESS}") from None
        raise


LESS = "try fewer --workers; or begin anew with a smaller --bs or --size"


def _own_words(text: str) -> str:
    """Without what fastai and torch say of where it was raised."""
    if "in DataLoader worker process" in text:
        text = text.strip().splitlines()[-1].partition("Error: ")[2] or text
    return re.sub(r"^Exception occured in `\w+` when calling event `\w+`:\n\t", "", text)


def _first(error: BaseException) -> str:
    """The first line that says something of what was the matter."""
    lines = [line.strip() for line in _own_words(str(error)).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
