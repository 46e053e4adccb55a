"""Base class of the spectrogram settings of sound and strain.

Training, prediction and the web page render with the same settings: `picture(path)` renders a file,
`fingerprint()` hashes all settings that change a pixel, `to_dict()` is stored in the model folder and
`datasets.kinds.base.spectrogram_from_dict` reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from statistics import multimode
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets.core.checked import check_fields
from datasets.core.errors import SecondhandError, quoted
from datasets.core.part import AnyPath, FileOrPart, Part, as_part
from datasets.spectrograms.axes import Axes, Panel
from datasets.spectrograms.version import RENDERER_VERSION

if TYPE_CHECKING:
    from PIL import Image

Rate = TypeVar("Rate", int, float)

COLOUR_MAPS = ("viridis", "magma", "inferno", "plasma", "cividis")


class SpectrogramSettings:
    """Base class of `MelSettings` and `QScanSettings`, which add `infer`, `read`, `planes` and fields.

    Attributes
    ----------
    kind : name of the kind whose files they draw.
    drawings : word for the pictures.
    silence : words for what a signal is below that is too quiet for a prediction; "" if none is too quiet.
    by_gps : moments are GPS times; else seconds from the start of a file.
    window : seconds of a recording in one picture; 0 for signals of which a picture shows what is around a moment.
    context : seconds of the signal around a moment that its picture depends on.
    """

    kind: ClassVar[str]
    drawings: ClassVar[str] = "pictures"
    silence: ClassVar[str] = ""
    by_gps: ClassVar[bool] = False
    size: tuple[int, int]
    colour: str
    window: float = 0.0
    context: float = 0.0

    def __post_init__(self) -> None:
        size = getattr(self, "size", None)  # settings of other packages may have none
        if type(size) is int:
            object.__setattr__(self, "size", (size, size))  # the dataclass is frozen
        check_fields(self, f"{self.kind} settings")

    @classmethod
    def infer(cls, paths: Iterable[AnyPath], **settings: Any) -> Self:
        """Settings inferred from these files; those in `settings` are used as given."""
        return cls(**settings)

    def read(self, file: FileOrPart) -> Any:
        """Read the signal of one picture: a span of a file, or what is around a moment."""
        raise NotImplementedError

    def spans(self, file: FileOrPart, *, overlap: float = 0.0) -> list[Part]:
        """Cut a file, or a span of it, into windows.

        A span that fits into one window is returned unchanged.
        """
        return [as_part(file)]

    def is_cut(self, path: AnyPath) -> bool:
        """Whether `spans` may give several windows of a file."""
        return False

    def shown(self, file: FileOrPart) -> Part:
        """What the picture of a span, or of a moment, shows, by start and end; neither for all of the file."""
        return as_part(file)._replace(at=None)

    def places(
        self,
        part: Part,
        *,
        apart: Sequence[tuple[float, float]] = (),
        count: int,
        rng: np.random.Generator,
    ) -> list[Part]:
        """Other parts of the file that show the same item: at most ``count``, at random, without any of the spans ``apart``
        (s). Training opens another one each time."""
        return []

    def planes(self, signal: Any) -> list[NDArray[np.uint8]]:
        """Grey levels [height, width]: one plane for a colour map, or three for red, green and blue."""
        raise NotImplementedError

    def image(self, signal: Any) -> Image.Image:
        """Render a signal to a Pillow image, with a palette if there is one plane."""
        from PIL import Image

        planes = self.planes(signal)
        if len(planes) > 1:
            return Image.fromarray(np.stack(planes, axis=-1))
        picture = Image.fromarray(planes[0])
        picture.putpalette(colour_table(self.colour).tobytes())
        return picture

    def render(self, signal: Any) -> NDArray[np.uint8]:
        """Render a signal: uint8 [height, width, 3]. Equal signals give equal bytes.

        Raises
        ------
        BadFile : the signal cannot be rendered.
        """
        return np.asarray(self.image(signal).convert("RGB"))

    def drawn(self, signal: Any, part: Part) -> bytes:
        """PNG of a signal with axes, for people; ``part`` is what was read.

        Raises SecondhandError for files that are not drawn with axes.
        """
        raise SecondhandError(f"--axes: {self.kind} is not drawn with axes. Leave it out")

    def panels(self, signal: Any, picture: Image.Image, part: Part) -> list[Panel]:
        """What the picture of a signal consists of, for people; ``part`` is what was read."""
        return [Panel(picture, f"{picture.width} x {picture.height} pixels", self.axes(part))]

    def axes(self, part: Part) -> Axes | None:
        """Axes of the whole picture of a part; None for a picture without any, or of several panels."""
        return None

    def flac(self, file: FileOrPart) -> bytes:
        """What a picture shows as FLAC, to listen to; b"" where there is nothing to hear."""
        return b""

    def augmentations(self, strength: float = 1.0, *, mixed: bool = True) -> list[Any]:
        """Augmentations of training batches that suit these settings.

        Parameters
        ----------
        strength : 0 for none, 1 for the default, up to 2.
        mixed : mix other recordings into the background; not for multi-label items, whose background counts.
        """
        return []

    def tells_picture(self, part: Part) -> bool:
        """Whether a part says which picture it has, before it is read."""
        return True

    @property
    def reach(self) -> float:
        """Seconds of the signal that are needed on either side of a moment."""
        return 0.0

    def moment(self, signal: Any) -> float | None:
        """GPS time in seconds that the picture is centred on; None for signals without a clock."""
        return None

    def offset(self, signal: Any) -> float:
        """Seconds from the moment of a signal to where its energy lies; NaN without either."""
        return math.nan

    def no_signal(self, signal: Any) -> bool:
        """Whether the signal is too quiet for a prediction."""
        return False

    def picture(self, file: FileOrPart) -> NDArray[np.uint8]:
        """Read and render a file or a part of it: uint8 [height, width, 3]."""
        return self.render(self.read(file))

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
        raise SecondhandError(
            f"colour map {name!r} does not exist: choose grey or one of {', '.join(COLOUR_MAPS)}"
        )
    import matplotlib

    return np.rint(matplotlib.colormaps[name](np.arange(256))[:, :3] * 255).astype(np.uint8)


def sample_evenly(paths: Iterable[AnyPath], most: int) -> list[str]:
    """At most about ``most`` of the files, evenly spaced over the list."""
    listed = [os.fspath(path) for path in paths]
    return listed[:: math.ceil(len(listed) / most) or 1]


def most_common_rate(rates: Iterable[Rate]) -> Rate:
    """The most common rate; of ties the lowest."""
    return min(multimode(rates))


def check_values(
    spectrogram: Any,
    ranges: Mapping[str, tuple[float, float]],
    rules: Mapping[str, tuple[bool, str]],
) -> None:
    """Raise SecondhandError that names all fields whose value does not fit the others.

    Parameters
    ----------
    ranges : lowest and highest value; of a tuple, of each element.
    rules : whether a rule holds, and the rule as text.
    """
    wrong: dict[str, str] = {}
    for name, (low, high) in ranges.items():
        value = getattr(spectrogram, name)
        if not all(low <= one <= high for one in (value if isinstance(value, tuple) else [value])):
            wrong[name] = f"{low:g} to {high:g}"
    for name, (holds, rule) in rules.items():
        if not holds:
            wrong.setdefault(name, rule)
    if wrong:
        messages = (
            f"{n}={quoted(getattr(spectrogram, n))} (must be {rule})" for n, rule in wrong.items()
        )
        raise SecondhandError(f"invalid {spectrogram.kind} settings: {'; '.join(messages)}")
