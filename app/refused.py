"""What the page says where a model refuses far more than what it was calibrated with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.views import name_here
from learners.predictions.advice import Asked, advice
from learners.predictions.describe import refused_sentences
from learners.predictions.refused import RefusedCount, usual_of

if TYPE_CHECKING:
    from app.rules import PageRule
    from app.serving import Served
    from learners.inference.predictions import Prediction


def refusal_note(served: Served, answers: Sequence[Prediction], rule: PageRule) -> str:
    """Sentences for answers under a rule; "" where no more is refused than usual. Uploads know no place."""
    bundle = served.predictor.bundle
    if (usual := usual_of(bundle, rule.rule)) is None:
        return ""
    count = RefusedCount(usual, lambda answer: "")
    deque(count(answers), maxlen=0)
    notices = [one for one in count.found() if not one.name]
    if not notices:
        return ""
    model = "MODEL" if served.folder is None else name_here(served.folder)
    asked = Asked(model, ["FILES"], notices[0].unit, not bundle.rule.exclusive)
    return " ".join([*refused_sentences(notices), *(f"{line}." for line in advice(asked))])
