"""Pools of files on this machine: the tab *Label*, where files are labelled by keys, and *More like this*
under a prediction. Visitors cannot choose files of a pool; they see their names within it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gradio as gr

from app.corrected import label_input, no_label
from app.labels import Choices, Labels, Row
from app.panels import RENDERING, input_panels, panel_html
from app.serving import Served
from app.tabs import Opened, Taught
from app.views import QUIET, Seen, name_here, note_html, without_paths
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.images.opening import open_picture
from datasets.items.labels import NOTHING
from datasets.kinds.base import Kind
from datasets.kinds.finding import some_files
from fields.loop import teaching
from fields.loop.auditing import read_audit
from fields.loop.embeddings import Embeddings
from fields.loop.teaching import Suggestion, labelled_in, suggest
from learners.cli.again import train_again
from learners.cli.console import as_typed
from learners.loading.predictor import load_predictor
from learners.model.parts import check_labels_train
from learners.predictions.together import shown_together
from learners.report.galleries import Pictures, time_span
from learners.report.templates import data_uri, render

log = logging.getLogger(__name__)

#: Most files that are put in order for labelling, beside those that have a label.
MOST = 1000
SIDE = 640  # pixels of a picture to label
#: Keys of classes, in their order. The others have a meaning: skip, unknown, undo.
KEYS = "1234567890abcdefghijklmnopqrtvwxy"


class Pool(Opened, ABC):
    """Files that the model reads in a thread of its own, with its own predictor.

    Parameters
    ----------
    served : the model.
    folder : searched for files with its subfolders.

    Raises
    ------
    SecondhandError : there is no file of the model's kind in it.
    """

    flag: ClassVar[str]

    def __init__(self, served: Served, folder: Path) -> None:
        if served.folder is None:
            raise SecondhandError(
                f"{self.flag}: the model {served.name} is not in a folder; name a model folder"
            )
        self.model, self.model_name, self.folder = served.folder, served.name, folder.absolute()
        self.failed, self.done, self.closed = "", 0, False
        self.ready = threading.Event()
        self.files = self._list_files(served.kind)
        self.predictor = load_predictor(self.model, device=served.predictor.device)
        self.predictor.start()  # before there are connections, which its processes would inherit
        self._thread = threading.Thread(target=self._run, name=self.flag, daemon=True)

    def _list_files(self, kind: Kind) -> list[str]:
        if not self.folder.is_dir():
            raise SecondhandError(
                f"{self.flag} {self.folder}: there is no such folder; name one with files in it"
            )
        return list(some_files([str(self.folder)], kind, Counter()))

    def begin(self) -> None:
        """Start reading the files."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and the predictor."""
        self.closed = True
        if self._thread.ident is not None:
            self._thread.join(timeout=60)
        self.predictor.close()

    @property
    def waiting(self) -> str:
        """Message while the pool is not ready, or cannot be used; "" otherwise."""
        if not self.ready.is_set():
            return f"Reading the pool: {self.done} of {len(self.files)} files."
        return self.failed

    async def until_ready(self) -> AsyncIterator[str]:
        """The messages to show until the pool is ready, and why it cannot be used."""
        while not self.ready.is_set():
            yield self.waiting
            await asyncio.sleep(0.5)
        if self.failed:
            yield self.failed

    @abstractmethod
    def prepare(self, files: Iterator[str]) -> None:
        """Read the files, each as it is needed."""

    def _run(self) -> None:
        try:
            self.prepare(self._each())
        except SecondhandError as error:
            self.failed = self.without_folders(str(error))
            log.warning("%s: %s", self.flag, error)
        except Exception:
            self.failed = "The pool cannot be used. The log of the page says why."
            log.exception("%s", self.flag)
        self.ready.set()

    def _each(self) -> Iterator[str]:
        for file in self.files:
            if self.closed:
                return
            yield file
            self.done += 1

    def name(self, part: Part) -> str:
        """Name of a file for visitors: its path within the pool."""
        path = Path(part.path)
        inside = path.is_relative_to(self.folder)
        return str(path.relative_to(self.folder) if inside else path.name) + time_span(part)

    def without_folders(self, message: str) -> str:
        """A message without the folders above the pool."""
        return message.replace(f"{self.folder}{os.sep}", "").replace(str(self.folder), "the pool")

    def player(self, part: Part) -> str:
        """Data URI of a sound; "" if the model is not of sounds."""
        spectrogram = self.predictor.spectrogram
        sound = b"" if spectrogram is None else spectrogram.flac(part)
        return f"data:audio/flac;base64,{base64.b64encode(sound).decode()}" if sound else ""


class Labelling(Pool):
    """The files to label next, and the labels, in a table: ``new-labels.csv`` for ``new/``.

    Nothing else is stored, so labelling continues where it stopped. Skipped files come again last. The photos of a burst
    (`shown_together`) get one label at once.

    Parameters
    ----------
    tables : existing folder for the table; None for the current one.
    """

    flag = "--label"
    title = "Label"

    def __init__(self, served: Served, folder: Path, tables: Path | None = None) -> None:
        super().__init__(served, folder)
        self.head = render("fields.loop", "keys.html")
        self.choices = Choices.of(served.predictor)
        self.table = self._open_table(served.kind, (tables or Path()).absolute())
        self.table.rows()  # an error if it is another table
        self.order: list[Suggestion] = []
        self.candidates = 0  # of which `order` has the most useful
        self._bursts: dict[int, list[int]] = {}  # by each of their files
        self._labelled, self._skipped = set[int](), set[int]()
        log.info("Labels: %s\nThen:   %s", self.table.file, self.next_command(str))

    def _open_table(self, kind: Kind, folder: Path) -> Labels:
        try:
            check_labels_train(self.predictor.bundle, str(self.model))
        except SecondhandError as error:
            self.predictor.close()
            raise SecondhandError(f"{self.flag} {self.folder}: {error}") from None
        columns = ("path", "label", *kind.times, "predicted", "model", "time")
        return Labels(folder / f"{self.folder.name}-labels.csv", columns)

    def next_command(self, name: Callable[[Path], str]) -> str:
        """The command that uses the labels, with paths as ``name`` gives them."""
        several = self.choices.several
        words = train_again(self.model, [self.table.file], several=several, name=name)
        return as_typed("finetune", words)

    def prepare(self, files: Iterator[str]) -> None:
        rows = self.table.rows()
        self.order = self._in_order(files, MOST + len(rows))
        items = {self.table.item(row) for row in rows if row["label"]}
        here = enumerate(map(self.table.item, map(self._row, range(len(self.order)))))
        self._labelled = {number for number, item in here if item in items}
        self._bursts = {number: burst for burst in self._find_bursts() for number in burst}
        if not self.order:
            self.failed = "Every file of the pool has a label."

    def _find_bursts(self) -> list[list[int]]:
        paths = [suggestion.part.path for suggestion in self.order]
        return shown_together(paths, self.predictor.kind)

    def _in_order(self, files: Iterator[str], most: int) -> list[Suggestion]:
        pool = teaching.Pool(self.predictor, files, labelled_in(self.model))
        suggested = suggest(pool, n=most)
        for bad in pool.rejected:
            log.warning("%s", bad)
        self.candidates = pool.judged
        return suggested

    @property
    def labelled(self) -> int:
        """Number of files of the pool with a label."""
        return len(self._labelled)

    def after(self, number: int) -> int | None:
        """The next existing file without a label, starting again at the end, skipped ones last; None if there is
        none."""
        count = len(self.order)
        turns = (*range(number + 1, count), *range(min(number + 1, count)))
        return next(filter(self._is_left, sorted(turns, key=self._skipped.__contains__)), None)

    def _is_left(self, number: int) -> bool:
        return number not in self._labelled and os.path.exists(self.order[number].part.path)

    def burst(self, number: int) -> list[int]:
        """The files without a label of a file's burst, in the order of their times; itself, if it is alone."""
        return [other for other in self._bursts.get(number, ()) if self._is_left(other)] or [number]

    def beside(self, number: int, step: int) -> int:
        """The file so many steps later in the burst of a file; its first and last file have no others beside them."""
        burst = self.burst(number)
        place = burst.index(number) + step if number in burst else 0
        return burst[min(max(place, 0), len(burst) - 1)]

    def skip(self, number: int) -> list[int]:
        """Leave a file and its burst for the end; returns their numbers."""
        skipped = self.burst(number)
        self._skipped.update(skipped)
        return skipped

    def save(self, number: int, label: object, *, alone: bool = False) -> list[int]:
        """Save the label of a file and, unless it is for it ``alone``, of its burst; returns their numbers.

        Raises
        ------
        SecondhandError : the label is not valid, or the table cannot be written.
        """
        saved = [number] if alone else self.burst(number)
        with self.table.alone():
            self.table.save([*map(self._row, saved)], label, self.choices)
        self._labelled.update(saved)
        self._skipped.difference_update(saved)
        return saved

    def fill(self, tab: Any) -> None:
        label_tab(tab, self)

    @property
    def taught(self) -> Taught:
        return Taught("label", self.table, self.model_name)

    def undo(self, *numbers: int) -> None:
        """Remove the labels of files, or undo their skips."""
        labelled = self._labelled.intersection(numbers)
        if labelled:
            with self.table.alone():
                self.table.remove([*map(self._row, labelled)])
        self._labelled -= labelled
        self._skipped.difference_update(numbers)

    def html(self, number: int, turn: int) -> str:
        """A file to label, as HTML; ``turn`` tells the page that it has changed."""
        suggestion = self.order[number]
        part, panels, player, error_message = suggestion.part, [], "", ""
        burst = self.burst(number)
        try:
            if self.predictor.spectrogram is None:
                samples = self.predictor.bundle.preprocessing.samples
                picture = open_picture(part.path, at_least=SIDE, samples=samples)
                picture.thumbnail((SIDE, SIDE))
                panels = [data_uri(picture)]
            else:
                panels = [panel_html(panel) for panel in input_panels(self.predictor, part, None)]
                player = self.player(part)
        except SecondhandError as error:
            error_message = self.without_folders(str(error))
        return render(
            "fields.loop", "label.html", file=self.name(part), panels=panels, player=player, error=error_message,
            plain=self.predictor.spectrogram is None, guess=suggestion.guess, why=suggestion.why,
            labelled=self.labelled, skipped=len(self._skipped), again=number in self._skipped,
            count=len(self.order), candidates=self.candidates, turn=turn, photos=len(burst),
            photo=1 + burst.index(number) if number in burst else 1,
        )  # fmt: skip

    def _row(self, number: int) -> Row:
        part = self.order[number].part
        times = {"start": part.start, "end": part.end, "gps": part.at}
        file, folder = Path(part.path), self.table.file.parent
        path = (file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix()
        cells = {name: "" if t is None else repr(float(t)) for name, t in times.items()}
        guess = {"predicted": self.order[number].guess, "model": self.model_name}
        return {"path": path, **guess, **{n: cells[n] for n in cells if n in self.table.columns}}


class Auditing(Labelling):
    """The files that an audit drew, in the order of its table, which gets the labels.

    The model's guesses are not shown, so that they do not influence the labels.
    """

    def __init__(self, served: Served, folder: Path, tables: Path | None = None) -> None:
        self._audit = read_audit(folder, served.folder or folder)
        super().__init__(served, folder, tables)

    def _list_files(self, kind: Kind) -> list[str]:
        files = [part.path for part in self._audit.parts]
        not_found = self._audit.not_found
        if len(not_found) == len(files):
            raise SecondhandError(
                f"{self.flag} {self._audit.file}: none of its files is found, the first is {not_found[0]}. Put the table "
                "into the folder of the files, or above it"
            )
        for bad in not_found:
            log.warning("%s", bad)
        self.folder = Path(os.path.commonpath([os.path.dirname(file) for file in files]))
        return files

    def _open_table(self, kind: Kind, folder: Path) -> Labels:
        # Its rows keep their order, as its contact sheet has it.
        return Labels(self._audit.file.absolute(), (), item=("drawn",), keeps_rows=True)

    def _in_order(self, files: Iterator[str], most: int) -> list[Suggestion]:
        self.candidates = len(self._audit.parts)
        return [Suggestion(part, 0.0, "", "") for part in self._audit.parts]

    def next_command(self, name: Callable[[Path], str]) -> str:
        words = [name(self.model), "--labels", name(self.table.file)]
        return as_typed("audit", words)

    def _find_bursts(self) -> list[list[int]]:
        return []  # each file was drawn by itself

    def _row(self, number: int) -> Row:
        return self._audit.rows[number]


def open_labelling(served: Served, path: Path, tables: Path | None = None) -> Labelling:
    """The files of a folder, or of the table of an audit, to label; ``tables`` as for `Labelling`."""
    return (Auditing if path.is_file() else Labelling)(served, path, tables)


class Alike(Pool):
    """Search for similar files in a folder, or in a file of embeddings (``.parquet``)."""

    flag = "--pool"

    def __init__(self, served: Served, folder: Path) -> None:
        super().__init__(served, folder)
        self._temporary = tempfile.TemporaryDirectory(prefix="secondhand-pool-")
        stored = not self.files
        self.embeddings = Embeddings(
            self.folder if stored else Path(self._temporary.name, "pool.parquet"), self.model,
            self.predictor,
        )  # fmt: skip
        if stored:
            self.embeddings.check()
        self._alone = threading.Lock()  # its predictor takes one file at a time

    def _list_files(self, kind: Kind) -> list[str]:
        return [] if self.folder.suffix == ".parquet" else super()._list_files(kind)

    def prepare(self, files: Iterator[str]) -> None:
        if not self.files:
            return
        extended = self.embeddings.extend(files)
        for bad in extended.rejected:
            log.warning("%s", bad)
        if not extended.new:
            raise SecondhandError(
                f"{self.flag} {self.folder}: none of its files can be read; name another folder"
            )

    def close(self) -> None:
        super().close()
        self._temporary.cleanup()

    def under_answer(self, seen: Any) -> Any:
        return alike_part(self, seen)

    def html(self, part: Part) -> str:
        """The twelve most similar files, as a gallery.

        Raises
        ------
        SecondhandError : the file cannot be used, or the embeddings.
        """
        with self._alone:
            similar = self.embeddings.search(part, top=12)
        pictures, cards = Pictures(self.predictor), []
        for near, cosine in similar:
            picture = pictures.thumbnail(near)
            player = self.player(near) if picture else ""
            cards.append((self.name(near), cosine, picture, player))
        return render("fields.loop", "alike.html", cards=cards)


class Turn(NamedTuple):
    """State of one visitor: the file's number, the files of each turn before it, and how often it was shown."""

    number: int | None = None
    done: tuple[Sequence[int], ...] = ()
    shown: int = 0

    @property
    def file(self) -> int:
        """The number. Raises SecondhandError if there is no file."""
        if self.number is None:
            raise SecondhandError("There is no file to label.")
        return self.number


def assign_keys(choices: Choices) -> dict[str, str]:
    """What each key says: a class named as a key has that one, the others have the remaining `KEYS` in their order;
    `UNKNOWN` and `NOTHING` have their first letters, unless a class is named so."""
    own = {name: name for name in choices.classes if name in tuple(KEYS)}
    own |= {name[0]: name for name in choices.others if name[0] not in own}
    free = (key for key in KEYS if key not in own)
    rest = (name for name in choices.classes if name not in own)
    return own | dict(zip(free, rest, strict=False))


def shown_choice(name: str, choices: Choices) -> str:
    """A choice on its button."""
    return f"{name} (nothing here)" if name == NOTHING and choices.empties else name


def label_tab(tab: Any, labelling: Labelling) -> None:
    """Fill the tab *Label*."""
    turn = gr.State(Turn(), time_to_live=3600)
    small: dict[str, Any] = {"min_width": 130, "size": "sm"}
    bursts, choices = labelling.predictor.kind.photo, labelling.choices
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            shown = gr.HTML(note_html("Loading."), elem_id="label-shown", elem_classes="sh-page")
            with gr.Row(visible=bursts):
                before = gr.Button("←  previous photo", elem_id="label-ArrowLeft", **small)
                later = gr.Button("→  next photo", elem_id="label-ArrowRight", **small)
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                key_of = {name: key for key, name in assign_keys(choices).items()}
                keys = {
                    name: gr.Button(
                        name if name == key else f"{key}  {shown_choice(name, choices)}", elem_id=f"label-{key}",
                        elem_classes="sh-toggle" if choices.several and name in choices.classes else None,
                        **small,
                    )
                    for name in (*choices.classes, *choices.others)
                    if (key := key_of.get(name))
                }  # fmt: skip
            with gr.Row():
                skip = gr.Button("s  skip", elem_id="label-s", **small)
                back = gr.Button("z  undo", elem_id="label-z", **small)
            alone = gr.Checkbox(
                label="This photo only, not all of its burst", visible=bursts, elem_id="label-alone"
            )
            other = label_input(
                choices, "/  Labels of this file" if choices.several else "/  Another class",
                info=f"Type to find {'one or several' if choices.several else 'it'}, or write a new one.",
                elem_id="label-other",
            )  # fmt: skip
            use = gr.Button(
                "Enter  save these labels" if choices.several else "Use this label",
                elem_id="label-Enter" if choices.several else None, **small,
            )  # fmt: skip
            message = gr.HTML("", elem_classes="sh-page")
            gr.HTML(
                render(
                    "app", "saved.html", what="Each label is at once", file=name_here(labelling.table.file),
                    command=labelling.next_command(name_here),
                ),
                elem_classes="sh-page",
            )  # fmt: skip

    def show(turn: Turn) -> str:
        if turn.number is None:
            count = f"{labelling.labelled} of {len(labelling.order)}"
            return note_html(f"{count} files are labelled; no more are left.", turn=turn.shown)
        with RENDERING:
            return labelling.html(turn.number, turn.shown)

    async def begin(turn: Turn) -> AsyncIterator[tuple[Turn, str]]:
        async for waiting in labelling.until_ready():
            yield turn, note_html(waiting)
        if labelling.failed:
            return
        if turn.number is None:
            turn = Turn(labelling.after(-1), turn.done, turn.shown + 1)
        yield turn, await asyncio.to_thread(show, turn)

    def change(action: Callable[..., Turn], turn: Turn, *given: Any) -> tuple[Any, ...]:
        """Show the turn that an action returns, or why it cannot be done."""
        new, note = turn, ""
        try:
            new = action(turn, *given)
        except SecondhandError as error:
            note = note_html(labelling.without_folders(str(error)), status=True)
        fresh = (gr.skip(), gr.skip()) if new.done == turn.done else (no_label(choices), False)
        new = new._replace(shown=turn.shown + 1)  # a key may be pressed again
        return new, show(new), note, *fresh

    def save(turn: Turn, alone: bool, label: object, also: str = "") -> Turn:
        label = [*(label if isinstance(label, list) else ()), also] if also else label
        saved = labelling.save(turn.file, label, alone=alone)
        # What else is left of its burst comes next.
        left = [number for number in labelling.burst(turn.file) if number not in saved]
        return Turn(left[0] if left else labelling.after(turn.file), (*turn.done, saved))

    def leave(turn: Turn) -> Turn:
        skipped = labelling.skip(turn.file)
        return Turn(labelling.after(turn.file), (*turn.done, skipped))

    def beside(step: int, turn: Turn) -> Turn:
        return turn._replace(number=labelling.beside(turn.file, step))

    def undo(turn: Turn) -> Turn:
        if not turn.done:
            raise SecondhandError("There is nothing to undo.")
        labelling.undo(*turn.done[-1])
        return Turn(turn.done[-1][0], turn.done[:-1])

    out = [turn, shown, message, other, alone]
    tab.select(begin, turn, [turn, shown], concurrency_limit=None, **QUIET)
    said = {name: key for name, key in keys.items() if name not in choices.classes}
    if choices.several:
        # Together with what is chosen, so that a contradiction is said.
        at_once = [(key, partial(save, also=name), [alone, other]) for name, key in said.items()]
        for name in keys.keys() - said.keys():
            # In the browser, so that no key is lost while another one is on its way.
            label = json.dumps(name)
            without = f"all.filter(one => one != {label})"
            switch = f"all => [all?.includes({label}) ? {without} : [...(all ?? []), {label}]]"
            keys[name].click(None, other, other, js=switch, **QUIET)
    else:
        at_once = [(key, partial(save, label=name), [alone]) for name, key in keys.items()]
    actions: list[tuple[Any, Callable[..., Turn], list[Any]]] = [
        *at_once,
        (use, save, [alone, other]), (skip, leave, []), (back, undo, []),
        (before, partial(beside, -1), []), (later, partial(beside, 1), []),
    ]  # fmt: skip
    for button, action, given in actions:
        button.click(partial(change, action), [turn, *given], out, **QUIET)


def alike_part(alike: Alike, seen: Any) -> Any:
    """The button *More like this*; returns its gallery, which is cleared for another file."""
    button = gr.Button("More like this")
    gallery = gr.HTML("", elem_classes="sh-page")

    def result(part: Part) -> str:
        try:
            with RENDERING:
                return alike.html(part)
        except SecondhandError as error:
            message = alike.without_folders(without_paths(str(error), part.path))
            return note_html(message, status=True)

    async def search(seen: Seen) -> AsyncIterator[str]:
        async for waiting in alike.until_ready():
            yield note_html(waiting, status=True)
        for answer in () if alike.failed else seen.answers:
            yield await asyncio.to_thread(result, Part(answer.path, at=answer.part.at))

    button.click(search, seen, gallery, concurrency_limit=None, **QUIET)
    return gallery
