"""Flags for pictures that are not of 8 bits, or have several pages or channels.

This module imports nothing heavy, because the help of the commands needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from datasets.cli.options import Limits, option


@dataclass(frozen=True)
class SampleSettings:
    """pictures of instruments"""

    range: Literal["file", "bits"] | list[float] | None = option(
        None,
        "Values that become black and white in pictures that are not of 8 bits: two numbers such as 0 4095, or two for "
        "each channel; file (of each picture its own 0.1 and 99.9 % quantiles, for exposures that vary); or bits (all "
        "values of the camera). Default: inferred from the training files.",
        metavar="LOW HIGH|file|bits",
    )
    channels: str | None = option(
        None,
        "Channels to show as red, green and blue, or the one to show as grey, counted from 0, such as 0,2,1. Needed for "
        "pictures of two, five or more channels.",
        metavar="N,N,N",
    )
    page: int | Literal["max"] | None = option(
        None,
        "Page of pictures with several (stacks), counted from 0; max takes the largest value of each pixel over all pages. "
        "Default: the first.",
        limits=Limits(low=0, high=65_535, word="max"),
    )
