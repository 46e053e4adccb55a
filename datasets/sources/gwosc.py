"""Gravitational-wave events by name, from the Gravitational Wave Open Science Center.

``https://gwosc.org/eventapi/json/event/NAME`` says when the event was (GPS) and where its strain
lies. Of that are taken, for H1 and L1, the 32 s at 4096 Hz in HDF5.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from datasets.core.errors import BadFile, SecondhandError
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
_LARGEST = 64 * 2**20  # bytes; 32 s take 1 MB


def fetch_event(name: str, root: Path) -> tuple[pd.DataFrame, Path]:
    """The strain of an event: one row a detector, and the folder of the files.

    Parameters
    ----------
    name : as GWOSC has it, "GW150914" or "GW190521_074359".
    root : the folder of all events.

    Returns
    -------
    ``path``, ``label`` (always "Chirp", Gravity Spy's word for a merger), ``group`` (the event),
    ``split`` ("test": two files are nothing to train on), ``gps`` (s); and the folder.

    Raises
    ------
    SecondhandError : no such event, no network, or no strain of the kind that is wanted.
    """
    import pandas as pd

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,60}", name):
        raise SecondhandError(
            f"{PREFIX}{name}: not the name of an event, as in {PREFIX}GW150914 (all are listed at "
            "https://gwosc.org/eventapi)"
        )
    folder = root / name
    answer, _ = fetch_file(RemoteFile(url=API + name, name="event.json", largest=2**23), folder)
    gps, urls = _read_event(answer, name)
    rows = []
    for url in urls.values():
        strain = RemoteFile(url=url, name=Path(urlsplit(url).path).name, largest=_LARGEST)
        path, _ = fetch_file(strain, folder)
        row = {"path": str(path), "label": "Chirp", "group": name, "split": "test", "gps": gps}
        rows.append(row)
    return pd.DataFrame(rows), folder


def _read_event(path: Path, name: str) -> tuple[float, dict[str, str]]:
    """GPS time and one URL for each detector, out of the answer of the event API."""
    try:
        versions = list(json.loads(path.read_text(encoding="utf-8"))["events"].values())
        # Of several versions the latest.
        event = max(versions, key=lambda version: version.get("version", 0))
        gps = float(event["GPS"])
        files = [
            (str(file["detector"]), str(file["url"]))
            for file in event["strain"]
            if all(file.get(key) == value for key, value in _WANTED.items())
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(
            path, f"not what the event API answers ({error!r:.80}): delete it to ask again"
        ) from None
    if not math.isfinite(gps):
        raise BadFile(path, f"the event has no GPS time, but {gps}")
    urls = {detector: url for detector, url in files if detector in DETECTORS}
    if not urls:
        raise SecondhandError(
            f"{PREFIX}{name}: GWOSC has no 32 s of strain at 4096 Hz in HDF5 from "
            f"{' or '.join(DETECTORS)} for it: choose another event"
        )
    for url in urls.values():
        parts = urlsplit(url)
        host = parts.hostname or ""
        known = host in ("gwosc.org", "losc.ligo.org") or host.endswith(".gwosc.org")
        if parts.scheme != "https" or not known or not re.search(r"/[\w.-]+\.hdf5$", parts.path):
            raise BadFile(path, f"{url} is no HDF5 file of gwosc.org: not fetched")
    return gps, dict(sorted(urls.items()))
