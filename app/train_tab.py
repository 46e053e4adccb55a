"""The tab *Train*: what is in a folder of class folders, and a training that is started, watched and stopped."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import pandas as pd
from markupsafe import Markup

from app.about import report_html
from app.serving import Site
from app.tabs import Opened, Taught, taught_by
from app.training import CHOICES, Status, Training, shown_command
from app.views import QUIET, note_html
from datasets.core.errors import SecondhandError, counted
from datasets.images.opening import open_picture
from datasets.items.describe import summary as left_out
from datasets.items.facts import Seen
from datasets.items.items import Items
from datasets.items.settings import DataSettings, SignalSettings, SplitSettings
from datasets.kinds.base import drawn_kinds
from datasets.steps.base import Asked
from datasets.steps.reading import read_items
from datasets.steps.spectrogram import infer_spectrogram
from learners.cli.live import duration
from learners.report import plots
from learners.report.galleries import page_picture
from learners.report.templates import render
from learners.runs.status import RunStatus

log = logging.getLogger(__name__)

#: Seconds between two looks at the files of a running training.
TICK = 2.0
#: Classes that are shown with an example.
EXAMPLES, SIDE = 24, 120
#: One check of a folder at a time, because each uses all cores.
_checking = threading.Lock()


class Look(NamedTuple):
    """What is in a folder of class folders.

    ``counts`` : usable files of each class. ``pictures`` : an example of each class, as data URI.
    ``problems`` : what the command would warn of, and the files that it would leave out.
    """

    data: Path
    kind: str
    counts: dict[str, int]
    pictures: dict[str, str]
    problems: list[str]

    def html(self) -> Markup:
        return render("app", "look.html", look=self, files=sum(self.counts.values()))


def look_at(data: Path) -> Look:
    """Read a folder as the command reads it, without searching for near-duplicates.

    Raises
    ------
    SecondhandError : there is no such folder, or it cannot be trained on; the message is the command's.
    """
    if not data.exists():
        raise SecondhandError(
            f"{data}: there is no such folder on this machine. Name one with a folder per class, or a table of labels"
        )
    with _checking, _warnings() as problems:
        splits = SplitSettings(near_duplicates="ignore")
        table = read_items(Asked.by(DataSettings(data=[str(data)]), splits))
        pictures = _examples(table)
    counts = table.frame["label"].value_counts()
    return Look(
        data, table.kind, {name: int(counts[name]) for name in table.classes}, pictures,
        [line.replace(f"{data}/", "") for line in (*problems, *left_out(table.rejected))],
    )  # fmt: skip


def _examples(table: Items) -> dict[str, str]:
    spectrogram = None
    first = table.frame.groupby("label")["path"].first().head(EXAMPLES)
    if table.kind in drawn_kinds():
        spectrogram = infer_spectrogram(table.kind, table.frame, SignalSettings())
    pictures = {}
    for label, path in first.items():
        try:
            if spectrogram is None:
                picture = open_picture(path, at_least=SIDE, samples=table.fact(Seen).settings)
            else:
                picture = spectrogram.image(spectrogram.read(path)).convert("RGB")
            pictures[str(label)] = page_picture(picture, SIDE)
        except SecondhandError as error:  # the command says so for each file
            log.info("no example of %s: %s", label, error)
    return pictures


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """The warnings that this thread logs about the data."""
    messages, thread, handler = list[str](), threading.get_ident(), logging.Handler(logging.WARNING)
    handler.addFilter(lambda record: record.thread == thread)
    handler.emit = lambda record: messages.append(  # type: ignore[method-assign]
        getattr(record, "on_page", None) or record.getMessage()
    )
    logger = logging.getLogger("datasets")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def status_html(status: Status) -> Markup:
    """The last training: its step, the accuracy of the first look, its curves, and how it ended."""
    run, rows = status.run or RunStatus("Starting", 0, ""), status.epochs
    heads = [row for row in rows if row["phase"] == "frozen"]
    return render(
        "app", "training.html", status=status, run=run, rows=rows, first=heads[-1] if heads else {},
        curves=_curves(status.history) if len(rows) > len(heads) else (),
        left=None if run.seconds_left is None else duration(max(run.seconds_left, 1.0)),
        report="" if status.report is None else report_html(status.report),
    )  # fmt: skip


@lru_cache(maxsize=4)
def _curves(history: str) -> list[Markup]:
    """The plots of the report, which are drawn once for each epoch, not at each look."""
    return plots.curves(pd.read_csv(io.StringIO(history)))


def add_trained(site: Site, training: Training) -> Status:
    """The last training; its model joins those of the page."""
    status = training.status()
    if status.model is not None:
        try:
            site.add(status.model)
        except (SecondhandError, OSError) as error:
            log.warning("%s", error)
    return status


class Lessons(NamedTuple):
    """What visitors have corrected and labelled for one model: how much in words, and the ``tables`` with it."""

    model: str = ""
    words: str = ""
    tables: tuple[Path, ...] = ()


def lessons(site: Site, opened: Sequence[Opened]) -> Lessons:
    """The corrections and labels to train with; none if they are of several models, or of one without a folder."""
    feedback = site.feedback
    sources = [] if feedback is None else [Taught("correction", feedback.table, "")]
    sources += taught_by(opened)
    found = [(what, t.file, counts) for what, t, of in sources if (counts := t.counts(of))]
    names = {name for _, _, counts in found for name in counts}
    served = site.models.get(next(iter(names), ""))
    if len(names) != 1 or served is None or served.folder is None:
        return Lessons()
    words = " and ".join(counted(counts.total(), what) for what, _, counts in found)
    return Lessons(served.name, words, tuple(table.absolute() for _, table, _ in found))


def train_tab(site: Site, opened: Sequence[Opened], training: Training) -> None:
    """Fill the tab *Train*."""
    looked, shown = gr.State(None, time_to_live=3600), gr.State(None, time_to_live=3600)
    status_part = gr.HTML("", elem_classes="sh-page", elem_id="training")
    with gr.Row():
        stop = gr.Button("Stop the training", variant="stop", visible=False)
        resume = gr.Button("Resume the training", visible=False)
        again = gr.Button("Train again", visible=False)
    message = gr.HTML("", elem_classes="sh-page")
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            folder = gr.Textbox(
                label="Folder on this machine", placeholder="/home/me/photos",
                info="It holds one folder of files per class. A table of labels, or a JSON, can be named instead.",
            )  # fmt: skip
            look = gr.Button("Look at it")
        with gr.Column(scale=3, min_width=300):
            seen = gr.HTML("", elem_classes="sh-page", elem_id="look")
            choice = gr.Radio(
                [(f"{name}: {words}", name) for name, (words, _) in CHOICES.items()], value="usual", label="How", interactive=True,
                visible=False,
            )  # fmt: skip
            command = gr.HTML("", elem_classes="sh-page", elem_id="train-command", visible=False)
            start = gr.Button("Start the training", variant="primary", visible=False)
            started = gr.HTML("", elem_classes="sh-page")

    def name_command(data: Path | None, choice: str) -> Any:
        if data is None:
            return gr.HTML("", visible=False)
        shown = shown_command(training.words([data], choice))
        return gr.HTML(render("app", "command.html", command=shown), visible=True)

    def check(folder: str, choice: str) -> tuple[Any, ...]:
        try:
            if not folder.strip():
                raise SecondhandError("Name a folder.")
            found = look_at(Path(folder.strip()).expanduser().absolute())
        except (SecondhandError, OSError) as error:
            hidden = gr.update(visible=False)
            return None, note_html(_words(error), status=True), hidden, hidden, hidden
        visible = gr.update(visible=True)
        return found.data, found.html(), visible, name_command(found.data, choice), visible

    def begin(data: Path | None, choice: str) -> None:
        if data is None:
            raise SecondhandError("Look at a folder first.")
        training.start(training.words([data], choice))

    def begin_again() -> None:
        found = lessons(site, opened)
        if not found.tables:
            raise SecondhandError("There are no corrections.")
        served = site.models[found.model]
        several = not served.predictor.rule.exclusive
        training.start(training.words(found.tables, "usual", served.folder, several=several))

    def attempt(action: Callable[..., None], done: str, *given: Any) -> str:
        try:
            action(*given)
        except (SecondhandError, OSError) as error:
            return note_html(_words(error), status=True)
        return note_html(done, status=True)

    def watch(before: object) -> tuple[Any, ...]:
        status, found = add_trained(site, training), lessons(site, opened)
        new = status, found.words
        if new == before:
            return (gr.skip(),) * 5
        buttons = (
            gr.Button(visible=status.state == "running"),
            gr.Button(visible=status.state == "stopped"),
            gr.Button(
                f"Train again with {found.words}", visible=bool(found.tables) and not status.runs
            ),
        )
        return new, status_html(status), *buttons

    parts = [shown, status_part, stop, resume, again]
    quick: dict[str, Any] = {"queue": False, **QUIET}
    gr.Timer(TICK).tick(watch, shown, parts, **quick)
    offered = [looked, seen, choice, command, start]
    busy: dict[str, Any] = {**QUIET, "show_progress": "minimal", "concurrency_limit": 4}
    for event in (look.click, folder.submit):
        event(check, [folder, choice], offered, **busy)
    choice.change(name_command, [looked, choice], command, **quick)
    told = "Training started. Its progress is above."
    for button, action, done, inputs, words in (
        (start, begin, told, [looked, choice], started),
        (stop, training.cancel, "", None, message),
        (resume, training.resume, "", None, message),
        (again, begin_again, "", None, message),
    ):
        event = button.click(partial(attempt, action, done), inputs, words, **quick)
        event.then(watch, shown, parts, **quick)
    start.click(name_command, [looked, choice], command, **quick)  # the next one has another folder


def _words(error: Exception) -> str:
    """An error for a visitor; of the disk with its file and a remedy."""
    if isinstance(error, FileNotFoundError):
        return f"{Path(str(error.filename)).name} is no longer here. Name the folder again."
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}. Free some space, or choose another folder: --train FOLDER"
    return str(error)
