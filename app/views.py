"""Answers in words: what the page shows of a prediction, as HTML whose outside texts are escaped."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.drawing import text
from app.evidence import Bought
from learners.confidence import AMBIGUOUS, UNLIKE, Reason, Why
from learners.evaluation import clopper_pearson
from learners.files import jsonable
from learners.prediction import cell

if TYPE_CHECKING:
    from learners.confidence import Confidence, Temperature
    from learners.prediction import Prediction

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Rule:
    """What makes an answer: ``on``, the probability or another score, is at least ``cut``, and
    ``distance_p`` at least ``alpha``.

    ``own`` is the model's own rule. ``kind`` says how its cut was found, ``target`` what for (NaN:
    a threshold has none), ``missed`` why that could not be had.
    """

    cut: float
    alpha: float
    own: bool = True
    on: str = "probability"
    kind: str = "threshold"
    target: float = math.nan
    missed: str = ""

    def as_json(self) -> dict[str, Any]:
        """The rule for programs: null for no target."""
        values: dict[str, Any] = jsonable(self)
        del values["missed"]
        return values


def own_rule(confidence: Confidence) -> Rule:
    """The rule that a model carries."""
    cut, on = confidence.threshold, confidence.threshold_on
    kind, target = "threshold", math.nan
    if not math.isnan(cut.target):
        kind, target = "target accuracy", cut.target
    elif on != "probability" or not math.isnan(cut.target_coverage):
        kind, target = "target coverage", cut.target_coverage
    return Rule(cut.value, confidence.alpha, True, on, kind, target, cut.message)


def judge(answer: Prediction, rule: Rule) -> Prediction:
    """The answer at another threshold. Nothing is computed anew, so it may follow a slider."""
    if rule.own or not answer.best:
        return answer
    unlike = answer.distance_p < rule.alpha  # NaN: never
    reason = UNLIKE if unlike else Reason() if answer.probability >= rule.cut else AMBIGUOUS
    label = UNKNOWN if reason else answer.best
    windows = tuple(judge(window, rule) for window in answer.windows)
    return answer._replace(label=label, reason=reason, windows=windows)


def span(window: Any) -> str:
    """The name of a window."""
    return f"{window.start:.2f} to {window.end:.2f} s"


def in_words(answer: Prediction, rule: Rule) -> str:
    """Why an answer is unknown, in plain words; "" where it is not. Not yet escaped."""
    why, detail = answer.reason.why, answer.reason.detail
    if why is Why.AMBIGUOUS:
        share = f"Its best guess is {answer.best}, with {percent(answer.probability)}"
        if rule.on != "probability":
            return f"Not sure enough. {share}; this model's own rule asks for more."
        return f"Not sure enough. {share}; an answer takes {percent(rule.cut)}."
    if why is Why.UNLIKE:
        return (
            "This is unlike anything the model was trained on: at most "
            f"{percent(answer.distance_p)} of what it knows lies this far from its training data. "
            f"Of its classes, {answer.best} comes nearest."
        )
    if why is Why.NO_SIGNAL:
        return "There is no signal in it: nothing is louder than -60 dB below full scale."
    if why is Why.NO_MOMENT:
        return f"It cannot be asked about this moment: {detail}."
    if why is Why.BAD_FILE:
        return f"This file cannot be used: {detail}."
    return ""


def headline(answer: Prediction) -> str:
    """The label, or that there is none: a file that cannot be used is not an unknown one."""
    return "no answer" if answer.reason.unanswered else answer.label


def answer_html(answer: Prediction, rule: Rule, temperature: Temperature) -> str:
    """The label large, or unknown with its reason, and the best classes with their probabilities.

    Parameters
    ----------
    temperature : the model's; the page calls probabilities calibrated only where it does.
    """
    said = answer.label
    words = in_words(answer, rule)
    if not words:
        words = f"{percent(answer.probability)} sure"
        if rule.on != "probability":
            words += ", and this model's own rule accepts it."
        else:
            words += f", and an answer takes {percent(rule.cut)}."
    state = "sh-unknown" if said == UNKNOWN else "sh-known"
    rows = "".join(
        f'<li><span class="sh-name">{text(name, 80)}</span>'
        f'<span class="sh-bar"><span style="width:{100 * p:.1f}%"></span></span>'
        f'<span class="sh-share">{percent(p)}</span></li>'
        for name, p in answer.top
    )
    best = ""
    if rows:
        name = "Calibrated" if temperature.calibrated else "Uncalibrated"
        note = (
            temperature.message and f'<p class="sh-note">{text(_sentence(temperature.message))}</p>'
        )
        best = f'<h3>{name} probabilities</h3>{note}<ol class="sh-top">{rows}</ol>'
    return (
        f'<div class="sh-answer {state}" role="status" aria-live="polite">'
        f'<p class="sh-label">{text(headline(answer), 80)}</p><p class="sh-words">{text(words, 400)}</p>'
        f"</div>{best}"
    )


def rule_words(rule: Rule) -> str:
    """Which rule is in force, in plain words. Not yet escaped."""
    if not rule.own:
        return f"Not the model's own rule: an answer takes a probability of {percent(rule.cut)}."
    amount = f"a probability of {percent(rule.cut)}"
    if rule.on != "probability":
        amount = f"a score of {rule.cut:.4g} ({rule.on})"
    aim = ""
    if rule.kind != "threshold":
        what = "accuracy" if rule.kind == "target accuracy" else "coverage"
        share = "" if math.isnan(rule.target) else f" of {percent(rule.target)}"
        aim = f", chosen for a target {what}{share}"
    missed = rule.missed and f" Its target is not reached: {rule.missed}."
    return f"The model's own rule: an answer takes {amount}{aim}.{missed}"


def bought_html(bought: Bought | None, rule: Rule) -> str:
    """Which rule is in force, and what it gives on the calibration items."""
    words = f'<p class="sh-note">{text(rule_words(rule), 400)}</p>'
    if bought is None:
        return (
            f'{words}<p class="sh-note">What it buys is not known: the model folder lies beside no '
            "run with the answers for its calibration items.</p>"
        )
    right = ""
    if bought.answered:
        right = (
            f", and {_share(bought.right, bought.answered)} of those answers are right (accuracy)"
        )
    return (
        f'{words}<p class="sh-note">Of {bought.items} calibration items, which training has not seen, '
        f"{_share(bought.answered, bought.items)} are answered (coverage){right}. In brackets: exact "
        "95 % limits.</p>"
    )


def _share(hits: int, n: int) -> str:
    """A part of items with its limits: all of a few items is not certainty."""
    low, high = clopper_pearson(hits, n)
    return f"<b>{percent(hits / n)}</b> [{percent(float(low))} to {percent(float(high))}]"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def table_html(answers: Sequence[Prediction], rule: Rule) -> str:
    """A row a file, and a link that saves the same as CSV, in the columns of the command."""
    rows = "".join(
        f"<tr><td>{text(Path(a.path).name, 60)}</td>"
        f"<td><b>{text(headline(a), 60)}</b></td><td>{text(a.best, 60)}</td>"
        f"<td>{'' if math.isnan(a.probability) else percent(a.probability)}</td>"
        f'<td class="sh-why">{text(in_words(a, rule), 300)}</td></tr>'
        for a in answers
    )
    uri = base64.b64encode(answers_csv(answers).encode()).decode()
    answered = sum(a.label != UNKNOWN for a in answers)
    bad = sum(a.reason.unanswered for a in answers)
    broken = f", {bad} could not be used" if bad else ""
    return (
        f'<p role="status">{len(answers)} files: {answered} answered, '
        f"{len(answers) - answered - bad} unknown{broken}.</p>"
        f'<p class="sh-note">{text(rule_words(rule), 400)}</p>'
        f'<p><a class="sh-save" download="answers.csv" href="data:text/csv;base64,{uri}">'
        "Download as CSV</a></p>"
        '<div class="sh-wide" tabindex="0" role="region" aria-label="Answers"><table><thead><tr>'
        "<th>file</th><th>answer</th><th>best class</th><th>probability</th><th>why not</th>"
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def answers_csv(answers: Sequence[Prediction]) -> str:
    """The rows that ``python -m learners.predict`` writes, with names instead of paths."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = (
        [name for name in answers[0]._fields if name not in ("windows", "set")]
        if answers
        else ["path"]
    )
    writer.writerow(fields)
    for answer in answers:
        row = answer._replace(path=Path(answer.path).name)._asdict()
        writer.writerow([cell(row[name]) for name in fields])
    return out.getvalue()


def told(answer: Prediction, rule: Rule) -> dict[str, Any]:
    """The answer under a rule, and that rule, for the API."""
    return as_json(judge(answer, rule)) | {"rule": rule.as_json()}


def as_json(answer: Prediction) -> dict[str, Any]:
    """A prediction for the API: null for what is not a number, the file's name without its folder."""
    values = answer._asdict()
    # Gradio's client takes whatever has a "path" for a file to download.
    values = {"file": Path(values.pop("path")).name, **values}
    values["top"] = [{"label": name, "probability": p} for name, p in answer.top]
    values["set"] = list(answer.set)
    values["windows"] = [as_json(window) for window in answer.windows]
    return dict(jsonable(values))


def percent(share: float) -> str:
    """A probability for people: never rounded up to a certainty that it is not."""
    if math.isnan(share):
        return "?"
    value = 100 * share
    if 0 < value < 0.1:
        return "under 0.1\u00a0%"
    if 99.9 < value < 100:
        return "over 99.9\u00a0%"
    return f"{value:.0f}\u00a0%" if value in (0, 100) else f"{value:.1f}\u00a0%"


def without_paths(message: str, path: str) -> str:
    """A message for a stranger: the file by its name alone, and no folder of this machine."""
    name = Path(path).name
    for form in {path, str(Path(path).resolve())}:
        message = message.replace(f"{form}: ", "").replace(form, name)
    return message.replace(str(Path(path).parent), "")
