"""Wildlife Insights' ``images.csv`` (https://www.wildlifeinsights.org): a row for each animal or group in a photo.

Its names of files are unique in a deployment only, so they are looked for in a folder of the deployment's name, and by the
last part of their address in the cloud.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from datasets.core.cells import column_names, read_cells
from datasets.sources.base import SOURCES, ReadOptions, Rows, Source
from datasets.sources.naming import Below, column_named, placed
from datasets.sources.programs import one_row_each
from datasets.sources.table import read_rows

_NEEDED = ("deployment_id", "filename", "class", "order", "family", "genus", "species")
#: From the lowest rank up; without any, the name says whether it is a vehicle.
_RANKS = ("genus", "family", "order", "class", "common_name")
#: What stands in all ranks where there is no name.
_NONE = ("", "blank", "no cv result", "na")


def read_images(path: Path, options: ReadOptions) -> Rows:
    """Rows with path, label, deployment, group and time; photos with several labels are left out.

    The label is the lowest rank of the taxonomy that is given, ``blank`` for an empty photo, or that of the column that
    ``label_column`` names.
    """
    cells = read_cells(path).apply(lambda column: column.str.strip())
    below = Below(path.parent, options.kind)
    names = cells["deployment_id"] + "/" + cells["filename"]
    unique = cells.groupby("filename")["deployment_id"].transform("nunique").eq(1)
    places = cells.get("location", pd.Series("", cells.index)).str.rpartition("/")[2]
    found = {
        name: below.find(name)
        or (below.find(file) if alone else [])
        or (below.find(place) if place else [])
        for name, file, alone, place in zip(names, cells["filename"], unique, places, strict=True)
    }
    files, several = placed(path, names, found)
    column = options.label_column and column_named(path, cells, options.label_column)
    frame = pd.DataFrame(
        {
            "path": files,
            "label": cells[column] if column else _labels(cells),
            "group": cells["deployment_id"],
            "deployment": cells["deployment_id"],
            "time": cells.get("timestamp", ""),
        }
    ).loc[files.index]
    rows = read_rows(path, replace(options, path_column=None, label_column=None), cells=frame)
    kept, contradicting = one_row_each(rows.frame, options)
    return Rows(kept, several + rows.rejected + contradicting)


def _labels(cells: pd.DataFrame) -> pd.Series:
    named = cells.mask(cells.apply(lambda column: column.str.lower().isin(_NONE)), "")
    label = pd.Series("", cells.index)
    for rank in _RANKS:
        if rank in named:
            label = label.where(label.ne(""), named[rank])
    has_species = named["genus"].ne("") & named["species"].ne("")
    label = label.mask(has_species, named["genus"] + " " + named["species"])
    empty = cells.get("is_blank", pd.Series("", cells.index)).str.lower().isin(["1", "1.0", "true"])
    return label.mask(empty & label.eq(""), "blank")


def _claims(path: Path, options: ReadOptions) -> bool:
    return (
        path.name.lower().endswith((".csv", ".csv.gz"))
        and path.is_file()
        and {*_NEEDED} <= {*column_names(path)}
    )


SOURCES.add(
    Source(
        name="wildlife-insights",
        order=48,
        claims=_claims,
        read=read_images,
        reads="images.csv of Wildlife Insights",
        endings=(".csv",),
        has_multi_label=lambda path: path.is_file(),
    )
)
