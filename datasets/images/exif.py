"""When a photo was taken and by which camera, as its EXIF says; and which were taken on one visit.

Photos of one visit show the same things in the same light. The time is that of the exposure: the
file's own, and the one of its last change, say nothing once it is copied or edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import ExifTags, Image

#: Minutes without a photo that end a visit. A burst lasts seconds, and who walks on to the next thing
#: is there within minutes; camera traps, whose animals stay, count after 30 or 60 minutes anew.
GAP_MINUTES = 10


class CaptureTime(NamedTuple):
    """By which camera (maker, model and serial number, as far as they are told), and the second, by
    the camera's own clock, counted from the year 1."""

    camera: str
    second: float


def capture_time(picture: Image.Image) -> CaptureTime | None:
    """When a photo was taken, from its header, which alone is read; None where that does not say."""
    if "exif" not in picture.info:  # of some formats all would be decoded in search of it
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
    except Exception:  # a reader fed with damaged bytes raises anything
        return None


def capture_sessions(times: Sequence[CaptureTime | None]) -> NDArray[np.int64]:
    """The visit [n] that each photo is of, from 0; -1 for one without a time, or taken alone.

    A visit is what one camera took with never `GAP_MINUTES` or more between two photos.
    """
    rows = [row for row, time in enumerate(times) if time is not None]
    table = pd.DataFrame([time for time in times if time is not None], columns=CaptureTime._fields)
    table = table.assign(row=rows).sort_values(["camera", "second"], kind="stable")
    pause = table["second"].diff().ge(60 * GAP_MINUTES)
    begins = pause | table["camera"].ne(table["camera"].shift())
    visit = begins.cumsum()
    several = visit.map(visit.value_counts()).gt(1)
    numbers = np.full(len(times), -1, dtype=np.int64)
    numbers[table["row"][several].to_numpy(int)] = pd.factorize(visit[several])[0]
    return numbers
