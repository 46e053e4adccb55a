"""Pictures: upright, RGB, correct grey levels, and what is refused."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, UnidentifiedImageError

from datasets.core.errors import BadFile, SecondhandError
from datasets.images import opening
from datasets.images.decoded import PictureOpener
from datasets.images.opening import MAX_PIXELS, Preprocessing, open_picture, pixels
from datasets.images.standalone import model_input
from tests.phones import avif, heic

RNG = np.random.default_rng(0)
COLOURED = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)


def encoded(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    if kind in ("HEIC", "AVIF"):
        return (heic if kind == "HEIC" else avif)(picture, **options)
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG whose header claims a size that its data do not have."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "HEIC", "AVIF"])
def test_exif_orientation_is_honoured(orientation: int, kind: str) -> None:
    original = Image.fromarray(COLOURED).resize((90, 60))
    exif = original.getexif()
    exif[0x0112] = orientation
    expected = ImageOps.exif_transpose(original)
    opened = open_picture(encoded(original, kind, exif=exif))
    assert opened.size == ((90, 60) if orientation < 5 else (60, 90))
    # Lossy formats differ slightly; a wrong orientation would differ by tens.
    allowed = 0.0 if kind in ("PNG", "TIFF") else 5.0
    assert np.abs(np.asarray(opened, float) - np.asarray(expected, float)).mean() <= allowed


@pytest.mark.parametrize("alpha", [False, True])
def test_heic_has_the_pixels_of_libheif(alpha: bool) -> None:
    import pillow_heif

    noise = RNG.integers(0, 256, (40, 56, 4 if alpha else 3), dtype=np.uint8)
    data = heic(Image.fromarray(noise))
    expected = pillow_heif.open_heif(data).to_pillow()
    if alpha:
        white = Image.new("RGBA", expected.size, "white")
        expected = Image.alpha_composite(white, expected).convert("RGB")
    np.testing.assert_array_equal(np.asarray(open_picture(data)), np.asarray(expected))
    with pytest.raises(UnidentifiedImageError):  # only our own reader limits the formats
        Image.open(io.BytesIO(data))


@pytest.mark.parametrize("kind", ["HEIC", "AVIF"])
def test_a_photo_of_a_phone_that_is_damaged_or_too_large(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(Image.fromarray(COLOURED).resize((128, 64)), kind)
    path = tmp_path / "a.jpg"  # by content, whatever the name
    for cut in (13, 40, len(data) // 2, len(data) - 30):
        path.write_bytes(data[:cut])
        with pytest.raises(BadFile, match=r"a\.jpg: (damaged|not a picture)"):
            open_picture(path)
    size = data.index(b"ispe") + 8
    bomb = data[:size] + struct.pack(">II", 12_000, 12_000) + data[size + 8 :]
    with pytest.raises(BadFile, match=f"12000 x 12000 pixels.* limit of {MAX_PIXELS:,}"):
        open_picture(bomb)
    monkeypatch.setattr(opening, "MAX_BYTES", len(data) - 1)
    with pytest.raises(BadFile, match="bytes, more than the limit"):
        open_picture(data)


def test_orientation_6_turns_clockwise() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    opened = open_picture(encoded(Image.fromarray(COLOURED), exif=exif))
    np.testing.assert_array_equal(np.asarray(opened), np.rot90(COLOURED, -1))


def test_a_broken_exif_block_does_not_lose_the_picture() -> None:
    data = encoded(Image.new("RGB", (20, 10)), "JPEG", exif=b"Exif\0\0garbage, not a header")
    assert open_picture(data).size == (20, 10)


def test_transparency_is_laid_on_white() -> None:
    alpha = RNG.integers(0, 256, (6, 9, 1), dtype=np.uint8)
    opened = open_picture(encoded(Image.fromarray(np.concatenate([COLOURED, alpha], axis=2))))
    part = alpha / 255
    np.testing.assert_allclose(np.asarray(opened), COLOURED * part + 255 * (1 - part), atol=1)


def test_grey_with_alpha_is_laid_on_white() -> None:
    values = RNG.integers(0, 256, (5, 4, 2), dtype=np.uint8)
    opened = np.asarray(open_picture(encoded(Image.fromarray(values, "LA"))))
    part = values[..., 1] / 255
    for channel in range(3):
        expected = values[..., 0] * part + 255 * (1 - part)
        np.testing.assert_allclose(opened[..., channel], expected, atol=1)


@pytest.mark.parametrize(
    ("mode", "transparency"), [("RGB", (10, 20, 30)), ("L", 18), ("1", 0), ("P", 0)]
)
def test_a_transparent_colour_becomes_white(
    mode: str, transparency: tuple[int, int, int] | int
) -> None:
    colour = {"RGB": (10, 20, 30), "L": 18, "1": 0, "P": 0}[mode]
    picture = Image.new(mode, (4, 4), colour)
    if mode == "P":
        picture.putpalette([10, 20, 30, 200, 0, 0])
    assert open_picture(encoded(picture, transparency=transparency)).getpixel((1, 1)) == (255,) * 3


def test_palette_becomes_its_colours() -> None:
    picture = Image.new("P", (3, 1))
    picture.putpalette([255, 0, 0, 0, 255, 0, 7, 8, 9])
    picture.putdata([0, 1, 2])
    for kind in ("PNG", "GIF", "BMP"):
        opened = np.asarray(open_picture(encoded(picture, kind)))
        np.testing.assert_array_equal(opened[0], [[255, 0, 0], [0, 255, 0], [7, 8, 9]])


def four_bit_runs(rows: np.ndarray) -> bytes:
    """A bitmap of four-bit pixels in runs, copied stretches and jumps over zeros, chosen at random."""
    body = b""
    for row in rows[::-1]:
        x = 0
        while x < len(row):
            rest = row[x:]
            zeros = len(rest) if not rest.any() else int((rest != 0).argmax())
            choice = RNG.integers(3)
            if choice == 0 and zeros:
                body, n = body + bytes((0, 2, zeros, 0)), zeros
            elif choice == 1 and len(rest) > 2:
                n = int(RNG.integers(3, len(rest) + 1))
                packed = np.resize(np.append(rest[:n], 0), 2 * ((n + 1) // 2)).reshape(-1, 2)
                packed = (packed[:, 0] << 4 | packed[:, 1]).astype(np.uint8).tobytes()
                body += bytes((0, n)) + packed + bytes(len(packed) % 2)
            else:  # a run of one or of two alternating values
                n = next((i for i in range(2, len(rest)) if rest[i] != rest[i - 2]), len(rest))
                body += bytes((n, rest[0] << 4 | rest[min(1, n - 1)]))
            x += n
        body += b"\0\0"
    palette = b"".join(bytes((10 * i, 0, 255 - i, 0)) for i in range(16))
    sizes = (40, rows.shape[1], rows.shape[0], 1, 4, 2, len(body) + 2, 0, 0, 16, 16)
    length = 54 + 64 + len(body) + 2
    head = b"BM" + struct.pack("<IHHI", length, 0, 0, 54 + 64)
    return head + struct.pack("<IiiHHIIiiII", *sizes) + palette + body + b"\0\1"


@pytest.mark.parametrize("width", [1, 2, 3, 7, 40, 255])
def test_four_bit_runs_are_decoded_as_they_were_coded(width: int) -> None:
    for most in (1, 3, 16):
        rows = RNG.integers(0, most, (9, width), dtype=np.uint8)
        rows[3] = np.resize([0, 0, 5], width)
        data = four_bit_runs(rows)
        expected = np.stack([255 - rows, 0 * rows, 10 * rows], -1)
        np.testing.assert_array_equal(np.asarray(open_picture(data)), expected)
        with pytest.raises(BadFile, match="damaged or truncated"):
            open_picture(data[: 54 + 64 + 5])


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "TIFF big endian", "PGM"])
def test_16_bit_grey_is_divided_by_257(kind: str) -> None:
    values = RNG.integers(20_000, 40_000, (5, 7), dtype=np.uint16)
    if kind == "PGM":
        data = b"P5\n7 5\n65535\n" + values.astype(">u2").tobytes()
    else:
        stored = values.astype(">u2") if "big" in kind else values
        data = encoded(Image.fromarray(stored), kind.split()[0])
    opened = np.asarray(open_picture(data))
    np.testing.assert_array_equal(opened[..., 0], np.rint(values / 257))
    assert (opened == opened[..., :1]).all()


def planar_tiff(planes: np.ndarray, order: str, tile: int | None = None) -> bytes:
    """A TIFF whose channels [channels, height, width] are stored one after the other, in strips of five rows or tiles."""
    channels, height, width = planes.shape
    bits, is_float = 8 * planes.itemsize, planes.dtype.kind == "f"
    stored = planes.astype(planes.dtype.newbyteorder(order))
    if tile is None:
        parts = [plane[at : at + 5].tobytes() for plane in stored for at in range(0, height, 5)]
    else:
        padded = np.pad(stored, ((0, 0), (0, -height % tile), (0, -width % tile)))
        parts = [
            plane[y : y + tile, x : x + tile].tobytes()
            for plane in padded
            for y in range(0, height, tile)
            for x in range(0, width, tile)
        ]
    tags: dict[int, tuple[int, list[int]]] = {
        256: (4, [width]), 257: (4, [height]), 258: (3, [bits] * channels), 259: (3, [1]),
        262: (3, [2 if channels > 2 else 1]), 277: (3, [channels]), 284: (3, [2]),
        339: (3, [3 if is_float else 1] * channels),
    }  # fmt: skip
    if channels == 4:
        tags[338] = (3, [2])
    lengths = [len(part) for part in parts]
    offsets = [8 + sum(lengths[:number]) for number in range(len(parts))]
    places = {273: offsets, 278: [5], 279: lengths}
    if tile is not None:
        places = {322: [tile], 323: [tile], 324: offsets, 325: lengths}
    tags |= {tag: (4, values) for tag, values in places.items()}
    body, extra = b"".join(parts), b""
    directory = 8 + len(body) + len(body) % 2
    behind, rows = directory + 6 + 12 * len(tags), b""
    for tag, (kind, values) in sorted(tags.items()):
        content = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(content) > 4:
            extra, content = extra + content, struct.pack(order + "I", behind + len(extra))
        rows += struct.pack(order + "HHI", tag, kind, len(values)) + content.ljust(4, b"\0")
    start = b"II*\0" if order == "<" else b"MM\0*"
    return (
        start + struct.pack(order + "I", directory) + body.ljust(directory - 8, b"\0")
        + struct.pack(order + "H", len(tags)) + rows + bytes(4) + extra
    )  # fmt: skip


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize(
    ("kind", "channels"), [("u1", 3), ("u2", 3), ("u2", 4), ("u1", 1), ("u2", 1), ("f4", 1)]
)
def test_planes_of_a_tiff_are_read_at_every_depth(
    kind: str, channels: int, tile: int | None, order: str
) -> None:
    planes = RNG.integers(0, 256, (channels, 21, 37)).astype(kind)
    planes[:, 0, :2] = 0, 255  # of floats, the whole range
    if kind == "u2":
        planes *= 257
    if channels == 4:
        planes[3] = 65535  # opaque
    opened = np.asarray(open_picture(planar_tiff(planes, order, tile)))
    expected = np.moveaxis(planes[:3], 0, -1) / (257 if kind == "u2" else 1)
    np.testing.assert_allclose(opened, np.broadcast_to(expected, opened.shape), atol=0.5)


def test_float_pictures_are_stretched_and_nan_is_black() -> None:
    values = np.linspace(-3, 5, 12, dtype=np.float32).reshape(3, 4)
    opened = np.asarray(open_picture(encoded(Image.fromarray(values), "TIFF")))[..., 0]
    np.testing.assert_array_equal(opened, np.rint((values + 3) * 255 / 8))
    values[1, 0] = np.nan
    spotted = np.asarray(open_picture(encoded(Image.fromarray(values), "TIFF")))[..., 0]
    assert spotted[1, 0] == 0
    np.testing.assert_array_equal(np.delete(spotted, 4), np.delete(opened, 4))


@pytest.mark.parametrize(
    ("mode", "kind", "size", "first"),
    [
        ("CMYK", "JPEG", (32, 32), (255, 0, 0)),
        ("CMYK", "TIFF", (32, 32), (255, 0, 0)),
        ("1", "PNG", (5, 5), (255, 255, 255)),
        ("L", "JPEG", (32, 32), (77, 77, 77)),
    ],
)
def test_other_modes_become_rgb(
    mode: str, kind: str, size: tuple[int, int], first: tuple[int, int, int]
) -> None:
    colour = {"CMYK": (0, 255, 255, 0), "1": 1, "L": 77}[mode]
    opened = open_picture(encoded(Image.new(mode, size, colour), kind))
    assert opened.mode == "RGB"
    assert opened.size == size
    np.testing.assert_allclose(opened.getpixel((2, 2)), first, atol=2)


def test_a_jpeg_is_decoded_smaller_but_not_too_small() -> None:
    data = encoded(Image.fromarray(COLOURED).resize((800, 600)), "JPEG")
    assert open_picture(data).size == (800, 600)
    small = open_picture(data, at_least=100)
    assert small.size == (200, 150)  # decoded at a quarter; at an eighth it would have 75 pixels
    near = Image.open(io.BytesIO(data)).resize(small.size, Image.Resampling.BOX)
    assert np.abs(np.asarray(small, float) - np.asarray(near, float)).mean() < 2


BAD = {
    "text": (b"hello, I am no picture", "not a picture in a supported format"),
    "empty": (b"", "empty file"),
    "truncated JPEG": (
        encoded(Image.fromarray(COLOURED).resize((400, 300)), "JPEG")[:-2000],
        "damaged or truncated",
    ),
    "truncated PNG": (encoded(Image.fromarray(COLOURED))[:-60], "damaged or truncated"),
    "header alone": (encoded(Image.fromarray(COLOURED), "JPEG")[:20], "damaged|not a picture"),
    "PDF": (b"%PDF-1.4\n" + bytes(100), "not a picture in a supported format"),
    "long side": (png_of_size(70_000, 10), "70000 x 10 pixels, more than the limit"),
    "just too large": (png_of_size(12_000, 10_001), "12000 x 10001 pixels, more than the limit"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bytes_are_refused_by_name(name: str, tmp_path: Path) -> None:
    data, reason = BAD[name]
    path = tmp_path / "ünï cödé photo.jpg"
    path.write_bytes(data)
    for at_least in (0, 1):
        with pytest.raises(BadFile, match=reason) as error:
            open_picture(path, at_least=at_least, allow_truncated=False)
        assert error.value.path == str(path)
        assert error.value.reason in str(error.value)


@pytest.mark.parametrize("turned", [1, 6])
@pytest.mark.parametrize("at_least", [0, 50])
@pytest.mark.parametrize("kept", [0.3, 0.75, 0.98])
def test_of_a_photo_that_was_cut_off_what_is_there_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: float, at_least: int, turned: int
) -> None:
    photo = Image.fromarray(RNG.integers(0, 256, (480, 640, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = turned
    data = encoded(photo, "JPEG", quality=90, exif=exif)
    whole = np.asarray(open_picture(data, at_least=at_least))
    path = tmp_path / "a.jpg"
    path.write_bytes(data[: int(kept * len(data))])
    read = np.asarray(open_picture(path, at_least=at_least))
    assert read.shape == whole.shape
    same = (read == whole).all(axis=2).mean()
    assert same == pytest.approx(kept, abs=0.06)
    (missing,) = re.findall(r"(\d+) % is missing", caplog.text)
    assert int(missing) / 100 == pytest.approx(1 - kept, abs=0.06)


def test_every_truncation_is_a_bad_file_or_a_picture() -> None:
    """A truncated file never raises another error."""
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        data = encoded(Image.fromarray(COLOURED), kind)
        for end in range(0, len(data), max(1, len(data) // 60)):
            with contextlib.suppress(BadFile):
                assert open_picture(data[:end]).size == (9, 6)


@pytest.mark.parametrize(
    ("palette", "colours"),
    [
        (bytes((0, 0, 255, 0, 0, 255, 0, 0)), [(255, 0, 0), (0, 255, 0)]),
        (bytes((0, 0, 0, 0, 255, 255, 255, 0)), [(0, 0, 0), (255, 255, 255)]),
    ],
)
def test_four_bit_runs_may_end_in_their_last_row(palette, colours):
    """Pillow's decoder, which counts otherwise, takes no part in it; two greys are no palette there."""
    body = bytes((3, 0x01, 0, 0, 0, 3, 0x10, 0x10, 0, 1))
    sizes = (40, 3, 2, 1, 4, 2, len(body), 0, 0, 2, 2)
    length = 54 + len(palette) + len(body)
    head = b"BM" + struct.pack("<IHHI", length, 0, 0, 54 + len(palette))
    head += struct.pack("<IiiHHIIiiII", *sizes)
    opened = np.asarray(open_picture(head + palette + body))
    np.testing.assert_array_equal(opened, np.asarray(colours)[[[1, 0, 1], [0, 1, 0]]])


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        open_picture(tmp_path / "nothing.png")
    with pytest.raises(BadFile, match="folder"):
        open_picture(tmp_path)


def test_a_bomb_is_refused_before_decoding(tmp_path: Path) -> None:
    """60 000 x 60 000 pixels would take 10.8 GB; a process limited to 1 GB refuses them."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of_size(60_000, 60_000))
    code = (
        "import resource, sys, time\n"
        "from datasets.images.opening import open_picture\n"
        "from datasets.core.errors import BadFile\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    open_picture(sys.argv[1])\n"
        "except BadFile as error:\n    print(error.reason)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "print(time.process_time())\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60
    )
    reason, kilobytes, seconds = completed.stdout.splitlines()
    assert "3,600,000,000 pixels, more than the limit" in reason
    assert f"{MAX_PIXELS:,}" in reason
    assert int(kilobytes) < 20_000
    assert float(seconds) < 20  # decoding alone would take longer


def test_fit_cuts_the_centred_square() -> None:
    picture = Image.fromarray(RNG.integers(0, 256, (60, 100, 3), dtype=np.uint8))
    fitted = Preprocessing(size=60, crop=1.0).fit(picture)
    np.testing.assert_array_equal(np.asarray(fitted), np.asarray(picture)[:, 20:80])
    inner = Preprocessing(size=48, crop=0.8).fit(picture)
    np.testing.assert_array_equal(np.asarray(inner), np.asarray(picture)[6:54, 26:74])
    squashed = Preprocessing(size=30, resize="squash", interpolation="bicubic").fit(picture)
    expected = picture.resize((30, 30), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(np.asarray(squashed), np.asarray(expected))


def test_pixels_are_channels_first() -> None:
    stacked = pixels(Image.fromarray(COLOURED))
    assert stacked.shape == (3, 6, 9)
    assert stacked.dtype == np.uint8
    np.testing.assert_array_equal(stacked[2], COLOURED[..., 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4}, "size=4"),
        ({"size": 22.5}, "size=22.5"),
        ({"interpolation": "best"}, "'best'.*bicubic"),
        ({"crop": 0.0}, "crop=0.0"),
        ({"mean": (0.5, 0.5)}, "mean"),
        ({"std": (0.5, 0.0, 0.5)}, "std"),
        ({"mean": (0.5, float("nan"), 0.5)}, "mean"),
    ],
)
def test_wrong_preprocessing_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(SecondhandError, match=message):
        Preprocessing(**options)


def test_every_wrong_value_is_named_at_once() -> None:
    with pytest.raises(SecondhandError, match=r"size=4 .*'best'.*crop=2"):
        Preprocessing(size=4, interpolation="best", crop=2)


def test_a_jpeg_of_any_side_may_be_scaled_down_to_a_pixel(tmp_path: Path) -> None:
    file = tmp_path / "it.jpg"
    for side in (49, 98, 103, 107):  # sides for which 1 / side * side is less than 1
        Image.new("RGB", (side, side + 20), "red").save(file)
        assert min(open_picture(file, at_least=1).size) >= 1


SHAPES = [(160, 60), (61, 97), (40, 40), (24, 31)]


def noise(shape: tuple[int, int]) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape[::-1], 3), np.uint8))


def padded(picture: Image.Image, size: int) -> Image.Image:
    method = Image.Resampling.BICUBIC
    return ImageOps.pad(picture, (size, size), method, color=(51, 102, 153))


def squashed(picture: Image.Image, size: int) -> Image.Image:
    from torchvision.transforms import InterpolationMode, Resize

    return Resize((size, size), InterpolationMode.BICUBIC)(picture)


@pytest.mark.parametrize(("resize", "oracle"), [("pad", padded), ("squash", squashed)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_whole_picture_is_padded_as_by_pillow_or_squashed_as_by_torchvision(
    resize: str, oracle: Callable[..., Image.Image], shape: tuple[int, int], tmp_path: Path
) -> None:
    settings = Preprocessing(size=32, resize=resize, mean=(0.2, 0.4, 0.6), interpolation="bicubic")
    picture = noise(shape)
    picture.save(file := str(tmp_path / "it.png"))
    np.testing.assert_array_equal(settings.fit(picture), oracle(picture, 32))
    # Random crops come from a larger version, which is also whole and no larger than the file.
    large = PictureOpener(settings, 0.35, None).open_for_training(file)
    np.testing.assert_array_equal(large, oracle(picture, min(63, max(shape))))


def test_a_line_of_pixels_is_padded() -> None:
    fitted = Preprocessing(size=32, resize="pad", mean=(0.2, 0.4, 0.6)).fit(
        Image.new("RGB", (700, 3), "white")
    )
    assert sorted(fitted.getcolors()) == [(32, (255, 255, 255)), (31 * 32, (51, 102, 153))]


@pytest.mark.parametrize("resize", ["crop", "pad", "squash"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_program_of_a_shared_model_makes_the_same_pixels(
    resize: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    noise(shape).save(file := tmp_path / "it.png")
    preprocessing = Preprocessing(size=32, resize=resize)
    expected = pixels(preprocessing.fit(open_picture(file)))
    np.testing.assert_array_equal(model_input(file, preprocessing.to_dict())[0], expected)
