"""How pictures that are not of 8 bits become 8 bits: their range, channels and page, frozen in a model.

A camera of 12 bits writes 0 to 4095 into 16, a terrain model metres as floats. What is black and what is white is inferred
from the training files, as rate and window of recordings are, and every route draws by it (`datasets.images.standalone`).
The values of 8-bit pictures never change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from datasets.core.checked import check_fields, one_of
from datasets.core.errors import SecondhandError
from datasets.images.standalone import (
    FILLED,
    TAIL,
    Samples,
    counted,
    shown_channels,
    sort_of,
    usual_range,
)

#: What of a picture's values is kept for the range of a training set: fractions of its pixels, dense at the ends.
KNOTS = (
    0.0, TAIL, 0.002, 0.005, 0.01, 0.02, 0.05, *(n / 10 for n in range(1, 10)), 0.95, 0.98, 0.99, 0.995, 0.998,
    1 - TAIL, 1.0,
)  # fmt: skip
Value = Annotated[float, Meta(ge=-1e300, le=1e300)]
Limit = Annotated[tuple[Value, ...], Meta(max_length=4)]
Channel = Annotated[int, Meta(ge=0, le=65_535)]
Page = Annotated[int, Meta(ge=0, le=65_535)]


class Stored(NamedTuple):
    """What the check of a picture has found that is not of 8 bits, or has several pages.

    Attributes
    ----------
    sort : in words, such as "16-bit integers in 2 channels"; "" for 8 bits.
    number : u, i or f: unsigned, signed or float.
    bits : of unsigned integers; 0 for others.
    stated : the range that the file states; None without one.
    colours : the channels are colours, and have one range together.
    pages : number of pages.
    knots : of each channel that is shown, its values at the fractions `KNOTS` of the pixels with data.
    window : the stated range is one for readers, as of DICOM.
    """

    sort: str = ""
    number: str = "u"
    bits: int = 8
    stated: tuple[float, float] | None = None
    colours: bool = False
    pages: int = 1
    knots: tuple[tuple[float, ...], ...] = ()
    window: bool = False

    @classmethod
    def of(cls, samples: Samples, pages: int, channels: Sequence[int] | None) -> Stored:
        """What is stored in a picture, of which these channels are shown (default: see `shown_channels`)."""
        shown = shown_channels(samples, channels)
        groups = [shown] if samples.colours or samples.inks else [[channel] for channel in shown]
        knots = tuple(_knots(counted(samples, group)) for group in groups)
        return cls(
            sort_of(samples), samples.values.dtype.kind, samples.bits, samples.stated,
            samples.colours or samples.inks, pages, knots, samples.window,
        )  # fmt: skip

    @property
    def deep(self) -> bool:
        """Whether the samples are other than 8-bit."""
        return bool(self.sort) and self.bits != 8


def _knots(values: np.ndarray) -> tuple[float, ...]:
    if not len(values):
        return ()
    ordered = np.sort(values)
    # Rounded inwards, so that a single hot pixel of a small picture is beyond.
    last = len(ordered) - 1
    places = [math.ceil(p * last) if p < 0.5 else math.floor(p * last) for p in KNOTS]
    return tuple(float(ordered[place]) for place in places)


@dataclass(frozen=True, kw_only=True)
class PictureSettings:
    """How pictures that are not of 8 bits are drawn, see `datasets.images.standalone.draw`.

    Parameters
    ----------
    range : fixed (``low`` and ``high``), file (each picture's own quantiles) or bits (each picture's own bits).
    low, high : values that become 0 and 255, for all channels or for each that is shown; empty unless fixed.
    channels : those that are shown, one or three, counted from 0; None: the usual ones.
    page : number of the page, from 0, or "max"; None: the first.

    Raises
    ------
    SecondhandError : a value is invalid; all invalid ones are named.
    """

    range: Annotated[str, one_of("fixed", "file", "bits")] = "bits"
    low: Limit = ()
    high: Limit = ()
    channels: Annotated[tuple[Channel, ...], Meta(min_length=1, max_length=3)] | None = None
    page: Page | Annotated[str, one_of("max")] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "picture settings")
        pairs = [*zip(self.low, self.high, strict=False)]
        rules = {
            f"channels={list(self.channels or ())} (must be one or three)": len(
                self.channels or (0,)
            )
            == 2,
            f"low={list(self.low)}, high={list(self.high)} (must be as many, each low below its high)": len(
                self.low
            )
            != len(self.high)
            or not all(low < high for low, high in pairs),
            f"range={self.range} (must have low and high if fixed, and neither if not)": (
                self.range == "fixed"
            )
            != bool(pairs),
        }
        if wrong := [rule for rule, broken in rules.items() if broken]:
            raise SecondhandError(f"invalid picture settings: {'; '.join(wrong)}")

    @classmethod
    def asked(cls, flags: Mapping[str, Any]) -> PictureSettings:
        """Settings of flags by name, as far as they are given: ``range``, ``channels`` and ``page``."""
        limits = flags.get("range")
        numbers = [float(value) for value in limits] if isinstance(limits, list | tuple) else []
        if len(numbers) % 2 or len(numbers) > 8:
            raise SecondhandError(
                f"--range {' '.join(f'{n:g}' for n in numbers)}: expected two numbers, such as 0 4095, or two for each channel"
            )
        if any(low >= high for low, high in zip(numbers[::2], numbers[1::2], strict=True)):
            raise SecondhandError(
                f"--range {' '.join(f'{n:g}' for n in numbers)}: the first number of each pair must be below the second"
            )
        return cls(
            range="fixed" if numbers else limits or "bits",
            low=tuple(numbers[::2]),
            high=tuple(numbers[1::2]),
            channels=_channels(flags.get("channels")),
            page=flags.get("page"),
        )

    @classmethod
    def infer(
        cls, stored: Sequence[Stored], flags: Mapping[str, Any]
    ) -> tuple[PictureSettings | None, str]:
        """Settings for a training set, and how its range was found: "given", "file", "stated", "bits" or "quantiles".

        Parameters
        ----------
        stored : what is in the training files that are not of 8 bits.
        flags : as in `asked`. Those that are missing are inferred.

        None without such files and flags: then nothing but 8-bit pictures of one page is expected.
        """
        if flags.get("page") is None and any(one.pages > 1 for one in stored):
            flags = {**flags, "page": 0}
        chosen, deep = cls.asked(flags), [one for one in stored if one.deep and any(one.knots)]
        given = flags.get("range")
        if given not in (None, "bits"):
            return chosen, "file" if given == "file" else "given"
        if not deep:
            return (chosen if any(flags.get(name) is not None for name in FLAGS) else None), "bits"
        if given is None and len({one.number == "f" for one in deep}) > 1:
            return cls(range="file", channels=chosen.channels, page=chosen.page), "mixed"
        pairs, how = _range(deep, whole=given == "bits")
        low, high = (tuple(limits) for limits in zip(*pairs, strict=True))
        return (
            cls(range="fixed", low=low, high=high, channels=chosen.channels, page=chosen.page),
            how,
        )

    def flags(self) -> dict[str, Any]:
        """The flags that ask for these settings, by name."""
        pairs: list[float] = [
            value for pair in zip(self.low, self.high, strict=True) for value in pair
        ]
        channels = None if self.channels is None else ",".join(map(str, self.channels))
        return {"range": pairs or self.range, "channels": channels, "page": self.page}

    def to_dict(self) -> dict[str, Any]:
        """All settings, ready for JSON; without channels and page where none is chosen."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items()}


#: Names of the flags.
FLAGS = ("range", "channels", "page")


def _channels(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(words) not in (1, 3):
        raise SecondhandError(
            f"--channels {text}: expected one number or three, counted from 0, such as 0,2,1"
        )
    return tuple(map(int, words))


def _range(deep: Sequence[Stored], *, whole: bool) -> tuple[list[tuple[float, float]], str]:
    """Lowest and highest value, for all channels together or for each, and how they were found.

    ``whole`` : all values that the camera can have, however few are taken.

    Raises
    ------
    SecondhandError : the values have no bits.
    """
    bits = {one.bits for one in deep}
    (stated, *others) = {one.stated for one in deep}
    knots = [of for one in deep for of in one.knots if of]
    if stated is not None and not others:
        low, high = stated
        # Wrong tags are common.
        if deep[0].window or (
            low <= min(of[1] for of in knots) and max(of[-2] for of in knots) <= high
        ):
            return [stated], "stated"
    if len(bits) == 1 and (own := min(bits)) % 8:
        return [(0.0, 2.0**own - 1)], "bits"
    counts = {len(one.knots) for one in deep}
    apart = len(counts) == 1 and not any(one.colours for one in deep)
    groups = (
        [[one.knots[n] for one in deep] for n in range(min(counts))]
        if apart
        else [[knots for one in deep for knots in one.knots]]
    )
    pairs, how = list[tuple[float, float]](), "quantiles"
    for group in groups:
        values = [knots for knots in group if knots]
        low, high = pooled(values, TAIL), pooled(values, 1 - TAIL)
        full = usual_range(deep[0].number, low, high, 0.0 if whole else FILLED)
        if whole and full is None:
            raise SecondhandError(
                f"--range bits: {deep[0].sort} from {low:g} to {high:g} fill no range of bits. Give two numbers, or "
                "--range file"
            )
        if full is not None:
            low, high, how = *full, "bits"
        elif all(one.number != "f" for one in deep):
            low, high = math.floor(low + 1e-3), math.ceil(high - 1e-3)
        pairs.append((float(low), float(high if high > low else low + 1)))
    return pairs, how


def pooled(knots: Sequence[Sequence[float]], share: float) -> float:
    """Quantile of the values of several pictures together, each of equal weight, from those of each at `KNOTS`."""
    table = np.array(knots)
    low, high = float(table.min()), float(table.max())

    def below(value: float) -> float:
        return float(np.mean([np.interp(value, row, KNOTS) for row in table]))

    return _where(below, low, high, share)


def _where(rising: Callable[[float], float], low: float, high: float, level: float) -> float:
    """Where a rising function reaches a level, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= level else (middle, high)
    return high
