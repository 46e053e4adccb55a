"""``--learning-curve --full``: the run's own training, on parts of its labels."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
from fastai.torch_core import set_seed

from datasets.core.cells import csv_text
from datasets.core.files import write_beside
from datasets.items import Loaded
from learners.cli.settings import Settings
from learners.evaluation import STRANGE, Evaluation, answer
from learners.inference import Predictor
from learners.runs.resume import write_config
from learners.training import ANSWERS, item_numbers, parts_of_labels, train_members

log = logging.getLogger(__name__)

#: Of the training labels, and how often each part is drawn: 1.25 of the run's own training in all.
DRAWS = {1 / 8: 2, 1 / 4: 2, 1 / 2: 1}


def grow(
    folder: Path, settings: Settings, loaded: Loaded, own: Predictor, evaluation: Evaluation
) -> bool:
    """Write what networks answer that learnt a part of the labels, and the run's own, to `ANSWERS`.

    They are asked about the held-out files by which no epoch was chosen. False where Ctrl-C ended it: the
    parts that are done count, and what it takes to go on lies in ``parts/``.
    """
    table, rows, _ = loaded
    here = ~table.frame["split"].isin(["train", "valid"])
    asked = replace(
        table, frame=table.frame.loc[here],
        unknowns=table.unknowns.iloc[:0], background=table.background.iloc[:0],
    )  # fmt: skip
    whole = evaluation.predictions
    whole = whole.loc[~whole["split"].isin([*STRANGE, "valid"])]
    train = rows["split"].eq("train")
    items = pd.Series(item_numbers(rows), rows.index)
    labels = rows["label"].loc[train].groupby(items.loc[train]).first()
    numbers = pd.Index(loaded.labels).get_indexer(pd.Index(labels))
    finished, found, seed = False, whole[["path", "truth", "unit"]].copy(), settings.train.seed
    for name, chosen in parts_of_labels(numbers, len(table.classes), DRAWS, seed):
        log.info("learning curve: %s labels, draw %s", *name.split("-"))
        part = rows.loc[~train | items.isin(labels.index[chosen])]
        inside = folder / "parts" / name
        inside.mkdir(parents=True, exist_ok=True)
        write_config(inside, settings, "")
        set_seed(seed, reproducible=True)
        try:
            made = train_members(inside, loaded._replace(rows=part), settings, own.device)
        except KeyboardInterrupt:
            break
        if made.interrupted:
            break
        bundle = replace(
            own.bundle, network=made.network, spec=made.spec,
            preprocessing=made.preprocessing, confidence=None,
        )  # fmt: skip
        answers = answer(Predictor(bundle, device=own.device), asked, settings.train.bs)
        found[name] = answers.predictions["best"].tolist()
    else:
        finished = True
        shutil.rmtree(folder / "parts", ignore_errors=True)
    found[f"{(numbers < len(table.classes)).sum()}-1"] = whole["best"]
    write_beside(folder / ANSWERS, csv_text(found).encode())
    return finished
