"""Pictures: the files themselves, or the boxes of a detector in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from datasets.core.address import is_address, local
from datasets.core.file_state import FileState
from datasets.core.part import Box, Part
from datasets.kinds.base import KINDS, Kind, PictureInfo
from datasets.kinds.facts import spread
from datasets.kinds.views import PLAIN, TTAView, several

if TYPE_CHECKING:
    from PIL import Image

    from datasets.core.recorded import Recorded
    from datasets.images.settings import PictureSettings, Stored
    from datasets.images.standalone import Samples

#: Zoom of the enlarged views.
CLOSER = 1.15


class Picture(Kind):
    name, help = "picture", "photos, or boxes in them"
    suffixes = (
        ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm",
        ".heic", ".heif", ".hif", ".avif", ".dcm",
    )  # fmt: skip
    parts = Box._fields
    media = "image"
    timeless = "pictures, which have no time"
    photo = True

    def look(
        self, path: str, whole: bool, settings: Mapping[str, Any] = MappingProxyType({})
    ) -> PictureInfo:
        """Decode the whole picture; only then a truncated JPEG fails."""
        from datasets.images.exif import capture_time, time_and_place
        from datasets.images.opening import open_picture, pages_of
        from datasets.images.settings import PictureSettings, Stored
        from datasets.images.thumbnail import THUMBNAIL, thumbnail

        found: dict[str, Any] = {}
        samples = PictureSettings.asked(settings)
        pages = 1

        def measure(stored: Samples) -> None:
            found.update(stored=Stored.of(stored, pages, samples.channels))

        def header(opened: Image.Image, file: BinaryIO) -> None:
            width, height = opened.size  # an imported fastai makes it a tuple of another type
            found.update(capture_time=capture_time(opened), size=(width, height))
            state = FileState.read(path) if is_address(path) else FileState.read_opened(file)
            found.update(state=state, recorded=time_and_place(opened))
            nonlocal pages
            if (pages := pages_of(opened, file)) > 1:
                found.update(stored=Stored(pages=pages))

        # A JPEG decoded at 1/8 of its size is still read to its end, so damage is found.
        picture = open_picture(
            path, at_least=2 * THUMBNAIL, header=header, allow_truncated=False, samples=samples,
            found=measure,
        )  # fmt: skip
        return PictureInfo(thumbnail(picture), **found)

    def recorded(self, path: str) -> Iterable[Recorded]:
        from datasets.images.exif import read_exif

        return filter(None, [read_exif(path)])

    def samples(
        self, stored: Sequence[Stored], flags: Mapping[str, Any]
    ) -> tuple[PictureSettings | None, str]:
        from datasets.images.settings import PictureSettings

        return PictureSettings.infer(stored, flags)

    def describe(self, paths: Sequence[str], looks: Mapping[str, PictureInfo]) -> dict[str, str]:
        sizes = [size for path in paths if (size := _size(looks, path))]
        if not sizes:
            return {}
        (width, height), count = Counter(sizes).most_common(1)[0]
        return {
            "short side": spread([min(size) for size in sizes], "pixels", 0),
            "most common size": f"{width} x {height} pixels, {count} of {len(sizes)} files",
        }

    def spans(self, part: Part) -> Sequence[Part]:
        """Its pages, which `Part.at` names; a picture of one page is itself."""
        from datasets.images.opening import numbers_of_pages

        if part.at is not None or part.box is not None:
            return (part,)
        numbers = numbers_of_pages(part.path)
        return [part._replace(at=n) for n in numbers] if len(numbers) > 1 else (part,)

    def cells(self, part: Part) -> dict[str, str]:
        """The place of a box; nothing for a whole photo."""
        if part.box is None:
            return {}
        return {name: repr(value) for name, value in part.box._asdict().items()}

    def views(
        self, count: int, *, flip: bool = True, min_scale: float = 0.35, strength: float = 1.0
    ) -> list[TTAView]:
        """Mirrored if training mirrors, and zoomed at the middle and the corners if training crops that much."""
        places = [(0.0, 0.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0)]
        closer = [(CLOSER, *place) for place in places] if min_scale <= CLOSER**-2 else []
        mirrors = (False, True) if flip else (False,)
        squares = [(1.0, 0.0, 0.0), *closer]
        views = [TTAView(mirror, *square) for square, mirror in product(squares, mirrors)]
        return several(views, count, f"--no-flip, --min-scale {min_scale:g}")

    def has_view(self, view: TTAView) -> bool:
        return view == replace(view, shift=PLAIN.shift)


def _size(looks: Mapping[str, PictureInfo], path: str) -> tuple[int, int] | None:
    """Width and height of a picture, read from its header where its look is not known; None if it cannot be read."""
    from PIL import Image

    if path in looks:
        return looks[path].size
    try:
        with Image.open(local(path)) as picture:
            return picture.size
    except Exception:  # a decoder fed with damaged bytes raises anything
        return None


KINDS.add(Picture())
