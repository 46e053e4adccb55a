"""Local times that a zone leaves out or has twice, when its clocks are changed: what the recorder's clock did there."""

from __future__ import annotations

import os
import re
from datetime import UTC, date, datetime, timezone, tzinfo
from enum import StrEnum

from datasets.core.address import split
from fields.cameras.deployments import Deployment

#: Digits at the end of a name, by which a camera numbers its files, and what is before them.
_NUMBERED = re.compile(r"(.*?)(\d+)")


class Change(StrEnum):
    """Why the moment of a local time is uncertain."""

    NONE = ""
    LEFT_OUT = "left out"
    TWICE = "twice"


def change_at(time: datetime) -> Change:
    """Whether the zone of a local time leaves it out, or has it twice (PEP 495)."""
    if time.replace(fold=0).utcoffset() == time.replace(fold=1).utcoffset():
        return Change.NONE
    exists = time.astimezone(UTC).astimezone(time.tzinfo).replace(tzinfo=None)
    return Change.TWICE if exists == time.replace(tzinfo=None) else Change.LEFT_OUT


class ClockChanges:
    """What the clocks of deployments did when those of their zone were changed, as their files tell.

    A clock that shows a time that its zone leaves out does not follow the zone: all of its times get the offset that
    the zone had at the start of the deployment, or before the change. A time that the zone has twice is the first,
    but the second from the file on at which the camera's numbers go on and its times go back.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tzinfo] = {}
        self._last: dict[tuple[str, str, date], tuple[int, datetime]] = {}
        self._back: dict[tuple[str, str, date], list[int]] = {}

    def see(self, path: str, deployment: Deployment, time: datetime) -> Change:
        """Learn from a local time in the zone of its deployment."""
        change = change_at(time)
        if change is Change.LEFT_OUT:
            offset = (deployment.start if deployment.start else time).utcoffset()
            self._kept.setdefault(deployment.name, timezone(offset or time.utcoffset()))  # type: ignore[arg-type]
        elif change is Change.TWICE:
            key, number = _series(path, time)
            last, before = self._last.get(key, (-1, time))
            if number > last:
                if time < before:
                    self._back.setdefault(key, []).append(number)
                self._last[key] = number, time
        return change

    def settle(self, path: str, deployment: Deployment, time: datetime) -> datetime:
        """The time with the offset that the clock had, as far as `see` could tell."""
        if deployment.name in self._kept:
            return time.replace(tzinfo=self._kept[deployment.name])
        if self._back and change_at(time) is Change.TWICE:
            key, number = _series(path, time)
            back = self._back.get(key, [])
            # Times that go back more than once are not in the order of the numbers.
            return time.replace(fold=int(len(back) == 1 and number >= back[0]))
        return time


def _series(path: str, time: datetime) -> tuple[tuple[str, str, date], int]:
    """The series of numbered files on one day that a file belongs to, and its number; -1 without one."""
    folder, name = split(path)
    numbered = _NUMBERED.fullmatch(os.path.splitext(name)[0])
    prefix, number = numbered.groups() if numbered else (name, -1)
    return (folder, prefix, time.date()), int(number)
