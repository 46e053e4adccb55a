"""Encoders for files that phones save: HEIC and AVIF photos, AAC and Apple Lossless sound."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def heic(picture: Image.Image, **options: Any) -> bytes:
    """Encode HEIC. A rotation in `exif` is also stored as the file's own rotation, as phones do."""
    import pillow_heif

    out = io.BytesIO()
    if isinstance(exif := options.get("exif"), Image.Exif):
        options["exif"] = exif.tobytes()
    bare = Image.fromarray(np.asarray(picture))  # drops its EXIF, which would be applied as well
    pillow_heif.from_pillow(bare).save(out, **{"quality": 95, **options})
    return out.getvalue()


def avif(picture: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, "AVIF", **{"quality": 95, "speed": 10, **options})
    return out.getvalue()


def m4a(signal: Any, rate: int, codec: str = "aac", container: str = "ipod") -> bytes:
    """Encode samples [n] or [channels, n] in [-1, 1] in an MP4 container."""
    import av

    values = np.atleast_2d(np.asarray(signal, np.float32))
    layout = {1: "mono", 2: "stereo"}[len(values)]
    if codec == "alac":
        values = np.rint(values * 32767).astype(np.int16)
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=rate, layout=layout)
        for first in range(0, values.shape[1], 1024):
            part = np.ascontiguousarray(values[:, first : first + 1024])
            frame = av.AudioFrame.from_ndarray(
                part, format="s16p" if codec == "alac" else "fltp", layout=layout
            )
            frame.sample_rate, frame.pts = rate, first
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()
