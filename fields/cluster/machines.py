"""Predicts files on the workers of a cluster: each task is a chunk of files, and workers keep the model loaded."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.core.address import absolute
from datasets.core.errors import BadFile
from datasets.core.files import folder_beside
from datasets.core.part import Part
from datasets.core.processes import CRASHED
from fields.cluster.sections import ClusterSettings
from learners.inference.machines import MACHINES, Machines
from learners.inference.options import Options
from learners.inference.predictions import Prediction, refused_prediction
from learners.machine.acceleration import keep_memory_on_cpu
from learners.machine.hardware import keep_thread_count
from learners.model.bundle import load_bundle, model_digest
from learners.rule.reasons import Reason

if TYPE_CHECKING:
    from fields.cluster.client import Cluster
    from learners.cli.commands import PredictSettings
    from learners.inference.predictor import Predictor

_loading = threading.Lock()
_TOGETHER = 1000  # chunks submitted at once; workers wait for the last of them


@MACHINES.add
class OnCluster(Machines):
    """The workers of a Dask cluster."""

    name = "cluster"
    several = True

    def __init__(self, settings: Any, options: Options) -> None:
        super().__init__(settings, options)
        self.device = "cpu"  # of this process, which predicts nothing

    @classmethod
    def claims(cls, settings: PredictSettings) -> bool:
        return bool(settings.of(ClusterSettings).cluster)

    def predict(self, predictor: Predictor, files: Iterator[str]) -> Iterator[Prediction]:
        from fields.cluster.client import connect

        how = self.settings
        address = how.of(ClusterSettings).cluster
        with connect(address, workers=how.workers) as cluster:
            computing = replace(self.options.computing, device=how.device)
            options = replace(self.options, computing=computing)
            yield from predict_on(cluster, how.model, files, options, at=how.at)

    def rounds(self, predictions: Iterator[Prediction]) -> Iterator[list[Prediction]]:
        return iter(lambda: list(islice(predictions, self.settings.bs)), [])

    def record(self, predictor: Predictor) -> dict[str, Any]:
        how = self.settings
        return {"--device": how.device, "--engine": how.engine, "--cluster": "on"}


def predict_on(
    cluster: Cluster,
    model: str | os.PathLike[str],
    paths: Iterable[str | os.PathLike[str]],
    options: Options,
    *,
    at: float | None = None,
) -> Iterator[Prediction]:
    """Yield one prediction per file, in the order of the files, as `Predictor.predict` does.

    Each chunk of as many files as a batch has is one. Workers use one thread each, so probabilities agree with those
    of a single machine to about 1e-6. With `OMP_NUM_THREADS=1` and without windows they are identical.

    Parameters
    ----------
    cluster : from `fields.cluster.client.connect`.
    model : model folder; it is sent to every worker, which loads it once.
    paths : files that the workers see under these names; read lazily.
    options : those of the call; each worker opens its files itself.
    at : as in `Predictor.predict`.

    Raises
    ------
    SecondhandError : there is no such model, a worker does not see a file, or the cluster is lost.
    """
    bs = options.computing.bs
    options = replace(options, opening=replace(options.opening, workers=1))
    digest = model_digest(os.fspath(model))
    with tempfile.TemporaryDirectory() as folder:
        cluster.send(Path(shutil.make_archive(f"{folder}/{digest}", "zip", model)))
    task = partial(predict_chunk, digest, options)
    remaining = (os.fspath(path) for path in paths)
    while names := list(islice(remaining, _TOGETHER * bs)):
        parts = [Part(absolute(path), at=at) for path in names]
        chunks = [parts[first : first + bs] for first in range(0, len(parts), bs)]
        # Predictions of later chunks, to be yielded in order.
        ready: dict[int, list[Prediction | None]] = {}
        next_chunk = 0
        for number, predictions in cluster.map_chunks(
            task, chunks, None, path_of=attrgetter("path")
        ):
            ready[number] = predictions
            while next_chunk in ready:
                for n, prediction in enumerate(ready.pop(next_chunk), next_chunk * bs):
                    row = prediction or refused_prediction(parts[n], BadFile(names[n], CRASHED))
                    yield _named(row, parts[n].path, names[n])
                next_chunk += 1


def predict_chunk(digest: str, options: Options, parts: list[Part]) -> list[Prediction | None]:
    """Predictions of a chunk of files, in the worker; ``digest`` is the `model_digest` of the model that was sent."""
    with _loading:  # the threads of a worker share the model
        predictor = _predictor(digest, options)
    with keep_thread_count(1):
        return list(predictor.predict(parts))


@cache
def _predictor(digest: str, options: Options) -> Predictor:
    from fields.cluster.client import sent
    from learners.inference.predictor import Predictor

    folder = sent(digest)
    with folder_beside(folder, replace=False) as beside:
        shutil.unpack_archive(sent(f"{digest}.zip"), beside)
    keep_memory_on_cpu(options.computing.device)
    model = load_bundle(folder, network=False)
    return Predictor(
        model,
        rule=options.overrides.rule(model),
        top=options.top,
        opening=options.opening,
        computing=options.computing,
    )


def _named(row: Prediction, full: str, name: str) -> Prediction:
    """The prediction with the file name that the user gave."""
    if full == name:
        return row
    reason = Reason(row.reason.why, row.reason.detail.replace(full, name))
    windows = tuple(_named(window, full, name) for window in row.windows)
    named = row._replace(part=row.part._replace(path=name), reason=reason)
    return named.with_more(windows=windows)
