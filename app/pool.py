"""A pool of files on this machine: the tab *Label*, where one file of it after the other is labelled by
keys, and *More like this* under an answer. No visitor names a file of it: they see the ones that are
chosen here, by their names within the pool."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gradio as gr

from app.drawing import look, panel_svg
from app.feedback import Corrections, check_label, item_of
from app.serving import Served
from app.views import Asked, note_html, without_paths
from datasets.core.errors import SecondhandError
from datasets.core.scanning import some_files
from datasets.images import open_picture
from datasets.spectrograms import Source
from learners.active import Embeddings, Suggestion, labelled_in, suggest
from learners.inference import Predictor
from learners.report import Pictures, heard, shown, when
from learners.templates import data_uri, render

log = logging.getLogger(__name__)

#: What no program calls, and what the waiting for is not shown.
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
#: Files that are put in order for labelling, beside those that have a label already.
MOST = 1000
SIDE = 640  # pixels of a picture that is to be labelled


class Pool(ABC):
    """Files that the model goes through beside those who ask it, in a thread and by a predictor of its
    own.

    Parameters
    ----------
    served : the model.
    folder : of files, of any nesting.

    Raises
    ------
    SecondhandError : there is no file of the model's kind in it.
    """

    flag: ClassVar[str]

    def __init__(self, served: Served, folder: Path) -> None:
        if served.folder is None:
            raise SecondhandError(f"{self.flag}: a model in a folder is needed")
        self.model, self.model_name, self.folder = served.folder, served.name, folder.absolute()
        self.failed, self.done, self.closed = "", 0, False
        self.ready = threading.Event()
        skipped: Counter[str] = Counter()
        self.files = self._found(served.kind, skipped)
        self.predictor = Predictor(self.model, device=served.predictor.device)
        self.predictor.start()  # before there are visitors, whose connections it would hold
        self._thread = threading.Thread(target=self._run, name=self.flag, daemon=True)

    def _found(self, kind: str, skipped: Counter[str]) -> list[str]:
        if not self.folder.is_dir():
            raise SecondhandError(
                f"{self.flag} {self.folder}: no folder; name one with files in it"
            )
        return list(some_files([str(self.folder)], kind, skipped))

    def begin(self) -> None:
        """Go through the files, once there is a page."""
        self._thread.start()

    def close(self) -> None:
        """End it, and what it began."""
        self.closed = True
        if self._thread.ident is not None:
            self._thread.join(timeout=60)
        self.predictor.close()

    @property
    def waiting(self) -> str:
        """What is to be said instead of what is asked of it; nothing where it is ready."""
        if not self.ready.is_set():
            return f"Looking through the pool: {self.done} of {len(self.files)} files."
        return self.failed

    @abstractmethod
    def prepare(self, files: Iterator[str]) -> None:
        """What is done with the files, each taken as it is needed."""

    def _run(self) -> None:
        try:
            self.prepare(self._each())
        except SecondhandError as error:
            self.failed = self.named(str(error))
            log.warning("%s: %s", self.flag, error)
        except Exception:
            self.failed = "The pool cannot be used: whoever runs this page sees why in its log."
            log.exception("%s", self.flag)
        self.ready.set()

    def _each(self) -> Iterator[str]:
        for file in self.files:
            if self.closed:
                return
            yield file
            self.done += 1

    def name(self, source: Source) -> str:
        """A file as visitors know it: without the folders above the pool."""
        path = Path(source.path)
        inside = path.is_relative_to(self.folder)
        return str(path.relative_to(self.folder) if inside else path.name) + when(source)

    def named(self, message: str) -> str:
        """A message that names no folder above the pool."""
        return message.replace(f"{self.folder}{os.sep}", "").replace(str(self.folder), "the pool")

    def player(self, source: Source) -> str:
        """A sound as it stands in the page; nothing for what does not sound."""
        sound = heard(self.predictor, source)
        return f"data:audio/flac;base64,{base64.b64encode(sound).decode()}" if sound else ""


class Labelling(Pool):
    """What to label next, and the labels given, in a table beside the pool: ``new-labels.csv`` of
    ``new/``. It is all that is kept: who comes again goes on where it stopped."""

    flag = "--label"

    def __init__(self, served: Served, folder: Path) -> None:
        super().__init__(served, folder)
        self.classes = served.predictor.classes
        times = {"sound": ("start", "end"), "strain": ("gps",)}.get(served.kind, ())
        columns = ("path", "label", *times, "answered", "model", "time")
        self.table = Corrections(self.folder.parent / f"{self.folder.name}-labels.csv", columns)
        self.table.rows()  # which says if it is another table
        self.order: list[Suggestion] = []
        self._labels: dict[tuple[str, ...], str] = {}

    def prepare(self, files: Iterator[str]) -> None:
        _, rows = self.table.rows()
        self._labels = {item_of(row): row["label"] for row in rows}
        labelled = labelled_in(self.model)
        suggested = suggest(self.predictor, files, n=MOST + len(rows), labelled=labelled)
        for bad in suggested.rejected:
            log.warning("%s: %s", bad.path, bad.reason)
        self.order = suggested.rows
        if not self.order:
            self.failed = "There is nothing in the pool that wants a label."

    @property
    def labelled(self) -> int:
        """How many of them have a label."""
        return sum(self._item(number) in self._labels for number in range(len(self.order)))

    def after(self, number: int) -> int | None:
        """The next one without a label that is still there, counted round; None where there is none."""
        count = len(self.order)
        for other in (*range(number + 1, count), *range(min(number + 1, count))):
            there = os.path.exists(self.order[other].source.path)
            if there and self._item(other) not in self._labels:
                return other
        return None

    def save(self, number: int, label: object) -> None:
        """Give one its label.

        Raises
        ------
        SecondhandError : the label is none, or the table cannot be written.
        """
        row = self._row(number) | {
            "label": check_label(label),
            "answered": self.order[number].guess,
            "model": self.model_name,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._write(row)
        self._labels[item_of(row)] = row["label"]

    def undo(self, number: int) -> None:
        """Take the label of one back."""
        self._write(self._row(number), drop=True)
        self._labels.pop(self._item(number), None)

    def html(self, number: int, turn: int) -> str:
        """One of them, to be looked at or heard; ``turn`` tells the page that it is another."""
        suggestion = self.order[number]
        source, panels, player, wrong = suggestion.source, [], "", ""
        try:
            if self.predictor.spectrogram is None:
                picture = open_picture(source.path, at_least=SIDE)
                picture.thumbnail((SIDE, SIDE))
                panels = [data_uri(picture)]
            else:
                panels = [panel_svg(panel) for panel in look(self.predictor, source, None)]
                player = self.player(source)
        except SecondhandError as error:
            wrong = self.named(str(error))
        return render(
            "app", "label.html", file=self.name(source), panels=panels, player=player, wrong=wrong,
            plain=self.predictor.spectrogram is None, guess=suggestion.guess, why=suggestion.why,
            labelled=self.labelled, count=len(self.order), turn=turn,
        )  # fmt: skip

    def _row(self, number: int) -> dict[str, str]:
        source = self.order[number].source
        times = {"start": source.start, "end": source.end, "gps": source.at}
        path = Path(source.path).relative_to(self.table.file.parent).as_posix()
        cells = {name: "" if t is None else repr(float(t)) for name, t in times.items()}
        return {"path": path, **{n: cell for n, cell in cells.items() if n in self.table.columns}}

    def _item(self, number: int) -> tuple[str, ...]:
        return item_of(self._row(number))

    def _write(self, row: dict[str, str], *, drop: bool = False) -> None:
        try:
            with self.table.alone():
                self.table.write(row, drop=drop)
        except OSError as error:
            raise SecondhandError(f"It could not be kept: {error.strerror}.") from None


class Alike(Pool):
    """What of a pool is most like a file: of a folder, or of a file of embeddings, ``.parquet``."""

    flag = "--pool"

    def __init__(self, served: Served, folder: Path) -> None:
        super().__init__(served, folder)
        self._made = tempfile.TemporaryDirectory(prefix="secondhand-pool-")
        made = not self.files
        self.kept = Embeddings(
            self.folder if made else Path(self._made.name, "pool.parquet"), self.model,
            self.predictor,
        )  # fmt: skip
        if made:
            self.kept.check()
        self._alone = threading.Lock()  # its predictor answers one at a time

    def _found(self, kind: str, skipped: Counter[str]) -> list[str]:
        return [] if self.folder.suffix == ".parquet" else super()._found(kind, skipped)

    def prepare(self, files: Iterator[str]) -> None:
        if not self.files:
            return
        extended = self.kept.extend(files)
        for bad in extended.rejected:
            log.warning("%s: %s", bad.path, bad.reason)
        if not extended.new:
            raise SecondhandError(f"{self.folder}: no file of it can be used")

    def close(self) -> None:
        super().close()
        self._made.cleanup()

    def html(self, file: str, at: float | None, top: int = 12) -> str:
        """The nearest to a file, as a gallery.

        Raises
        ------
        SecondhandError : the file cannot be used, or the embeddings.
        """
        with self._alone:
            near = self.kept.search(Source(file, at=at), top=top)
        pictures, cards = Pictures(self.predictor), []
        for source, cosine in near:
            card: dict[str, Any] = {"name": self.name(source), "cosine": cosine, "player": ""}
            try:
                card["picture"] = shown(pictures.draw(source))
                card["player"] = self.player(source)
            except SecondhandError:  # gone meanwhile
                card["picture"] = ""
            cards.append(card)
        return render("app", "alike.html", cards=cards)


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


def label_tab(tab: Any, labelling: Labelling, drawing: AbstractContextManager[object]) -> None:
    """Fill the tab, and have it begin where the table of labels ends; ``drawing`` is entered while a file
    is drawn."""
    turn = gr.State(Turn(), time_to_live=3600)
    small: dict[str, Any] = {"min_width": 130, "size": "sm"}
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            seen = gr.HTML(note_html("Loading."), elem_id="label-seen", elem_classes="sh-page")
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                named = [*keys_of(labelling.classes).items(), ("u", "unknown")]
                keys = {
                    name: gr.Button(
                        name if name == key else f"{key}  {name}", elem_id=f"label-{key}", **small
                    )
                    for key, name in named
                }
            other = gr.Dropdown(
                labelling.classes, value=None, allow_custom_value=True, label="Another class",
                info="Type to find it, or write a new one.",
            )  # fmt: skip
            with gr.Row():
                use = gr.Button("Label it so", **small)
                back = gr.Button("z  undo", elem_id="label-z", **small)
            message = gr.HTML("", elem_classes="sh-page")
            gr.HTML(note_html(f"Kept in {labelling.table.file.name}, for the next training."))

    def show(turn: Turn) -> str:
        if turn.number is None:
            count = f"{labelling.labelled} of {len(labelling.order)}"
            return note_html(f"{count} are labelled, and nothing is left.", turn=turn.count)
        with drawing:
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

    out = [turn, seen, other, message]
    tab.select(begin, turn, [turn, seen], concurrency_limit=None, **QUIET)
    for name, button in keys.items():
        button.click(partial(give, label=name), turn, out, **QUIET)
    use.click(give, [turn, other], out, **QUIET)
    back.click(undo, turn, out, **QUIET)


def alike_part(alike: Alike, asked: Any, drawing: AbstractContextManager[object]) -> Any:
    """The button and what it brings; the part that is emptied when another file is asked about."""
    button = gr.Button("More like this")
    near = gr.HTML("", elem_classes="sh-page")

    def found(last: Asked) -> str:
        if alike.waiting:
            return note_html(alike.waiting, status=True)
        try:
            with drawing:
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
