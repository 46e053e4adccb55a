"""Reads capture time and camera from EXIF, and groups photos into capture sessions.

Photos of one session show the same things in the same light. The time is that of the exposure; a file's
own times change when it is copied or edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import ExifTags, Image

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
    if "exif" not in picture.info:  # for some formats getexif would decode the whole file
        return None
    try:
        exif = picture.getexif()
        photo_tags = exif.get_ifd(ExifTags.IFD.Exif)
        text = str(photo_tags.get(ExifTags.Base.DateTimeOriginal, "")).strip(" \0")
        moment = datetime.strptime(text, "%Y:%m:%d %H:%M:%S")
        names = (
            exif.get(ExifTags.Base.Make),
            exif.get(ExifTags.Base.Model),
            photo_tags.get(ExifTags.Base.BodySerialNumber),
        )
        camera = " ".join(str(name).strip(" \0") for name in names if name)
        return CaptureTime(camera, (moment - datetime.min).total_seconds())
    except Exception:  # readers raise any exception on damaged bytes
        return None


def capture_sessions(times: Sequence[CaptureTime | None]) -> NDArray[np.int64]:
    """Capture session of each photo, int64 [n], from 0; -1 for single photos and those without a time.

    A session is a series of photos of one camera with less than `GAP_MINUTES` between neighbours.
    """
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
