"""The strain of each trigger of a table is found in frames that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.items.splits import overlap_groups
from datasets.steps.reading import load_table
from datasets.strain.frames import read_frames
from tests.datasets.files import write
from tests.datasets.sources.strain import START, frame
from tests.datasets.strain.test_joined import DARM, H1, L1, cut, noise, opened, series


def test_neighbours_that_share_strain_are_never_divided(tmp_path: Path) -> None:
    folder = cut(tmp_path, noise(128), 4)
    rows = [(40.0, "A"), (50.0, "B"), (90.0, "A"), (123.5, "B"), (127.9, "A")]
    text = "".join(f"{START + gps},H1,{label},{n}\n" for n, (gps, label) in enumerate(rows))
    table = load_table(
        write(tmp_path / "t.csv", "gps,ifo,label,group\n" + text), settings={"strain": str(folder)}
    )
    assert table.frame["gps"].tolist() == [START + gps for gps, _ in rows]
    assert table.frame["path"].nunique() == 5
    first, second, third, fourth, fifth = overlap_groups(table.frame)
    assert first == second != third
    assert fourth == fifth != third


def test_triggers_are_found_in_frames_of_several_detectors_by_their_channel(tmp_path: Path) -> None:
    series(tmp_path / f"HL-HL_R-{START}-40.h5", {H1: 1, L1: 2, DARM: 3})
    rows = [("H1", H1), ("L1", ""), ("H1", "GDS-CALIB_STRAIN"), ("H1", DARM), ("V1", "")]
    text = "".join(f"{START + 20.0 + n},{ifo},{name},A\n" for n, (ifo, name) in enumerate(rows))
    file = write(tmp_path / "t.csv", "gps,ifo,channel,label\n" + text)
    table = load_table(file, learned=False, settings={"strain": str(tmp_path)}, check=False)
    channels: dict[float, str] = {}
    for path, gps in zip(table.frame["path"], table.frame["gps"], strict=True):
        try:
            channels[gps - START - 20] = opened(path)[0]
        except BadFile as error:
            channels[gps - START - 20] = error.reason[:24]
    assert channels == {0: H1, 1: L1, 2: H1, 3: "the trigger is in the ch"}
    assert [bad.reason for bad in table.rejected] == [
        "no strain of the detector 'V1'; there is strain of HL"
    ]
    chosen = load_table(
        file, learned=False, settings={"strain": str(tmp_path), "channel": "LSC-DARM"}, check=False
    )
    readable = []
    for path, gps in zip(chosen.frame["path"], chosen.frame["gps"], strict=True):
        try:
            readable.append((gps - START - 20, opened(path)[0]))
        except BadFile:
            continue
    assert readable == [(3, DARM)]


def test_moments_of_whole_seconds_are_refused(tmp_path: Path) -> None:
    frame(tmp_path)
    rows = "".join(f"{START + n},H1,A\n" for n in (20, 30))
    for name in ("peak_time", "end_time"):
        file = write(tmp_path / "t.csv", f"{name},ifo,label\n{rows}")
        with pytest.raises(SecondhandError, match=rf"{name} has whole seconds, .* no {name}_ns"):
            load_table(file, learned=False, settings={"strain": str(tmp_path)})
    assert len(read_frames(str(tmp_path)).files) == 1
    assert isinstance(read_frames(str(tmp_path)).find("V1", START), Rejected)
