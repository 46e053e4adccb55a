"""What recorders write into WAV files, by their published layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datasets.audio.decode import probe
from datasets.audio.recorders import recorder_notes, time_expansion
from tests.datasets.audio.recordings import recording


def notes(file: str) -> list[tuple[str, str, tuple[float, float] | None]]:
    return [(one.source, str(one.time), one.place) for one in recorder_notes(file)]


def test_guano_is_read_as_its_specification_has_it(tmp_path: Path) -> None:
    text = "GUANO|Version: 1.0\nTimestamp: 2012-03-29T22:15:08.5-05:00\nLoc Position: 32.1878016 -86.1057312\nNote: a: b\n"
    file = recording(tmp_path / "a.wav", guano=text)
    assert notes(file) == [("GUANO", "2012-03-29 22:15:08.500000-05:00", (32.187802, -86.105731))]
    assert probe(file).frames == 801
    local = recording(tmp_path / "b.wav", guano="Timestamp:2012-03-29 22:15:08")
    assert notes(local) == [("GUANO", "2012-03-29 22:15:08", None)]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (b"WGS84, 42.5, N, 71.25, W, 12", (42.5, -71.25)),
        (b"WGS84,42.5,S,71.25,E", (-42.5, 71.25)),
        (b"WGS84,-42.5,71.25,(null)", (-42.5, 71.25)),
        (b"WGS84", None),
        (b"WGS84, nan, N, 71.25, W", None),
        (b"WGS84, 142.5, N, 71.25, W", None),
        (b"WGS84, 0.0, N, 0.0, W", None),
    ],
)
def test_wamd_is_read_as_guano_py_reads_it(tmp_path, position, expected):
    fields = {0: b"\1\0", 1: b"SM4BAT", 5: b"2014-04-02 22:59:14-05:00", 6: position, 0x0D: b"RIFF"}
    file = recording(tmp_path / "a.wav", wamd=fields)
    assert notes(file) == [("WAMD", "2014-04-02 22:59:14-05:00", expected)]


@pytest.mark.parametrize(
    ("name", "chunks", "expected"),
    [
        ("a.wav", {}, 1),
        ("a.wav", {"guano": "GUANO|Version: 1.0\nTE: 10\n"}, 10),
        ("a_TE10.wav", {"guano": "GUANO|Version: 1.0\nTE: 1\n"}, 1),
        ("a.wav", {"guano": "GUANO|Version: 1.0\nTE: often\n"}, 1),
        ("a.wav", {"wamd": {1: b"EM", 15: b"\x0a\0"}}, 10),
        ("a.wav", {"wamd": {1: b"EM", 15: b"\x20\0"}}, 32),
        ("a.wav", {"wamd": {1: b"EM", 15: b"\0\0"}}, 1),
        ("bat_TE10_20190604_221500.wav", {}, 10),
        ("bat-te10x.wav", {}, 10),
        ("site10.wav", {}, 1),
        ("site_10.wav", {}, 1),
        ("forte10.wav", {}, 1),
        ("TE104.wav", {}, 1),
    ],
)
def test_time_expansion_is_recognised(tmp_path, name, chunks, expected):
    assert time_expansion(recording(tmp_path / name, **chunks)) == expected


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("", "+00:00"), ("+1", "+01:00"), ("-3", "-03:00"), ("+5:30", "+05:30"), ("-03:30", "-03:30")],
)
def test_audiomoths_comment_is_read_with_its_zone(tmp_path, zone, expected):
    comment = f"Recorded at 22:15:00 04/06/2019 (UTC{zone}) by AudioMoth 24F3190361CB1234 at medium gain setting."
    file = recording(tmp_path / "a.wav", comment=comment)
    assert notes(file) == [("AudioMoth's comment", f"2019-06-04 22:15:00{expected}", None)]


def test_other_comments_and_damaged_chunks_are_ignored(tmp_path: Path) -> None:
    assert notes(recording(tmp_path / "a.wav", comment="Recorded at home")) == []
    (tmp_path / "no.wav").write_bytes(b"RIFF")
    assert notes(str(tmp_path / "no.wav")) == notes(str(tmp_path / "gone.wav")) == []
    wav = recording(
        tmp_path / "b.wav",
        guano="Timestamp: 2012-03-29T22:15:08Z\nLoc Position: 1 2",
        wamd={5: b"2014-04-02 22:59:14-05:00", 6: b"WGS84, 42.5, N, 71.25, W"},
        comment="Recorded at 22:15:00 04/06/2019 (UTC+1) by AudioMoth 24",
    )
    assert [one.source for one in recorder_notes(wav)] == ["GUANO", "WAMD", "AudioMoth's comment"]
    content, rng = Path(wav).read_bytes(), np.random.default_rng(0)
    begin = content.index(b"LIST")
    for n in range(200):
        damaged = bytearray(content[: rng.integers(begin, len(content))] if n % 2 else content)
        for place in rng.integers(begin, len(damaged), 4) if len(damaged) > begin else ():
            damaged[place] = rng.integers(256)
        (tmp_path / "damaged.wav").write_bytes(damaged)
        for one in recorder_notes(tmp_path / "damaged.wav"):
            assert one.place is None or abs(one.place[0]) <= 90
