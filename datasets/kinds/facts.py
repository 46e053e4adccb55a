"""Words for the facts about files in a report."""

from __future__ import annotations

from collections.abc import Sequence


def spread(values: Sequence[float], unit: str, decimals: int) -> str:
    """The smallest, largest and median value in words."""
    from statistics import median

    low, middle, high = (f"{x:.{decimals}f}" for x in (min(values), median(values), max(values)))
    same = min(values) == max(values)
    return f"{low} {unit}" if same else f"{low} to {high} {unit}, median {middle}"
