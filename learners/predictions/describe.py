"""What is said of the refusals of a call."""

from __future__ import annotations

from collections.abc import Sequence

from datasets.core.errors import counted, printable_line
from learners.predictions.refused import CALL, Refused

#: Largest number of places or recordings that are named.
NAMED = 5


def refused_sentences(notices: Sequence[Refused]) -> list[str]:
    """What is refused far more often than in training, and what that means; empty without any."""
    if not notices:
        return []
    first, unit = notices[0], notices[0].usual_unit
    whole = first.what == CALL
    named = [one for one in notices if one.what != CALL]
    lines = []
    if whole:
        lines.append(
            f"Far more is refused here than chance explains: {_share(first)}; of the held-out {unit}s of the training "
            f"{_percent(first.usual)}."
        )
    else:
        lines.append(
            f"Far more is refused in some of these than chance explains; of the held-out {unit}s of the training "
            f"{_percent(first.usual)}:"
        )
    lines += [f"  {printable_line(one.name)}: {_share(one)}" for one in named[:NAMED]]
    if len(named) > NAMED:
        lines.append(f"  and {len(named) - NAMED} more")
    lines.append(
        "They differ from the training files (another site, recorder or camera), or show other classes. That a class is "
        "not answered does not show that it is absent."
    )
    return lines


def _share(one: Refused) -> str:
    return f"{one.refused} of {counted(one.judged, one.unit)} ({_percent(one.share)})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
