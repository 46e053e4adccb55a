"""Reads time, place and camera from EXIF, and groups photos into capture sessions.

Photos of one session show the same things in the same light. The time is that of the exposure; a file's
own times change when it is copied or edited.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import ExifTags, Image

from datasets.core.recorded import Recorded, valid_place
from datasets.images.opening import opened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Minutes without a photo that end a capture session. A burst lasts seconds, and a walk to the next
#: subject minutes; studies with camera traps use 30 or 60 minutes.
GAP_MINUTES = 10


class CaptureTime(NamedTuple):
    """Camera (maker, model and serial number, as far as known) and time of a photo.

    ``second`` : seconds since the year 1, by the camera's clock.
    """

    camera: str
    second: float


def capture_time(picture: Image.Image) -> CaptureTime | None:
    """Capture time of a photo from its header, without decoding it; None if the header has none."""
    if (exif := _exif(picture)) is None:
        return None
    try:
        photo_tags = _photo_tags(exif)
        moment = _original_time(photo_tags)
        tags = ExifTags.Base
        names = exif.get(tags.Make), exif.get(tags.Model), photo_tags.get(tags.BodySerialNumber)
        camera = " ".join(str(name).strip(" \0") for name in names if name)
        return CaptureTime(camera, (moment - datetime.min).total_seconds())
    except Exception:  # readers raise any exception on damaged bytes
        return None


def read_exif(path: str | os.PathLike[str]) -> Recorded | None:
    """Time and place of a photo from its header, without decoding it; None if it has neither."""
    with (
        suppress(Exception),
        warnings.catch_warnings(action="ignore"),
        opened(path, str(path)) as (picture, _),
    ):
        return time_and_place(picture)
    return None


def time_and_place(picture: Image.Image) -> Recorded | None:
    """Time and place in the header of an open photo; None if it has neither. Most cameras state no zone."""
    if (exif := _exif(picture)) is None:
        return None
    time, place = None, None
    with suppress(Exception):
        with suppress(Exception):
            place = _place(exif.get_ifd(ExifTags.IFD.GPSInfo))
        photo_tags = _photo_tags(exif)
        time = _original_time(photo_tags)
        zone = str(photo_tags.get(ExifTags.Base.OffsetTimeOriginal, "")).strip(" \0")
        time = datetime.strptime(f"{time}{zone}", "%Y-%m-%d %H:%M:%S%z")
    return Recorded("EXIF", time, place) if time or place else None


def _exif(picture: Image.Image) -> Image.Exif | None:
    """EXIF data of an open photo; None if it has none, or only decoding all of it would tell."""
    # The tags of a TIFF are its EXIF data; getexif would decode other formats that have none in their header.
    if "exif" not in picture.info and picture.format != "TIFF":
        return None
    with suppress(Exception):  # readers raise any exception on damaged bytes
        return picture.getexif()
    return None


def _photo_tags(exif: Image.Exif) -> dict[int, Any]:
    """Tags of the exposure; TIFF/EP and DNG have them beside those of the file."""
    return {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}


def _original_time(photo_tags: Mapping[int, Any]) -> datetime:
    """Time of the exposure by the camera's clock, without a zone; ValueError without one."""
    text = str(photo_tags.get(ExifTags.Base.DateTimeOriginal, "")).strip(" \0")
    return datetime.strptime(text, "%Y:%m:%d %H:%M:%S")


#: What cameras write for the half of the globe: a letter, or its word.
_LATITUDES = {"N": 1, "NORTH": 1, "S": -1, "SOUTH": -1}
_LONGITUDES = {"E": 1, "EAST": 1, "W": -1, "WEST": -1}


def _place(gps: Mapping[int, Any]) -> tuple[float, float] | None:
    """Latitude and longitude from degrees, minutes and seconds; None without the half of the globe."""
    tags = ExifTags.GPS
    return valid_place(
        _degrees(gps[tags.GPSLatitude], _LATITUDES[_word(gps[tags.GPSLatitudeRef])]),
        _degrees(gps[tags.GPSLongitude], _LONGITUDES[_word(gps[tags.GPSLongitudeRef])]),
    )


def _word(reference: Any) -> str:
    word = reference.decode("ascii") if isinstance(reference, bytes) else str(reference)
    return word.strip(" \0").upper()


def _degrees(parts: Sequence[Any], sign: int) -> float:
    """Signed degrees. Minutes and seconds of 0/0 are none: the part before them has decimals."""
    degrees, *rest = map(float, parts)
    return sign * (degrees + sum(p / 60**n for n, p in enumerate(rest, 1) if not math.isnan(p)))


def capture_sessions(times: Sequence[CaptureTime | None]) -> NDArray[np.int64]:
    """Capture session of each photo, int64 [n], from 0; -1 for single photos and those without a time.

    A session is a series of photos of one camera with less than `GAP_MINUTES` between neighbours.
    """
    import numpy as np
    import pandas as pd

    rows = [row for row, time in enumerate(times) if time is not None]
    table = pd.DataFrame([time for time in times if time is not None], columns=CaptureTime._fields)
    table = table.assign(row=rows).sort_values(["camera", "second"], kind="stable")
    pause = table["second"].diff().ge(60 * GAP_MINUTES)
    begins = pause | table["camera"].ne(table["camera"].shift())
    session = begins.cumsum()
    several = session.map(session.value_counts()).gt(1)
    numbers = np.full(len(times), -1, dtype=np.int64)
    numbers[table["row"][several].to_numpy(int)] = pd.factorize(session[several])[0]
    return numbers
