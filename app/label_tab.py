"""The tab *Label*: one file of a pool at a time, by keys, and *more like this* under an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from app.views import note_html, without_paths
from datasets.core.errors import SecondhandError

if TYPE_CHECKING:
    from app.backend import Asked, Site
    from app.pool import Alike, Labelling

#: What no program calls, and what the waiting for is not shown.
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


@dataclass(frozen=True)
class Turn:
    """What one visitor sees: the file's number, those labelled before it, and how often that changed."""

    number: int | None = None
    done: tuple[int, ...] = ()
    count: int = 0

    def to(self, number: int | None, done: tuple[int, ...]) -> Turn:
        return Turn(number, done, self.count + 1)


def keys_of(classes: Sequence[str]) -> dict[str, str]:
    """The class of each key: the first nine have 1 to 9; classes that are called as keys, their own."""
    own = {name: name for name in classes if name in tuple("0123456789")}
    return own or {str(key): name for key, name in enumerate(classes[:9], start=1)}


def label_tab(tab: Any, labelling: Labelling, site: Site) -> None:
    """Fill the tab, and have it begin where the table of labels ends."""
    turn = gr.State(Turn(), time_to_live=3600)
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            seen = gr.HTML(note_html("Loading."), elem_id="label-seen", elem_classes="sh-page")
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                keys = [
                    (
                        gr.Button(
                            name if name == key else f"{key}  {name}",
                            elem_id=f"label-{key}",
                            min_width=130,
                            size="sm",
                        ),
                        name,
                    )
                    for key, name in keys_of(labelling.classes).items()
                ]
                keys.append(
                    (
                        gr.Button("u  unknown", elem_id="label-u", min_width=130, size="sm"),
                        "unknown",
                    )
                )
            other = gr.Dropdown(
                labelling.classes, value=None, allow_custom_value=True, label="Another class",
                info="Type to find it, or write a new one.",
            )  # fmt: skip
            with gr.Row():
                use = gr.Button("Label it so", min_width=130, size="sm")
                back = gr.Button("z  undo", elem_id="label-z", min_width=130, size="sm")
            said = gr.HTML("", elem_classes="sh-page")
            gr.HTML(note_html(f"Kept in {labelling.table.file.name}, for the next training."))

    def show(turn: Turn) -> str:
        if turn.number is None:
            done = (
                f"{labelling.labelled} of {len(labelling.order)} are labelled, and nothing is left."
            )
            return note_html(done, turn=turn.count)
        with site.drawing:
            return labelling.html(turn.number, turn.count)

    async def begin(turn: Turn) -> AsyncIterator[tuple[Turn, str]]:
        while not labelling.ready.is_set():
            yield turn, note_html(labelling.waiting)
            await asyncio.sleep(0.5)
        if labelling.waiting:
            yield turn, note_html(labelling.waiting)
            return
        if turn.number is None:
            turn = turn.to(labelling.after(-1), turn.done)
        yield turn, await asyncio.to_thread(show, turn)

    def stay(turn: Turn, why: str) -> tuple[Any, ...]:
        turn = turn.to(turn.number, turn.done)  # a key may be pressed again
        return turn, show(turn), gr.skip(), note_html(labelling.named(why), status=True)

    def give(turn: Turn, label: object) -> tuple[Any, ...]:
        if turn.number is None:
            return stay(turn, "There is no file to label.")
        try:
            labelling.save(turn.number, label)
        except SecondhandError as error:
            return stay(turn, str(error))
        turn = turn.to(labelling.after(turn.number), (*turn.done, turn.number))
        return turn, show(turn), None, ""

    def undo(turn: Turn) -> tuple[Any, ...]:
        if not turn.done:
            return stay(turn, "There is nothing to undo.")
        try:
            labelling.undo(turn.done[-1])
        except SecondhandError as error:
            return stay(turn, str(error))
        turn = turn.to(turn.done[-1], turn.done[:-1])
        return turn, show(turn), None, ""

    out = [turn, seen, other, said]
    tab.select(begin, turn, [turn, seen], concurrency_limit=None, **QUIET)
    for button, name in keys:

        def give_it(turn: Turn, name: str = name) -> tuple[Any, ...]:
            return give(turn, name)

        button.click(give_it, turn, out, **QUIET)
    use.click(give, [turn, other], out, **QUIET)
    back.click(undo, turn, out, **QUIET)


def alike_part(alike: Alike, site: Site, asked: Any) -> Any:
    """The button and what it brings; the part that is emptied when another file is asked about."""
    button = gr.Button("More like this")
    near = gr.HTML("", elem_classes="sh-page")

    def found(last: Asked) -> str:
        if alike.waiting:
            return note_html(alike.waiting, status=True)
        try:
            with site.drawing:
                return alike.html(last.file, last.at)
        except SecondhandError as error:
            words = alike.named(without_paths(str(error), last.file))
            return note_html(words, status=True)

    async def search(last: Asked) -> AsyncIterator[str]:
        if last.answer is None or last.answer.reason.unanswered:
            yield note_html("Ask about a file first.", status=True)
            return
        while not alike.ready.is_set():
            yield note_html(alike.waiting, status=True)
            await asyncio.sleep(0.5)
        yield await asyncio.to_thread(found, last)

    button.click(search, asked, near, concurrency_limit=None, **QUIET)
    return near
