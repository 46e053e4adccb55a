"""Predictions under a rule: in plain words, as HTML, as CSV and as JSON."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from app.uploads import are_boxes, names
from datasets.core.errors import counted
from datasets.items.labels import parse_names
from datasets.tables.cells import csv_bytes
from learners.files.jsonable import jsonable
from learners.outputs.csv import write_csv
from learners.predictions.candidates import Candidates
from learners.predictions.merging import Events
from learners.predictions.rows import RowSettings, Windows
from learners.report.templates import render

if TYPE_CHECKING:
    from app.rules import PageRule
    from learners.inference.predictions import Prediction
    from learners.rule.calibrators import Temperature

UNKNOWN = "unknown"
#: Largest number of candidates that are listed.
MOST_CANDIDATES = 100


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


def words(template: str, **values: object) -> str:
    """The sentence of a template, as plain text."""
    return render("app", template, **values).unescape().strip()


def explanation(answer: Prediction, rule: PageRule) -> str:
    """Why a prediction is unknown, in plain words; "" for an answer."""
    return words("explanation.html", answer=answer, rule=rule)


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
    return Events(rule.rule).rows(answer.with_more(windows=windows))


def event_words(events: Sequence[Prediction]) -> str:
    """The number of events and of those of each class, the most frequent first."""
    classes = Counter(event.label for event in events).most_common()
    return f"{counted(len(events), 'event')}: {', '.join(f'{name} {n}' for name, n in classes)}"


def answer_html(
    answer: Prediction, rule: PageRule, temperature: Temperature, whole: str = ""
) -> Markup:
    """The events of a recording; the label, or unknown with its reason; the best classes with their probabilities.

    Parameters
    ----------
    temperature : the model's, which tells whether the probabilities are calibrated.
    whole : what to say of a whole photo that a model of boxes has judged.
    """
    events = events_in(answer, rule)
    label = event_words(events) if events else headline(answer)
    sentence = words("words.html", answer=answer, rule=rule, events=events)
    state = "sh-unknown" if answer.label == UNKNOWN and not events else "sh-known"
    return render(
        "app", "answer.html", state=state, label=label, words=sentence, top=answer.top, events=events,
        thresholds=rule.thresholds or {}, temperature=temperature, whole=whole,
    )  # fmt: skip


def no_answer_html(message: str, label: str = "no answer") -> Markup:
    """A message in the place of a prediction; ``label`` is "" before there is a file."""
    state = "sh-unknown" if label else ""
    return render(
        "app", "answer.html", state=state, label=label, words=message, top=(), events=(), whole="",
    )  # fmt: skip


def note_html(note: str, *, status: bool = False, turn: int | None = None) -> Markup:
    """A note; screen readers announce a ``status`` when it changes. ``turn`` : see `fields.loop.pool.Turn`."""
    return render("app", "note.html", words=note, status=status, turn=turn)


def rule_words(rule: PageRule) -> str:
    """The rule in plain words."""
    return words("rule.html", rule=rule)


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
                name,
                event_words(found) if found else headline(a),
                a,
                explanation(a, rule),
                corrected.get(number),
            )
            for number, (a, found, name) in enumerate(
                zip(answers, events, names(answers), strict=True)
            )
        ],
        events=sum(map(len, events)),
        boxes=are_boxes(answers),
        answered=sum(a.label != UNKNOWN for a in answers),
        bad=sum(a.reason.failed for a in answers),
        words=rule_words(rule),
        csv=base64.b64encode(csv_bytes(answers_csv(answers, corrected))).decode(),
    )


def candidates_html(answers: Sequence[Prediction]) -> Markup:
    """What was refused of files and windows, to be opened by a visitor: the first `MOST_CANDIDATES`; "" without any."""
    shown = {answer.path: name for answer, name in zip(answers, names(answers), strict=True)}
    rows = list(Candidates(Windows())(answers))
    listed = [
        (shown[row.path], f", {span(row)}" if row.part.start is not None else "", row)
        for row in rows[:MOST_CANDIDATES]
    ]
    return render("app", "candidates.html", rows=listed, total=len(rows))


def answers_csv(
    answers: Sequence[Prediction], corrected: Mapping[int, str] = MappingProxyType({})
) -> str:
    """CSV with the columns of ``python -m learners.predict`` but time and place, and names instead of paths.

    ``corrected`` labels replace the predicted ones, so ``learners.finetune --data`` can read the table.
    """
    hidden = {"known", "detection"} | (set() if are_boxes(answers) else {"box"})
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
    return answer._replace(top=answer.top[:top]).with_more(windows=windows)


def under_rule(answer: Prediction, rule: PageRule, top: int) -> dict[str, Any]:
    """The prediction under a rule with its ``top`` classes, and that rule, for the API."""
    return as_json(listed(rule.judge(answer), top)) | {"rule": rule.as_json()}


def as_json(answer: Prediction) -> dict[str, Any]:
    """A prediction for the API: null for NaN, and the file's name without its folder."""
    values = answer.record()
    del values["known"], values["detection"]
    if not are_boxes([answer]):
        del values["box"]
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
