"""GWF frames as gwpy writes them: read exactly, and refused if damaged."""

from __future__ import annotations

import struct
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.processes import CRASHED, check_files_isolated
from datasets.strain.files import read_strain

pytestmark = pytest.mark.forks

RATE, START = 4096, 1_000_000_000
CHANNEL = "H1:GWOSC-4KHZ_R1_STRAIN"


def series(channel: str, rate: int = RATE, seconds: int = 40, seed: int = 0):
    timeseries = pytest.importorskip("gwpy.timeseries", reason="GWF needs the extra gw")
    pytest.importorskip("lalframe", reason="GWF needs a frame library: the extra gw")
    values = np.random.default_rng(seed).standard_normal(rate * seconds) * 1e-21
    return timeseries.TimeSeries(values, t0=START, sample_rate=rate, name=channel, channel=channel)


def frame(path: Path, *channels) -> Path:
    from gwpy.timeseries import TimeSeriesDict

    TimeSeriesDict({one.name: one for one in channels}).write(path, format="gwf")
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return frame(tmp_path_factory.mktemp("gwf") / "H-H1-1000000000-40.gwf", series(CHANNEL))


@pytest.mark.slow  # the first import of a frame library takes seconds
def test_a_frame_is_read_to_the_last_bit(whole):
    strain = read_strain(whole, at=START + 20, context=16)
    expected = series(CHANNEL).value[12 * RATE : 28 * RATE]
    np.testing.assert_array_equal(strain.values, expected)
    assert (strain.rate, strain.start, strain.detector) == (RATE, START + 12, "H1")


@pytest.mark.slow
def test_strain_is_found_among_other_channels(tmp_path):
    others = [series("H1:GWOSC-4KHZ_R1_DQMASK", rate=1), series("H1:LSC-DARM", seed=1)]
    path = frame(tmp_path / "a.gwf", *others, series(CHANNEL, seed=2))
    strain = read_strain(path, at=START + 20, context=16)
    np.testing.assert_array_equal(strain.values, series(CHANNEL, seed=2).value[12 * RATE :][:65536])


@pytest.mark.slow
def test_frames_that_do_not_tell_which_strain_or_have_gaps(tmp_path):
    holed = series(CHANNEL)
    holed.value[20 * RATE : 21 * RATE] = np.nan
    cases = [
        ([series("H1:LSC-DARM"), series("H1:PEM-MIC")], "STRAIN .*H1:LSC-DARM, H1:PEM-MIC"),
        ([series(CHANNEL), series("L1:GWOSC-4KHZ_R1_STRAIN", seed=1)], "strain of H1 and L1"),
        ([holed], "too little strain around GPS"),
    ]
    for number, (channels, match) in enumerate(cases):
        with pytest.raises(BadFile, match=match):
            read_strain(frame(tmp_path / f"{number}.gwf", *channels), at=START + 20)


def refused(path: Path, data: bytes) -> str:
    """The reason why a file with this content is not read, as the commands read it: in a process of its own."""
    path.write_bytes(data)
    (found,) = check_files_isolated(partial(read_strain, at=START + 20), [str(path)])
    assert isinstance(found, Rejected)
    assert found.path == str(path)
    return found.reason


@pytest.mark.slow
@pytest.mark.parametrize("length", [20, 40, 200, 0.5, -100, -8, -1])
def test_a_frame_cut_short_is_a_bad_file(whole, tmp_path, length):
    data = whole.read_bytes()
    data = data[: int(length * len(data)) if isinstance(length, float) else length]
    assert "damaged GWF" in refused(tmp_path / "cut.gwf", data)


@pytest.mark.slow
def test_changed_bytes_are_seen(whole, tmp_path):
    data, rng = bytearray(whole.read_bytes()), np.random.default_rng(0)
    for at in (len(data) // 2, *rng.integers(40, 3000, 3), *-rng.integers(1, 3000, 3)):
        changed = data.copy()
        changed[at] ^= 0xFF
        reason = refused(tmp_path / "changed.gwf", bytes(changed))
        assert "damaged GWF" in reason or reason == CRASHED


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"order": ">"},
        {"size": 87},
        {"version": 4},
        {"frames": 0},
        {"back": 47},
        {"back": 10**9},
    ],
)
def test_a_file_without_frames_is_refused(whole, tmp_path, changes):
    reason = refused(tmp_path / "a.gwf", empty_frame_file(**changes))
    assert "damaged GWF" in reason or reason == CRASHED


def empty_frame_file(
    order: str = "<", version: int = 8, size: int = 40 + 46, frames: int = 1, back: int = 46
) -> bytes:
    """Return a file of only a header and an end that claims a frame, without checksums."""
    numbers = struct.pack(f"{order}HIQfd", 0x1234, 0x12345678, 0x123456789ABCDEF, 3.14, 3.14)
    header = b"IGWD\0" + bytes([version, 0, 2, 4, 8, 4, 8]) + numbers + bytes(2)
    end = struct.pack(f"{order}QBBIIQQIII", 46, 0, 21, 0, frames, size, back, 0, 0, 0)
    return header[:40] + end


def test_the_remedy_is_named_where_gwpy_is_missing(tmp_path, monkeypatch):
    (tmp_path / "a.gwf").write_bytes(empty_frame_file())
    monkeypatch.setitem(sys.modules, "gwpy.io.gwf", None)  # as if it were not installed
    with pytest.raises(SecondhandError, match=r"pip install -e '\.\[gw\]'"):
        read_strain(tmp_path / "a.gwf", at=START)
