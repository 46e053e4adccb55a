"""The flag of a training whose features are computed on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datasets.cli.conflicts import Conflict
from datasets.cli.options import option
from datasets.items.settings import SETTINGS, AddedSettings


def _trains(head: str, *values: Any) -> Conflict:
    """That a head is trained by steps, with some values of a setting, or with all but "fit"."""

    def clash(cluster: str | None, value: Any) -> bool:
        return cluster is not None and (value in values if values else value != "fit")

    return Conflict(
        "cluster",
        head,
        "only the features that a head is fitted to are computed there",
        clash=clash,
    )


@SETTINGS.add
@dataclass(frozen=True)
class ClusterSettings(AddedSettings):
    """several machines"""

    name = "cluster"
    free = opens = ("cluster",)
    conflicts = (
        _trains("freeze_epochs"),
        _trains("weights", "none"),
        _trains("head", "cosine"),
    )

    cluster: str | None = option(
        None,
        "Address of a Dask scheduler whose workers compute the features that the head is fitted to, such as "
        "tcp://10.0.0.1:8786; or local (--workers processes). --epochs 0 trains nothing else.",
        metavar="ADDRESS",
    )
