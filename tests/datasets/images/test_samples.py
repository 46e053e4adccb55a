"""Pictures that are not of 8 bits: their samples are tifffile's, and every route draws them alike."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image, TiffImagePlugin

from datasets.core.errors import BadFile
from datasets.core.part import Part
from datasets.images import opening
from datasets.images.boxes import crop_name, open_part
from datasets.images.opening import numbers_of_pages, open_picture, opened, pages_of
from datasets.images.settings import PictureSettings
from datasets.images.standalone import Samples, draw, open_any, quantiles, samples_of
from datasets.kinds.base import KINDS

RNG = np.random.default_rng(0)
SHAPE = (37, 53)


def values_of(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind[0] == "f":
        return RNG.normal(0, 1000, shape).astype(kind)
    limits = np.iinfo(kind)
    return RNG.integers(limits.min // 2, limits.max // 2, shape).astype(kind)


def tiff(values: np.ndarray, **options: Any) -> bytes:
    """A TIFF that tifffile writes."""
    buffer = io.BytesIO()
    options.setdefault("photometric", "minisblack")
    tifffile.imwrite(buffer, values, **options)
    return buffer.getvalue()


def stored(data: bytes, **settings: Any) -> np.ndarray:
    samples = samples_of(open_any(io.BytesIO(data)), settings)
    assert samples is not None
    return samples.values


@pytest.mark.parametrize("kind", ["u2", "i2", "u4", "i4", "u8", "i8", "i1", "f2", "f4", "f8"])
@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_samples_are_those_of_tifffile(kind: str, planar: str, channels: int) -> None:
    shape = SHAPE if channels == 1 else (*SHAPE, channels)
    if channels > 1 and planar == "separate":
        shape = (channels, *SHAPE)
    values = values_of(kind, shape)
    photometric = "rgb" if channels in (3, 4) else "minisblack"
    for order in "<>":
        for layout in (
            {"rowsperstrip": 7},
            {"tile": (16, 32)},
            {},
            {"rowsperstrip": 7, "compression": "zlib"},
        ):
            options = {**layout, "photometric": photometric, "byteorder": order}
            if channels > 1:
                options["planarconfig"] = planar
            data = tiff(values, **options)
            page = tifffile.TiffFile(io.BytesIO(data)).pages[0]
            expected = page.asarray()
            if expected.ndim == 2:
                expected = expected[..., None]
            elif page.axes[0] == "S":
                expected = np.moveaxis(expected, 0, -1)
            np.testing.assert_array_equal(stored(data), expected)


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_strips_that_do_not_follow_each_other_are_put_together(planar: str) -> None:
    values = values_of("u2", (3, *SHAPE) if planar == "separate" else (*SHAPE, 3))
    data = tiff(values, rowsperstrip=7, photometric="rgb", planarconfig=planar)
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        offsets, lengths = page.dataoffsets, page.databytecounts
        place, size = page.tags["StripOffsets"].valueoffset, 4
    moved = 2
    strip = data[offsets[moved] : offsets[moved] + lengths[moved]]
    table = place + size * moved
    data = data[:table] + len(data).to_bytes(size, "little") + data[table + size :]
    # What was there is overwritten, so that nothing but the moved strip has its values.
    data = data[: offsets[moved]] + bytes(len(strip)) + data[offsets[moved + 1] :] + strip
    expected = np.moveaxis(values, 0, -1) if planar == "separate" else values
    np.testing.assert_array_equal(stored(data), expected)
    with pytest.raises(ValueError, match="ends before the picture"):
        stored(data[:-1])


def test_strips_that_follow_each_other_are_read_to_the_end_of_the_file() -> None:
    data = tiff(values_of("u2", SHAPE), rowsperstrip=7)
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        end = page.dataoffsets[-1] + page.databytecounts[-1]
    with pytest.raises(ValueError, match="ends before the picture"):
        stored(data[: end - 1])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("channels", [1, 3])
def test_differences_are_added_up(order: str, channels: int) -> None:
    for kind in ("u2", "i2", "u4"):
        values = values_of(kind, (*SHAPE, channels))
        data = tiff(
            values[..., 0] if channels == 1 else values, byteorder=order, compression="zlib", predictor=2,
            photometric="rgb" if channels == 3 else "minisblack",
        )  # fmt: skip
        np.testing.assert_array_equal(stored(data), values)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_differences_of_the_bytes_of_floats_are_added_up(kind: str, order: str) -> None:
    """As in Adobe's TIFF Technical Note 3: of each row first all first bytes, then all second ones, …"""
    values = values_of(kind, SHAPE)
    split = values.astype(f">{kind}")[..., None].view(np.uint8).transpose(0, 2, 1)
    rows = split.reshape(len(values), -1)
    body = zlib.compress(np.diff(rows, axis=1, prepend=np.uint8(0)).tobytes())
    data = tiff_of(
        body, SHAPE, order, bits=8 * values.itemsize, sort=3, compression=8, t317=(3, [3])
    )
    np.testing.assert_array_equal(stored(data)[..., 0], values)


def packed(values: np.ndarray, bits: int) -> bytes:
    """Rows of samples of so many bits, the first bit of each first, each row filled up to a byte."""
    each = values[..., None] >> np.arange(bits - 1, -1, -1) & 1
    return np.packbits(each.reshape(len(values), -1).astype(np.uint8), axis=1).tobytes()


def tiff_of(
    body: bytes,
    shape: tuple[int, int],
    order: str = "<",
    *,
    bits: int = 16,
    sort: int = 1,
    compression: int = 1,
    **tags: Any,
) -> bytes:
    """A TIFF of one grey strip, with further tags by number as ``t262``: (type, values)."""
    import struct

    height, width = shape
    entries: dict[int, tuple[int, list[int]]] = {
        256: (4, [width]), 257: (4, [height]), 258: (3, [bits]), 259: (3, [compression]), 262: (3, [1]),
        273: (4, [8]), 277: (3, [1]), 278: (4, [height]), 279: (4, [len(body)]), 339: (3, [sort]),
    }  # fmt: skip
    entries |= {int(name[1:]): value for name, value in tags.items()}
    place = 8 + len(body) + len(body) % 2
    rows, extra, behind = b"", b"", place + 6 + 12 * len(entries)
    for tag, (kind, numbers) in sorted(entries.items()):
        content = struct.pack(f"{order}{len(numbers)}{ {2: 'B', 3: 'H', 4: 'I'}[kind] }", *numbers)
        if len(content) > 4:
            extra, content = extra + content, struct.pack(order + "I", behind + len(extra))
        rows += struct.pack(order + "HHI", tag, kind, len(numbers)) + content.ljust(4, b"\0")
    start = b"II*\0" if order == "<" else b"MM\0*"
    directory = struct.pack(order + "H", len(entries)) + rows + bytes(4)
    return (
        start + struct.pack(order + "I", place) + body.ljust(place - 8, b"\0") + directory + extra
    )


@pytest.mark.parametrize("bits", [*range(9, 16), 24, 31])
@pytest.mark.parametrize("order", ["<", ">"])
def test_samples_without_gaps_are_unpacked(bits: int, order: str) -> None:
    for shape in (SHAPE, (1, 1), (40, 3)):
        values = RNG.integers(0, 2**bits, shape)
        data = tiff_of(packed(values, bits), shape, order, bits=bits)
        np.testing.assert_array_equal(stored(data)[..., 0], values)
    signed = tiff_of(packed(values, bits), shape, order, bits=bits, sort=2)
    expected = np.where(values < 2 ** (bits - 1), values, values - 2**bits)
    np.testing.assert_array_equal(stored(signed)[..., 0], expected)


def test_bits_may_be_filled_from_the_other_end() -> None:
    values = RNG.integers(0, 2**12, SHAPE)
    turned = np.packbits(
        np.unpackbits(np.frombuffer(packed(values, 12), np.uint8)), bitorder="little"
    )
    data = tiff_of(turned.tobytes(), SHAPE, bits=12, t266=(3, [2]))
    np.testing.assert_array_equal(stored(data)[..., 0], values)


@pytest.mark.parametrize("compression", ["tiff_lzw", "packbits", "lzma", "zstd"])
def test_what_libtiff_compresses_is_read_at_every_depth(compression: str) -> None:
    """Pillow writes 8-bit pixels, which are the bytes of samples of another depth."""
    for kind in ("u2", "f4", "f8"):
        values = values_of(kind, SHAPE)
        pixels = Image.fromarray(values.view(np.uint8))
        buffer = io.BytesIO()
        pixels.save(buffer, "TIFF", compression=compression, tiffinfo={278: len(values)})
        with Image.open(buffer) as picture:
            (place,), (length,), method = (picture.tag_v2[tag] for tag in (273, 279, 259))
        body = buffer.getvalue()[place : place + length]
        data = tiff_of(
            body,
            SHAPE,
            bits=8 * values.itemsize,
            sort=3 if kind[0] == "f" else 1,
            compression=method,
        )
        np.testing.assert_array_equal(stored(data)[..., 0], values)


@pytest.mark.parametrize("colour", [0, 2, 4, 6])
@pytest.mark.parametrize("interlaced", [0, 1])
def test_colours_of_a_png_keep_16_bits(colour: int, interlaced: int) -> None:
    """Written without filters here; OpenCV writes them with filters."""
    import struct

    count = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    values = RNG.integers(0, 65536, (13, 11, count), dtype=np.uint16)
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [
            (0, 0, 8, 8),
            (4, 0, 8, 8),
            (0, 4, 4, 8),
            (2, 0, 4, 4),
            (0, 2, 2, 4),
            (1, 0, 2, 2),
            (0, 1, 1, 2),
        ]
    lines = b"".join(
        b"\0" + row.astype(">u2").tobytes()
        for x, y, dx, dy in passes
        for row in values[y::dy, x::dx]
    )

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    head = struct.pack(">IIBBBBB", 11, 13, 16, colour, 0, 0, interlaced)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )
    np.testing.assert_array_equal(stored(data), values)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_filtered_pngs_are_those_of_opencv(channels: int) -> None:
    import cv2

    y, x = np.mgrid[:40, :60]
    smooth = np.stack([(900 * x + 37 * y * n) % 65536 for n in range(1, channels + 1)], -1)
    values = (smooth + RNG.integers(0, 3, smooth.shape)).astype(np.uint16)
    for strategy in range(6):  # each filter, and all
        flags = [
            cv2.IMWRITE_PNG_FILTER,
            {5: cv2.IMWRITE_PNG_ALL_FILTERS}.get(strategy, 8 << strategy),
        ]
        _, data = cv2.imencode(
            ".png", values[..., [2, 1, 0, 3][:channels]] if channels > 1 else values, flags
        )
        np.testing.assert_array_equal(stored(data.tobytes()), values)


def seen(values: np.ndarray, settings: dict[str, Any] | None = None, **facts: Any) -> np.ndarray:
    """What `draw` makes of values [height, width, channels] or [height, width]."""
    whole = values if values.ndim == 3 else values[..., None]
    bits = 8 * values.itemsize if values.dtype.kind == "u" else 0
    samples = Samples(whole, **{"bits": bits, **facts})
    return np.asarray(draw(samples, settings))


def test_a_range_is_black_to_white() -> None:
    values = RNG.integers(0, 4096, SHAPE).astype(np.uint16)
    expected = np.rint(values / 4095 * 255)
    for kind in ("u2", "i2", "i4", "f4", "f8"):
        drawn = seen(values.astype(kind), {"low": [0.0], "high": [4095.0]})
        np.testing.assert_array_equal(drawn[..., 0], expected)
        assert (drawn == drawn[..., :1]).all()
    drawn = seen(values, {"low": [0.0], "high": [4095.0]}, inverted=True)
    np.testing.assert_array_equal(drawn[..., 1], 255 - expected)
    three = RNG.integers(-500, 500, (*SHAPE, 3)).astype(np.int16)
    drawn = seen(three, {"low": [-500.0, 0.0, -100.0], "high": [500.0, 500.0, 100.0]})
    for channel, (low, high) in enumerate(((-500, 500), (0, 500), (-100, 100))):
        share = (three[..., channel] - low) / (high - low)
        np.testing.assert_allclose(drawn[..., channel], (255 * share).clip(0, 255), atol=0.51)


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_without_settings_integers_fill_their_bits(bits: int) -> None:
    grey = np.arange(256, dtype=np.uint16).reshape(16, 16)
    values = np.rint(grey * ((2**bits - 1) / 255)).astype(np.uint16)
    np.testing.assert_array_equal(seen(values)[..., 0], grey)


@pytest.mark.parametrize("kind", ["i2", "i4", "f2", "f4", "f8"])
def test_a_hot_pixel_and_missing_values_leave_the_rest_as_it_is(kind: str) -> None:
    y, x = np.mgrid[:96, :96]
    land = (200 + 60 * np.sin(x / 9) + 40 * np.cos(y / 7)).astype(kind)
    whole = seen(land)
    assert len(np.unique(whole)) > 90
    spots: list[tuple[float, dict[str, Any]]] = [
        (-9999, {"missing": -9999.0}),
        (30000, {}),
        (-9999, {}),
    ]
    if kind[0] == "f":
        spots += [(np.nan, {}), (np.inf, {})]
    for value, facts in spots:
        spotted = land.copy()
        spotted[3, 4] = value
        drawn = seen(spotted, **facts)
        assert drawn[3, 4, 0] == (255 if value == 30000 else 0)
        difference = np.abs(drawn.astype(int) - whole)
        difference[3, 4] = 0
        assert difference.max() <= 2
    holes = land.copy()
    holes[:60] = -9999
    drawn = seen(holes, missing=-9999.0)
    assert (drawn[:60] == 0).all()
    assert len(np.unique(drawn[60:])) > 60


def test_no_data_of_a_file_is_read_from_its_tag(tmp_path: Path) -> None:
    land = np.linspace(100, 300, 400, dtype=np.float32).reshape(20, 20)
    holes = land.copy()
    holes[:5] = -3.4028234663852886e38
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    for missing in ("-3.4028234663852886e+38", "-3.4028234663852886e+38\0", "nan", "none"):
        tags[42113], tags.tagtype[42113] = missing, 2
        Image.fromarray(holes).save(tmp_path / "a.tif", tiffinfo=tags)
        drawn = np.asarray(open_picture(tmp_path / "a.tif"))
        assert (drawn[:5] == 0).all()
        assert len(np.unique(drawn[5:])) > 200


@pytest.mark.parametrize(
    ("tags", "highest"),
    [((0, 4095), 4095), ((0, 65535), 1023), ((0, 255), 1023), ((3, 900), 1023)],
)
def test_a_stated_depth_counts_if_it_can_be(tags: tuple[int, int], highest: int) -> None:
    values = RNG.integers(0, 1000, SHAPE).astype(np.uint16)
    data = tiff(values, extratags=[(340, "H", 1, tags[0], True), (341, "H", 1, tags[1], True)])
    drawn = np.asarray(open_picture(data))[..., 0]
    np.testing.assert_array_equal(drawn, np.rint(values / highest * 255))


@pytest.mark.parametrize(
    ("maximum", "highest"), [(4095, 4095), (1000, 1000), (65535, 1023), (255, 255)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_maximum_of_a_pgm_or_ppm_counts_if_it_says_something(
    maximum: int, highest: int, channels: int
) -> None:
    values = RNG.integers(0, min(1000, maximum), (*SHAPE, channels)).astype(np.uint16)
    kind, stored_as = "P6" if channels == 3 else "P5", ">u2" if maximum > 255 else "u1"
    data = f"{kind}\n53 37\n{maximum}\n".encode() + values.astype(stored_as).tobytes()
    drawn = np.asarray(open_picture(data))
    expected = np.broadcast_to(values / highest * 255, drawn.shape)
    np.testing.assert_allclose(drawn, expected, atol=0.51)
    with pytest.raises(BadFile, match="damaged"):
        open_picture(data[:-9])


def test_numbers_in_words_are_read_as_pillow_scales_them() -> None:
    values = RNG.integers(0, 4096, (4, 5))
    data = b"P2\n5 4\n4095\n" + " ".join(map(str, values.ravel())).encode()
    np.testing.assert_allclose(
        np.asarray(open_picture(data))[..., 0], values / 4095 * 255, atol=0.51
    )


def test_own_quantiles_leave_out_a_thousandth_at_either_end() -> None:
    values = np.append(np.arange(9_990), np.full(10, 60_000)).astype(np.float32)[:, None, None]
    assert quantiles(Samples(values, 0), [0]) == (10.0, 9989.0)
    assert quantiles(Samples(values[:20], 0), [0]) == (0.0, 19.0)
    assert quantiles(Samples(np.full((3, 3, 1), np.nan), 0), [0]) == (0.0, 0.0)


def test_channels_are_chosen_and_otherwise_named() -> None:
    values = RNG.integers(0, 65536, (*SHAPE, 5)).astype(np.uint16)
    data = tiff(values, planarconfig="contig")
    with pytest.raises(BadFile, match=r"16-bit integers in 5 channels.* --channels 0,2,1"):
        open_picture(data)
    settings = PictureSettings(range="fixed", low=(0.0,), high=(65535.0,), channels=(0, 4, 2))
    drawn = np.asarray(open_picture(data, samples=settings))
    np.testing.assert_array_equal(drawn, np.rint(values[..., [0, 4, 2]] / 257))
    with pytest.raises(BadFile, match=r"no channel 5: there are channels 0 to 4"):
        open_picture(data, samples=PictureSettings(channels=(5,)))
    two = tiff(values[..., :2], planarconfig="contig")
    with pytest.raises(BadFile, match=r"in 2 channels.* --channels 0, or 0,1,1"):
        open_picture(two)
    assert np.asarray(open_picture(two, samples=PictureSettings(channels=(1,)))).shape == (
        *SHAPE,
        3,
    )


def test_channels_of_8_bit_pictures_keep_their_values() -> None:
    values = RNG.integers(0, 256, (*SHAPE, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    drawn = open_picture(buffer.getvalue(), samples=PictureSettings(channels=(2, 0, 1)))
    np.testing.assert_array_equal(np.asarray(drawn), values[..., [2, 0, 1]])
    drawn = open_picture(
        buffer.getvalue(), samples=PictureSettings(range="fixed", low=(0.0,), high=(4095.0,))
    )
    np.testing.assert_array_equal(np.asarray(drawn), values)


@pytest.mark.parametrize("kind", ["u1", "u2", "f4"])
def test_a_page_or_the_largest_of_all_is_shown(kind: str) -> None:
    pages = RNG.integers(0, 200, (4, *SHAPE)).astype(kind)
    pages[0] = 3
    data = tiff(pages)
    fixed = {"range": "fixed", "low": (0.0,), "high": (255.0,)}
    for page, expected in ((None, pages[0]), (0, pages[0]), (2, pages[2]), ("max", pages.max(0))):
        drawn = open_picture(data, samples=PictureSettings(**fixed, page=page))
        np.testing.assert_array_equal(np.asarray(drawn)[..., 0], expected)
    with pytest.raises(BadFile, match=r"no page 4: there are pages 0 to 3. Change --page"):
        open_picture(data, samples=PictureSettings(page=4))


@pytest.mark.parametrize("kind", ["u1", "u2"])
def test_channels_that_are_pages_count_on_over_the_pages(kind: str) -> None:
    pages = RNG.integers(0, 200, (5, *SHAPE)).astype(kind)
    fixed = {"range": "fixed", "low": (0.0,), "high": (255.0,)}
    for page in (None, 0):
        settings = PictureSettings(**fixed, channels=(0, 4, 2), page=page)
        drawn = np.asarray(open_picture(tiff(pages), samples=settings))
        np.testing.assert_array_equal(drawn, np.moveaxis(pages[[0, 4, 2]], 0, -1))
    with pytest.raises(BadFile, match=r"no channel 5: there are channels 0 to 4"):
        open_picture(tiff(pages), samples=PictureSettings(channels=(5,)))
    pairs = RNG.integers(0, 200, (2, *SHAPE, 3)).astype(kind)
    data = tiff(pairs, photometric="rgb")
    drawn = np.asarray(open_picture(data, samples=PictureSettings(**fixed, channels=(4, 0, 5))))
    np.testing.assert_array_equal(
        drawn, np.stack([pairs[1, ..., 1], pairs[0, ..., 0], pairs[1, ..., 2]], -1)
    )


def test_pages_are_told_once_unless_one_is_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.tif").write_bytes(tiff(RNG.integers(0, 200, (4, *SHAPE), dtype=np.uint8)))
    open_picture(tmp_path / "a.tif", samples=PictureSettings(page=0))
    assert not caplog.text
    for _ in range(2):
        open_picture(tmp_path / "a.tif")
    assert caplog.text.count("of 4 pages the first is used") == 1


def test_a_maximum_leaves_out_missing_values_and_needs_equal_pages() -> None:
    pages = np.array([[[-9999.0, 2, -9999]], [[5.0, -9999, -9999]]], np.float32)
    buffer = io.BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        for page in pages:
            writer.write(page, photometric="minisblack", extratags=[(42113, "s", 0, "-9999", True)])
    np.testing.assert_array_equal(stored(buffer.getvalue(), page="max")[..., 0], [[5, 2, -9999]])
    unequal = io.BytesIO()
    with tifffile.TiffWriter(unequal) as writer:
        writer.write(np.zeros((4, 5), np.uint16), photometric="minisblack")
        writer.write(np.zeros((5, 5), np.uint16), photometric="minisblack")
    with pytest.raises(BadFile, match="its pages differ in size"):
        open_picture(unequal.getvalue(), samples=PictureSettings(page="max"))


def test_frames_of_an_animation_are_pages() -> None:
    frames = [Image.new("L", (9, 9), 40 * n) for n in range(1, 5)]
    for kind in ("GIF", "PNG", "WEBP"):
        buffer = io.BytesIO()
        frames[0].save(
            buffer,
            kind,
            save_all=True,
            append_images=frames[1:],
            **({"lossless": True} if kind == "WEBP" else {}),
        )
        for page, value in ((None, 40), (2, 120), ("max", 160)):
            drawn = open_picture(buffer.getvalue(), samples=PictureSettings(page=page))
            assert drawn.getpixel((4, 4)) == (value,) * 3


@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])
def test_a_part_names_a_page_by_its_number(order: str, big: bool, tmp_path: Path) -> None:
    """A smaller copy of a page is none, but has a number, as in `--page`."""
    pages = RNG.integers(0, 4096, (4, *SHAPE)).astype(np.uint16)
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path, byteorder=order, bigtiff=big) as writer:
        for number, page in enumerate(pages):
            writer.write(page, photometric="minisblack", metadata=None, subfiletype=number == 1)
    settings = PictureSettings(range="fixed", low=(0.0,), high=(4095.0,), page="max")
    parts = KINDS["picture"].spans(Part(str(path)))
    assert parts == [Part(str(path), at=number) for number in (0, 2, 3)]
    for part, page in zip(parts, pages[[0, 2, 3]], strict=True):
        drawn = open_part(part, at_least=0, allow_truncated=False, samples=settings)
        expected = np.rint(page * (255 / 4095))
        np.testing.assert_array_equal(np.asarray(drawn)[..., 0], expected)
    assert len({crop_name(part) for part in (Part(str(path)), *parts)}) == 4
    assert [*KINDS["picture"].spans(parts[1])] == [parts[1]]
    for at, reason in (
        (1.5, r"page 1\.5: expected a whole number, from 0"),
        (-1, "page -1: expected"),
        (float("nan"), "page nan"),
        (4, "no page 4: there are pages 0 to 3"),
    ):
        with pytest.raises(BadFile, match=reason):
            open_part(Part(str(path), at=at), at_least=0, allow_truncated=False)


def test_pages_are_those_that_are_there_and_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [Image.new("L", (9, 9), 40 * n) for n in range(1, 5)]
    for name, several in (("a.gif", 4), ("a.webp", 4), ("a.mpo", 1), ("a.png", 1)):
        more = {} if name == "a.png" else {"save_all": True, "append_images": frames[1:]}
        frames[0].save(tmp_path / name, **more)
        assert [*numbers_of_pages(str(tmp_path / name))] == [*range(several)], name
    (part,) = KINDS["picture"].spans(Part(str(tmp_path / "a.png")))
    assert part.at is None
    with opened(tmp_path / "a.mpo", "a.mpo") as (picture, file):
        assert (picture.format, pages_of(picture, file)) == ("MPO", 1)

    stack = tmp_path / "a.tif"
    with tifffile.TiffWriter(stack) as writer:
        for _ in range(3):
            page = RNG.integers(0, 200, SHAPE, dtype=np.uint8)
            writer.write(page, photometric="minisblack", contiguous=False, metadata=None)
    with tifffile.TiffFile(stack) as file:
        places = [page.offset for page in file.pages]
    content = stack.read_bytes()
    stack.write_bytes(content[: places[2] + 1])
    assert [*numbers_of_pages(str(stack))] == [0, 1, 2], "the last one is damaged"
    with pytest.raises(BadFile, match=r"a\.tif"):
        open_part(Part(str(stack), at=2), at_least=0, allow_truncated=False)
    stack.write_bytes(b"II*\0")
    assert [*numbers_of_pages(str(stack))] == [0]

    stack.write_bytes(content)
    monkeypatch.setattr(opening, "MOST_PAGES", 2)
    monkeypatch.setattr(opening, "MOST_FRAMES", 3)
    with pytest.raises(BadFile, match=r"more than 2 pages, the limit of --windows: split it"):
        numbers_of_pages(str(stack))
    with pytest.raises(BadFile, match="more than 3 frames of an animation"):
        numbers_of_pages(str(tmp_path / "a.gif"))


REFUSED = {
    "complex": (tiff(np.zeros((4, 5), np.complex64)), "TIFF of 64-bit complex numbers, which is not read"),
    "JPEG 2000": (tiff_of(bytes(40), (4, 5), compression=34712), "TIFF of 16-bit integers compressed by JPEG 2000"),
    "another compression": (tiff_of(bytes(40), (4, 5), compression=65000), "compressed by method 65000"),
    "palette": (tiff_of(bytes(40), (4, 5), t262=(3, [3])), "of a palette, which is not read"),
    "24-bit floats": (tiff_of(bytes(60), (4, 5), bits=24, sort=3), "TIFF of 24-bit floats"),
    "its end": (tiff_of(bytes(20), (4, 5)), "damaged or truncated"),
    "tags": (b"II*\0" + bytes(8), "damaged TIFF"),
    "size": (tiff_of(bytes(40), (12_000, 12_000)), "more than the limit"),
    "order of bytes": (tiff(np.zeros((4, 5), np.uint8), bigtiff=True, byteorder=">"), "BigTIFF in big-endian byte order"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_named(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(BadFile, match=reason) as error:
        open_picture(data)
    assert "supported format" not in str(error.value)


def test_every_truncation_is_a_bad_file_or_a_picture() -> None:
    values = RNG.integers(0, 4096, SHAPE).astype(np.uint16)
    for data in (
        tiff(values),
        tiff(values, compression="zlib", rowsperstrip=5),
        tiff(values, bigtiff=True),
    ):
        for end in range(0, len(data), max(1, len(data) // 60)):
            with contextlib.suppress(BadFile):
                assert open_picture(data[:end]).size == SHAPE[::-1]


def test_nothing_is_printed_of_a_damaged_file_or_many_channels(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64), dtype=np.uint8)).save(
        buffer, "TIFF", compression="tiff_lzw"
    )
    data = bytearray(buffer.getvalue())
    data[200:3000] = bytes(2800)
    (tmp_path / "a.tif").write_bytes(data)
    nine = tiff(RNG.integers(0, 4096, (*SHAPE, 9)).astype(np.uint16), planarconfig="contig")
    (tmp_path / "nine.tif").write_bytes(nine)
    code = (
        "import sys\nfrom datasets.images.opening import open_picture\nfrom datasets.core.errors import BadFile\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        open_picture(path)\n    except BadFile as error:\n        print('9 channels' in str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.tif", tmp_path / "nine.tif"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("False\nTrue\n", "")


def test_orientation_white_and_opacity_hold_at_every_depth() -> None:
    values = RNG.integers(0, 65536, SHAPE).astype(np.uint16)
    data = tiff(values, extratags=[(274, "H", 1, 6, True)])
    np.testing.assert_array_equal(
        np.asarray(open_picture(data))[..., 0], np.rot90(np.rint(values / 257), -1)
    )
    white = np.asarray(open_picture(tiff(values, photometric="miniswhite")))[..., 0]
    np.testing.assert_array_equal(white, 255 - np.rint(values / 257))
    four = RNG.integers(0, 65536, (*SHAPE, 4)).astype(np.uint16)
    opened = np.asarray(
        open_picture(tiff(four, photometric="rgb", extrasamples=["unassalpha"])), float
    )
    share = four[..., 3:] / 65535
    np.testing.assert_allclose(opened, four[..., :3] / 257 * share + 255 * (1 - share), atol=1.6)
