"""What several labels an item do not go with, and such a model judged on tables of others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets.core.cells import read_cells
from datasets.core.errors import SecondhandError
from datasets.items import MANY, ItemTable, joined, names_of, parts_of
from learners.cli.asking import EvaluateSettings
from learners.cli.settings import ConfidenceSettings, Settings
from learners.model import Bundle
from learners.uncertainty import ManyConfidence


def check_many(settings: Settings, origin: Bundle | None = None) -> None:
    """Raise SecondhandError that names every setting which several labels an item do not go with, or
    a model of such to go on from."""
    data, train, asked, usual = (
        settings.data,
        settings.train,
        settings.confidence,
        ConfidenceSettings(),
    )
    if origin is not None and isinstance(origin.confidence, ManyConfidence):
        raise SecondhandError(
            f"--from {data.from_}: a model of several labels an item cannot be gone on from; train "
            "anew with all tables as --data"
        )
    if not data.many:
        return
    refused = {
        "--from": data.from_,
        "--background": data.background,
        "--classes-table": data.classes_table,
        "--backbone auto": settings.network.candidates,
        "--label-smoothing": train.label_smoothing,
        "--score": asked.score != usual.score,
        "--keep-known": asked.keep_known != usual.keep_known,
        "--target-coverage": asked.target_coverage,
        "--coverage": asked.coverage,
        "--per-class (each label has its own promise anyway)": asked.per_class,
        "--learning-curve": settings.run.learning_curve,
    }
    if wrong := [flag for flag, given in refused.items() if given]:
        raise SecondhandError(f"not with several labels an item: {', '.join(wrong)}; leave it out")


def label_columns(bundle: Bundle, asked: EvaluateSettings) -> str | list[str] | None:
    """How the labels stand in a table that a model is judged on, as `load_table` has it."""
    if not isinstance(bundle.confidence, ManyConfidence):
        return None
    table = Path(asked.data)
    columns = [*read_cells(table).columns] if table.is_file() else []
    own = [name for name in bundle.classes if name in columns]
    return own if own and (asked.label_column or "label") not in columns else MANY


def sort_out_many(
    table: ItemTable, classes: Sequence[str], columns: str | Sequence[str]
) -> list[str]:
    """Leave labels out that the model does not have; its own that have no column are not known. As
    lines to read."""
    labels = table.frame["label"]
    there = {name for label in labels for name in names_of(label)}
    foreign = ", ".join(map(repr, sorted(there - {*classes})[:10]))
    if there and not there & {*classes}:
        raise SecondhandError(
            f"none of the labels ({foreign}) is one of the model ({', '.join(classes)[:300]}): rename them"
        )
    missing = [] if columns == MANY else sorted({*classes} - {*columns})

    def own(label: str) -> str:
        not_known = [part[1:] for part in parts_of(label) if part.startswith("?")]
        return joined({*names_of(label)} & {*classes}, [*not_known, *missing])

    table.frame = table.frame.assign(label=labels.map(own))
    said = [f"labels that the model does not have play no part: {foreign}"] if foreign else []
    if missing:
        said.append(f"no column of {', '.join(missing)}: they are not judged")
    return said
