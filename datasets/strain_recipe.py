"""How strain is drawn: a frozen recipe, and the picture that it makes of a file."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from math import isfinite
from os import PathLike
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .errors import BadFile, SecondhandError
from .qscan import check_band, highest_frequency, qtransform
from .strain import SHORTEST_CONTEXT, Strain, read_strain, whitened
from .whitening import settling

#: Goes up whenever the same recipe would draw other pixels.
RENDERER_VERSION = 1

LAYOUTS = ("row", "one", "channels")
COLOURS = ("viridis", "grey", "magma", "inferno", "cividis")

#: The plane is the one with the loudest tile within this many seconds of the trigger.
_SEARCH = 0.25

_BOUNDS = {
    "context": (SHORTEST_CONTEXT, 256.0),
    "qlow": (3.5, 256.0),
    "qhigh": (3.5, 256.0),
    "fmin": (1.0, 8192.0),
    "fmax": (1.0, 32768.0),
    "clip": (0.1, 1e6),
}


@dataclass(frozen=True, kw_only=True)
class StrainRecipe:
    """A Q-scan of whitened strain on a log2 frequency axis, low frequencies at the bottom.

    Attributes
    ----------
    context : seconds that are whitened and transformed, 16 to 256. Tile energies depend on it.
    qlow, qhigh : range of Q.
    fmin, fmax : the band in Hz. `fmax` None: 2048 Hz, or 1200 Hz in proportion to 4096 Hz sampling
        where that is less; `suited` settles it for a set of files.
    views : seconds around the trigger that a picture shows, 1 to 8 of them.
    layout : `row`, the views side by side; `one`, a single view; `channels`, three views as the
        red, green and blue channel.
    clip : normalised energy that is drawn brightest. 25.5 makes one grey level a tenth.
    size : height and width of the whole picture, in pixels; one number makes it square.
    colour : table for `row` and `one`: viridis, grey, magma, inferno or cividis.

    Raises
    ------
    SecondhandError : a value out of range, named.
    """

    context: float = 32.0
    qlow: float = 4.0
    qhigh: float = 64.0
    fmin: float = 10.0
    fmax: float | None = None
    views: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    layout: str = "row"
    clip: float = 25.5
    size: tuple[int, int] = (224, 224)
    colour: str = "viridis"

    kind: ClassVar[str] = "strain"

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if name != "fmax" or value is not None:
                object.__setattr__(self, name, _number(name, value, low, high))
        object.__setattr__(self, "views", _views(self.views, self.context))
        object.__setattr__(self, "size", _size(self.size))
        for name, choices in (("layout", LAYOUTS), ("colour", COLOURS)):
            if getattr(self, name) not in choices:
                raise _wrong(name, getattr(self, name), f"one of {', '.join(choices)}")
        if self.qhigh < self.qlow:
            raise _wrong("qhigh", self.qhigh, f"at least qlow, {self.qlow:g}")
        if self.fmax is not None and self.fmax < 2 * self.fmin:
            raise _wrong("fmax", self.fmax, f"at least twice fmin, {self.fmin:g}")
        if self.context * self.fmin < self.qhigh:
            raise _wrong(
                "fmin", self.fmin, f"at least qhigh / context, {self.qhigh / self.context}"
            )
        count = len(self.views)
        if self.layout == "channels" and count != 3:
            raise _wrong("views", self.views, "three views for the layout channels: 0.5, 2, 4")
        if self.layout == "one" and count != 1:
            raise _wrong("views", self.views, "a single view for the layout one: 1")
        if self.layout == "row" and self.size[1] % count:
            wide = -(-self.size[1] // count) * count
            raise _wrong("size", self.size, f"as wide as {count} views can share: {wide}")

    @property
    def reach(self) -> float:
        """Seconds of strain that must be there on either side of the trigger."""
        return max(self.views) / 2 + settling(4096)

    def suited(self, rates: Iterable[float]) -> StrainRecipe:
        """The same recipe with `fmax` settled for files of these sampling rates, the commonest."""
        counted = Counter(rates)
        if self.fmax is not None or not counted:
            return self
        rate = max(counted, key=lambda r: (counted[r], r))
        return replace(self, fmax=self._band(rate)[1])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; `from_dict` takes it back."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {"kind": self.kind, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StrainRecipe:
        """A recipe from JSON that may come from anybody: each key and value is checked."""
        if not isinstance(values, Mapping):
            raise SecondhandError(f"a recipe is an object of settings, not {values!r:.40}")
        known = {field.name for field in fields(cls)}
        if wrong := sorted(str(key)[:40] for key in values if key not in known | {"kind"}):
            names = ", ".join(sorted(known))
            raise SecondhandError(
                f"unknown in a strain recipe: {', '.join(wrong[:5])}; known are {names}"
            )
        if values.get("kind", cls.kind) != cls.kind:
            raise SecondhandError(f"a recipe of kind {values['kind']!r:.40} is not one for strain")
        return cls(**{key: value for key, value in values.items() if key != "kind"})

    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all that changes a pixel and of the renderer's version."""
        text = json.dumps([RENDERER_VERSION, self.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def read(
        self,
        path: str | PathLike[str],
        start: float | None = None,
        end: float | None = None,
        at: float | None = None,
    ) -> Strain:
        """The strain that a picture needs.

        Parameters
        ----------
        path : a strain file.
        start, end : seconds in the file between which the loudest tile is looked for.
        at : GPS time of the trigger, instead of the loudest tile.

        Raises
        ------
        BadFile : see `read_strain`.
        """
        within = None
        if start is not None or end is not None:
            within = (start or 0.0, float("inf") if end is None else end)
        return read_strain(
            path,
            at=at,
            context=self.context,
            reach=self.reach,
            within=within,
            qrange=(self.qlow, self.qhigh),
            frange=(self.fmin, 2048.0 if self.fmax is None else self.fmax),
        )

    def render(self, signal: Strain) -> NDArray[np.uint8]:
        """Draw strain: uint8 [height, width, 3]. The same strain always gives the same bytes.

        Raises
        ------
        BadFile : no noise to whiten, or the strain does not cover the views.
        """
        count = len(self.views)
        height, width = self.size
        bottom, top = self._band(signal.rate)
        axis = np.geomspace(bottom, top, height)
        limit = highest_frequency(signal.rate, self.qlow, self.qhigh)
        rows = int(np.count_nonzero(axis <= limit))
        if rows < height:
            warnings.warn(
                f"{signal.rate:g} Hz sampling ends the band at {limit:.0f} Hz, not at {top:g} Hz: "
                "the picture stays dark above",
                stacklevel=2,
            )
        frange = (bottom, float(axis[rows - 1])) if rows > 1 else (bottom, limit)
        centre = signal.trigger - signal.start
        try:
            check_band(len(signal.values), signal.rate, (self.qlow, self.qhigh), frange)
            gram = qtransform(
                whitened(signal.path, signal.values, signal.rate),
                signal.rate,
                qrange=(self.qlow, self.qhigh),
                frange=frange,
                search=(centre - _SEARCH, centre + _SEARCH),
            )
            views = gram.images(
                [(centre - view / 2, centre + view / 2) for view in self.views],
                width=width // count if self.layout == "row" else width,
                height=rows,
            )
        except BadFile:
            raise
        except ValueError as error:
            raise BadFile(signal.path, str(error)) from error
        levels = [self._levels(view) for view in views]
        if self.layout == "channels":
            return np.ascontiguousarray(np.stack(levels, axis=-1))
        return colour_table(self.colour)[np.concatenate(levels, axis=1)]

    def picture(
        self,
        path: str | PathLike[str],
        start: float | None = None,
        end: float | None = None,
        at: float | None = None,
    ) -> NDArray[np.uint8]:
        """`render` of what `read` reads: uint8 [height, width, 3]."""
        return self.render(self.read(path, start, end, at))

    def _band(self, rate: float) -> tuple[float, float]:
        top = min(2048.0, rate * 1200 / 4096) if self.fmax is None else self.fmax
        return self.fmin, max(top, 2 * self.fmin)

    def _levels(self, energy: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Energies, lowest frequency first, to grey levels [height, width], highest first."""
        grey = np.zeros((self.size[0], energy.shape[1]), dtype=np.uint8)
        scaled = np.clip(energy, 0, self.clip) * np.float32(255 / self.clip)
        grey[self.size[0] - len(energy) :] = np.rint(scaled).astype(np.uint8)[::-1]
        return grey


@lru_cache(maxsize=len(COLOURS))
def colour_table(name: str) -> NDArray[np.uint8]:
    """256 colours, uint8 [256, 3]: grey, or matplotlib's table of that name."""
    if name == "grey":
        table = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    else:
        from matplotlib import colormaps

        # The table itself: matplotlib's own way to bytes has changed between versions.
        listed = np.asarray(getattr(colormaps[name], "colors"))  # noqa: B009
        table = np.rint(listed * 255).astype(np.uint8)
    table.flags.writeable = False
    return table


def _wrong(name: str, value: object, wanted: str) -> SecondhandError:
    return SecondhandError(f"strain recipe: {name} is {value!r:.60}; it must be {wanted}")


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise _wrong(name, value, f"a number, {low:g} to {high:g}")
    if not (isfinite(value) and low <= value <= high):
        raise _wrong(name, value, f"{low:g} to {high:g}")
    return float(value)


def _views(views: object, context: float) -> tuple[float, ...]:
    if not isinstance(views, list | tuple) or not 1 <= len(views) <= 8:
        raise _wrong("views", views, "1 to 8 lengths in seconds")
    longest = context - 2 * settling(4096)
    return tuple(_number("views", view, 0.05, longest) for view in views)


def _size(size: object) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise _wrong("size", size, "height and width in pixels")
    for side in pair:
        if isinstance(side, bool) or not isinstance(side, int) or not 16 <= side <= 4096:
            raise _wrong("size", size, "height and width in pixels, 16 to 4096 each")
    return (int(pair[0]), int(pair[1]))
