"""Pictures: the files themselves, or the boxes of a detector in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from datasets.core.address import is_address, local
from datasets.core.file_state import FileState
from datasets.core.part import Box
from datasets.kinds.base import KINDS, Kind, PictureInfo
from datasets.kinds.facts import spread

if TYPE_CHECKING:
    from PIL import Image

    from datasets.core.recorded import Recorded


def _look(path: str, whole: bool) -> PictureInfo:
    """Decode the whole picture; only then a truncated JPEG fails."""
    from datasets.images.exif import capture_time, time_and_place
    from datasets.images.opening import open_picture
    from datasets.items.duplicates import THUMBNAIL, thumbnail

    found: dict[str, Any] = {}

    def header(opened: Image.Image, file: BinaryIO) -> None:
        width, height = opened.size  # an imported fastai makes it a tuple of another type
        found.update(capture_time=capture_time(opened), size=(width, height))
        state = FileState.read(path) if is_address(path) else FileState.read_opened(file)
        found.update(state=state, recorded=time_and_place(opened))

    # A JPEG decoded at 1/8 of its size is still read to its end, so damage is found.
    picture = open_picture(path, at_least=2 * THUMBNAIL, header=header, allow_truncated=False)
    return PictureInfo(thumbnail(picture), **found)


def _recorded(path: str) -> Iterable[Recorded]:
    from datasets.images.exif import read_exif

    return filter(None, [read_exif(path)])


def _facts(paths: Sequence[str], looks: Mapping[str, PictureInfo]) -> dict[str, str]:
    sizes = [size for path in paths if (size := _size(looks, path))]
    if not sizes:
        return {}
    (width, height), count = Counter(sizes).most_common(1)[0]
    return {
        "short side": spread([min(size) for size in sizes], "pixels", 0),
        "most common size": f"{width} x {height} pixels, {count} of {len(sizes)} files",
    }


def _size(looks: Mapping[str, PictureInfo], path: str) -> tuple[int, int] | None:
    """Width and height from the header; None if the file is no picture any more."""
    from PIL import Image

    if path in looks:
        return looks[path].size
    try:
        with Image.open(local(path)) as picture:
            return picture.size
    except Exception:  # a decoder fed with damaged bytes raises anything
        return None


KINDS.add(
    Kind(
        name="picture",
        help="photos, or boxes in them",
        suffixes=(
            ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm",
            ".heic", ".heif", ".avif",
        ),
        parts=Box._fields,
        look=_look,
        recorded=_recorded,
        facts=_facts,
        varied_by=("mirror", "zoom", "x", "y"),
        timeless="pictures, which have no time",
        media="image",
    )
)  # fmt: skip
