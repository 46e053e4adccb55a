"""Predictions under a rule: in plain words, as HTML, as CSV and as JSON."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from datasets.core.cells import csv_bytes
from datasets.core.errors import counted
from datasets.items.labels import parse_names
from learners.events.merging import Events
from learners.files.jsonable import jsonable
from learners.outputs.csv import write_csv
from learners.predictions.rows import RowSettings
from learners.rule.reasons import Why
from learners.rule.rule import PROBABILITY
from learners.templates import percent, render

if TYPE_CHECKING:
    from app.rules import PageRule
    from learners.inference.predictions import Prediction
    from learners.rule.calibrators import Temperature

UNKNOWN = "unknown"


#: Options of events without an API endpoint and without a progress display.
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


@dataclass(frozen=True)
class Seen:
    """What one visitor was answered last: all that is shown follows from it and from a rule.

    Attributes
    ----------
    answers : under the model's own rule.
    labels : given by the visitor, by the number of the answer.
    error : why there are no answers.
    """

    answers: tuple[Prediction, ...] = ()
    labels: Mapping[int, str] = field(default_factory=dict)
    error: str = ""

    def corrected(self, number: int, label: str) -> Seen:
        """The same with a label for an answer."""
        return replace(self, labels={**self.labels, number: label})


def span(window: Any) -> str:
    """Name of a window: its start and end in seconds."""
    return f"{window.part.start:.2f} to {window.part.end:.2f} s"


def explanation(answer: Prediction, rule: PageRule) -> str:
    """Why a prediction is unknown, in plain words; "" for an answer."""
    why, detail = answer.reason.why, answer.reason.detail
    if answer.branch and answer.label not in (UNKNOWN, answer.best):
        return (
            f"{path_words(answer)}. The model is not sure enough of a class below {answer.label}."
        )
    if why is Why.AMBIGUOUS:
        guess = f"Not sure enough. The best guess is {answer.best} ({percent(answer.probability)})"
        if rule.on != PROBABILITY:
            return f"{guess}; the model's rule requires more."
        threshold = (rule.thresholds or {}).get(answer.best, rule.threshold.value)
        return f"{guess}; the model answers from {percent(threshold)}."
    if why is Why.OUT_OF_DISTRIBUTION:
        return (
            f"Out of distribution: at most {percent(answer.distance_p)} of files of known classes are as far from "
            f"the training files. The most probable class is {answer.best}."
        )
    if why is Why.UNUSUAL:
        return (
            f"Unusual. The best guess is {answer.best} ({percent(answer.probability)}), but most files of "
            "known classes are more certain or more like the training files. Unknown classes often look like this."
        )
    if why is Why.BACKGROUND and rule.thresholds is not None:
        return (
            f"No label is likely. The most likely is {answer.best} ({percent(answer.probability)})."
        )
    if why is Why.BACKGROUND:
        return (
            "More like the background files, which show none of the classes, than like any class. "
            f"The most likely class is {answer.best}."
        )
    if why is Why.NO_SIGNAL:
        return "There is no signal: the whole file is more than 60 dB below full scale."
    if why is Why.NO_MOMENT:
        return f"This moment cannot be used: {detail}."
    if why is Why.BAD_FILE:
        return f"This file cannot be used: {detail}."
    return ""


def path_words(answer: Prediction) -> str:
    """The path down the tree with the probability of each group; "" without a tree."""
    return " > ".join(f"{name} {percent(p)}" for name, p in answer.branch)


def headline(answer: Prediction) -> str:
    """The label, or "no answer" for a file that cannot be used, which is not an unknown one."""
    return "no answer" if answer.reason.failed else answer.label


def events_in(answer: Prediction, rule: PageRule) -> list[Prediction]:
    """The events of a recording: neighbouring windows with the same label."""
    if not answer.windows:
        return []
    # Only the labels and times count here: the windows do not list all classes.
    top = [
        (name, 1.0) for name in sorted({n for w in answer.windows for n in parse_names(w.label)})
    ]
    windows = tuple(window._replace(top=top) for window in answer.windows)
    return Events(rule.rule).rows(answer._replace(windows=windows))


def event_words(events: Sequence[Prediction]) -> str:
    """The number of events and of those of each class, the most frequent first."""
    classes = Counter(event.label for event in events).most_common()
    return f"{counted(len(events), 'event')}: {', '.join(f'{name} {n}' for name, n in classes)}"


def answer_html(answer: Prediction, rule: PageRule, temperature: Temperature) -> Markup:
    """The events of a recording; the label, or unknown with its reason; the best classes with their probabilities.

    Parameters
    ----------
    temperature : the model's, which tells whether the probabilities are calibrated.
    """
    words, label, events = explanation(answer, rule), headline(answer), events_in(answer, rule)
    if not words:
        measured = not math.isnan(answer.distance_p)
        near = bool(rule.score) or (measured and not rule.rule.distance.refuses(answer.distance_p))
        sure = percent(answer.probability)
        words = (
            f"{sure[:1].upper()}{sure[1:]} sure{', and like its training files' if near else ''}."
        )
        if rule.thresholds is not None:
            words = "Each label has its own threshold, the line in its bar."
        words += f" {path_words(answer)}." if answer.branch else ""
    if events:
        words = f"The recording as a whole is {label}. {words}"
        label = event_words(events)
    elif answer.windows:
        words += f" This is for the whole recording; each of its {len(answer.windows)} windows has a prediction below."
    state = "sh-unknown" if answer.label == UNKNOWN and not events else "sh-known"
    return render(
        "app", "answer.html", state=state, label=label, words=words, top=answer.top, events=events,
        thresholds=rule.thresholds or {}, temperature=temperature,
    )  # fmt: skip


def no_answer_html(words: str, label: str = "no answer") -> Markup:
    """A message in the place of a prediction; ``label`` is "" before there is a file."""
    state = "sh-unknown" if label else ""
    return render("app", "answer.html", state=state, label=label, words=words, top=(), events=())


def note_html(words: str, *, status: bool = False, turn: int | None = None) -> Markup:
    """A note; screen readers announce a ``status`` when it changes. ``turn`` : see `app.pool.Turn`."""
    return render("app", "note.html", words=words, status=status, turn=turn)


def rule_words(rule: PageRule) -> str:
    """The rule in plain words."""
    if not rule.of_model:
        also = " and the file is not unusual" if rule.score else ""
        return f"Your rule: the model answers if it is at least {percent(rule.threshold.value)} sure{also}."
    condition = f"it answers if it is at least {percent(rule.threshold.value)} sure"
    if rule.score:
        condition += " and the file is not unusual"
    if rule.on != PROBABILITY:
        condition = (
            f"it answers if the file's score ({rule.on}) is at least {rule.threshold.value:.4g}"
        )
    if rule.thresholds is not None:
        low, high = min(rule.thresholds.values()), max(rule.thresholds.values())
        condition = f"each label has its own threshold, {percent(low)} to {percent(high)}"
    aim = ""
    if rule.kind != "threshold":
        aim = f"; chosen for a {rule.kind} of {percent(rule.threshold.target)}"
    missed = rule.threshold.message and f" Its target is not reached: {rule.threshold.message}."
    return f"The model's rule: {condition}{aim}.{missed}"


def table_html(
    answers: Sequence[Prediction],
    rule: PageRule,
    corrected: Mapping[int, str] = MappingProxyType({}),
) -> Markup:
    """A table with a row for each file, and a link that saves it as CSV.

    ``corrected`` : labels given by the visitor, by the number of the row.
    """
    events = [events_in(a, rule) for a in answers]
    return render(
        "app",
        "table.html",
        answers=[
            (
                Path(a.path).name,
                event_words(found) if found else headline(a),
                a,
                explanation(a, rule),
                corrected.get(number),
            )
            for number, (a, found) in enumerate(zip(answers, events, strict=True))
        ],
        events=sum(map(len, events)),
        answered=sum(a.label != UNKNOWN for a in answers),
        bad=sum(a.reason.failed for a in answers),
        words=rule_words(rule),
        csv=base64.b64encode(csv_bytes(answers_csv(answers, corrected))).decode(),
    )


def answers_csv(
    answers: Sequence[Prediction], corrected: Mapping[int, str] = MappingProxyType({})
) -> str:
    """CSV with the columns of ``python -m learners.predict`` but time and place, and names instead of paths.

    ``corrected`` labels replace the predicted ones, so ``learners.finetune --data`` can read the table.
    """
    hidden = {"known", "box", "detection"}
    hidden |= set() if any(a.branch for a in answers) else {"branch"}
    hidden |= {"offset"} if all(a.offset != a.offset for a in answers) else set()
    rows = [
        a._replace(
            part=a.part._replace(path=Path(a.path).name), label=corrected.get(number, a.label)
        )
        for number, a in enumerate(answers)
    ]
    out = io.StringIO()
    write_csv(rows, RowSettings(hidden=[*hidden]), out)
    return out.getvalue()


def listed(answer: Prediction, top: int) -> Prediction:
    """The prediction, and those of its windows, with the ``top`` most probable classes."""
    windows = tuple(listed(window, top) for window in answer.windows)
    return answer._replace(top=answer.top[:top], windows=windows)


def under_rule(answer: Prediction, rule: PageRule, top: int) -> dict[str, Any]:
    """The prediction under a rule with its ``top`` classes, and that rule, for the API."""
    return as_json(listed(rule.judge(answer), top)) | {"rule": rule.as_json()}


def as_json(answer: Prediction) -> dict[str, Any]:
    """A prediction for the API: null for NaN, and the file's name without its folder."""
    values = answer.record()
    del values["known"], values["box"], values["detection"]
    # Gradio's client takes whatever has a "path" for a file to download.
    values = {"file": Path(values.pop("path")).name, **values}
    for key in ("top", "branch"):
        values[key] = [{"label": name, "probability": p} for name, p in getattr(answer, key)]
    values["windows"] = [as_json(window) for window in answer.windows]
    return dict(jsonable(values))


def without_paths(message: str, path: str) -> str:
    """A message for a visitor: with the file's name, without folders of this machine."""
    name = Path(path).name
    for form in {path, str(Path(path).resolve())}:
        message = message.replace(f"{form}: ", "").replace(form, name)
    return message.replace(str(Path(path).parent), "")


def name_here(path: Path) -> str:
    """Name of a path for visitors: from the current folder if it is inside, else only its last part."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else f"…/{path.name}"
