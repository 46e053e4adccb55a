"""What a kind of files is, and the registry of all.

The rest of the program asks a kind what it can do, and never which one it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets.core.address import member
from datasets.core.checked import read_as
from datasets.core.errors import SecondhandError
from datasets.core.registry import Registry
from datasets.spectrograms.settings import RENDERER_VERSION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.core.file_state import FileState
    from datasets.core.lookup import Lookup
    from datasets.core.recorded import Recorded
    from datasets.images.exif import CaptureTime
    from datasets.spectrograms.settings import SpectrogramSettings


class PictureInfo(NamedTuple):
    """What the check of a picture file has read.

    ``thumbnail`` : grey values [side, side]. ``size`` : width and height in pixels, from the header. ``recorded`` : time
    and place in its EXIF data.
    """

    thumbnail: NDArray[np.uint8]
    capture_time: CaptureTime | None
    size: tuple[int, int]
    state: FileState
    recorded: Recorded | None = None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of files.

    Its files are drawn by its ``settings``; without these they are pictures themselves, or not ``opened`` at all.
    Functions are imported by worker processes, so each is one of a module.

    Attributes
    ----------
    name : the word behind ``--kind``.
    help : what the files are, for the help of ``--kind``.
    suffixes : of its files, in small letters, with the dot; the longest that fits a name counts.
    parts : columns of an item table that say which part of a file an item is.
    settings : returns the class whose settings say how a file is read, cut and drawn.
    look : checks a file before anything else is done with it, in a process of its own; raises BadFile for one that
        cannot be used. True as the second argument: a file that was cut off cannot. None: what is wrong is found when
        the file is drawn.
    opens : reads the head of a file, where `look` is None; raises BadFile if it is not of this kind.
    recorded : what a file says about when and where it was recorded.
    expansion : by which factor a recording was slowed down, by its path and what `recorded` gave.
    duration : seconds of a file.
    facts : facts about files for the report, in words, by their paths and what `look` gave of each.
    varied_by : fields of `learners.model.tta.TTAView` in which test-time augmentation may vary a file.
    one_view : words for what has no test-time augmentation, and why.
    timeless : words for what has no moment that can be asked for, and why; "" if there is one.
    media : main type of the files' media type: image, audio; "" for others.
    lookup : makes an empty `Lookup`, for items that are looked up; their files are not opened. If a network and a
        width are given, it takes no other inputs, and its messages name their ``origin``.
    recordings : they are recordings, in which calls have a start and an end, and two may sound at once.
    mel : they are drawn as mel spectrograms, which networks trained on sound take.
    gps : their moments are GPS times; a file without one shows its loudest.
    in_windows : a long file is cut into windows, which are predicted one by one.
    """

    name: str
    suffixes: tuple[str, ...]
    help: str = ""
    parts: tuple[str, ...] = ()
    settings: Callable[[], type[SpectrogramSettings]] | None = None
    look: Callable[[str, bool], PictureInfo | None] | None = None
    opens: Callable[[str], None] | None = None
    recorded: Callable[[str], Iterable[Recorded]] | None = None
    expansion: Callable[[str, Iterable[Recorded]], float] | None = None
    duration: Callable[[str], float] | None = None
    facts: Callable[[Sequence[str], Mapping[str, PictureInfo]], dict[str, str]] | None = None
    varied_by: tuple[str, ...] = ()
    one_view: str = "this kind of data"
    timeless: str = ""
    media: str = ""
    lookup: Callable[[str, int, str], Lookup] | None = None
    recordings: bool = False
    mel: bool = False
    gps: bool = False
    in_windows: bool = False

    def __post_init__(self) -> None:
        if not (self.settings or self.lookup or self.look):
            raise SecondhandError(
                f"the kind {self.name!r} has no settings that say how it is drawn"
            )

    @property
    def opened(self) -> bool:
        """Whether files are opened, instead of their items being looked up."""
        return self.lookup is None

    @property
    def photo(self) -> bool:
        """Whether a file is a picture itself."""
        return self.opened and self.settings is None

    @property
    def times(self) -> tuple[str, ...]:
        """Columns of the times of what a prediction is for."""
        return ("gps",) if self.gps else tuple(n for n in ("start", "end") if n in self.parts)

    @property
    def options(self) -> set[str]:
        """Names of its settings; empty without any."""
        return {field.name for field in fields(self.settings())} if self.settings else set()  # type: ignore[arg-type]


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
    """Kind of the files of a model, by its spectrogram settings and whether its inputs are looked up."""
    if looked_up:
        return unopened_kind()
    return KINDS["picture" if spectrogram is None else str(spectrogram["kind"])]


def unopened_kind() -> Kind:
    """The kind of items whose inputs are looked up."""
    return next(kind for kind in KINDS.ours().values() if not kind.opened)


def empty_lookup(network: str = "", width: int = 0, origin: str = "") -> Lookup:
    """A lookup without an item, see `Kind.lookup`."""
    make = unopened_kind().lookup
    assert make is not None
    return make(network, width, origin)


def spectrogram_from_dict(data: Mapping[str, Any]) -> SpectrogramSettings:
    """Read spectrogram settings that `SpectrogramSettings.to_dict` wrote.

    Raises
    ------
    SecondhandError : another renderer version, or names or values that are no settings.
    """
    settings = dict(data)
    name, version = settings.pop("kind", None), settings.pop("renderer", None)
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None or kind.settings is None:
        raise SecondhandError(
            f"invalid spectrogram settings: kind={name!r} (must be one of {', '.join(drawn_kinds())})"
        )
    if version != RENDERER_VERSION:
        raise SecondhandError(
            f"these spectrogram settings are of renderer version {version!r}, but this program has "
            f"version {RENDERER_VERSION}: train the model again, or use the release that trained it"
        )
    return read_as(kind.settings(), settings, "spectrogram")


def drawn_kinds() -> list[str]:
    """Names of the kinds whose files are drawn as pictures."""
    return [name for name, kind in KINDS.items() if kind.settings is not None]


def _by_suffix(name: str, kinds: Iterable[Kind]) -> Kind | None:
    matching = [kind for kind in kinds if name.endswith(kind.suffixes)]
    if len(matching) < 2:
        return matching[0] if matching else None
    return max(matching, key=lambda kind: max(len(s) for s in kind.suffixes if name.endswith(s)))
