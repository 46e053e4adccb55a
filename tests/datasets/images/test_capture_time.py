"""Times and cameras from EXIF, and the capture sessions derived from them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import IFDRational

from datasets.core.recorded import Recorded
from datasets.images.exif import (
    GAP_MINUTES,
    CaptureTime,
    capture_sessions,
    capture_time,
    read_exif,
)
from datasets.images.opening import open_picture
from tests.phones import heic

NOON = datetime(2023, 5, 1, 12)


def look(file: str) -> CaptureTime | None:
    times: list[CaptureTime | None] = []
    open_picture(file, header=lambda picture, _: times.append(capture_time(picture)))
    return times[0]


def photo(
    file: Path,
    time: object = NOON,
    *,
    serial: str = "",
    zone: str = "",
    place: bool = False,
    scene: Image.Image | None = None,
) -> str:
    """Write a small photo with a camera's EXIF."""
    exif = Image.Exif()
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Maker", "Nine"
    inner = exif.get_ifd(ExifTags.IFD.Exif)
    text = time.strftime("%Y:%m:%d %H:%M:%S") if isinstance(time, datetime) else time
    if text is not None:
        inner[ExifTags.Base.DateTimeOriginal] = text
    if serial:
        inner[ExifTags.Base.BodySerialNumber] = serial
    if zone:
        inner[ExifTags.Base.OffsetTimeOriginal] = zone
    if place:
        exif.get_ifd(ExifTags.IFD.GPSInfo).update(
            {1: "S", 2: (33.0, 30.0, 36.0), 3: "E", 4: (151.0, 15.0, 0.0)}
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    save(scene or Image.new("RGB", (48, 48)), file, exif=exif.tobytes())
    return str(file)


def save(picture: Image.Image, file: Path, **options: bytes) -> None:
    if file.suffix == ".heic":
        file.write_bytes(heic(picture, **options))
    else:
        picture.save(file, **options)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "avif", "heic", "tif"])
def test_the_time_and_the_camera_are_read_from_the_header(tmp_path, ending):
    time = look(photo(tmp_path / f"a.{ending}", serial="17"))
    assert time is not None
    assert time.camera == "Maker Nine 17"
    assert time.second == (NOON - datetime.min).total_seconds()
    save(Image.new("RGB", (9, 9)), tmp_path / f"plain.{ending}")
    assert look(str(tmp_path / f"plain.{ending}")) is None
    assert read_exif(str(tmp_path / f"plain.{ending}")) is None


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "avif", "heic", "tif"])
def test_zone_and_place_are_read_from_the_header(tmp_path, ending):
    known = read_exif(photo(tmp_path / f"a.{ending}", zone="-03:30", place=True))
    assert known == Recorded("EXIF", NOON.replace(tzinfo=timezone(-timedelta(hours=3.5))), (-33.51, 151.25))  # fmt: skip
    place_only = read_exif(photo(tmp_path / f"b.{ending}", None, place=True))
    assert place_only == Recorded("EXIF", None, (-33.51, 151.25))


SYDNEY = (33.0, 30.0, 36.0), (151.0, 15.0, 0.0)


@pytest.mark.parametrize(
    ("south", "east", "parts", "expected"),
    [
        ("s", "e", SYDNEY, (-33.51, 151.25)),
        ("South", "East", SYDNEY, (-33.51, 151.25)),
        ("S ", "E\0", SYDNEY, (-33.51, 151.25)),
        ("north", "w", SYDNEY, (33.51, -151.25)),
        (None, "E", SYDNEY, None),
        ("S", None, SYDNEY, None),
        ("", "E", SYDNEY, None),
        ("X", "E", SYDNEY, None),
        ("E", "S", SYDNEY, None),
        ("S", "S", SYDNEY, None),
        ("S", "E", ((33.0, 30.6, "0/0"), (151.25, "0/0", "0/0")), (-33.51, 151.25)),
        ("S", "E", (("0/0", 30.0, 36.0), SYDNEY[1]), None),
    ],
)  # fmt: skip
def test_a_place_needs_its_half_of_the_globe(tmp_path, south, east, parts, expected):
    """A place of the wrong hemisphere is worse than none; decimals may stand in any part."""
    gps: dict[int, object] = {1: south, 3: east}
    for tag, values in zip((2, 4), parts, strict=True):
        gps[tag] = tuple(IFDRational(0, 0) if p == "0/0" else p for p in values)
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({k: v for k, v in gps.items() if v is not None})
    Image.new("RGB", (9, 9)).save(tmp_path / "a.jpg", exif=exif.tobytes())
    known = read_exif(tmp_path / "a.jpg")
    assert (known and known.place) == expected


@pytest.mark.parametrize("time", [None, "", "0000:00:00 00:00:00", "2023-05-01", "    :  :     :  :  ", "\0"])  # fmt: skip
def test_a_time_that_is_none_counts_for_nothing(tmp_path, time):
    assert look(photo(tmp_path / "a.jpg", time)) is None


def test_damaged_exif_is_no_error(tmp_path):
    content = Path(photo(tmp_path / "a.jpg", serial="17")).read_bytes()
    start = content.index(b"Exif\0\0")
    rng = np.random.default_rng(0)
    for n in range(40):
        damaged = bytearray(content)
        for place in rng.integers(start, start + 150, 8):
            damaged[place] = rng.integers(256)
        (tmp_path / f"{n}.jpg").write_bytes(damaged)
    for file in sorted(tmp_path.glob("?*.jpg")):
        try:
            picture = Image.open(file)
        except OSError:  # no longer a picture
            continue
        with picture:
            capture_time(picture)
        read_exif(file)


def test_a_session_ends_with_a_pause_and_is_of_one_camera(tmp_path):
    gap = timedelta(minutes=GAP_MINUTES)
    times = [0 * gap, 0.9 * gap, 1.8 * gap, 2.8 * gap, 9 * gap]
    files = [photo(tmp_path / f"{n}.jpg", NOON + t) for n, t in enumerate(times)]
    other = [photo(tmp_path / f"o{n}.jpg", NOON + t, serial="2") for n, t in enumerate(times[:2])]
    plain = [photo(tmp_path / "plain.jpg", None)]
    numbers = capture_sessions(
        [look(file) for file in [*other[:1], *files, *plain, *other[1:]]]
    ).tolist()
    first_camera, second_camera = numbers[1:6], [numbers[0], numbers[-1]]
    assert first_camera[0] == first_camera[1] == first_camera[2] >= 0
    assert first_camera[3:] == [-1, -1], "each taken alone"
    assert second_camera[0] == second_camera[1] >= 0
    assert second_camera[0] != first_camera[0]
    assert numbers[6] == -1
