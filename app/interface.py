"""The page: a file goes in, the answer and the best classes come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learners.predictor import Predictor

#: Larger uploads are refused.
MAX_UPLOAD = "50mb"


def build_page(predictor: Predictor) -> Any:
    """A Gradio page over one loaded model, with the named endpoint ``/ask``."""
    import gradio as gr

    def ask(path: str | None) -> tuple[str, dict[str, float]]:
        if not path:
            return "Choose a file first.", {}
        (answer,) = predictor.predict([path], bs=1)
        if answer.label != "unknown":
            return answer.label, dict(answer.top)
        reason = answer.reason.replace("bad file: ", "this file cannot be used: ")
        return f"unknown ({reason})", dict(answer.top)

    if predictor.recipe is None:
        file: Any = gr.Image(type="filepath", label="picture")
    else:
        file = gr.File(type="filepath", label=f"{predictor.recipe.kind} file")
    return gr.Interface(
        ask,
        file,
        [gr.Textbox(label="answer"), gr.Label(label="best classes")],
        title="Secondhand",
        description=f"{len(predictor.classes)} classes: {', '.join(predictor.classes[:30])}",
        flagging_mode="never",
        api_name="ask",
    )
