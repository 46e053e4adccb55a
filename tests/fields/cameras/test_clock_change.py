"""Clocks of a zone that are changed: nothing is moved, merged or put in another order, and it is said."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from fields.cameras.bursts import events_of
from fields.cameras.clock import Clock, iso
from fields.cameras.deployments import read_deployments
from tests.datasets.images.test_capture_time import photo

FORWARD, BACK = (
    datetime(2024, 3, 31),
    datetime(2024, 10, 27),
)  # in Europe/Amsterdam at 2 and at 3 o'clock


def card(folder: Path, day: datetime, times: list[str], zone: str = "Europe/Amsterdam") -> tuple[Clock, list[str]]:  # fmt: skip
    """Photos in the order in which a camera numbers them, by its own clock."""
    (folder / "d.csv").write_text(f"deployment,timezone\nnorth,{zone}\n")
    paths = [
        photo(folder / "north" / f"IMG_{n:04}.jpg", datetime.fromisoformat(f"{day:%Y-%m-%d}T{time}"))
        for n, time in enumerate(times, 1)
    ]  # fmt: skip
    return Clock(read_deployments(folder / "d.csv")), paths


def events(clock: Clock, paths: list[str], order: slice = slice(None)) -> list[list[int]]:
    given = paths[order]
    found = events_of(given, clock)
    return [[paths.index(given[n]) + 1 for n in event] for event in found]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_a_time_that_is_left_out_keeps_its_visit_and_its_place(tmp_path, order):
    """02:50 and 03:50 are an hour apart by the camera, and one moment by the zone."""
    times = ["01:50:00", "02:50:00", "02:50:05", "03:10:00", "03:50:00", "03:50:05"]
    clock, paths = card(tmp_path, FORWARD, times)
    assert events(clock, paths, order) == [[1], [2, 3], [4], [5, 6]]
    texts = [iso(clock.find(path).time) for path in paths]
    assert texts == [f"2024-03-31T{time}+01:00" for time in times], "nothing is moved"
    assert [clock.is_uncertain(path) for path in paths] == [False, True, True, False, False, False]
    (line,) = clock.remarks()
    assert "do not exist" in line
    assert "2 of 6" in line
    assert "T02:50:0" in line
    assert "Europe/Amsterdam" in line
    assert "+01:00" in line


def test_a_clock_that_is_set_back_is_told_by_the_numbers_of_its_files(tmp_path):
    times = ["01:59:00", "02:10:00", "02:50:00", "02:10:05", "02:59:58", "03:00:02"]
    clock, paths = card(tmp_path, BACK, times)
    assert events(clock, paths) == [[1], [2], [3], [4], [5, 6]]
    offsets = [iso(clock.find(path).time)[-6:] for path in paths]
    assert offsets == ["+02:00"] * 3 + ["+01:00"] * 3
    (line,) = clock.remarks()
    assert "twice" in line
    assert "4 of 6" in line


def test_a_clock_that_is_not_set_back_keeps_its_visits(tmp_path):
    """A burst over three o'clock is one; files without numbers in the camera's order tell nothing."""
    clock, paths = card(tmp_path, BACK, ["02:10:00", "02:59:58", "03:00:02"])
    assert events(clock, paths) == [[1], [2, 3]]
    clock, paths = card(tmp_path, BACK, ["02:50:00", "02:10:00", "02:30:00", "02:10:05"])
    assert events(clock, paths) == [[2, 4], [3], [1]]


def test_an_offset_has_no_changes(tmp_path):
    for day in (FORWARD, BACK):
        clock, paths = card(tmp_path, day, ["02:10:00", "02:50:00", "03:50:00"], "+01:00")
        assert events(clock, paths) == [[1], [2], [3]]
        assert not any(map(clock.is_uncertain, paths))
        assert clock.remarks() == []


def test_a_period_that_begins_at_such_a_time_is_said(tmp_path):
    file = tmp_path / "d.csv"
    file.write_text("deployment,start,timezone\nnorth,2024-03-31T02:30:00,Europe/Amsterdam\n")
    assert any("north" in line and "do not exist" in line for line in Clock(read_deployments(file)).remarks())  # fmt: skip


def test_a_date_alone_ends_with_its_day(tmp_path):
    file = tmp_path / "d.csv"
    file.write_text("deployment,start,end,timezone\nnorth,2024-03-01,2024-03-31,+01:00\n")
    end = read_deployments(file).rows["north"].end
    assert end is not None
    assert end.isoformat() == "2024-03-31T23:59:59+01:00"
