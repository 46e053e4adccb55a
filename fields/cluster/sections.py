"""The flag of calls that predict on a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.options import option
from learners.calls.sections.base import SECTIONS, Section


@SECTIONS.add
@dataclass(kw_only=True)
class ClusterSettings(Section):
    """several machines"""

    name = "cluster"
    free = elsewhere = ("cluster",)

    cluster: str | None = option(
        None,
        "Address of a Dask scheduler whose workers compute the predictions, such as tcp://10.0.0.1:8786; or "
        "local.",
        metavar="ADDRESS",
    )
