"""Answers by a rule: in words, as HTML, as CSV and as JSON."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from app.about import OperatingPoint
from datasets.core.cells import write_rows
from datasets.items import join_labels
from learners.files import jsonable
from learners.inference import cell, deepest_label
from learners.templates import percent, render
from learners.uncertainty import AMBIGUOUS, BACKGROUND, OUT_OF_DISTRIBUTION, Reason, Why

if TYPE_CHECKING:
    from learners.inference import Prediction
    from learners.uncertainty import Confidence, Temperature

UNKNOWN = "unknown"
EACH = "thresholds of the classes"


@dataclass
class Asked:
    """What one visitor asked last."""

    file: str = ""
    at: float | None = None
    answer: Prediction | None = None


@dataclass(frozen=True)
class Rule:
    """What makes an answer: ``on``, the probability or another score, is at least ``cut``, or of `EACH`
    the class's own; the score named ``score`` at least ``floor`` where there is one, and ``distance_p``
    at least ``alpha``.

    ``own`` is the model's own rule. ``kind`` says how its cut was found, ``target`` what for (NaN:
    a threshold has none), ``missed`` why that could not be had. Of several labels an item ``cuts`` has
    each one's own cut by its name; None of one label.
    """

    cut: float
    alpha: float
    own: bool = True
    on: str = "probability"
    kind: str = "threshold"
    target: float = math.nan
    missed: str = ""
    cuts: Mapping[str, float] | None = None
    score: str = ""
    floor: float = math.nan

    @property
    def beside(self) -> str:
        """What an answer takes beside the cut, in words."""
        return f" and a score of {self.floor:.4g} ({self.score})" if self.score else ""

    def as_json(self) -> dict[str, Any]:
        """The rule for programs: null for no target."""
        values: dict[str, Any] = jsonable(self)
        del values["missed"]
        if self.cuts is None:
            del values["cuts"]
        return values


def own_rule(confidence: Confidence, classes: Sequence[str] = ()) -> Rule:
    """The rule that a model of these ``classes`` carries."""
    if not confidence.exclusive:
        cuts = {
            name: own.value for name, own in zip(classes, confidence.cut.guarantees, strict=True)
        }
        target = next(
            (own.target for own in confidence.cut.guarantees if own.target == own.target), math.nan
        )
        kind = "threshold" if math.isnan(target) else "target precision"
        alpha = confidence.distance.alpha
        return Rule(confidence.cut.threshold.value, alpha, kind=kind, target=target, cuts=cuts)
    cut, on = confidence.cut.threshold, confidence.cut.on
    kind, target = "threshold", math.nan
    if confidence.cut.guarantees:
        on, kind, target = EACH, "target accuracy of each", confidence.cut.guarantees[0].target
    elif not math.isnan(cut.target) and not cut.message:
        kind, target = "target accuracy", cut.target
    rule = Rule(cut.value, confidence.distance.alpha, True, on, kind, target, cut.message)
    floor = confidence.ranking.floors.get(confidence.ranking.name)
    return rule if floor is None else replace(rule, score=confidence.ranking.name, floor=floor)


def judge(answer: Prediction, rule: Rule) -> Prediction:
    """The answer at another threshold. Nothing is computed anew, so it may follow a slider."""
    if rule.own or not answer.best:
        return answer
    out_of_distribution = answer.distance_p < rule.alpha  # NaN: never
    windows = tuple(judge(window, rule) for window in answer.windows)
    if rule.cuts is not None:
        label = (
            ""
            if out_of_distribution
            else join_labels(name for name, p in answer.top if p >= rule.cuts[name])
        )
        none = (
            OUT_OF_DISTRIBUTION
            if out_of_distribution
            else BACKGROUND
            if answer.probability < 0.5
            else AMBIGUOUS
        )
        reason = Reason() if label else none
        return answer._replace(label=label or UNKNOWN, reason=reason, windows=windows)
    named = deepest_label(answer.best, answer.probability, answer.branch, rule.cut)
    reason = (
        OUT_OF_DISTRIBUTION
        if out_of_distribution
        else Reason()
        if answer.probability >= rule.cut
        else AMBIGUOUS
    )
    if answer.reason == BACKGROUND:
        reason = BACKGROUND
    label = UNKNOWN if out_of_distribution or reason == BACKGROUND else named or UNKNOWN
    return answer._replace(label=label, reason=reason, windows=windows)


def span(window: Any) -> str:
    """The name of a window."""
    return f"{window.start:.2f} to {window.end:.2f} s"


def in_words(answer: Prediction, rule: Rule) -> str:
    """Why an answer is unknown, in plain words; "" where it is not."""
    why, detail = answer.reason.why, answer.reason.detail
    if answer.branch and answer.label not in (UNKNOWN, answer.best):
        return f"{way(answer)}. Which class of it, is not sure enough."
    if why is Why.AMBIGUOUS:
        share = f"Its best guess is {answer.best}, with {percent(answer.probability)}"
        if rule.on != "probability":
            return f"Not sure enough. {share}; this model's own rule asks for more."
        takes = rule.cut if rule.cuts is None else rule.cuts[answer.best]
        return f"Not sure enough. {share}; an answer takes {percent(takes)}."
    if why is Why.OUT_OF_DISTRIBUTION:
        return (
            "This is unlike anything the model was trained on: at most "
            f"{percent(answer.distance_p)} of what it knows lies this far from its training data. "
            f"Of its classes, {answer.best} comes nearest."
        )
    if why is Why.UNUSUAL:
        return (
            f"Its best guess is {answer.best}, with {percent(answer.probability)}; yet most of what "
            "the model knows is surer or nearer to its training data, and strangers often are like "
            "this."
        )
    if why is Why.BACKGROUND and rule.cuts is not None:
        return f"None of its labels is likely to be there. {answer.best} comes nearest."
    if why is Why.BACKGROUND:
        return (
            "This is more like what the model has learned to be none of its classes than like any "
            f"of them. Of its classes, {answer.best} comes nearest."
        )
    if why is Why.NO_SIGNAL:
        return "There is no signal in it: nothing is louder than -60 dB below full scale."
    if why is Why.NO_MOMENT:
        return f"It cannot be asked about this moment: {detail}."
    if why is Why.BAD_FILE:
        return f"This file cannot be used: {detail}."
    return ""


def way(answer: Prediction) -> str:
    """The way down the tree, with the probability of each node; "" without a tree."""
    return " > ".join(f"{name} {percent(p)}" for name, p in answer.branch)


def headline(answer: Prediction) -> str:
    """The label, or that there is none: a file that cannot be used is not an unknown one."""
    return "no answer" if answer.reason.unanswered else answer.label


def answer_html(answer: Prediction, rule: Rule, temperature: Temperature) -> Markup:
    """The label large, or unknown with its reason, and the best classes with their probabilities.

    Parameters
    ----------
    temperature : the model's; the page calls probabilities calibrated only where it does.
    """
    words = in_words(answer, rule)
    if not words:
        takes = f"an answer takes {percent(rule.cut)}{rule.beside}."
        if rule.on != "probability":
            takes = "this model's own rule accepts it."
        if rule.cuts is not None:
            takes = "each label is judged by itself: the line is where it is said."
        words = f"{percent(answer.probability)} sure, and {takes}"
        words += f" {way(answer)}." if answer.branch else ""
    return render(
        "app",
        "answer.html",
        state="sh-unknown" if answer.label == UNKNOWN else "sh-known",
        label=headline(answer),
        words=words,
        top=answer.top,
        cuts=rule.cuts or {},
        temperature=temperature,
    )


def no_answer_html(words: str, label: str = "no answer") -> Markup:
    """Why there is no answer, in the place of one; ``label`` "" where nothing was asked yet."""
    state = "sh-unknown" if label else ""
    return render("app", "answer.html", state=state, label=label, words=words, top=())


def note_html(words: str, *, status: bool = False, turn: int | None = None) -> Markup:
    """Words in small; a ``status`` is read out when it changes. ``turn`` as `app.pool` has it."""
    return render("app", "note.html", words=words, status=status, turn=turn)


def rule_words(rule: Rule) -> str:
    """Which rule is in force, in plain words."""
    if not rule.own:
        return f"Not the model's own rule: an answer takes a probability of {percent(rule.cut)}."
    amount = f"a probability of {percent(rule.cut)}{rule.beside}"
    if rule.on != "probability":
        amount = f"a score of {rule.cut:.4g} ({rule.on})"
    if rule.on == EACH:
        amount = "for each class a threshold of its own"
    if rule.cuts is not None:
        low, high = min(rule.cuts.values()), max(rule.cuts.values())
        amount = f"for each label a probability of its own, {percent(low)} to {percent(high)}"
    aim = ""
    if rule.kind != "threshold":
        what = rule.kind.removeprefix("target ")
        share = "" if math.isnan(rule.target) else f" of {percent(rule.target)}"
        aim = f", chosen for a target {what}{share}"
    missed = rule.missed and f" Its target is not reached: {rule.missed}."
    return f"The model's own rule: an answer takes {amount}{aim}.{missed}"


def operating_point_html(operating_point: OperatingPoint | None, rule: Rule) -> Markup:
    """Which rule is in force, and what it gives on the calibration items."""
    return render(
        "app",
        "operating_point.html",
        words=rule_words(rule),
        many=rule.cuts is not None,
        operating_point=operating_point,
    )


def table_html(
    answers: Sequence[Prediction], rule: Rule, corrected: Mapping[int, str] = MappingProxyType({})
) -> Markup:
    """A row a file, and a link that saves the same as CSV, in the columns of the command; with the
    labels that somebody has ``corrected``, by the number of the row."""
    return render(
        "app",
        "table.html",
        answers=[
            (Path(a.path).name, headline(a), a, in_words(a, rule), corrected.get(number))
            for number, a in enumerate(answers)
        ],
        answered=sum(a.label != UNKNOWN for a in answers),
        bad=sum(a.reason.unanswered for a in answers),
        words=rule_words(rule),
        csv=base64.b64encode(answers_csv(answers, corrected).encode()).decode(),
    )


def answers_csv(
    answers: Sequence[Prediction], corrected: Mapping[int, str] = MappingProxyType({})
) -> str:
    """The rows that ``python -m learners.predict`` writes, with names instead of paths. Of labels that
    were ``corrected`` in it, ``learners.finetune --data`` takes those."""
    out = io.StringIO()
    hidden = {"windows", "set", "known"} | (set() if any(a.branch for a in answers) else {"branch"})
    fields = [name for name in answers[0]._fields if name not in hidden]
    rows: list[list[object]] = [[*fields]]
    for number, answer in enumerate(answers):
        label = corrected.get(number, answer.label)
        row = answer._replace(path=Path(answer.path).name, label=label)._asdict()
        rows.append([cell(row[name], name) for name in fields])
    write_rows(out, rows)
    return out.getvalue()


def told(answer: Prediction, rule: Rule) -> dict[str, Any]:
    """The answer under a rule, and that rule, for the API."""
    return as_json(judge(answer, rule)) | {"rule": rule.as_json()}


def as_json(answer: Prediction) -> dict[str, Any]:
    """A prediction for the API: null for what is not a number, the file's name without its folder."""
    values = answer._asdict()
    del values["known"]
    # Gradio's client takes whatever has a "path" for a file to download.
    values = {"file": Path(values.pop("path")).name, **values}
    for key in ("top", "branch"):
        values[key] = [{"label": name, "probability": p} for name, p in getattr(answer, key)]
    values["set"] = list(answer.set)
    values["windows"] = [as_json(window) for window in answer.windows]
    return dict(jsonable(values))


def without_paths(message: str, path: str) -> str:
    """A message for a stranger: the file by its name alone, and no folder of this machine."""
    name = Path(path).name
    for form in {path, str(Path(path).resolve())}:
        message = message.replace(f"{form}: ", "").replace(form, name)
    return message.replace(str(Path(path).parent), "")
