"""The page: its parts, their events and its theme. The texts on predictions are in ``views``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr

from app.about import about_html
from app.api import add_api, raw
from app.bursts import bursts_html
from app.corrected import corrections_tab
from app.dial import Dial, make_dial
from app.feedback import check_label
from app.panels import panels_html
from app.pool import QUIET, Alike, Labelling, alike_part, label_tab, name_here
from app.rules import PageRule
from app.serving import Served, Site
from app.views import (
    Query,
    answer_html,
    listed,
    no_answer_html,
    note_html,
    span,
    table_html,
)
from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS
from learners.cameras.boxes import WHOLE, trained_on_boxes
from learners.cli.console import as_typed
from learners.templates import render

if TYPE_CHECKING:
    from app.training import Training

TITLE = "Secondhand"


def build_page(
    site: Site,
    labelling: Labelling | None = None,
    alike: Alike | None = None,
    training: Training | None = None,
) -> Any:
    """The page of a site: a tab for each model if there are several; the pools belong to the first.

    With a training, the tabs are built at each visit, because models join.

    Returns
    -------
    Gradio's Blocks; `app.server.serve` puts it on a port.
    """
    with gr.Blocks(title=TITLE) as page:
        add_api(site)  # first: Gradio gives a name to the first that wants it
        gr.HTML(render("app", "head.html", title=TITLE))
        if training is None:
            _models(site, labelling, alike)
        else:
            gr.render()(partial(_models, site, labelling, alike, training))
        gr.HTML(render("app", "limits.html", limits=site.limits))
    return page


def _models(
    site: Site, labelling: Labelling | None, alike: Alike | None, training: Training | None = None
) -> None:
    if training is not None:
        from app.train_tab import add_trained, train_tab

        add_trained(site, training)
    for name, reason in site.not_opened().items():
        gr.HTML(note_html(f"{name} could not be opened: {reason}"))
    names = list(site.models)
    if training is None and len(names) == 1:
        _model(site, names[0], labelling, alike)
        return
    with gr.Tabs():
        for number, name in enumerate(names):
            with gr.Tab(name):
                _model(site, name, *((None, None) if number else (labelling, alike)))
        if training is not None:
            with gr.Tab("Train"):
                train_tab(site, labelling, training)


def _model(
    site: Site, name: str, labelling: Labelling | None = None, alike: Alike | None = None
) -> None:
    predictor = site.models[name].predictor
    with gr.Tabs():
        with gr.Tab("One file"):
            rules = _one_file(site, name, alike)
        with gr.Tab("Several files"):
            _several(site, name, rules)
        if labelling is not None:
            with gr.Tab("Label") as label:
                label_tab(label, labelling, site.rendering)
        if site.feedback is not None:
            with gr.Tab("Corrections") as corrections:
                corrections_tab(corrections, site.feedback, predictor.classes)
        with gr.Tab("About this model") as tab:
            about = gr.HTML(note_html("Loading."), elem_classes="sh-page")
            cached: list[str] = []

            def load() -> str:
                if not cached:
                    cached.append(about_html(predictor, site.evidence[name]))
                return cached[0]

            tab.select(load, None, about, **QUIET)


def classes_words(classes: list[str]) -> str:
    """What a model knows, for the first look at its page."""
    names = ", ".join(classes if len(classes) <= 12 else classes[:8])
    more = f" and {len(classes) - 8} more" if len(classes) > 12 else ""
    return f"The model knows {len(classes)} classes: {names}{more}."


def _input(served: Served, number: int) -> Any:
    shared: dict[str, Any] = {"elem_id": f"file-{number}", "type": "filepath"}
    kind = KINDS[served.kind]
    if kind.media == "image":
        ways = ["upload", "clipboard", "webcam"]
        shared |= {"label": "Picture", "sources": ways, "buttons": ["fullscreen"]}
        return raw(gr.Image(height=320, **shared))
    if kind.media == "audio":
        shared |= {"label": "Sound", "sources": ["upload", "microphone"], "buttons": ["download"]}
        return raw(gr.Audio(**shared))
    ends = ", ".join(end for end in kind.suffixes if end not in (".gwf", ".frames"))
    return raw(gr.File(label=f"{kind.name.capitalize()} file ({ends})", **shared))


class Rules(NamedTuple):
    """Inputs of the tab *One file* that hold for several files too, and the events of their change."""

    at: Any
    by_model: Any
    threshold: Any
    changes: tuple[Any, ...]
    dial: Dial


def _one_file(site: Site, name: str, alike: Alike | None) -> Rules:
    served, dial = site.models[name], make_dial(site, name)
    words = f"Choose a file. {classes_words(served.predictor.classes)}"
    if trained_on_boxes(served.predictor.bundle):
        words += f" {WHOLE}: choose a photo of one animal and little else."
    waiting = no_answer_html(words, "")
    query = gr.State(Query(), time_to_live=3600)
    with gr.Row(elem_classes="sh-file"):
        with gr.Column(scale=2, min_width=300):
            file = _input(served, list(site.models).index(name))
            at = gr.Number(
                label="GPS time of the moment (s)", value=None, visible=KINDS[served.kind].gps,
                info="0 or empty: the loudest moment of the file.",
            )  # fmt: skip
            button = gr.Button("Predict", variant="primary")
            with gr.Column(elem_classes="sh-later"):  # on a phone below the answer
                own = "Move the slider to use a rule of your own."
                by_model = gr.Checkbox(True, label="The model's rule", info=own)
                threshold = gr.Slider(
                    dial.low, dial.high, value=dial.start, step=dial.step, label=dial.label,
                    buttons=[], info=dial.info, elem_classes=dial.css,
                )  # fmt: skip
                rule_effect = gr.HTML(dial.effect(None))
                _examples(site, name, file, at)
        events = (file.change, button.click, at.submit)
        with gr.Column(scale=3, min_width=300):
            result = gr.HTML(waiting, elem_classes="sh-page")
            window = gr.Dropdown([], label="Window shown", visible=False)
            panels = gr.HTML("", elem_classes="sh-page")
            with gr.Column(visible=False) as afterwards:
                if alike is not None:
                    similar = alike_part(alike, query, site.rendering)
                    file.change(lambda: "", None, similar, queue=False, **QUIET)
                if site.feedback is not None:
                    written = _correction(site, name, query, dial, by_model, threshold)
                    for event in events:
                        event(lambda: (None, ""), None, written, queue=False, **QUIET)

    async def predict(
        path: str | None, moment: float | None, by_model: bool, threshold: float
    ) -> tuple[Any, ...]:
        hidden, nothing = gr.Dropdown(visible=False), gr.Column(visible=False)
        if not path:
            return Query(), waiting, hidden, "", nothing
        moment = moment or None  # a browser sends an empty field as 0, when no detector was running
        try:
            answer = await site.predict(name, path, moment)
        except SecondhandError as error:
            return Query(), no_answer_html(str(error)), hidden, "", nothing
        rule = dial.rule(None if by_model else threshold)
        surest = f"the one most certain of {answer.best}"
        spans = [surest, *(span(w) for w in answer.windows)]
        dropdown = gr.Dropdown(choices=spans, value=surest, visible=len(spans) > 1)
        judged = gr.Column(visible=not answer.reason.failed)
        return Query(path, moment, answer), html(answer, rule), dropdown, "", judged

    def html(answer: Any, rule: PageRule) -> str:
        temperature = served.predictor.rule.calibrator.temperature
        shown = listed(rule.judge(answer), served.top)
        return answer_html(shown, rule, temperature)

    def apply_rule(last: Query, threshold: float, by_model: bool) -> tuple[Any, ...]:
        rule = dial.rule(None if by_model else threshold)
        new = gr.skip() if last.answer is None else html(last.answer, rule)
        start = dial.start if by_model else gr.skip()  # the model's rule resets the slider
        return by_model, start, new, dial.effect(None if by_model else threshold)

    def show(last: Query, chosen: str | None) -> str:
        return panels_html(served.predictor, last, chosen, site.rendering)

    limited: dict[str, Any] = {"concurrency_limit": 4, **QUIET}
    given = [file, at, by_model, threshold]
    answered = [query, result, window, panels, afterwards]
    for event in events:
        predicted = event(predict, given, answered, concurrency_limit=None, **QUIET)
        predicted.then(show, [query, window], panels, **limited)
    now: dict[str, Any] = {"queue": False, "trigger_mode": "always_last", **QUIET}
    changed = [by_model, threshold, result, rule_effect]
    changes = (
        threshold.input(partial(apply_rule, by_model=False), [query, threshold], changed, **now),
        by_model.input(apply_rule, [query, threshold, by_model], changed, **now),
    )
    window.input(show, [query, window], panels, **limited)
    return Rules(at, by_model, threshold, changes, dial)


def _examples(site: Site, name: str, file: Any, at: Any) -> None:
    small = [
        item
        for item in site.evidence[name].examples(limit=12, ood=1)
        if Path(item.path).stat().st_size <= 20 << 20
    ]
    chosen = small[:5] + [item for item in small[5:] if item.label == "unknown"]
    if not chosen:
        return
    by_gps = KINDS[site.models[name].kind].gps
    gr.Examples(
        [[item.path, item.gps] if by_gps else [item.path] for item in chosen],
        [file, at] if by_gps else [file],
        example_labels=[item.label for item in chosen],
        label="Examples that training did not use",
        api_visibility="private",
    )


def _several(site: Site, name: str, rules: Rules) -> None:
    served = site.models[name]
    predictions = gr.State([], time_to_live=3600)
    label = f"Up to {served.limits.files} {served.kind} files"
    file_id = f"files-{list(site.models).index(name)}"
    files = raw(gr.File(elem_id=file_id, file_count="multiple", label=label))
    also = " and GPS time" if KINDS[served.kind].gps else ""
    gr.HTML(note_html(f"The rule{also} chosen under “One file” applies here too."))
    button = gr.Button("Predict", variant="primary")
    out = gr.HTML("", elem_classes="sh-page")
    corrected = gr.State({}, time_to_live=3600)
    with gr.Accordion("Correct the table", open=False):
        storage = "" if site.feedback is None else "; file and label are stored for training"
        with gr.Row():
            row = gr.Dropdown(
                [], value=None, label="Row", info="Type to find a file, then arrow down and Enter."
            )
            right = gr.Dropdown(
                [*served.predictor.classes, "unknown"], value=None, label="Right label",
                info=f"Type to find it. It goes into the CSV{storage}.",
            )  # fmt: skip
        correct = gr.Button("Correct")
        note = gr.HTML("", elem_classes="sh-page")

    def table(answers: list[Any], labels: dict[int, str], by_model: bool, threshold: float) -> str:
        rule = rules.dial.rule(None if by_model else threshold)
        judged = [rule.judge(answer) for answer in answers]
        if not answers:
            return ""
        shown = [listed(answer, served.top) for answer in judged]
        return bursts_html(judged, rule, served.predictor) + table_html(shown, rule, labels)

    async def predict(
        paths: list[str], moment: float | None, by_model: bool, threshold: float
    ) -> tuple[Any, ...]:
        none = gr.Dropdown(choices=[], value=None)
        if not paths:
            return [], {}, none, None, "", ""
        try:
            answers = await site.predict_many(name, paths, moment or None)
        except SecondhandError as error:
            return [], {}, none, None, "", no_answer_html(str(error))
        rows = [
            (f"{n}: {Path(a.path).name}", n - 1)
            for n, a in enumerate(answers, start=1)
            if not a.reason.failed
        ]
        html = table(answers, {}, by_model, threshold)
        return answers, {}, gr.Dropdown(choices=rows, value=None), None, "", html

    def save(
        answers: list[Any],
        labels: dict[int, str],
        row: int | None,
        label: str | None,
        by_model: bool,
        threshold: float,
    ) -> tuple[Any, ...]:
        if row is None or not 0 <= row < len(answers):
            return labels, gr.skip(), note_html("Choose a row first.", status=True)
        answer = answers[row]
        try:
            label = _spelt(site, name, label)
            if site.feedback is not None:
                gps = answer.part.at if KINDS[served.kind].gps else None
                rule = rules.dial.rule(None if by_model else threshold)
                _save(site, name, Query(answer.path, gps, answer), label, rule)
        except SecondhandError as error:
            return labels, gr.skip(), note_html(str(error), status=True)
        labels = {**labels, row: label}
        message = note_html(f"Row {row + 1}: {label}.", status=True)
        return labels, table(answers, labels, by_model, threshold), message

    rule = [rules.by_model, rules.threshold]
    waited: dict[str, Any] = {"concurrency_limit": None, **QUIET, "show_progress": "minimal"}
    for event in (files.change, button.click):
        shown = [predictions, corrected, row, right, note, out]
        event(predict, [files, rules.at, *rule], shown, **waited)
    for change in rules.changes:
        change.then(table, [predictions, corrected, *rule], out, queue=False, **QUIET)
    correct.click(
        save, [predictions, corrected, row, right, *rule], [corrected, out, note], **QUIET
    )


def _correction(
    site: Site, name: str, query: Any, dial: Dial, by_model: Any, threshold: Any
) -> tuple[Any, Any]:
    """The part *This is wrong*; returns its label and its message, which are cleared at each prediction."""
    served = site.models[name]
    with gr.Accordion("This is wrong", open=False):
        label = gr.Dropdown(
            [*served.predictor.classes, "unknown"], value=None, allow_custom_value=True,
            label="It is", info="The file and this label are stored for the next training.",
        )  # fmt: skip
        button = gr.Button("Save the correction")
        thanks = gr.HTML("", elem_classes="sh-page")

    def save(last: Query, label: str | None, by_model: bool, threshold: float) -> str:
        assert site.feedback is not None
        if last.answer is None:
            return note_html("Choose a file first.", status=True)
        try:
            _save(site, name, last, label or "", dial.rule(None if by_model else threshold))
        except SecondhandError as error:
            return note_html(str(error), status=True)
        table = site.feedback.table.absolute()
        words = ["--from", name_here((served.folder or Path(name)).absolute())]
        command = as_typed("learners.finetune", [*words, "--data", name_here(table)])
        saved = render(
            "app", "saved.html", what="The correction is", file=name_here(table), command=command
        )
        new = _spelt(site, name, label) not in (*served.predictor.classes, "unknown")
        few = " A new class needs at least 2 files (20 are better)." if new else ""
        return note_html(f"Saved. Thank you.{few}", status=True) + saved

    button.click(save, [query, label, by_model, threshold], thanks, **QUIET)
    return label, thanks


def _save(site: Site, name: str, last: Query, label: str, rule: PageRule) -> None:
    """Save a correction of a prediction, as it was shown under ``rule``."""
    assert site.feedback is not None
    assert last.answer is not None
    shown = rule.judge(last.answer)
    kind = site.models[name].kind
    classes = site.models[name].predictor.classes
    site.feedback.save(
        last.file, label, kind=kind, gps=last.at, shown=shown, model=name, classes=classes
    )


def _spelt(site: Site, name: str, label: str | None) -> str:
    """A label as it is saved, in the spelling of the model's class or of an earlier correction."""
    classes = site.models[name].predictor.classes
    if site.feedback is None:
        return check_label(label, classes)
    return site.feedback.check(label or "", classes)


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
