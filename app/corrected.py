"""Corrections on the page: the part that takes one, and the tab *Corrections* with those so far, to change or remove."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr

from app.dial import Dial
from app.feedback import Feedback
from app.labels import Choices, Row
from app.panels import shown_window
from app.serving import Site
from app.views import QUIET, Seen, name_here, note_html
from datasets.core.errors import SecondhandError, counted
from datasets.items.labels import JOIN
from learners.cli.again import train_again
from learners.cli.console import as_typed
from learners.model.parts import boxes_alone, trained_on_boxes
from learners.report.templates import render

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction
    from learners.inference.predictor import Predictor


#: Why the label of a whole photo is not stored for a model of boxes.
NOT_KEPT = (
    "It is not stored for the next training: the model learns from boxes, and this label is of the whole photo. Give the "
    "photo together with MegaDetector's JSON under “Several files”, and correct its boxes."
)


class Correction(NamedTuple):
    """The inputs of a part that takes corrections, its message, and the event after which the state has the label; and
    whether the correction is of a window ``alone``."""

    row: Any
    label: Any
    note: Any
    saved: Any
    alone: Any


def correction_part(
    site: Site, name: str, seen: Any, dial: Dial, chosen: list[Any], window: Any = None
) -> Correction:
    """A part to correct an answer of a model under the rule that is ``chosen``: that of a file, or of the ``window`` of a
    recording that is shown; without a window any of several files."""
    of_table = window is None
    choices, feedback = Choices.of(site.models[name].predictor), site.feedback
    info = "It goes into the CSV. " if of_table else ""
    if feedback is not None:
        what = (
            "Boxes and their labels"
            if trained_on_boxes(site.models[name].predictor.bundle)
            else "The file and this label"
        )
        info += f"{what} are stored for the next training."
    with gr.Accordion("Correct the table" if of_table else "This is wrong", open=False):
        with gr.Row():
            row = gr.Dropdown(
                [], value=None, label="Row", info="Type to find a file, then arrow down and Enter.",
                visible=of_table,
            )  # fmt: skip
            alone = gr.Checkbox(False, label="Only the window shown", visible=False)
            label = label_input(choices, "Right label" if of_table else "It is", info=info)
        button = gr.Button("Correct" if of_table else "Save the correction")
        note = gr.HTML("", elem_classes="sh-page")

    def save(
        seen: Seen,
        row: int | None,
        label: object,
        by_model: bool,
        place: float,
        alone: bool = False,
        window: str | None = None,
    ) -> tuple[Seen, str]:
        row = row if of_table else 0
        if row is None or not 0 <= row < len(seen.answers):
            return seen, note_html(f"Choose a {'row' if of_table else 'file'} first.", status=True)
        rule, answer = dial.rule(None if by_model else place), seen.answers[row]
        if alone:
            part = shown_window(answer, window).part._replace(path=answer.path)
            answer = shown_window(answer, window)._replace(part=part)
        try:
            given, words = correct(site, name, rule.judge(answer), label)
        except SecondhandError as error:
            return seen, note_html(str(error), status=True)
        saved = "" if words == note_html(NOT_KEPT) else "Saved. Thank you."
        where = f"Row {row + 1}: {given}." if of_table else saved
        return seen.corrected(row, given), note_html(where, status=True) + words

    given = [seen, row, label, *chosen, alone, *([] if of_table else [window])]
    saved = button.click(save, given, [seen, note], **QUIET)
    return Correction(row, label, note, saved, alone)


def label_input(choices: Choices, name: str, **more: Any) -> Any:
    """A field for what can be said of a file: one of a list or something written, or several."""
    return gr.Dropdown(
        [*choices.classes, *choices.others], value=no_label(choices), multiselect=choices.several,
        allow_custom_value=True, label=name, **more,
    )  # fmt: skip


def no_label(choices: Choices) -> Any:
    """The value of an empty field."""
    return [] if choices.several else None


def correct(site: Site, name: str, shown: Prediction, label: object) -> tuple[str, str]:
    """Save the right label of an answer where corrections are kept.

    Returns
    -------
    The label in the spelling of the model's class or of an earlier correction, and what to do next, as HTML.

    Raises
    ------
    SecondhandError : as `Feedback.save`.
    """
    served, feedback = site.models[name], site.feedback
    choices = Choices.of(served.predictor)
    if feedback is None:
        return choices.check(label), ""
    if not learns_from(served.predictor, shown):
        return choices.check(label), note_html(NOT_KEPT)
    site.check_one_table()
    given = feedback.save(
        shown.path, label, kind=served.kind, shown=shown,
        model=name, choices=choices,
    )  # fmt: skip
    table, model = feedback.table.file.absolute(), (served.folder or Path(name)).absolute()
    again = train_again(model, [table], several=choices.several, name=name_here)
    command = as_typed("finetune", again)
    said = given.split(JOIN) if choices.several else [given]
    new = {*said} - {*choices.classes, *choices.others}
    few = note_html("A new class needs at least 2 files (20 are better).") if new else ""
    return given, few + render(
        "app", "saved.html", what="The correction is", file=name_here(table), command=command
    )


def corrections_tab(tab: Any, feedback: Feedback, choices: Choices) -> None:
    """Fill the tab, which lists the corrections of all models of the page, the newest first."""
    message = gr.HTML(note_html("Loading."), elem_classes="sh-page")
    with gr.Row():
        chosen = gr.Dropdown([], value=None, label="Correction", elem_id="correction")
        label = label_input(choices, "Right label", elem_id="correction-label")
    with gr.Row():
        change = gr.Button("Change the label")
        remove = gr.Button("Remove the correction", variant="stop")

    def show(words: str = "") -> tuple[Any, ...]:
        rows = feedback.table.rows()
        items = [(_words(row), feedback.table.item(row)) for row in reversed(rows)]
        sum_of_all = f"{counted(len(rows), 'correction')} so far."
        how = "" if rows else " To correct an answer, open “This is wrong” below it."
        note = note_html(words or sum_of_all + how, status=True)
        return note, gr.Dropdown(choices=items, value=None), no_label(choices)

    def changed(key: str, label: object) -> tuple[Any, ...]:
        return show(f"Changed to {feedback.change(key, label, choices)}.")

    def removed(key: str, _: object) -> tuple[Any, ...]:
        feedback.remove(key)
        return show("Removed.")

    def attempt(action: Callable[..., tuple[Any, ...]], *given: Any) -> tuple[Any, ...]:
        try:
            if given and not given[0]:
                return show("Choose a correction first.")
            return action(*given)
        except SecondhandError as error:
            return note_html(str(error), status=True), gr.skip(), gr.skip()

    shown = [message, chosen, label]
    tab.select(partial(attempt, show), None, shown, **QUIET)
    change.click(partial(attempt, changed), [chosen, label], shown, **QUIET)
    remove.click(partial(attempt, removed), [chosen, label], shown, **QUIET)


def _words(row: Row) -> str:
    """A correction in a list: file, moment, label and day."""
    moment = f", GPS {row['gps']}" if row.get("gps") else ""
    if row.get("end"):
        moment += f", {float(row['start'] or 0):g} to {float(row['end']):g} s"
    day = row.get("time", "")[:10]
    return f"{Path(row['path']).name}{moment}: {row['label']}{f' ({day})' if day else ''}"


def learns_from(predictor: Predictor, answer: Prediction) -> bool:
    """Whether the label of an answer can train the model: one of a whole photo cannot train a model of boxes."""
    return answer.part.box is not None or not boxes_alone(predictor.bundle)
