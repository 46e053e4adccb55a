"""The settings of the commands that ask a model: ``learners.predict``, ``learners.evaluate``,
``learners.suggest`` and ``learners.search``."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

from datasets.core.errors import SecondhandError
from datasets.core.options import option
from learners.cli.settings import ScoreName

STRAIN = "of a table of triggers: the folder, pattern or LAL cache of their strain files"


@dataclass(kw_only=True)
class ComputeSettings:
    """what computes"""

    bs: int = option(32, "batch size in items")
    workers: int | None = option(None, "processes that decode files")
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps (Apple)")


@dataclass(kw_only=True)
class AskSettings(ComputeSettings):
    """how a model is asked"""

    threshold: float | None = option(
        None,
        "probability in [0, 1] below which the answer is unknown, in place of the model's own cuts",
    )
    score: ScoreName | None = option(
        None, "what tells known files from strangers; the model's own if not given"
    )


@dataclass(kw_only=True)
class AnswerSettings:
    """how the answers are written"""

    format: Literal["csv", "jsonl", "table", "raven", "audacity", "camtrap-dp"] | None = option(
        None,
        "of the rows; table on a terminal, else csv. raven and audacity are of sound, a file for each "
        "recording where --out names a folder; camtrap-dp is a folder of tables",
    )
    classes: str | None = option(
        None,
        "only these of the model's classes are answered: a file with a name a line, or names with commas "
        "between them; what is likelier another is unknown",
    )
    threshold_per_class: Path | None = option(
        None,
        "CSV file with the columns label and threshold: probabilities in [0, 1], in place of the model's own "
        "cuts; classes that it leaves out have --threshold, or the model's",
    )
    out: Path | None = option(
        None,
        "file or folder of the answers, instead of standard output; a job that was stopped goes on by the "
        "same command; of --triggers a .csv, .hdf5 or .ecsv file",
    )
    overwrite: bool = option(False, "begin anew, and replace what is at --out")
    events: bool = option(
        False, "a row for each event: neighbouring windows of a recording that name one class"
    )
    gap: float = option(0.0, "seconds without the class that do not end an event")
    min_length: float = option(0.0, "seconds below which an event is left out")


@dataclass(kw_only=True)
class TriggerSettings:
    """strain by its triggers"""

    triggers: Path | None = option(
        None, "table of GPS times and detectors, of which each row is answered; with --strain"
    )
    strain: str | None = option(None, STRAIN)


@dataclass(kw_only=True)
class EvaluateSettings(AskSettings):
    """What ``python -m learners.evaluate`` is asked of ``model``, a model folder.

    Of data that name their parts, the test part counts, else all but train. Files of labels that the
    model does not have are strangers. Without ``labels`` all files count.
    """

    model: str
    data: str = option(MISSING, "labelled files, named as for learners.finetune")
    label_column: str | None = option(None, "column of the labels, if not the usual one")
    strain: str | None = option(None, STRAIN)
    labels: bool = option(
        True,
        "--no-labels: the folder (of any nesting) or table has none; the accuracy to expect there is "
        "estimated",
    )
    unknown: str | None = option(None, "strangers: a folder, or a table with the column path")
    kind: Literal["auto", "picture", "sound", "strain"] = option(
        "auto", "kind of the files; what the model judges"
    )
    out: str = option("report", "folder of the report")
    overwrite: bool = option(False, "replace an older report there")


@dataclass(kw_only=True)
class PoolSettings(ComputeSettings):
    """What the commands that look through a pool share."""

    engine: Literal["auto", "torch", "onnx"] = option(
        "auto",
        "what does the network's arithmetic; onnx is ONNX Runtime on the CPU, and what auto takes there "
        "for a model that holds model.onnx",
    )
    overwrite: bool = option(False, "replace what is at --out")


@dataclass(kw_only=True)
class SuggestSettings(PoolSettings):
    """what is suggested"""

    n: int = option(50, "files, or windows of long recordings, that are suggested")
    out: Path = option(
        Path("next.csv"), "table to fill in; beside it, as next/index.html, the contact sheet"
    )


@dataclass(kw_only=True)
class SearchSettings(PoolSettings):
    """what is searched"""

    top: int = option(20, "files, or windows of long recordings, that are listed")
    embeddings: Path | None = option(
        None,
        "Parquet file in which the pool's embeddings are kept; made, or extended by what is new",
    )
    at: float | None = option(
        None,
        "moment of the example: GPS time in seconds of strain, seconds from the beginning of a sound",
    )
    format: Literal["csv", "jsonl"] = option("csv", "of the rows")
    out: Path | None = option(
        None,
        "file of the rows, as found.csv, instead of standard output; beside it, as "
        "found/index.html, a contact sheet",
    )


def check_replaced(settings: Any) -> None:
    """Raise SecondhandError for ``--overwrite`` where nothing is written that it could replace."""
    if settings.overwrite and settings.out is None:
        raise SecondhandError("--overwrite: replaces what is at --out; name that, or leave it out")
