"""The endpoints for programs, with typed results: /ask, /ask_many, /models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from app.inputs import ANSWERS, raw, typed
from app.views import told, without_paths
from datasets.errors import SecondhandError

if TYPE_CHECKING:
    from app.backend import Site


def add_api(site: Site) -> None:
    """Add the endpoints to the Blocks that is being built. They have no place on the page."""
    names = list(site.models)
    with gr.Column(visible=False):
        file = raw(gr.File(label="file"))
        files = raw(gr.File(file_count="multiple", label="files"))
        model = gr.Dropdown(names, value=None, label="model")
        at = gr.Number(label="at", value=None)
        threshold = gr.Number(label="threshold", value=None)
        out = typed(gr.JSON(label="answers"), ANSWERS)
        button = gr.Button()

    async def ask(
        file: str | None,
        model: str | None = None,
        at: float | None = None,
        threshold: float | None = None,
    ) -> list[dict[str, Any]]:
        return await ask_many([file] if file else [], model, at, threshold)

    async def ask_many(
        files: list[str],
        model: str | None = None,
        at: float | None = None,
        threshold: float | None = None,
    ) -> list[dict[str, Any]]:
        if not files:
            raise gr.Error("Name a file.", print_exception=False)
        if threshold is not None and not 0 <= threshold <= 1:
            raise gr.Error(f"threshold {threshold}: 0 to 1", print_exception=False)
        try:
            name = model or site.choose(files)
            if len(files) == 1:
                answers = [await site.answer(name, files[0], at)]
            else:
                answers = await site.answers(name, files, at)
        except SecondhandError as error:
            message = without_paths(str(error), files[0])
            raise gr.Error(message, print_exception=False) from None
        rule = site.rule(name, threshold)
        return [told(answer, rule) for answer in answers]

    def models() -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "kind": served.kind,
                "classes": served.predictor.classes,
                "rule": site.rule(name, None).as_json(),
            }
            for name, served in site.models.items()
        ]

    # Not in Gradio's own queue, which takes longer over an answer than the network: the line in which
    # requests wait, with its limit and its batches, is `app.serving`'s.
    several: dict[str, Any] = {"concurrency_limit": None, "queue": False}
    button.click(
        ask, [file, model, at, threshold], out, api_name="ask",
        api_description="The answer for one file: a list with one object. `model` is by default "
        "the first one for the file's kind; `at` is a GPS time in seconds, for strain; `threshold`, a "
        "probability, stands in for the model's own rule. `rule` in the answer is the one in force.", **several,
    )  # fmt: skip
    button.click(
        ask_many, [files, model, at, threshold], out, api_name="ask_many",
        api_description="Answers for several files, in their order.", **several,
    )  # fmt: skip
    button.click(
        models, None, gr.JSON(label="models", visible=False), api_name="models",
        api_description="The models that this page has: name, kind, classes, its own rule.", **several,
    )  # fmt: skip
