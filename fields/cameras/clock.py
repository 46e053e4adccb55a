"""When and where files were recorded: from EXIF, the chunks of recorders, file names and a table of deployments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeGuard, TypeVar

from datasets.core.address import as_path, split
from datasets.core.part import Part
from datasets.core.recorded import Recorded
from datasets.core.scanning import absolute_path, below
from datasets.kinds.base import find_kind
from fields.cameras.clock_change import Change, ClockChanges, change_at
from fields.cameras.deployments import SAME_CLOCK, Deployment, Deployments

if TYPE_CHECKING:
    from datasets.kinds.base import PictureInfo

P = TypeVar("P", bound=PurePath)

NAN = float("nan")
#: Columns that tell when and where a row of a table was recorded.
TIME_AND_PLACE = ("time", "latitude", "longitude", "deployment")
#: Date and time in the names of AudioMoth, Song Meter and most other recorders and phones: after any prefix,
#: local time or, with a Z, UTC or an offset such as +1000, -07:00 or +05, a time with its zone. Only after a T, as
#: ISO 8601 has it, is -03 an offset; elsewhere it may number the file.
_DATED = re.compile(
    r"""(?<!\d)((?:19|20)\d{6}) [_$Tt-] (\d{6})(?!\d) (?:[.,]\d+(?=[Zz+-]))?
    (?: ([Zz](?![A-Za-z0-9])) | (_?UTC(?![A-Za-z0-9+-]))
    | (_?\+(?:0\d|1[0-4])(?:[:_-]?(?:00|15|30|45))?(?!\d) | -(?:0\d|1[0-2]):?(?:00|15|30|45)(?!\d)
    | (?<=[Tt]\d{6})-(?:0\d|1[0-2])(?![\d-])) )?""",
    re.VERBOSE,
)
#: Folders that cameras make on their cards (DCF): those in ``DCIM``, and those with the five letters of a maker of camera
#: traps. Other names of three digits and five letters may be sites.
_DCIM, _NUMBERED = "DCIM", re.compile(r"[1-9]\d\d\w{5}")
_OF_CARD = re.compile(
    r"[1-9]\d\d(?:RECNX|MEDIA|_BTCF|BTCF_|EK\d{3}|CUDDY|STLTH|DSCIM|MFCAM|IMAGE|_PANA|CANON|MSDCF|OLYMP|NIKON|UVTRL)",
    re.IGNORECASE,
)
#: AudioMoth's older names: Unix time in eight hexadecimal digits.
_HEXADECIMAL = re.compile(r"[0-9A-F]{8}\.wav", re.IGNORECASE)
_FIRST_HEXADECIMAL = datetime(2014, 1, 1, tzinfo=UTC)  # no AudioMoth is older
#: Files whose time and place are remembered, about 40 MiB; events ask for those of a whole camera again.
_REMEMBERED = 1 << 17


class TimeAndPlace(NamedTuple):
    """When and where a file was recorded.

    Attributes
    ----------
    time : start of the recording, or the moment of the exposure; without a zone if none is known; None if unknown.
    latitude, longitude : degrees (WGS 84); NaN if unknown.
    deployment : name of its deployment; "" if unknown.
    expansion : how many times slower the recording plays than it was.
    """

    time: datetime | None = None
    latitude: float = NAN
    longitude: float = NAN
    deployment: str = ""
    expansion: float = 1.0


class Clock:
    """Finds time and place of files, and counts what is missing or contradicts itself.

    A time inside the file counts before one in its name, and one with a zone before one without. The table of deployments
    corrects a clock that was wrong. A time without a zone gets that of its deployment, where `ClockChanges` settles what
    its clock did at a change. The place of a deployment counts before one inside the file.

    Parameters
    ----------
    folders : the files and folders that were named, if the folder of a file outside of ``deployments`` is one, too.

    Attributes
    ----------
    checked : what the check of the pictures has read, by path; they are not opened again.
    sequences : names of events by path, where the source of the files names them.
    """

    def __init__(
        self, deployments: Deployments | None = None, folders: Sequence[str] | None = None
    ) -> None:
        self.deployments = deployments
        self._folders = folders
        self._named: dict[str, str] = {}  # folders that are deployments
        self.checked: Mapping[str, PictureInfo] = {}
        self.sequences: Mapping[str, str] = {}
        self.used: set[str] = set()  # deployments with a file
        self._found: dict[str, TimeAndPlace] = {}
        self._local: dict[str, Deployment] = {}  # of the files that have its zone
        self._changes = ClockChanges()
        self.files = 0
        self._counts: dict[str, tuple[int, str]] = {}
        for row in deployments.rows.values() if deployments else ():
            for bound in (row.start, row.end):
                if is_zoned(bound):
                    self._see_change(f"{row.name} in --deployments", row, bound)

    def find(self, path: str, *, readable: bool = True) -> TimeAndPlace:
        """Time and place of a file.

        Parameters
        ----------
        readable : look into the file. False for one that a decoder has refused: it may crash this process, too.
        """
        if path not in self._found:
            if len(self._found) == _REMEMBERED:
                self._local.pop(first := next(iter(self._found)), None)
                del self._found[first]
            self._found[path] = self._find(path, readable)
        found = self._found[path]
        if found.time is None or path not in self._local:
            return found
        # Settled anew at each call: later files tell what the clock did.
        return found._replace(time=self._changes.settle(path, self._local[path], found.time))

    def is_uncertain(self, path: str) -> bool:
        """Whether the time of a file, known from `of`, is local time that its zone leaves out or has twice."""
        time = self._found[path].time if path in self._local else None
        return time is not None and change_at(time) is not Change.NONE

    def cells(self, part: Part, *, readable: bool = True) -> dict[str, str | float]:
        """The cells of `TIME_AND_PLACE` for a part of a file, whose time is that of its start; "" and NaN where unknown."""
        found = self.find(part.path, readable=readable)
        time = iso(found.time, (part.start or 0.0) / found.expansion)
        values = (time, found.latitude, found.longitude, found.deployment)
        return dict(zip(TIME_AND_PLACE, values, strict=True))

    def deployment(self, path: str) -> Deployment | None:
        """The deployment of a file in the table; None without one."""
        deployment = None if self.deployments is None else self.deployments.find(path)
        if deployment is not None:
            self.used.add(deployment.name)
        return deployment

    def _find(self, path: str, readable: bool) -> TimeAndPlace:
        self.files += 1
        kind = find_kind(path)
        if path in self.checked:
            found: Iterable[Recorded | None] = [self.checked[path].recorded]
        else:
            found = kind.recorded(path) if kind and readable else ()
        sources = [*filter(None, [*found, _in_name(split(path)[1])])]
        deployment = self.deployment(path)
        time = self._time(path, sources, deployment)
        if self.deployments is not None and deployment is None:
            self._note("deployment", path)
        places = [deployment.place] if deployment else []
        places += [source.place for source in sources]
        latitude, longitude = next(filter(None, places), (NAN, NAN))
        name = deployment.name if deployment else self.folder_name(path)
        expansion = kind.expansion(path, sources) if kind else 1.0
        if expansion > 1:
            self._note("expansion", f"{path}, {expansion:g} times")
        return TimeAndPlace(time, latitude, longitude, name, expansion)

    def folder_name(self, path: str) -> str:
        """The deployment that the folder of a file is: its path below the folder of the call, or its name, with as many of
        the folders above as tell it from others; "" if folders are none. Folders that a camera makes on its card name
        none."""
        if self._folders is None:
            return ""
        folder = split(path)[0]
        if folder not in self._named:
            camera = _of_camera(as_path(absolute_path(folder)))
            if str(camera) not in self._named:
                inside = os.path.dirname(below(path, self._folders)).replace(os.sep, "/")
                name = str(_of_camera(PurePosixPath(inside)))
                taken = {
                    *self._named.values(),
                    *(self.deployments.rows if self.deployments else ()),
                }
                ends = ("/".join(camera.parts[-n:]) for n in range(1, len(camera.parts)))
                # Alone below the folder of the call, a folder of a card does not tell cameras apart.
                of_card = name in ("", ".") or _of_camera(PurePosixPath("_", name)).name == "_"
                names = chain(
                    [] if of_card else [name], ends, (f"{camera.name} {n}" for n in count(2))
                )
                self._named[str(camera)] = next(free for free in names if free not in taken)
            self._named[folder] = self._named[str(camera)]
        return self._named[folder]

    def _time(
        self, path: str, sources: list[Recorded], deployment: Deployment | None
    ) -> datetime | None:
        """Time by the best source, with the zone of the deployment if it has none."""
        times = [(source.source, source.time) for source in sources if source.time is not None]
        if not times:
            self._note("time", path)
            return None
        zone = deployment.zone if deployment else None
        if deployment and deployment.offset:
            times = self._corrected(path, times, deployment)
        best, time = next((pair for pair in times if is_zoned(pair[1])), times[0])
        if other := next((pair for pair in times if not _same(time, pair[1])), None):
            self._note("contradiction", f"{path}: {best} {iso(time)}, {other[0]} {iso(other[1])}")
        if not is_zoned(time) and deployment and zone:
            time = time.replace(tzinfo=zone)
            self._local[path] = deployment
            self._see_change(path, deployment, time)
        elif zone and time.utcoffset() and time.utcoffset() != time.astimezone(zone).utcoffset():
            self._note("zone", f"{path}: {best} {iso(time)}, timezone {zone}")
        if not is_zoned(time):
            self._note("no zone", path)
        elif deployment:
            settled = self._changes.settle(path, deployment, time) if path in self._local else time
            if not deployment.covers(settled):
                self._note("period", f"{path}: {iso(settled)}")
        return time

    def _corrected(
        self, path: str, times: list[tuple[str, datetime]], deployment: Deployment
    ) -> list[tuple[str, datetime]]:
        """The times by a clock that was wrong, corrected. One that another is once it is corrected was right: of a file
        that has been named anew, it alone stays."""

        def moment(time: datetime) -> datetime:
            return time if is_zoned(time) else time.replace(tzinfo=deployment.zone or UTC)

        corrected = [(source, deployment.corrected(time)) for source, time in times]
        right = [
            (source, time) for source, time in times
            if any(abs(moment(time) - moment(other)) <= SAME_CLOCK for _, other in corrected)
        ]  # fmt: skip
        if abs(deployment.offset) <= SAME_CLOCK or not right:
            shown, taken = (iso(found[0][1].replace(tzinfo=None)) for found in (times, corrected))
            self._note("corrected", f"{path}: {shown}, taken as {taken}")
            return corrected
        return right

    def _see_change(self, name: str, deployment: Deployment, time: datetime) -> None:
        if change := self._changes.see(name, deployment, time):
            wall = iso(time.replace(tzinfo=None))
            taken = iso(self._changes.settle(name, deployment, time))
            self._note(change, f"{name}: {wall} in {time.tzinfo}, taken as {taken}")

    def _note(self, kind: str, example: str) -> None:
        number, first = self._counts.get(kind, (0, example))
        self._counts[kind] = number + 1, first

    def remarks(self) -> list[str]:
        """Sentences for the user about what was missing or contradictory; none where no file had a time."""
        lines = []
        for kind, (text, remedy) in _REMARKS.items():
            number, example = self._counts.get(kind, (0, ""))
            if number and (kind != "time" or number < self.files):
                lines.append(f"{text}: {number} of {self.files}, such as {example}{remedy}")
        if self.deployments is not None:
            unused = [name for name in self.deployments.rows if name not in self.used]
            more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
            if unused:
                lines.append(
                    f"Deployments without a file: {len(unused)} of {len(self.deployments.rows)}, "
                    f"{', '.join(unused[:5])}{more}. A deployment needs the name of a folder of its files, or a name "
                    "with which theirs begin"
                )
        return lines


#: By what is missing or contradictory: a text, and what to do.
_REMARKS = {
    "corrected": ("Times that the column clock_offset of --deployments corrects", ""),
    "time": ("Files without a time, inside or in the name", ""),
    "no zone": (
        "Times without a zone",
        ". They are written without one; the column timezone of --deployments gives it",
    ),
    "contradiction": (
        "Files with two times that contradict each other",
        ". The first of the two is used. Check the recorder's clock and time zone",
    ),
    "zone": (
        "Files with another zone than --deployments gives",
        ". That of the file is used. Check the column timezone",
    ),
    "period": (
        "Files outside of the period of their deployment",
        ". Check the recorder's clock and the table",
    ),
    "expansion": (
        "Slowed recordings (time expansion)",
        ". start and end are seconds of the file; the column time is the clock's",
    ),
    "deployment": ("Files that belong to no deployment of --deployments", ""),
    Change.LEFT_OUT: (
        "Times that do not exist in the time zone of their deployment, because its clocks were set forward",
        ". The recorder's clock did not follow: give its offset, such as +01:00, in the column timezone",
    ),
    Change.TWICE: (
        "Times that the time zone of their deployment has twice, because its clocks were set back",
        ". Numbered files whose times go back are taken as the second. If the recorder's clock did not follow, give its "
        "offset, such as +01:00, in the column timezone",
    ),
}


def _of_camera(folder: P) -> P:
    """The folder above those that a camera makes on its card, such as ``DCIM/100RECNX``."""
    while folder.parent != folder and (
        folder.name.upper() == _DCIM
        or _OF_CARD.fullmatch(folder.name)
        or (folder.parent.name.upper() == _DCIM and _NUMBERED.fullmatch(folder.name))
    ):
        folder = folder.parent
    return folder


def _in_name(name: str) -> Recorded | None:
    """Time in a file name; None if there is none."""
    if _HEXADECIMAL.fullmatch(name):
        time = datetime.fromtimestamp(int(name[:8], 16), UTC)
        return Recorded("its name", time) if time >= _FIRST_HEXADECIMAL else None
    for date, clock, *utc, offset in _DATED.findall(name):
        sign = offset.strip("_")[:1]
        zone = sign + re.sub(r"\D", "", offset).ljust(4, "0") if offset else "Z" * any(utc)
        try:
            time = datetime.strptime(date + clock + zone, "%Y%m%d%H%M%S" + "%z" * bool(zone))
        except ValueError:
            continue
        return Recorded("its name", time)
    return None


def is_zoned(time: datetime | None) -> TypeGuard[datetime]:
    """Whether a time is known with its zone."""
    return time is not None and time.tzinfo is not None


def _same(time: datetime, other: datetime) -> bool:
    """Whether two times may be the same moment; one without a zone may be local time or UTC.

    If only one has a zone, it is the first.
    """
    clocks = [time]
    if is_zoned(time) and not is_zoned(other):
        clocks = [time.replace(tzinfo=None), time.astimezone(UTC).replace(tzinfo=None)]
    return any(abs(clock - other) <= SAME_CLOCK for clock in clocks)


def iso(time: datetime | None, seconds: float = 0.0) -> str:
    """A time, some seconds later, in ISO 8601, to the second or the millisecond; "" for None."""
    if time is None:
        return ""
    # Wall clock and UTC advance alike but for a change to summer time, which Python's sums leave out.
    moment = time.astimezone(UTC) if time.tzinfo else time
    moment += timedelta(milliseconds=round(1000 * seconds))
    moment = moment.astimezone(time.tzinfo) if time.tzinfo else moment
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
