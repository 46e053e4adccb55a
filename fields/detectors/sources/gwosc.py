"""Gravitational-wave events ``gwosc:NAME``: the published strain around them.

``https://gwosc.org/eventapi/json/event/NAME`` gives the GPS time and the strain files; 32 s at 4096 Hz of H1 and L1 in
HDF5 are used.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.store import cache_root
from datasets.sources.base import SOURCES, Fetched, ReadOptions, Rows, Source
from datasets.sources.download import RemoteFile, fetch_file

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "gwosc:"
API = "https://gwosc.org/eventapi/json/event/"
DETECTORS = ("H1", "L1")
NOTE = (
    "open data of LIGO, Virgo and KAGRA from gwosc.org, under its terms of use "
    "(https://gwosc.org/acknowledgement); arXiv 2302.03676"
)
_WANTED = {"duration": 32, "sampling_rate": 4096, "format": "hdf5"}


def fetch_event(name: str) -> tuple[pd.DataFrame, Path]:
    """Strain files of an event, one row per detector, and their folder.

    Parameters
    ----------
    name : GWOSC's name, such as "GW150914" or "GW190521_074359".

    Returns
    -------
    Rows with ``path``, ``label`` (always "Chirp", Gravity Spy's name for a merger), ``group`` (the event),
    ``split`` ("test", because two files are too few to train on) and ``gps`` (s); and the folder.

    Raises
    ------
    SecondhandError : there is no such event, no network, or no suitable strain.
    """
    import pandas as pd

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,60}", name):
        raise SecondhandError(
            f"{PREFIX}{name}: not the name of an event, such as {PREFIX}GW150914. "
            "https://gwosc.org/eventapi lists all events"
        )
    folder = cache_root() / "sets" / "gwosc" / name
    event_file, _ = fetch_file(RemoteFile(url=API + name, name="event.json"), folder)
    gps, urls = _read_event(event_file, name)
    rows = []
    for url in urls.values():
        path, _ = fetch_file(RemoteFile(url=url, name=Path(urlsplit(url).path).name), folder)
        row = {"path": str(path), "label": "Chirp", "group": name, "split": "test", "gps": gps}
        rows.append(row)
    return pd.DataFrame(rows), folder


def _read_event(path: Path, name: str) -> tuple[float, dict[str, str]]:
    """GPS time and URL of each detector's file, from a response of the event API."""
    try:
        versions = list(json.loads(path.read_text(encoding="utf-8"))["events"].values())
        # The latest version.
        event = max(versions, key=lambda version: version.get("version", 0))
        gps = float(event["GPS"])
        files = [
            (str(file["detector"]), str(file["url"]))
            for file in event["strain"]
            if all(file.get(key) == value for key, value in _WANTED.items())
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(
            path, f"not a response of the event API ({error!r:.80}): delete it to download it again"
        ) from None
    if not math.isfinite(gps):
        raise BadFile(path, f"the GPS time of the event is {gps}: delete it to download it again")
    urls = {detector: url for detector, url in files if detector in DETECTORS}
    if not urls:
        raise SecondhandError(
            f"{PREFIX}{name}: GWOSC has no 32 s of strain at 4096 Hz in HDF5 from "
            f"{' or '.join(DETECTORS)}. Choose another event"
        )
    for url in urls.values():
        address = urlsplit(url)
        host = address.hostname or ""
        trusted_host = host in ("gwosc.org", "losc.ligo.org") or host.endswith(".gwosc.org")
        if (
            address.scheme != "https"
            or not trusted_host
            or not re.search(r"/[\w.-]+\.hdf5$", address.path)
        ):
            raise BadFile(path, f"{url} is not an HDF5 file of gwosc.org, so it is not downloaded")
    return gps, dict(sorted(urls.items()))


def _fetch(name: str) -> Fetched | None:
    if not name.startswith(PREFIX):
        return None
    rows, folder = fetch_event(name.removeprefix(PREFIX))
    moments = zip(rows["path"], rows["gps"], strict=True)
    return Fetched(folder, [f"{path} --at {gps}" for path, gps in moments])


def _read(path: Path, options: ReadOptions) -> Rows:
    return Rows(fetch_event(str(path).removeprefix(PREFIX))[0], [], NOTE, learnable=False)


SOURCES.add(
    Source(
        name="gwosc",
        order=91,
        claims=lambda path, options: str(path).startswith(PREFIX) and not path.exists(),
        read=_read,
        names=(PREFIX + "EVENT",),
        fetch=_fetch,
        note=NOTE,
    )
)
