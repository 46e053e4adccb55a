"""The workers of a cluster, and the flag by which they render."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from datasets.cli.options import option
from datasets.spectrograms.workers import WORKERS, Workers, WorkersSettings


@WORKERS.add
@dataclass(kw_only=True)
class ClusterSettings(WorkersSettings):
    """several machines"""

    name = "cluster"

    cluster: str | None = option(
        None,
        "Address of a Dask scheduler whose workers render, such as tcp://10.0.0.1:8786; or local.",
        metavar="ADDRESS",
    )

    @property
    def chosen(self) -> bool:
        return self.cluster is not None

    def connected(self, processes: int | None) -> AbstractContextManager[Workers]:
        from fields.cluster.client import connect

        assert self.cluster is not None
        return connect(self.cluster, workers=processes)
