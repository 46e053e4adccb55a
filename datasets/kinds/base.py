"""What a kind of files is, and the registry of all.

The rest of the program asks a kind to do something, and never which one it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from datasets.core.address import member
from datasets.core.checked import read_as
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.core.registry import Registry
from datasets.kinds.views import PLAIN, TTAView, no_views
from datasets.spectrograms.version import RENDERER_VERSION

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from datasets.core.file_state import FileState
    from datasets.core.recorded import Recorded
    from datasets.images.exif import CaptureTime
    from datasets.images.settings import PictureSettings, Stored
    from datasets.kinds.lookup import Lookup
    from datasets.spectrograms.settings import SpectrogramSettings


class PictureInfo(NamedTuple):
    """What the check of a picture file has read.

    ``thumbnail`` : grey values [side, side]. ``size`` : width and height in pixels, from the header. ``recorded`` : time
    and place in its EXIF data. ``stored`` : what is stored, if that is not of 8 bits or has several pages.
    """

    thumbnail: NDArray[np.uint8]
    capture_time: CaptureTime | None
    size: tuple[int, int]
    state: FileState
    recorded: Recorded | None = None
    stored: Stored | None = None


class Kind:
    """A kind of files: what is said of it below, and what its methods do.

    Its files are drawn by its `settings`; without these they are pictures themselves, or not ``opened`` at all. Kinds are
    sent to worker processes, so each is a class of a module, and its object holds nothing.

    Attributes
    ----------
    name : the word behind ``--kind``.
    suffixes : of its files, in small letters, with the dot; the longest that fits a name counts.
    help : what the files are, for the help of ``--kind``.
    parts : columns of an item table that say which part of a file an item is.
    media : main type of the files' media type: image, audio; "" for others.
    timeless : words for what has no moment that can be asked for, and why; "" if there is one.
    lr_mult : how many times faster than its first layers the head of a network learns. A small number lets the body
        change much, where files differ from the photographs of its pretraining.
    opened : files are opened; else their items are looked up.
    photo : a file is a picture itself, which may hold boxes, and be one of a burst.
    recordings : they are recordings, in which calls have a start and an end, and two may sound at once.
    gps : their moments are GPS times; a file without one shows its loudest.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    help: ClassVar[str] = ""
    parts: ClassVar[tuple[str, ...]] = ()
    media: ClassVar[str] = ""
    timeless: ClassVar[str] = ""
    lr_mult: ClassVar[float] = 100.0
    opened: ClassVar[bool] = True
    photo: ClassVar[bool] = False
    recordings: ClassVar[bool] = False
    gps: ClassVar[bool] = False

    def __init__(self) -> None:
        # Its settings are not asked for here: that would import how files are drawn.
        if self.opened and not self.photo and type(self).settings is Kind.settings:
            raise SecondhandError(
                f"the kind {self.name!r} has no settings that say how it is drawn"
            )

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    # --- its files ---

    def owns(self, path: str | os.PathLike[str]) -> bool:
        """Whether the name of a file ends as those of this kind."""
        return member(path).lower().endswith(self.suffixes)

    @property
    def uploads(self) -> tuple[str, ...]:
        """Suffixes of the files that a web page may open."""
        return self.suffixes

    def look(
        self, path: str, whole: bool, settings: Mapping[str, Any] = MappingProxyType({})
    ) -> PictureInfo | None:
        """Check a file before anything else is done with it, in a process of its own.

        By default what is wrong is found when the file is drawn.

        Parameters
        ----------
        whole : refuse a file that was cut off.
        settings : settings of the call by name, of which a kind takes those that say what of a file is read.

        Raises
        ------
        BadFile : the file cannot be used.
        """
        return None

    def open(self, path: str) -> None:
        """Read the head of a file. Raises BadFile if it is not of this kind."""
        self.look(path, True)

    def recorded(self, path: str) -> Iterable[Recorded]:
        """What a file says about when and where it was recorded."""
        return ()

    def expansion(self, path: str, notes: Iterable[Recorded]) -> float:
        """By which factor a recording was slowed down; ``notes`` : what `recorded` gave."""
        return 1.0

    def duration(self, path: str) -> float:
        """Seconds of a file, read in a process of its own; 0 for one without a duration."""
        return 0.0

    def describe(self, paths: Sequence[str], looks: Mapping[str, PictureInfo]) -> dict[str, str]:
        """Facts about files for the report, in words; ``looks`` : what `look` gave of each."""
        return {}

    # --- the moments and parts of a file ---

    @property
    def times(self) -> tuple[str, ...]:
        """Columns of the times of what a prediction is for."""
        return tuple(name for name in ("start", "end") if name in self.parts)

    def moment(self, at: float | None) -> float | None:
        """The moment that is asked for; None for files that have none, or name their own."""
        return None if self.timeless else at

    def check_moment(self, at: float | None) -> None:
        """Raise SecondhandError if a moment is given for files that have none, or name their own."""
        if at is not None and self.timeless:
            raise SecondhandError(
                f"--at {at:g}: this is a model for {self.timeless}. Leave --at out"
            )

    def spans(self, part: Part) -> Sequence[Part]:
        """The parts of a file that are pictures of their own, such as its pages; it is opened for them. One without is
        itself.

        Raises
        ------
        BadFile : there are too many.
        """
        return (part,)

    def cells(self, part: Part) -> dict[str, str]:
        """Cells of a table that say which part of a file this is; a cell of each column that is not empty."""
        return {}

    # --- how it is drawn ---

    def settings(self) -> type[SpectrogramSettings] | None:
        """The class whose settings say how a file is read, cut and drawn; None for files that are not drawn."""
        return None

    @property
    def options(self) -> set[str]:
        """Names of its settings; empty without any."""
        drawn = self.settings()
        return set() if drawn is None else {field.name for field in fields(drawn)}  # type: ignore[arg-type]

    def takes(self, settings: Mapping[str, Any]) -> bool:
        """Whether its files can be drawn with the spectrogram settings that a network was trained with."""
        return settings.keys() <= self.options

    def spectrogram(
        self, frame: pd.DataFrame, settings: Mapping[str, Any]
    ) -> SpectrogramSettings | None:
        """Settings for the files of an item table, inferred from it but for those that are given; None for files that are
        not drawn."""
        drawn = self.settings()
        return None if drawn is None else drawn.infer(frame["path"], **settings)

    def samples(
        self, stored: Sequence[Stored], flags: Mapping[str, Any]
    ) -> tuple[PictureSettings | None, str]:
        """How files that are pictures themselves are drawn if they are not of 8 bits, see `PictureSettings.infer`.

        Raises
        ------
        SecondhandError : a flag is given that is not for this kind.
        """
        if given := [name for name, value in flags.items() if value is not None]:
            raise SecondhandError(
                f"--{', --'.join(given)}: for pictures, not for {self.name} data. Leave it out"
            )
        return None, ""

    def remarks(self, spectrogram: Any, frame: pd.DataFrame) -> Iterable[tuple[int, str]]:
        """Levels and lines of the log on what its settings show and hide of the training items."""
        return ()

    # --- what a network is given ---

    def views(
        self, count: int, *, flip: bool = True, min_scale: float = 0.35, strength: float = 1.0
    ) -> list[TTAView]:
        """The first views for test-time augmentation, at most ``count`` > 1; see `learners.model.tta.tta_views_for`.

        Raises
        ------
        SecondhandError : there is one view only.
        """
        raise no_views(count, "this kind of data")

    def has_view(self, view: TTAView) -> bool:
        """Whether test-time augmentation may show a file so."""
        return view == PLAIN

    def lookup(self, network: str = "", width: int = 0, origin: str = "") -> Lookup | None:
        """An empty lookup, for items whose files are not opened; None for files.

        If a network and a width are given, it takes no other inputs, and its messages name their ``origin``.
        """
        return None


KINDS: Registry[Kind] = Registry("datasets.kinds")


def find_kind(path: str | os.PathLike[str]) -> Kind | None:
    """Kind of a file by its suffix; None if it cannot be read. Kinds of other packages are asked last."""
    name = member(path).lower()
    return _by_suffix(name, KINDS.ours().values()) or _by_suffix(name, KINDS.values())


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """Name of the kind of a file by its suffix; None if it cannot be read.

    Examples
    --------
    >>> kind_of("a.JPG"), kind_of("b.flac"), kind_of("c.gwf"), kind_of("notes.pdf")
    ('picture', 'sound', 'strain', None)
    """
    kind = find_kind(path)
    return kind.name if kind else None


def kind_of_input(spectrogram: Mapping[str, Any] | None, *, looked_up: bool) -> Kind:
    """Kind of the files of a model, by its spectrogram settings and whether its inputs are looked up.

    Raises
    ------
    SecondhandError : there is no such kind here.
    """
    if looked_up:
        if (kind := unopened_kind()) is None:
            raise SecondhandError("no kind of files here has inputs that are looked up")
        return kind
    if spectrogram is None:
        return next(kind for kind in KINDS.ours().values() if kind.photo)
    return KINDS[str(spectrogram["kind"])]


def unopened_kind() -> Kind | None:
    """The kind of items whose inputs are looked up; None if there is none here."""
    return next((kind for kind in KINDS.ours().values() if not kind.opened), None)


def empty_lookup() -> Lookup | None:
    """A lookup without an item, see `Kind.lookup`; None if nothing is looked up here."""
    kind = unopened_kind()
    return None if kind is None else kind.lookup()


def spectrogram_from_dict(data: Mapping[str, Any]) -> SpectrogramSettings:
    """Read spectrogram settings that `SpectrogramSettings.to_dict` wrote.

    Raises
    ------
    SecondhandError : another renderer version, or names or values that are no settings.
    """
    settings = dict(data)
    name, version = settings.pop("kind", None), settings.pop("renderer", None)
    kind = KINDS.get(name) if isinstance(name, str) else None
    drawn = None if kind is None else kind.settings()
    if drawn is None:
        raise SecondhandError(
            f"invalid spectrogram settings: kind={name!r} (must be one of {', '.join(drawn_kinds())})"
        )
    if version != RENDERER_VERSION:
        raise SecondhandError(
            f"these spectrogram settings are of renderer version {version!r}, but this program has "
            f"version {RENDERER_VERSION}: train the model again, or use the release that trained it"
        )
    return read_as(drawn, settings, "spectrogram")


def drawn_kinds() -> list[str]:
    """Names of the kinds whose files are drawn as pictures."""
    return [name for name, kind in KINDS.items() if kind.settings() is not None]


def photo_kinds() -> list[str]:
    """Names of the kinds whose files are pictures themselves."""
    return [name for name, kind in KINDS.items() if kind.photo]


def _by_suffix(name: str, kinds: Iterable[Kind]) -> Kind | None:
    matching = [kind for kind in kinds if name.endswith(kind.suffixes)]
    if len(matching) < 2:
        return matching[0] if matching else None
    return max(matching, key=lambda kind: max(len(s) for s in kind.suffixes if name.endswith(s)))
