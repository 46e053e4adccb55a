"""The step that keeps the photos of one capture session in one split."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pandas as pd

from datasets.core.errors import SecondhandError
from datasets.images.exif import capture_sessions
from datasets.items import describe
from datasets.items.duplicates import sessions_with_duplicates
from datasets.items.facts import Groups, Looks, Sessions
from datasets.items.items import Items
from datasets.steps.base import Asked
from datasets.steps.near_duplicates import Clusters, next_number
from datasets.steps.split import check_splits

log = logging.getLogger(__name__)


def group_sessions(items: Items, asked: Asked) -> Items:
    """Give the photos of each capture session (by EXIF, else a sequence that the data name) and their near-duplicates
    one group, if the data name no groups.

    If the table cannot be split then, because there are too few sessions, no groups are set.
    """
    clusters, looks = items.get(Clusters), items.fact(Looks)
    if clusters is None or items.fact(Groups).number or not looks.of:
        return items
    photos = items.frame.loc[clusters.of_items.index]
    session = capture_sessions([looks.of[path].capture_time for path in photos["path"]])
    named = (session < 0) & photos["sequence"].ne("").to_numpy()
    named &= photos["sequence"].where(named).duplicated(keep=False).to_numpy()
    session[named] = session.max(initial=-1) + 1 + pd.factorize(photos["sequence"][named])[0]
    if not (in_one := session >= 0).any():
        return items
    number = sessions_with_duplicates(
        session, clusters.of_items.to_numpy(np.int64), photos["label"].to_numpy(str)
    )
    together, apart, error = number >= 0, in_one & (number < 0), ""
    grouped = items.frame.copy()
    first = next_number(photos["group"])
    grouped.loc[photos.index[together], "group"] = [
        f"session {first + n}" for n in number[together]
    ]
    try:
        check_splits(grouped, asked)
        items = replace(items, frame=grouped)
    except SecondhandError as failure:
        together, apart, error = in_one & False, in_one, str(failure)
    found = Sessions(
        int(together.sum()),
        len({*number[together]}),
        int(apart.sum()),
        len({*session[apart]}),
        error,
    )
    level, line = describe.sessions_found(found)
    log.log(level, "%s", line)
    return items.knowing(found)
