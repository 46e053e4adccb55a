"""The page: its parts, their events and its theme. The texts on predictions are in ``views``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr

from app.about import Example, card_text, examples, report_html
from app.corrected import correction_part, corrections_tab, no_label
from app.dial import Dial
from app.labels import Choices
from app.page import above_table, invitation, remark
from app.panels import panels_html
from app.refused import refusal_note
from app.serving import Served, Site
from app.tabs import Opened
from app.uploads import UPLOADS, names
from app.views import (
    QUIET,
    Seen,
    answer_html,
    candidates_html,
    listed,
    no_answer_html,
    note_html,
    span,
    table_html,
)
from datasets.core.errors import SecondhandError
from learners.report.templates import render

if TYPE_CHECKING:
    from app.training import Training

TITLE = "Secondhand"


def build_page(
    site: Site,
    opened: Sequence[Opened] = (),
    training: Training | None = None,
) -> Any:
    """The page of a site: a tab for each model if there are several; what fields have ``opened`` belongs to the first.

    With a training, the tabs are built at each visit, because models join.

    Returns
    -------
    Gradio's Blocks; `app.server.serve` puts it on a port.
    """
    with gr.Blocks(title=TITLE) as page:
        gr.HTML(render("app", "head.html", title=TITLE))
        if training is None:
            _models(site, opened)
        else:
            gr.render()(partial(_models, site, opened, training))
        gr.HTML(render("app", "limits.html", settings=site.settings))
    return page


def _models(site: Site, opened: Sequence[Opened], training: Training | None = None) -> None:
    if training is not None:
        from app.train_tab import add_trained, train_tab

        add_trained(site, training)
    for name, reason in site.not_opened().items():
        gr.HTML(note_html(f"{name} could not be opened: {reason}"))
    names = list(site.models)
    if training is None and len(names) == 1:
        _model(site, names[0], opened)
        return
    with gr.Tabs():
        for number, name in enumerate(names):
            with gr.Tab(name):
                _model(site, name, () if number else opened)
        if training is not None:
            with gr.Tab("Train"):
                train_tab(site, opened, training)


def _model(site: Site, name: str, opened: Sequence[Opened]) -> None:
    served = site.models[name]
    with gr.Tabs():
        with gr.Tab("One file"):
            rules = _one_file(site, name, opened)
        with gr.Tab("Several files"):
            _several(site, name, rules)
        for one in opened:
            if one.title:
                with gr.Tab(one.title) as tab:
                    one.fill(tab)
        if site.feedback is not None:
            with gr.Tab("Corrections") as corrections:
                corrections_tab(corrections, site.feedback, Choices.of(served.predictor))
        with gr.Tab("About this model") as about:
            if served.report is None:
                gr.Markdown(card_text(served))
            else:
                report = gr.HTML(note_html("Loading."), elem_classes="sh-page")
                about.select(partial(report_html, served.report), None, report, **QUIET)


def classes_words(classes: list[str]) -> str:
    """What a model knows, for the first look at its page."""
    names = ", ".join(classes if len(classes) <= 12 else classes[:8])
    more = f" and {len(classes) - 8} more" if len(classes) > 12 else ""
    return f"The model knows {len(classes)} classes: {names}{more}."


def raw(component: Any) -> Any:
    """A Gradio component that passes on the paths of files and fetches nothing from addresses.

    Its value is a path or None, or a list of paths. Gradio would decode a picture with all of Pillow's
    formats and save it again: predictions would differ from those of ``learners.predict``, and visitors
    could reach those decoders. Methods are replaced on the component, because Gradio writes a stub file
    into the source folder for every subclass.
    """
    move = component.async_move_resource_to_block_cache

    async def moved(path: str) -> Any:
        if path.lower().startswith(("http:", "https:")):
            raise gr.Error(
                "An address was sent. Upload the file itself: this page downloads nothing.",
                print_exception=False,
            )
        return await move(path)

    def preprocess(payload: Any) -> Any:
        if getattr(component, "file_count", "single") == "single":
            return None if payload is None else payload.path
        return [] if payload is None else [file.path for file in payload.root]

    component.preprocess, component.async_move_resource_to_block_cache = preprocess, moved
    return component


def _input(served: Served, number: int) -> Any:
    shared: dict[str, Any] = {"elem_id": f"file-{number}", "type": "filepath"}
    kind = served.kind
    if kind.media == "image":
        ways = ["upload", "clipboard", "webcam"]
        shared |= {"label": "Picture", "sources": ways, "buttons": ["fullscreen"]}
        return raw(gr.Image(height=320, **shared))
    if kind.media == "audio":
        shared |= {"label": "Sound", "sources": ["upload", "microphone"], "buttons": ["download"]}
        return raw(gr.Audio(**shared))
    ends = ", ".join(kind.uploads)
    return raw(gr.File(label=f"{kind.name.capitalize()} file ({ends})", **shared))


class Rules(NamedTuple):
    """Inputs of the tab *One file* that hold for several files too, and the events of their change.

    ``chosen`` : whether the model's rule is in use, and the place of the slider.
    """

    dial: Dial
    at: Any
    chosen: list[Any]
    changes: tuple[Any, ...]


async def ask(site: Site, name: str, paths: list[str], moment: float | None) -> Seen:
    """A model's answers to uploaded files."""
    try:  # a browser sends an empty field as 0, when no detector was running
        answers = await site.predict_many(name, paths, moment or None) if paths else []
    except SecondhandError as error:
        return Seen(error=str(error))
    return Seen(tuple(answers))


def _one_file(site: Site, name: str, opened: Sequence[Opened]) -> Rules:
    served = site.models[name]
    dial, predictor = Dial(served.predictor), served.predictor
    words = f"Choose a file. {classes_words(predictor.classes)}"
    if invited := invitation(predictor):
        words += f" {invited}"
    waiting = no_answer_html(words, "")
    seen = gr.State(Seen(), time_to_live=3600)
    with gr.Row(elem_classes="sh-file"):
        with gr.Column(scale=2, min_width=300):
            file = _input(served, list(site.models).index(name))
            at = gr.Number(
                label="GPS time of the moment (s)", value=None, visible=served.kind.gps,
                info="0 or empty: the loudest moment of the file.",
            )  # fmt: skip
            button = gr.Button("Predict", variant="primary")
            with gr.Column(elem_classes="sh-later"):  # on a phone below the answer
                own = "Move the slider to use a rule of your own."
                by_model = gr.Checkbox(True, label="The model's rule", info=own)
                slider = gr.Slider(
                    dial.low, dial.high, value=dial.start, step=dial.step, label=dial.label,
                    buttons=[], info=dial.info, elem_classes=dial.css,
                )  # fmt: skip
                effect = gr.HTML(dial.effect(None))
                _examples(site, name, file, at)
        with gr.Column(scale=3, min_width=300):
            result = gr.HTML(waiting, elem_classes="sh-page")
            window = gr.Dropdown([], label="Window shown", visible=False)
            panels = gr.HTML("", elem_classes="sh-page")
            with gr.Column(visible=False) as afterwards:
                alone: list[Any] = []  # of a recording: whether a correction is of the window shown
                # What belongs to the file before, and its value for another one.
                under = [one.under_answer(seen) for one in opened]
                cleared: list[tuple[Any, Any]] = [(one, None) for one in under if one is not None]
                if site.feedback is not None:
                    part = correction_part(site, name, seen, dial, [by_model, slider], window)
                    cleared += [(part.label, no_label(Choices.of(predictor))), (part.note, None)]
                    alone = [part.alone]
    chosen = [by_model, slider]

    def show(seen: Seen, by_model: bool, place: float) -> str:
        if not seen.answers:
            return no_answer_html(seen.error) if seen.error else waiting
        rule = dial.rule(None if by_model else place)
        judged = rule.judge(seen.answers[0])
        shown = listed(judged, served.top)
        remarks = remark(predictor, seen.answers)
        remarks = " ".join(filter(None, [remarks, refusal_note(served, [judged], rule)]))
        html = answer_html(shown, rule, predictor.rule.calibrator.temperature, remarks)
        return html + candidates_html([judged]) if judged.windows else html

    async def predict(
        path: str | None, moment: float | None, by_model: bool, place: float
    ) -> list[Any]:
        new = await ask(site, name, [path] if path else [], moment)
        spans = [f"the one most certain of {one.best}" for one in new.answers]
        spans += [span(window) for one in new.answers for window in one.windows]
        windows = gr.Dropdown(choices=spans, value=next(iter(spans), None), visible=len(spans) > 1)
        judged = gr.Column(visible=any(not one.reason.failed for one in new.answers))
        html = show(new, by_model, place)
        window_alone = gr.Checkbox(False, visible=len(spans) > 1)
        empty = [value for _, value in cleared]
        return [new, html, windows, "", judged, *empty, *[window_alone for _ in alone]]

    def draw(seen: Seen, window: str | None) -> str:
        return panels_html(predictor, seen, window)

    def ruled(seen: Seen, by_model: bool, place: float) -> tuple[str, str]:
        return show(seen, by_model, place), dial.effect(None if by_model else place)

    def slide(seen: Seen, place: float) -> tuple[Any, ...]:
        return False, *ruled(seen, False, place)

    def choose(seen: Seen, by_model: bool, place: float) -> tuple[Any, ...]:
        return dial.start if by_model else gr.skip(), *ruled(seen, by_model, place)

    drawing: dict[str, Any] = {"concurrency_limit": 4, **QUIET}
    parts = [part for part, _ in cleared]
    answered = [seen, result, window, panels, afterwards, *parts, *alone]
    for event in (file.change, button.click, at.submit):
        predicted = event(predict, [file, at, *chosen], answered, concurrency_limit=None, **QUIET)
        predicted.then(draw, [seen, window], panels, **drawing)
    window.input(draw, [seen, window], panels, **drawing)
    now: dict[str, Any] = {"queue": False, "trigger_mode": "always_last", **QUIET}
    changes = (
        slider.input(slide, [seen, slider], [by_model, result, effect], **now),
        by_model.input(choose, [seen, *chosen], [slider, result, effect], **now),
    )
    return Rules(dial, at, chosen, changes)


def _examples(site: Site, name: str, file: Any, at: Any) -> None:
    """Buttons with files of the model's run; each is given to the page as an upload is."""
    found = examples(site.models[name])
    if not found:
        return

    def give(example: Example) -> tuple[str, float | None]:
        folder = tempfile.mkdtemp(dir=site.uploads)  # the only place that Gradio takes files from
        return shutil.copy(example.path, folder), example.at

    gr.HTML(note_html("Examples that training did not use:"))
    with gr.Row(elem_classes="sh-examples"):
        for example in found:
            button = gr.Button(example.label, size="sm")
            button.click(partial(give, example), None, [file, at], queue=False, **QUIET)


def _several(site: Site, name: str, rules: Rules) -> None:
    served, number = site.models[name], list(site.models).index(name)
    seen = gr.State(Seen(), time_to_live=3600)
    label = f"Up to {site.settings.max_files} {served.kind} files"
    if served.kind.photo:
        label += "".join(f", and {one.label}" for one in UPLOADS.values())
    files = raw(gr.File(elem_id=f"files-{number}", file_count="multiple", label=label))
    also = " and GPS time" if served.kind.gps else ""
    gr.HTML(note_html(f"The rule{also} chosen under “One file” applies here too."))
    button = gr.Button("Predict", variant="primary")
    out = gr.HTML("", elem_classes="sh-page")
    part = correction_part(site, name, seen, rules.dial, rules.chosen)

    def table(seen: Seen, by_model: bool, place: float) -> str:
        if not seen.answers:
            return no_answer_html(seen.error) if seen.error else ""
        rule = rules.dial.rule(None if by_model else place)
        judged = [rule.judge(answer) for answer in seen.answers]
        shown = [listed(answer, served.top) for answer in judged]
        said = remark(served.predictor, seen.answers)
        said = " ".join(filter(None, [said, refusal_note(served, judged, rule)]))
        above = above_table(judged, rule, served.predictor)
        below = candidates_html(judged)
        table = table_html(shown, rule, seen.labels)
        return (note_html(said) if said else "") + above + table + below

    async def predict(
        paths: list[str], moment: float | None, by_model: bool, place: float
    ) -> tuple[Any, ...]:
        new = await ask(site, name, paths, moment)
        rows = [
            (f"{n + 1}: {shown_name}", n)
            for n, (a, shown_name) in enumerate(zip(new.answers, names(new.answers), strict=True))
            if not a.reason.failed
        ]
        html = table(new, by_model, place)
        empty = no_label(Choices.of(served.predictor))
        return new, gr.Dropdown(choices=rows, value=None), empty, "", html

    waited: dict[str, Any] = {"concurrency_limit": None, **QUIET, "show_progress": "minimal"}
    for event in (files.change, button.click):
        shown = [seen, part.row, part.label, part.note, out]
        event(predict, [files, rules.at, *rules.chosen], shown, **waited)
    for change in (*rules.changes, part.saved):
        change.then(table, [seen, *rules.chosen], out, queue=False, **QUIET)


def theme() -> Any:
    """Gradio's default theme with the fonts of the visitor's machine and enough contrast."""
    base = gr.themes.Default(
        primary_hue="blue",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    in_light_and_dark = {
        "body_text_color_subdued": ("#4b5563", "#c3c9d2"),
        "block_info_text_color": ("#4b5563", "#c3c9d2"),
        "input_placeholder_color": ("#4b5563", "#c3c9d2"),
        "block_label_text_color": ("#374151", "#e5e7eb"),
        "block_title_text_color": ("#374151", "#e5e7eb"),
        "link_text_color": ("#1e4a8c", "#9dbdf5"),
        "button_primary_background_fill": ("#1e4a8c", "#1e4a8c"),
        "button_primary_background_fill_hover": ("#163868", "#163868"),
        "button_primary_text_color": ("#ffffff", "#ffffff"),
        "slider_color": ("#3b6fd4", "#3b6fd4"),
    }
    light = {name: colours[0] for name, colours in in_light_and_dark.items()}
    return base.set(**light, **{f"{n}_dark": dark for n, (_, dark) in in_light_and_dark.items()})
