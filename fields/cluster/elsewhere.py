"""Computes the features of a training on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from learners.cli.settings import Settings
from learners.training.elsewhere import ELSEWHERE, Computing, Elsewhere


@ELSEWHERE.add
class OnCluster(Elsewhere):
    """The workers of a Dask cluster."""

    name = "cluster"

    @classmethod
    def claims(cls, settings: Settings) -> bool:
        return settings.flat()["cluster"] is not None

    @contextmanager
    def connected(self) -> Iterator[Computing]:
        from fields.cluster.client import connect
        from fields.cluster.features import batches_on

        address = self.settings.flat()["cluster"]
        with connect(address, workers=self.settings.speed.workers) as cluster:
            yield partial(batches_on, cluster, left_out=self.left_out)
