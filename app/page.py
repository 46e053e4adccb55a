"""What fields add to the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from datasets.core.registry import Registry

if TYPE_CHECKING:
    from app.rules import PageRule
    from learners.inference.predictions import Prediction
    from learners.inference.predictor import Predictor

Answers = Sequence["Prediction"]


@dataclass(frozen=True)
class OnPage:
    """What a field adds to the page; each is "" where there is nothing to say.

    Attributes
    ----------
    invites : a sentence on the files that a model is for, where the page asks for one.
    remarks : a sentence on the answers of a model.
    shows : what stands above the table of answers, which have all classes and are under a rule.
    """

    name: str
    invites: Callable[[Predictor], str] = lambda predictor: ""
    remarks: Callable[[Predictor, Answers], str] = lambda predictor, answers: ""
    shows: Callable[[Answers, PageRule, Predictor], Markup] = lambda answers, rule, predictor: (
        Markup("")
    )


#: What fields add to the page.
PAGE: Registry[OnPage] = Registry("app.page")


def invitation(predictor: Predictor) -> str:
    """What fields say of the files that a model is for; "" if nothing."""
    return _joined(one.invites(predictor) for one in PAGE.values())


def remark(predictor: Predictor, answers: Answers) -> str:
    """What fields say of the answers of a model; "" if nothing."""
    return _joined(one.remarks(predictor, answers) for one in PAGE.values())


def above_table(answers: Answers, rule: PageRule, predictor: Predictor) -> Markup:
    """What fields show above the table of answers; "" if nothing."""
    return Markup("").join(one.shows(answers, rule, predictor) for one in PAGE.values())


def _joined(sentences: Iterable[str]) -> str:
    return " ".join(filter(None, sentences))
