"""Predictions -> rows in a file or on a terminal, in the formats of the field; jobs that go on."""

from typing import TYPE_CHECKING

from datasets.fronts import on_demand

if TYPE_CHECKING:
    from learners.answers.classes import check_names, read_names, read_thresholds
    from learners.answers.events import Events
    from learners.answers.formats import check_out, write
    from learners.answers.journal import Journal
    from learners.answers.shape import Shape

__getattr__ = on_demand(__name__)
