"""Neighbouring frames are read as one stretch, the channel is the one that is wanted, and gwpy's files are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from datasets.core.errors import BadFile
from datasets.core.part import Part
from datasets.strain.formats import Wanted, open_file
from datasets.strain.frames import (
    Stream,
    lists_to_scan,
    open_strain,
    paths_at,
    read_frames,
    read_list,
    source_path,
)
from datasets.strain.settings import QScanSettings
from tests.datasets.sources.strain import RATE, START, frame

SETTINGS = QScanSettings(size=(32, 32), fmax=1000.0, context=16.0)


def cut(folder: Path, values: np.ndarray, seconds: int, skipped: tuple[int, ...] = ()) -> Path:
    """Write strain of START on as frames of so many seconds, in two folders, but for the skipped ones."""
    for n in range(len(values) // RATE // seconds):
        start = START + n * seconds
        path = folder / f"{n % 2}" / f"H-H1_SIM-{start}-{seconds}.hdf5"
        path.parent.mkdir(parents=True, exist_ok=True)
        if n not in skipped:
            with h5py.File(path, "w") as file:
                data = file.create_dataset(
                    "strain/Strain", data=values[n * seconds * RATE : (n + 1) * seconds * RATE]
                )
                data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, start
                file["meta/Detector"] = "H1"
    return folder


def noise(seconds: int) -> np.ndarray:
    return 1e-21 * np.random.default_rng(5).standard_normal(seconds * RATE)


def path_of(folder: Path, gps: float, context: float = 16.0) -> str:
    found = read_frames(str(folder)).find("H1", gps, context)
    assert isinstance(found, Stream)
    return source_path(found)


@pytest.mark.parametrize("seconds", [4, 16])
def test_frames_of_any_length_give_the_picture_of_one_file(tmp_path: Path, seconds: int) -> None:
    values = noise(64)
    whole = cut(tmp_path / "whole", values, 64) / "0" / f"H-H1_SIM-{START}-64.hdf5"
    parts = cut(tmp_path / "parts", values, seconds)
    for at in (4.2, 16.0, 30.1, 59.9):
        expected = SETTINGS.picture(Part(whole, at=START + at))
        np.testing.assert_array_equal(
            SETTINGS.picture(Part(path_of(parts, START + at), at=START + at)), expected
        )


def test_a_missing_frame_is_a_gap_and_damaged_or_other_ones_are_named(tmp_path: Path) -> None:
    parts = cut(tmp_path, noise(96), 16, skipped=(3,))
    strain = SETTINGS.read(Part(path_of(parts, START + 46.0), at=START + 46.0 - 1.5))
    assert strain.start + strain.duration == START + 48
    with pytest.raises(
        BadFile, match=r"begins 1\.000 s before the trigger; .* outside GPS 1000000064"
    ):
        SETTINGS.read(Part(path_of(parts, START + 65), at=START + 65))
    with pytest.raises(BadFile, match=r"ends 1\.000 s after the trigger"):
        SETTINGS.read(Part(path_of(parts, START + 95), at=START + 95))
    damaged = tmp_path / "1" / f"H-H1_SIM-{START + 16}-16.hdf5"
    damaged.write_bytes(damaged.read_bytes()[:3000])
    with pytest.raises(
        BadFile, match=rf"ends 1\.000 s after the trigger.*{damaged.name}: damaged HDF5"
    ):
        SETTINGS.read(Part(path_of(parts, START + 15), at=START + 15))
    frame(tmp_path / "2", start=START + 96)
    with h5py.File(tmp_path / "2" / f"H-H1_SIM-{START + 96}-64.hdf5", "r+") as file:
        file["strain/Strain"].attrs["Xspacing"] = 1 / 2048
    with pytest.raises(BadFile, match=r"sampling rate of 2048 Hz, but .* has 4096 Hz"):
        SETTINGS.read(Part(path_of(parts, START + 95), at=START + 95))


def test_neighbours_of_another_rate_do_not_take_the_place_of_the_strain(tmp_path: Path) -> None:
    parts = cut(tmp_path, noise(96), 32)
    with h5py.File(parts / "0" / f"H-H1_SIM-{START}-32.hdf5", "r+") as file:
        halved = file["strain/Strain"][::2]
        del file["strain/Strain"]
        file.create_dataset("strain/Strain", data=halved)
        file["strain/Strain"].attrs.update(Xspacing=2 / RATE, Xstart=START)
    at = START + 44.0
    assert len(read_list(path_of(parts, at)).files) == 2
    strain = SETTINGS.read(Part(path_of(parts, at), at=at))
    assert (strain.rate, strain.start) == (RATE, START + 36)
    with pytest.raises(BadFile, match=r"sampling rate of 2048 Hz, but .* has 4096 Hz"):
        SETTINGS.read(Part(path_of(parts, START + 33), at=START + 33))
    scanned, _ = lists_to_scan(map(str, sorted(parts.rglob("*.hdf5"))), context=16.0)
    middles = {part.at - START for path in scanned for part in SETTINGS.spans(path) if part.at}
    assert middles >= {40.0, 50.0, 60.0, 70.0, 80.0, 90.0}


def test_a_moment_near_a_border_is_judged_with_the_next_file(tmp_path: Path) -> None:
    values = noise(64)
    whole = cut(tmp_path / "whole", values, 64) / "0" / f"H-H1_SIM-{START}-64.hdf5"
    parts = sorted(map(str, cut(tmp_path / "parts", values, 32).rglob("*.hdf5")))
    at = START + 31.0
    first, second = paths_at(parts, at, context=16.0)
    assert second == parts[1]
    np.testing.assert_array_equal(
        SETTINGS.picture(Part(first, at=at)), SETTINGS.picture(Part(whole, at=at))
    )
    assert paths_at(parts, START + 5.0, context=16.0) == parts, "nothing else is needed"


def test_a_list_of_frames_is_read_from_the_cache_alone(tmp_path: Path) -> None:
    path = path_of(cut(tmp_path / "parts", noise(64), 16), START + 30.0)
    with pytest.raises(BadFile, match="in this machine's cache"):
        SETTINGS.read(shutil.copy(path, tmp_path))  # it could name any file
    with pytest.raises(BadFile, match="in this machine's cache"):
        read_list(tmp_path / "0" / f"H-H1_SIM-{START}-16.hdf5")


def series(path: Path, channels: dict[str, float]) -> Path:
    """Write a series of gwpy for each channel, whose values are around the given one."""
    with h5py.File(path, "w") as file:
        for name, offset in channels.items():
            data = file.create_dataset(name, data=noise(40) + offset)
            data.attrs.update(x0=float(START), dx=1 / RATE, channel=name, unit="strain")
    return path


H1, CLEAN, DARM, L1 = (
    "H1:GDS-CALIB_STRAIN",
    "H1:GDS-CALIB_STRAIN_CLEAN",
    "H1:LSC-DARM",
    "L1:X-STRAIN",
)


def opened(path: Path | str, *wanted: str) -> tuple[str, str, float]:
    with open_file(Path(path), Wanted(*wanted)) if wanted else open_strain(path) as source:
        return source.channel, source.detector, round(float(source.read(0, 100).mean()))


def test_the_channel_that_is_read_is_the_one_that_is_wanted(tmp_path: Path) -> None:
    path = series(tmp_path / "a.h5", {H1: 1, CLEAN: 2, DARM: 3})
    assert opened(path) == (H1, "H1", 1)
    assert opened(path, "H1", "", CLEAN) == (CLEAN, "H1", 2)
    assert opened(path, "H1", DARM, DARM) == (DARM, "H1", 3)
    with pytest.raises(
        BadFile, match=rf"in the channel {DARM}, but the strain is .* {H1}: .*--channel"
    ):
        opened(path, "H1", "", DARM)
    with pytest.raises(BadFile, match=rf"no channel H1:OTHER: .* {H1}"):
        opened(path, "H1", "H1:OTHER")
    several = series(tmp_path / "HL.h5", {H1: 1, L1: 2})
    assert opened(several, "L1") == (L1, "L1", 2)
    for wanted, match in (((), "H1 and L1: choose a channel"), (("V1",), "H1 and L1, not of V1")):
        with pytest.raises(BadFile, match=match):
            opened(several, *wanted)
    with pytest.raises(BadFile, match=rf"no channel with STRAIN .* {DARM}.*--channel"):
        opened(series(tmp_path / "b.h5", {DARM: 3}))
    # GWOSC's files name no channel: any calibrated strain is theirs.
    plain = frame(tmp_path)
    assert opened(plain, "H1", "", H1)[:2] == ("", "H1")
    with pytest.raises(BadFile, match=rf"in the channel {DARM}, but the strain names no channel"):
        opened(plain, "H1", "", DARM)


@pytest.mark.slow  # gwpy's import takes seconds
def test_series_that_gwpy_wrote_are_read(tmp_path: Path) -> None:
    timeseries = pytest.importorskip("gwpy.timeseries")
    values = noise(20)
    one = timeseries.TimeSeries(values, t0=START, sample_rate=RATE, name=H1, channel=H1)
    other = timeseries.TimeSeries(values + 1, t0=START, sample_rate=RATE, name="Strain")
    one.write(tmp_path / "a.hdf5")
    other.write(tmp_path / "b.hdf5", path="data/x")
    other.write(tmp_path / "c.hdf5", path="strain")  # as GWOSC calls its group
    both = timeseries.TimeSeriesDict({"H1": one, "L1": other})
    for series in both.values():
        series.name = series.channel = None
    both.write(tmp_path / "d.hdf5")
    with open_file(tmp_path / "d.hdf5", Wanted("L1")) as source:
        assert (source.detector, source.channel) == ("L1", "")
        np.testing.assert_array_equal(source.read(0, source.samples), values + 1)
    for name, channel, offset in (("a", H1, 0), ("b", "", 1), ("c", "", 1)):
        with open_strain(tmp_path / f"{name}.hdf5") as source:
            assert (source.rate, source.start, source.channel) == (RATE, START, channel)
            np.testing.assert_array_equal(source.read(0, source.samples), values + offset)


def test_training_shifts_a_trigger_within_what_the_durations_show() -> None:
    rng = np.random.default_rng(0)
    for durations, limit in (((0.5, 1.0, 2.0, 4.0), 0.5), ((1.0,), 0.25)):
        settings = QScanSettings(durations=durations)
        places = settings.places(Part("a.hdf5", at=START + 0.125), count=40, rng=rng)
        shifts = np.array([part.at - START - 0.125 for part in places if part.at is not None])
        assert len(shifts) == 40
        assert np.abs(shifts).max() <= limit
        assert shifts.min() < -0.9 * limit
        assert shifts.max() > 0.9 * limit
    assert settings.places(Part("a.hdf5", start=1.0, end=2.0), count=3, rng=rng) == []
