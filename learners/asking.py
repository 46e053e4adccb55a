"""The settings of the commands that ask a model, ``learners.predict`` and ``learners.evaluate``."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Literal

from learners.options import option
from learners.settings import ScoreName


@dataclass(kw_only=True)
class AskSettings:
    """how a model is asked"""

    threshold: float | None = option(
        None,
        "probability in [0, 1] below which the answer is unknown, in place of the model's own cuts",
    )
    score: ScoreName | None = option(
        None, "what tells known files from strangers; the model's own if not given"
    )
    bs: int = option(32, "batch size in items")
    workers: int | None = option(None, "processes that decode files")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")


@dataclass(kw_only=True)
class EvaluateSettings(AskSettings):
    """What ``python -m learners.evaluate`` is asked of ``model``, a model folder.

    Of data that name their parts, the test part counts, else all but train. Files of labels that the
    model does not have are strangers. Without ``labels`` all files count.
    """

    model: str
    data: str = option(MISSING, "labelled files, named as for learners.finetune")
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
