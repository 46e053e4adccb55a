"""Ways to judge a model by files, of which ``learners.evaluate`` takes one by its flags.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from datasets.core import progress
from datasets.core.registry import Registry
from learners.cli import result
from learners.cli.commands import EvaluateSettings, Section, with_sections
from learners.elsewhere.data_sections import DATA_SECTIONS

if TYPE_CHECKING:
    from learners.elsewhere.evaluation import EvaluationResult


class Judge:
    """A way to judge a model; this one is for labelled files.

    Attributes
    ----------
    order : judges are asked in this order, and the first that claims a call judges.
    section : the flags that it adds; None for none.
    """

    name: ClassVar[str] = "labelled"
    order: ClassVar[int] = 1000
    section: ClassVar[type[Section] | None] = None

    def claims(self, settings: EvaluateSettings) -> bool:
        """Whether the flags of a call are for it."""
        return True

    def judge(self, settings: EvaluateSettings, command: str) -> EvaluationResult:
        """Predict the files of a call, and write the report."""
        with progress.step("Loading the program"):
            from learners.elsewhere.evaluation import evaluate

        return evaluate(settings, command=command)

    def sentences(self, evaluated: EvaluationResult) -> list[str]:
        """What is printed of the result."""
        metrics, confusions = evaluated.metrics, evaluated.confusions
        return result.sentences(metrics, confusions, what="files", labels=evaluated.labels)

    def is_alarming(self, metrics: Mapping[str, Any]) -> bool:
        """Whether the result is hardly one."""
        return result.answers_almost_nothing(metrics)

    def rows(self, metrics: Mapping[str, Any]) -> str:
        """What ``predictions.csv`` has."""
        return "All predictions"


class Estimating(Judge):
    """For files without labels."""

    name, order = "unlabelled", 900

    def claims(self, settings: EvaluateSettings) -> bool:
        return not settings.labels

    def judge(self, settings: EvaluateSettings, command: str) -> EvaluationResult:
        with progress.step("Loading the program"):
            from learners.elsewhere.evaluation import estimate

        return estimate(settings, command=command)

    def sentences(self, evaluated: EvaluationResult) -> list[str]:
        names = {
            "expected_accuracy": "Expected accuracy: {}.",
            "accepted": "Answers {} of the files.",
        }
        metrics = evaluated.metrics
        return [
            text.format(result.percent(metrics[n]))
            for n, text in names.items()
            if metrics.get(n) is not None
        ]


JUDGES: Registry[Judge] = Registry("learners.elsewhere.judges")
JUDGES.add(Judge())
JUDGES.add(Estimating())


def find_judge(settings: EvaluateSettings) -> Judge:
    """The way in which these settings judge a model."""
    in_order = sorted(JUDGES.ours().values(), key=attrgetter("order"))
    return next(judge for judge in in_order if judge.claims(settings))


def sections() -> list[type[Section]]:
    """The flags that single judges add, and those on how the data are read."""
    judges = [judge.section for judge in JUDGES.ours().values() if judge.section is not None]
    return [*DATA_SECTIONS.ours().values(), *judges]


def evaluate_settings(values: Mapping[str, Any]) -> EvaluateSettings:
    """The settings of a call of ``learners.evaluate`` from their values by name; the others have their defaults."""
    return with_sections(EvaluateSettings, sections(), values)
