"""DICOM: rescaled, by its window, white where MONOCHROME1 says so; frames are pages."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest

from datasets.core.errors import BadFile
from datasets.images.opening import open_picture
from datasets.images.settings import PictureSettings, Stored
from datasets.images.standalone import Samples, open_any, samples_of
from datasets.kinds.base import kind_of

pydicom = pytest.importorskip("pydicom")
RNG = np.random.default_rng(0)


def dicom(values: np.ndarray, *, bits: int = 0, kind: str = "MONOCHROME2", **tags: Any) -> bytes:
    """A file of values [rows, columns], [frames, rows, columns] or [rows, columns, 3] that pydicom writes."""
    from pydicom.dataset import Dataset, FileMetaDataset

    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    colours = kind == "RGB"
    if values.ndim == 3 and not colours:
        data.NumberOfFrames, shape = len(values), values.shape[1:]
    else:
        shape = values.shape[:2]
    data.Rows, data.Columns = shape
    data.SamplesPerPixel, data.PhotometricInterpretation = 3 if colours else 1, kind
    if colours:
        data.PlanarConfiguration = 0
    data.BitsAllocated = 8 * values.itemsize
    data.BitsStored = bits or data.BitsAllocated
    data.HighBit, data.PixelRepresentation = data.BitsStored - 1, int(values.dtype.kind == "i")
    data.PixelData = values.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    buffer = io.BytesIO()
    data.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def stored(data: bytes) -> Samples:
    samples = samples_of(open_any(io.BytesIO(data)))
    assert samples is not None
    return samples


def test_values_are_rescaled_and_drawn_by_the_window() -> None:
    raw = RNG.integers(0, 4096, (30, 40)).astype(np.int16)
    data = dicom(raw, RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=40, WindowWidth=400)
    np.testing.assert_array_equal(stored(data).values[..., 0], raw.astype(float) - 1024)
    # PS3.3 C.11.2.1.2: from centre - 0.5 - (width - 1) / 2 to centre - 0.5 + (width - 1) / 2
    expected = ((raw - 1024.0 - (40 - 0.5)) / (400 - 1) + 0.5).clip(0, 1) * 255
    np.testing.assert_allclose(np.asarray(open_picture(data))[..., 0], expected, atol=0.51)
    white = dicom(
        raw,
        kind="MONOCHROME1",
        RescaleSlope=1,
        RescaleIntercept=-1024,
        WindowCenter=40,
        WindowWidth=400,
    )
    np.testing.assert_allclose(np.asarray(open_picture(white))[..., 0], 255 - expected, atol=0.51)


def test_the_window_that_all_training_files_have_is_theirs() -> None:
    raw = RNG.integers(0, 4096, (30, 40)).astype(np.int16)
    tags = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400}
    ones = [Stored.of(stored(dicom(raw, **tags)), 1, None) for _ in range(3)]
    settings, how = PictureSettings.infer(ones, {})
    assert settings is not None
    assert (settings.low, settings.high, how) == ((-160.0,), (239.0,), "stated")


def test_bits_and_missing_values_are_those_of_the_file() -> None:
    raw = RNG.integers(0, 4096, (30, 40)).astype(np.uint16)
    np.testing.assert_array_equal(
        np.asarray(open_picture(dicom(raw, bits=12)))[..., 0], np.rint(raw / 4095 * 255)
    )
    raw[:10] = 63_000
    samples = stored(dicom(raw, PixelPaddingValue=63_000))
    assert samples.missing == 63_000
    assert (np.asarray(open_picture(dicom(raw, PixelPaddingValue=63_000)))[:10] == 0).all()


def test_colours_of_8_bits_keep_their_values() -> None:
    values = RNG.integers(0, 256, (30, 40, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(open_picture(dicom(values, kind="RGB"))), values)


def test_frames_are_pages() -> None:
    frames = RNG.integers(0, 4096, (3, 30, 40)).astype(np.uint16)
    data, expected = dicom(frames, bits=12), np.rint(frames / 4095 * 255)
    for page, shown in ((None, expected[0]), (2, expected[2]), ("max", expected.max(0))):
        drawn = open_picture(data, samples=PictureSettings(page=page))
        np.testing.assert_array_equal(np.asarray(drawn)[..., 0], shown)
    with pytest.raises(BadFile, match="no page 3: there are pages 0 to 2"):
        open_picture(data, samples=PictureSettings(page=3))


def test_what_is_not_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    values = RNG.integers(0, 256, (30, 40), dtype=np.uint8)
    with pytest.raises(BadFile, match="PALETTE COLOR"):
        open_picture(dicom(values, kind="PALETTE COLOR"))
    data = dicom(values)
    for end in range(132, len(data), 97):
        with pytest.raises(BadFile):
            open_picture(data[:end])
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(
        BadFile, match=r"needs the package pydicom: pip install 'secondhand\[dicom\]'"
    ):
        open_picture(data)
    assert kind_of("scan.DCM") == "picture"
