"""Several detectors at one time: each has its channel, and missing strain is reported."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import BadFile, OutsideFile, SecondhandError
from datasets.items.table import load_table
from datasets.spectrogram_kinds import spectrogram_from_dict
from datasets.strain import Frame, QScanSettings, Stream, read_cache, write_cache
from tests.datasets.annotations.strain import RATE, START, frame
from tests.datasets.files import write

pytestmark = pytest.mark.slow

SPECTROGRAM_SETTINGS = QScanSettings(
    size=(32, 32), fmax=1000.0, context=16.0, together=("H1", "L1")
)


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    frame(folder, "H1")
    frame(folder, "H1", START + 64)
    frame(folder, "L1", START + 64, gap=slice(50 * RATE, 51 * RATE))
    frame(folder, "L1")
    return folder


def test_each_detector_has_its_channel(frames: Path, tmp_path: Path) -> None:
    files = {
        name: str(frames / f"{name[0]}-{name}_SIM-{START + 64}-64.hdf5") for name in ("H1", "L1")
    }
    streams = {
        name: Stream((Frame(START + 64, START + 128, path),)) for name, path in files.items()
    }
    cache = write_cache(streams)
    assert write_cache(streams) == cache
    assert read_cache(Path(cache)) == streams
    assert SPECTROGRAM_SETTINGS.durations == (1.0, 1.0, 4.0)
    picture = SPECTROGRAM_SETTINGS.picture(cache, at=START + 84.0)
    single = replace(SPECTROGRAM_SETTINGS, together=())
    # The third channel repeats the first detector.
    for channel, name in enumerate(("H1", "L1", "H1")):
        one = single.picture(files[name], at=START + 84.0)
        np.testing.assert_array_equal(picture[..., channel], one[..., channel])
    assert (picture[..., 0] != picture[..., 1]).any()
    signal = SPECTROGRAM_SETTINGS.read(cache)  # where the first detector is loudest
    assert signal.others[0].trigger == signal.trigger == single.read(files["H1"]).trigger
    with pytest.raises(
        BadFile, match=r"L1: too little strain around GPS 1000000114.500: 16 s without gaps"
    ):
        SPECTROGRAM_SETTINGS.read(cache, at=START + 114.5)
    with pytest.raises(OutsideFile, match=r"H1: GPS .* is outside"):
        SPECTROGRAM_SETTINGS.read(cache, at=START - 1.0)
    with pytest.raises(BadFile, match="contains no strain of V1"):
        replace(SPECTROGRAM_SETTINGS, together=("H1", "V1"), durations=()).read(cache)
    with pytest.raises(BadFile, match="not strain of several files in this machine's cache"):
        SPECTROGRAM_SETTINGS.read(files["H1"])
    moved = shutil.copy(cache, tmp_path)  # it could name any file
    with pytest.raises(BadFile, match="in this machine's cache"):
        SPECTROGRAM_SETTINGS.read(moved)


def test_settings_carry_their_detectors_and_others_are_as_before() -> None:
    assert spectrogram_from_dict(SPECTROGRAM_SETTINGS.to_dict()) == SPECTROGRAM_SETTINGS
    plain = QScanSettings()
    assert plain.to_dict()["together"] == []
    assert spectrogram_from_dict(plain.to_dict()) == plain
    for wrong in (("H1",), ("H1", "H1"), ("H", "L"), "H1L1"):
        with pytest.raises(SecondhandError, match="together="):
            QScanSettings(together=wrong)  # type: ignore[arg-type]
    with pytest.raises(SecondhandError, match="in the layout channels"):
        QScanSettings(together=("H1", "L1"), layout="row")


def test_triggers_of_one_detector_find_all(frames: Path, tmp_path: Path) -> None:
    rows = [(20, "A"), (30, "B"), (70, "A"), (84, "B"), (200, "A")]
    text = "".join(f"{START + gps},H1,{label}\n" for gps, label in rows)
    file = write(tmp_path / "t.csv", "gps,ifo,label\n" + text)
    table = load_table(file, strain=str(frames), together=())
    paths = table.frame["path"].tolist()
    assert [Path(path).suffix for path in paths] == [".together"] * 4
    assert len({*paths}) == 2
    assert all([*read_cache(Path(path))] == ["H1", "L1"] for path in paths)
    assert [item.reason for item in table.rejected] == [f"no strain of H1 at GPS {START + 200}.000"]
    inferred = QScanSettings.infer(paths, detectors="together", context=16.0, fmax=1000.0)
    assert inferred.together == ("H1", "L1")
    single = tmp_path / "only"
    frame(single, "H1")
    with pytest.raises(SecondhandError, match=r"two or three detectors are needed, .* has H1"):
        load_table(file, strain=str(single), together=())
    with pytest.raises(SecondhandError, match="not strain of several files"):
        QScanSettings.infer([str(frames / f"H-H1_SIM-{START}-64.hdf5")], detectors="together")
