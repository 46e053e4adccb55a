"""Time and place of files from all sources, and which source wins when they disagree."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from fields.cameras.clock import Clock, TimeAndPlace, iso
from fields.cameras.deployments import Deployment, read_deployments
from tests.datasets.audio.recordings import recording
from tests.datasets.images.test_capture_time import photo

COMMENT = "Recorded at 22:15:00 04/06/2019 (UTC+1) by AudioMoth 24F3190361CB1234"


def table(folder: Path, text: str) -> Path:
    file = folder / "deployments.csv"
    file.write_text(text)
    return file


def time_of(path: object) -> str:
    return iso(Clock().find(str(path)).time)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("20190604_221500.WAV", "2019-06-04T22:15:00"),
        ("20190604_221500T.WAV", "2019-06-04T22:15:00"),
        ("20190604_221500Z.WAV", "2019-06-04T22:15:00+00:00"),
        ("20190604T221500+1000.wav", "2019-06-04T22:15:00+10:00"),
        ("S2_20190604T221500-0700_REC.flac", "2019-06-04T22:15:00-07:00"),
        ("20190604T000000+10:00.wav", "2019-06-04T00:00:00+10:00"),
        ("S20190604T221500.123+1000_E20190604T231500.456+1000.wav", "2019-06-04T22:15:00+10:00"),
        ("20190604_221500+0545.wav", "2019-06-04T22:15:00+05:45"),
        ("20190604T221500+05.wav", "2019-06-04T22:15:00+05:00"),
        ("20190604_221500+05_30.wav", "2019-06-04T22:15:00+05:30"),
        ("20190604_221500_+0530_a.wav", "2019-06-04T22:15:00+05:30"),
        ("20190604T221500-03.wav", "2019-06-04T22:15:00-03:00"),
        ("20190604_221500-03.wav", "2019-06-04T22:15:00"),  # a number in a series
        ("20190604T221500-03-1.wav", "2019-06-04T22:15:00"),
        ("20190604t221500z.wav", "2019-06-04T22:15:00+00:00"),
        ("20190604_221500_UTC.wav", "2019-06-04T22:15:00+00:00"),
        ("20190604_221500Zoo.wav", "2019-06-04T22:15:00"),
        ("20190604T221500,5Z.wav", "2019-06-04T22:15:00+00:00"),
        ("20190604_221500-0001.wav", "2019-06-04T22:15:00"),  # a number in a series
        ("20190604_221500-12345.wav", "2019-06-04T22:15:00"),
        ("20190604T221500+1700.wav", "2019-06-04T22:15:00"),
        ("5CF6EA04.WAV", iso(datetime.fromtimestamp(0x5CF6EA04, UTC))),
        ("site7_20190604_221500.wav", "2019-06-04T22:15:00"),
        ("S4A01234_20190604$221500.wav", "2019-06-04T22:15:00"),
        ("SM3_0+1_20190604_221500_000.flac", "2019-06-04T22:15:00"),
        ("IMG_20190604_221500.jpg", "2019-06-04T22:15:00"),
        ("20190604.WAV", ""),  # digits that read as hexadecimal give 1987
        ("5CF6EA04.jpg", ""),
        ("20191304_221500.WAV", ""),
        ("120190604_221500.WAV", ""),
        ("20190604_2215001.WAV", ""),
        ("call.wav", ""),
    ],
)
def test_names_of_recorders_tell_the_time(tmp_path, name, expected):
    assert time_of(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("offset", "seconds"),
    [
        ("+01:00:00", 3600), ("-1:30", -5400), ("1.5", 5400), ("\u22121,5 h", -5400), ("90 min", 5400),
        ("+365 d", 31_536_000), ("1 day, 02:00:00", 93_600), ("-1d 2h", -93_600), ("12:00:30", 43_230),
        ("", 0), ("NA", 0), ("0", 0),
    ],
)  # fmt: skip
def test_the_table_corrects_a_clock_that_was_wrong(tmp_path, offset, seconds):
    file = table(tmp_path, f'deployment,clock_offset\nnorth,"{offset}"\n')
    clock = Clock(read_deployments(file))
    found = clock.find(str(tmp_path / "north" / "20190604_221500.WAV")).time
    assert (found - datetime(2019, 6, 4, 22, 15)).total_seconds() == seconds
    assert clock.find(str(tmp_path / "20190604_221500.WAV")).time == datetime(2019, 6, 4, 22, 15)
    corrected = [line for line in clock.remarks() if "clock_offset" in line]
    assert [iso(found) in line for line in corrected] == [True] * (seconds != 0)


@pytest.mark.parametrize(
    "offset",
    ["an hour", "25:99", "+", "1 y", "1.5.2", "inf", "1e3", "200000 d", "2020-01-01", "9" * 400],
)
def test_an_offset_that_is_none_is_named_with_its_row(tmp_path, offset):
    file = table(tmp_path, f"deployment,clockOffset\nnorth,\nsouth,{offset}\n")
    with pytest.raises(SecondhandError) as error:
        read_deployments(file)
    for part in (f"{file}, row 3", offset[:20], "+01:00:00"):
        assert part in str(error.value)


def test_a_corrected_clock_is_in_the_period_of_its_deployment(tmp_path: Path) -> None:
    """In its zone, across the change to summer time; nobody complains of it, and its photos follow each other."""
    rows = "deployment,start,end,timezone,clock_offset\nn,2019-03-30,2019-04-01,Europe/Amsterdam,"
    wrong, right = (
        Clock(read_deployments(table(tmp_path, rows + o))) for o in ("", "+6999 d 01:00")
    )
    photos = [
        photo(tmp_path / "n" / f"{second}.jpg", datetime(2000, 1, 30, 23, 59, second))
        for second in (10, 40)
    ]
    wrong.find(photos[0])
    assert any("period" in line for line in wrong.remarks())
    times = [right.find(path).time for path in photos]
    assert [iso(time) for time in times] == [
        "2019-03-31T00:59:10+01:00", "2019-03-31T00:59:40+01:00",
    ]  # fmt: skip
    (line,) = right.remarks()
    assert "corrects: 2 of 2" in line


def test_a_file_that_was_named_by_the_right_time_needs_no_correction(tmp_path: Path) -> None:
    """Whichever of its times counts, and nobody complains of their difference."""
    rows = "deployment,timezone,clock_offset\nn,Europe/Amsterdam,+01:00\n"
    taken = datetime(2019, 6, 4, 21, 15)
    for name in ("20190604_221500.jpg", "20190604_201500Z.jpg"):
        clock = Clock(read_deployments(table(tmp_path, rows)))
        found = clock.find(photo(tmp_path / "n" / name, taken)).time
        assert found.astimezone(UTC) == datetime(2019, 6, 4, 20, 15, tzinfo=UTC)
        assert clock.remarks() == []
    clock = Clock(read_deployments(table(tmp_path, rows)))
    clock.find(photo(tmp_path / "n" / "20190601_221500.jpg", taken))
    assert "contradict" in " ".join(clock.remarks()), "by more than the offset"


def test_a_slowed_recording_passes_slower_than_the_clock(tmp_path: Path) -> None:
    file = recording(tmp_path / "20190604_221500Z.wav", guano="TE: 10\n")
    clock = Clock()
    assert clock.cells(Part(file, 20.0))["time"] == "2019-06-04T22:15:02+00:00"
    (line,) = clock.remarks()
    assert f"time expansion): 1 of 1, such as {file}, 10 times" in line


def test_a_zone_inside_the_file_counts_before_its_name(tmp_path: Path) -> None:
    local = recording(tmp_path / "20190604_221500.WAV", comment=COMMENT)
    utc = recording(tmp_path / "20190604_211500.WAV", comment=COMMENT)
    hexadecimal = recording(tmp_path / f"{int(datetime(2019, 6, 4, 21, 15, tzinfo=UTC).timestamp()):08X}.WAV", comment=COMMENT)  # fmt: skip
    unzoned = recording(tmp_path / "20190604_201500Z.WAV", guano="Timestamp: 2019-06-04T20:15:03")
    wrong = recording(tmp_path / "x_20190604_121500.WAV", comment=COMMENT)
    clock = Clock()
    for path in (local, utc, hexadecimal, wrong):
        assert iso(clock.find(path).time) == "2019-06-04T22:15:00+01:00"
    assert iso(clock.find(unzoned).time) == "2019-06-04T20:15:00+00:00"
    (line,) = clock.remarks()
    assert "contradict each other: 1 of 5" in line
    assert (
        f"{wrong}: AudioMoth's comment 2019-06-04T22:15:00+01:00, its name 2019-06-04T12:15:00"
        in line
    )


def test_a_photo_tells_time_zone_and_place(tmp_path: Path) -> None:
    file = photo(tmp_path / "a.jpg", datetime(2019, 6, 4, 22, 15), zone="+02:00", place=True)
    assert Clock().find(file) == TimeAndPlace(
        datetime.fromisoformat("2019-06-04T22:15:00+02:00"), -33.51, 151.25
    )
    clock = Clock()
    plain = photo(tmp_path / "b.jpg", datetime(2019, 6, 4, 22, 15))
    assert iso(clock.find(plain).time) == "2019-06-04T22:15:00"
    assert math.isnan(clock.find(plain).latitude)
    (line,) = clock.remarks()
    assert f"without a zone: 1 of 1, such as {plain}" in line


def test_a_table_of_deployments_is_read_as_a_spreadsheet_saves_it(tmp_path: Path) -> None:
    """Semicolons, decimal commas and Windows-1252; the name of the folder has another Unicode form."""
    file = tmp_path / "deployments.csv"
    file.write_bytes(
        "deploymentID;latitude;longitude\r\nB\u00e4ren;52,125;-4,250\r\nC;52;13,405\r\n;;\r\n".encode(
            "cp1252"
        )
    )
    path = str(tmp_path / "Ba\u0308ren" / "20190604_221500.WAV")
    record = Clock(read_deployments(file)).find(path)
    assert (record.latitude, record.longitude) == (52.125, -4.25)
    assert record.deployment == "B\u00e4ren"


def test_a_table_of_deployments_gives_place_zone_and_name(tmp_path: Path) -> None:
    file = table(
        tmp_path,
        "deployment,latitude,longitude,start,end,timezone\n"
        "north,52.5,-4.25,2019-06-01T00:00:00,2019-06-30T00:00:00,Europe/London\n"
        "S4A01,1,2,,,+05:30\nisle/east,,,2019-06-01T00:00:00+02:00,,\nunused,,,,,\n",
    )
    clock = Clock(read_deployments(file))
    rows = {
        "north/20190604_221500.WAV": ("2019-06-04T22:15:00+01:00", 52.5, "north"),
        "north/deep/20190704_221500.WAV": ("2019-07-04T22:15:00+01:00", 52.5, "north"),
        "north/S4A01_20190604_221500.wav": ("2019-06-04T22:15:00+05:30", 1.0, "S4A01"),
        "isle/east/20190604_221500Z.wav": ("2019-06-04T22:15:00+00:00", None, "isle/east"),
        "east/x.wav": ("", None, ""),
    }
    for name, (time, latitude, deployment) in rows.items():
        record = clock.find(str(tmp_path / name))
        assert (iso(record.time), record.deployment) == (time, deployment), name
        assert record.latitude == latitude or (latitude is None and math.isnan(record.latitude))
    recorded = recording(tmp_path / "S4A01_20190604_221500.wav", comment=COMMENT)
    assert iso(clock.find(recorded).time) == "2019-06-04T22:15:00+01:00"
    remarks = "\n".join(clock.remarks())
    for text in (
        f"period of their deployment: 1 of 6, such as {tmp_path}/north/deep/20190704_221500.WAV: 2019-07-04T22:15:00+01:00",
        f"another zone than --deployments gives: 1 of 6, such as {recorded}: AudioMoth's comment",
        f"no deployment of --deployments: 1 of 6, such as {tmp_path}/east/x.wav",
        "Deployments without a file: 1 of 4, unused.",
        "Files without a time, inside or in the name: 1 of 6",
    ):
        assert text in remarks


def test_camtrap_dps_table_is_read(tmp_path: Path) -> None:
    file = table(
        tmp_path,
        "deploymentID,locationName,latitude,longitude,deploymentStart,deploymentEnd\n"
        "north,North,52.5,-4.25,2019-06-01T00:00:00+02:00,2019-06-30T00:00:00+02:00\n",
    )
    record = Clock(read_deployments(file)).find(str(tmp_path / "north/20190604_221500.WAV"))
    assert iso(record.time) == "2019-06-04T22:15:00+02:00"
    assert record[1:4] == (52.5, -4.25, "north")
    for missing in ("", "NA", "NaN", "nan"):
        file.write_text(
            "deploymentID,latitude,longitude,deploymentStart,deploymentEnd\n"
            f"north,{missing},{missing},{missing},{missing}\n"
        )
        assert read_deployments(file).rows == {"north": Deployment("north")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("site,latitude\nnorth,1\n", "no column 'deployment' (or 'deploymentID'). It has 'site'"),
        ("deployment,latitude\nnorth,1\n", "only one of the columns latitude and longitude"),
        ("deployment,latitude,longitude\nnorth,91,2\n", "row 2: latitude '91' and longitude '2'"),
        ("deployment,latitude,longitude\nnorth,1,\n", "row 2: latitude '1' and longitude ''"),
        ("deployment,timezone\na,UTC\nnorth,CEST1\n", "row 3: 'CEST1' is not a time zone"),
        ("deployment,timezone\nnorth,+25:00\n", "row 2: '+25:00' is not a time zone"),
        ("deployment,start\nnorth,1 May\n", "row 2: '1 May' is not a time in ISO 8601"),
        ("deployment,start,end\nn,2024-01-02,2024-01-01\n", "row 2: it ends (2024-01-01"),
        ("deployment,latitude,longitude\nn,,\nn,,\n", "row 3: the deployment 'n' has an earlier row"),
        ("deployment,latitude,longitude\n,1,2\n", "row 2: the name of the deployment is empty"),
    ],
)  # fmt: skip
def test_a_table_that_is_wrong_is_refused_with_row_and_remedy(tmp_path, text, message):
    file = table(tmp_path, text)
    with pytest.raises(SecondhandError) as error:
        read_deployments(file)
    assert str(error.value).startswith(f"--deployments {file}")
    assert message in str(error.value)


def test_a_time_some_seconds_later_crosses_the_change_of_the_clock() -> None:
    from zoneinfo import ZoneInfo

    time = datetime(2019, 3, 31, 1, 59, 59, tzinfo=ZoneInfo("Europe/Berlin"))
    assert iso(time) == "2019-03-31T01:59:59+01:00"
    assert iso(time, 1.25) == "2019-03-31T03:00:00.250+02:00"
    assert iso(None, 3.0) == ""


def test_a_deployment_is_the_folder_that_tells_cameras_apart(tmp_path: Path) -> None:
    """The folders that a camera makes on its card are those of one camera, and name none."""
    folders = {
        "a/DCIM/100RECNX": "a", "a/DCIM/101RECNX": "a", "b/DCIM/100RECNX": "b", "c/100RECNX": "c",
        "100NORTH": "100NORTH", "x/a/DCIM/100ABCDE": "x/a",
    }  # fmt: skip
    paths = [str(tmp_path / folder / "1.jpg") for folder in folders]
    clock = Clock(folders=[str(tmp_path)])
    assert [clock.folder_name(path) for path in paths] == [*folders.values()]
    each = Clock(folders=[str(tmp_path / folder) for folder in folders])
    assert [each.folder_name(path) for path in paths] == [*folders.values()]
