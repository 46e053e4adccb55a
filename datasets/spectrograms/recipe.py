"""What the sound and the strain recipe share. A recipe says how a signal is drawn.

Training, prediction and the page draw with one and the same: `recipe.picture(path)` is the
picture, `recipe.fingerprint()` names every number that changes a pixel, `recipe.to_dict()` goes
into the model folder and `datasets.audio.recipe.recipe_from_dict()` brings it back.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from datasets import RENDERER_VERSION
from datasets.core.errors import SecondhandError, shown

if TYPE_CHECKING:
    from PIL import Image

#: A file as it is named, and a time in it or since it began; None where none is given.
AnyPath = str | os.PathLike[str]
Seconds = float | None

COLOUR_MAPS = ("viridis", "magma", "inferno", "plasma", "cividis")


class Recipe:
    """What the sound and the strain recipe share; each adds `read`, `image` and its numbers."""

    kind: ClassVar[str]

    @classmethod
    def infer(cls, paths: Iterable[AnyPath], **given: Any) -> Self:
        """A recipe that suits these files; `given` settings are not inferred."""
        return cls(**given)

    def read(
        self, path: AnyPath, *, start: Seconds = None, end: Seconds = None, at: Seconds = None
    ) -> Any:
        """The signal of one picture: of the span `start` to `end` in s, or around `at`."""
        raise NotImplementedError

    def spans(
        self, path: AnyPath, *, start: Seconds = None, end: Seconds = None, overlap: float = 0.0
    ) -> list[tuple[Seconds, Seconds]]:
        """How a file, or a span of it, is cut into pictures: [(start, end), ...] in seconds.

        One that fits into a picture is left as it was given.
        """
        return [(start, end)]

    def image(self, signal: Any) -> Image.Image:
        """The picture as Pillow stores it best, with a palette where one will do."""
        raise NotImplementedError

    def render(self, signal: Any) -> NDArray[np.uint8]:
        """Draw a signal: uint8 [height, width, 3]. Equal signals always give equal bytes.

        Raises
        ------
        BadFile : what was read cannot be drawn.
        """
        return np.asarray(self.image(signal).convert("RGB"))

    def moment(self, signal: Any) -> float | None:
        """GPS time in seconds that the picture is centred on; None for signals without a clock."""
        return None

    def no_signal(self, signal: Any) -> bool:
        """Whether the signal is too quiet to be given to a network."""
        return False

    def picture(
        self, path: AnyPath, *, start: Seconds = None, end: Seconds = None, at: Seconds = None
    ) -> NDArray[np.uint8]:
        """Read and draw a file: uint8 [height, width, 3]."""
        return self.render(self.read(path, start=start, end=end, at=at))

    def to_dict(self) -> dict[str, Any]:
        """All settings, ready for JSON."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names}
        lists = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
        return {"kind": self.kind, **lists, "renderer": RENDERER_VERSION}

    def to_json(self) -> str:
        """`to_dict` as one line of JSON with sorted keys."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    def fingerprint(self) -> str:
        """SHA-256 (hex) of `to_json`: over all settings and the renderer's version."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


@lru_cache(maxsize=8)
def colour_table(name: str) -> NDArray[np.uint8]:
    """A colour map as 256 colours, uint8 [256, 3]; "grey", or one of `COLOUR_MAPS`."""
    if name == "grey":
        return np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    if name not in COLOUR_MAPS:
        raise SecondhandError(f"colour map {name!r}: must be grey or one of {COLOUR_MAPS}")
    import matplotlib

    return np.rint(matplotlib.colormaps[name](np.arange(256))[:, :3] * 255).astype(np.uint8)


def check_types(recipe: Any) -> None:
    """Refuse values that are not of the type of their field's default; all are named at once.

    Whole numbers pass for fractions and lists for tuples, and are turned into them, so that equal
    recipes have equal fingerprints. Infinity and NaN pass for nothing.
    """
    wrong = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if not _like(value, field.default):
            wrong.append(f"{field.name}={shown(value)} (must be like {field.default!r})")
        elif isinstance(field.default, float | tuple):
            object.__setattr__(recipe, field.name, type(field.default)(value))
    if wrong:
        raise SecondhandError(f"{recipe.kind} recipe: " + "; ".join(wrong))


def check_values(recipe: Any, valid: Mapping[str, bool]) -> None:
    """Raise a SecondhandError that names all fields that are not `valid`."""
    wrong = [f"{name}={shown(getattr(recipe, name))}" for name, right in valid.items() if not right]
    if wrong:
        raise SecondhandError(
            f"{recipe.kind} recipe: out of range: {', '.join(wrong)}; "
            f"see help({type(recipe).__module__}.{type(recipe).__name__})"
        )


def _like(value: object, default: object) -> bool:
    if isinstance(default, tuple):
        return (
            isinstance(value, tuple | list)
            and len(value) <= 16
            and all(_like(part, default[0]) for part in value)
        )
    if isinstance(default, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # A whole number may be larger than any float.
        return number and abs(value) <= sys.float_info.max  # type: ignore[arg-type]
    return type(value) is type(default)
