"""The tab *Corrections*: what visitors have corrected so far, to change or remove."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from app.feedback import Feedback
from app.pool import QUIET
from app.views import UNKNOWN, note_html
from datasets.core.errors import SecondhandError, counted


def corrections_tab(tab: Any, feedback: Feedback, classes: list[str]) -> None:
    """Fill the tab, which lists the corrections of all models of the page, the newest first."""
    message = gr.HTML(note_html("Loading."), elem_classes="sh-page")
    with gr.Row():
        chosen = gr.Dropdown([], value=None, label="Correction", elem_id="correction")
        label = gr.Dropdown(
            [*classes, UNKNOWN], value=None, allow_custom_value=True, label="Right label",
            elem_id="correction-label",
        )  # fmt: skip
    with gr.Row():
        change = gr.Button("Change the label")
        remove = gr.Button("Remove the correction", variant="stop")

    def show(words: str = "") -> tuple[Any, ...]:
        try:
            rows = feedback.rows()
        except SecondhandError as error:
            return note_html(str(error), status=True), gr.skip(), gr.skip()
        choices = [(_words(row), feedback.key(row)) for row in reversed(rows)]
        note = note_html(words or f"{counted(len(rows), 'correction')} so far.", status=True)
        return note, gr.Dropdown(choices=choices, value=None), None

    def changed(key: str | None, label: str | None) -> tuple[Any, ...]:
        if not key:
            return show("Choose a correction first.")
        try:
            return show(f"Changed to {feedback.change(key, label or '', classes)}.")
        except SecondhandError as error:
            return note_html(str(error), status=True), gr.skip(), gr.skip()

    def removed(key: str | None) -> tuple[Any, ...]:
        if not key:
            return show("Choose a correction first.")
        try:
            feedback.remove(key)
        except SecondhandError as error:
            return note_html(str(error), status=True), gr.skip(), gr.skip()
        return show("Removed.")

    shown = [message, chosen, label]
    tab.select(show, None, shown, **QUIET)
    change.click(changed, [chosen, label], shown, **QUIET)
    remove.click(removed, chosen, shown, **QUIET)


def _words(row: dict[str, str]) -> str:
    """A correction in a list: file, moment, label and day."""
    moment = f", GPS {row['gps']}" if row.get("gps") else ""
    day = row.get("time", "")[:10]
    return f"{Path(row['path']).name}{moment}: {row['label']}{f' ({day})' if day else ''}"
