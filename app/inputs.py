"""Gradio's inputs, handed on as the uploaded file itself: it is decoded by our own readers alone.

Gradio would decode a picture with all of Pillow's formats, write it anew and hand that on; the
answer would not be the one that ``learners.predict`` gives for the file, and the decoders would be
open to all who ask. Methods are replaced on the component: Gradio writes a stub file into the source
folder for every subclass of one.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_TOP = {"type": "object", "properties": {"label": _TEXT, "probability": _NUMBER}}
#: By what an answer was given: `app.views.Rule`, of the model's own or a threshold of the request's.
_RULE = {
    "type": "object",
    "properties": {
        "own": {"type": "boolean"},
        **dict.fromkeys(("kind", "on"), _TEXT),
        **dict.fromkeys(("target", "cut", "alpha"), _NUMBER),
    },
}
#: One object a file: the fields of `learners.prediction.predictor.Prediction` (its path as "file", the bare
#: name) and the rule, null for what is not a number.
ANSWERS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            **dict.fromkeys(("file", "label", "best", "reason"), _TEXT),
            **dict.fromkeys(("probability", "distance_p", "start", "end", "at"), _NUMBER),
            "top": {"type": "array", "items": _TOP},
            "windows": {"type": "array", "items": {"type": "object"}},
            "set": {"type": "array", "items": _TEXT},
            "rule": _RULE,
        },
    },
}


def raw(component: Any) -> Any:
    """A Gradio component for files that hands on their paths and fetches nothing from addresses.

    One that takes several files gives a list, else the path or None.
    """
    import gradio as gr

    move, move_async = (
        component.move_resource_to_block_cache,
        component.async_move_resource_to_block_cache,
    )

    def check(path: object) -> None:
        if "://" in str(path) or str(path).lower().startswith(("http:", "https:", "ftp:", "data:")):
            raise gr.Error(
                "Upload the file itself: this page fetches nothing from an address.",
                print_exception=False,
            )

    async def moved_async(path: Any) -> Any:
        check(path)
        return await move_async(path)

    def moved(path: Any) -> Any:
        check(path)
        return move(path)

    def preprocess(payload: Any) -> Any:
        if getattr(component, "file_count", "single") == "single":
            return None if payload is None else payload.path
        return [] if payload is None else [file.path for file in payload.root]

    component.preprocess = preprocess
    component.move_resource_to_block_cache = moved
    component.async_move_resource_to_block_cache = moved_async
    return component


def typed(component: Any, schema: dict[str, Any]) -> Any:
    """A Gradio component whose type on Gradio's page of the API is this JSON schema."""
    component.api_info = lambda: schema
    component.api_info_as_output = lambda: schema
    return component


def inside(path: str, folder: str) -> bool:
    """Whether a file truly lies in a folder, links followed."""
    return os.path.realpath(path).startswith(os.path.join(_real(folder), ""))


@cache
def _real(folder: str) -> str:
    return os.path.realpath(folder)  # asked about the same few folders with every request
