"""Files of embeddings: a row for each item in them. It takes seconds, so no job goes on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from datasets.core import progress
from learners.calls.base import CALLS
from learners.calls.files import FileCall
from learners.cli.commands import PredictSettings
from learners.inference.machines import Machines
from learners.inference.options import Options
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.predictions.provenance import Provenance
from learners.predictions.tally import Tally

#: Embeddings that are predicted at once.
EMBEDDINGS = 256


class EmbeddingCall(FileCall):
    """The files are not opened, so that they have neither time nor place."""

    name, title = "embeddings", "embeddings, which name their times"
    one_machine: ClassVar[Mapping[str, str]] = {"": "embeddings take seconds"}

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        return not bundle.kind.opened

    def options(self, options: Options) -> Options:
        computing = options.computing
        return replace(options, computing=replace(computing, bs=max(computing.bs, EMBEDDINGS)))

    def run(self, predictor: Predictor, machines: Machines, provenance: Provenance) -> int:
        settings, shape, lookup = self.settings, self.shape(predictor, provenance), predictor.lookup
        assert lookup is not None
        rejected = lookup.read(self.files(Counter()))
        for item in rejected:
            print(item, file=sys.stderr)
        tally = Tally(None)
        sources = lookup.parts()
        predicted = predictor.predict(sources)
        counted = progress.counted(predicted, "Predicting", len(sources), "items")
        self.output.write(tally(counted), shape, settings.out)
        return tally.status() or (3 if rejected else 0)


CALLS.add(EmbeddingCall)
