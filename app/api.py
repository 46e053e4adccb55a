"""The API for programs: Gradio's endpoints /predict, /predict_many and /models, and one plain request.

curl -F file=@photo.jpg http://127.0.0.1:7860/predict
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import math
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.door import Traffic
from app.rules import rule_at
from app.serving import Busy, Site
from app.views import under_rule
from datasets.core.errors import SecondhandError
from learners.rule.thresholds import check_threshold

if TYPE_CHECKING:
    from starlette.requests import Request


#: Bytes of a form besides its file.
REST_OF_FORM = 16 << 10
_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_TOP = {"type": "object", "properties": {"label": _TEXT, "probability": _NUMBER}}
#: The rule of a prediction, `app.rules.PageRule`: the model's, or a threshold of the request.
_RULE = {
    "type": "object",
    "properties": {
        "of_model": {"type": "boolean"},
        **dict.fromkeys(("kind", "on"), _TEXT),
        **dict.fromkeys(("target", "threshold", "alpha"), _NUMBER),
    },
}
#: An object for each file: the fields of `learners.inference.predictions.Prediction` (its path as "file", the bare
#: name) and the rule; null for NaN.
PREDICTIONS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            **dict.fromkeys(("file", "label", "best", "reason"), _TEXT),
            **dict.fromkeys(("probability", "distance_p", "start", "end", "at", "offset"), _NUMBER),
            **{key: {"type": "array", "items": _TOP} for key in ("top", "branch")},
            "windows": {"type": "array", "items": {"type": "object"}},
            "rule": _RULE,
        },
    },
}


def raw(component: Any) -> Any:
    """A Gradio component that passes on the paths of files and fetches nothing from addresses.

    Its value is a path or None, or a list of paths. Gradio would decode a picture with all of Pillow's
    formats and save it again: predictions would differ from those of ``learners.predict``, and visitors
    could reach those decoders. Methods are replaced on the component, because Gradio writes a stub file
    into the source folder for every subclass.
    """
    move = component.move_resource_to_block_cache
    move_async = component.async_move_resource_to_block_cache

    def check(path: object) -> None:
        if "://" in str(path) or str(path).lower().startswith(("http:", "https:", "ftp:", "data:")):
            raise gr.Error(
                "An address was sent. Upload the file itself: this page downloads nothing.",
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


def add_api(site: Site) -> None:
    """Add the endpoints to the Blocks that is being built, without a place on the page."""
    names = list(site.models)
    with gr.Column(visible=False):
        file = raw(gr.File(label="file"))
        files = raw(gr.File(file_count="multiple", label="files"))
        model = gr.Dropdown(names, value=None, label="model", allow_custom_value=True)
        at = gr.Number(label="at", value=None)
        threshold = gr.Number(label="threshold", value=None)
        out: Any = gr.JSON(label="predictions")
        out.api_info = out.api_info_as_output = lambda: PREDICTIONS
        button = gr.Button()

    async def predict(
        file: str | None,
        model: str | None = None,
        at: float | None = None,
        threshold: float | None = None,
    ) -> list[dict[str, Any]]:
        return await predict_many([file] if file else [], model, at, threshold)

    async def predict_many(
        files: list[str],
        model: str | None = None,
        at: float | None = None,
        threshold: float | None = None,
    ) -> list[dict[str, Any]]:
        try:
            return await _answers(site, files, model, at, threshold)
        except SecondhandError as error:
            raise gr.Error(str(error), print_exception=False) from None

    def models() -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "kind": served.kind,
                "classes": served.predictor.classes,
                "rule": rule_at(served.predictor, None).as_json(),
            }
            for name, served in site.models.items()
        ]

    # Not in Gradio's queue, which takes longer than the network: requests wait in that of `app.serving`,
    # which has a limit and batches.
    several: dict[str, Any] = {"concurrency_limit": None, "queue": False}
    button.click(
        predict, [file, model, at, threshold], out, api_name="predict",
        api_description="The prediction for one file: a list with one object. `model` is by default "
        "the first one for the file's kind; `at` is a moment: the GPS time of strain, the seconds from the "
        "start of a sound; `threshold`, a probability, replaces the model's rule. `rule` in the result is the one that was used.", **several,
    )  # fmt: skip
    button.click(
        predict_many, [files, model, at, threshold], out, api_name="predict_many",
        api_description="Predictions for several files, in their order.", **several,
    )  # fmt: skip
    button.click(
        models, None, gr.JSON(label="models", visible=False), api_name="models",
        api_description="The models of this page: name, kind, classes, rule.", **several,
    )  # fmt: skip


def routes(site: Site, traffic: Traffic) -> list[Route]:
    """``GET /health`` and ``POST /predict``, a single request without Gradio's client.

    A form has ``file`` and, optionally, ``model`` (else the first for the file's kind), ``at`` (the
    GPS time of strain, the seconds from the start of a sound) and ``threshold`` (0 to 1; else the model's rule). The
    result is one object of `PREDICTIONS`, or ``{"error": …}`` with status 4xx (the request is wrong) or 503 (try
    again in a moment). A file that cannot be read is no error: its label is "unknown" and the reason
    "bad file: …".

    Parameters
    ----------
    site : whose settings have the names and passwords (HTTP Basic). ``/health`` needs none.
    traffic : counts that ``/health`` reports.
    """

    async def health(request: Request) -> JSONResponse:
        waiting = sum(served.waiting for served in site.models.values())
        models = {"models": len(site.models), "failed": list(site.not_opened())}
        counts = {"arriving": traffic.arriving, "disconnected": traffic.disconnected}
        return JSONResponse({"status": "ok", **models, "waiting": waiting, **counts})

    async def predict(request: Request) -> JSONResponse:
        try:
            _let_in(request, site.settings.passwords)
            _measure(request, site.settings.max_mb)
            async with request.form(max_files=1, max_fields=3) as form:
                return JSONResponse(await _predict(site, form))
        except HTTPException as error:
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        except Busy as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        except SecondhandError as error:
            return JSONResponse({"error": str(error)}, 422)

    return [Route("/health", health), Route("/predict", predict, methods=["POST"])]


def _let_in(request: Request, auth: Sequence[tuple[str, str]]) -> None:
    if not auth:
        return
    kind, _, credentials = request.headers.get("authorization", "").partition(" ")
    accepted = [base64.b64encode(f"{name}:{password}".encode()) for name, password in auth]
    # All are compared, each in constant time, so the duration reveals nothing.
    same = [hmac.compare_digest(credentials.strip().encode(), one) for one in accepted]
    if kind.lower() != "basic" or not any(same):
        raise HTTPException(
            401, "This page needs a name and a password.", {"WWW-Authenticate": "Basic"}
        )


def _measure(request: Request, most: int) -> None:
    """Refuse a request by its Content-Length before its body is read; the server reads no more than that."""
    length = request.headers.get("content-length", "")
    if not length.isascii() or not length.isdigit():
        raise HTTPException(
            411, "The header Content-Length is missing. Send the request's length in it."
        )
    if int(length) > (most << 20) + REST_OF_FORM:
        raise HTTPException(
            413,
            f"The file is larger than the {most} MB that this page takes. Send a smaller one.",
        )


async def _predict(site: Site, form: Any) -> dict[str, Any]:
    file = form.get("file")
    if not getattr(file, "filename", None):
        raise HTTPException(400, "The form has no file. Send one: curl -F file=@photo.jpg")
    at, threshold = _number(form, "at"), _number(form, "threshold")
    folder = Path(site.uploads) / secrets.token_hex(16)
    plain = re.sub(r"[^\w.-]", "_", file.filename, flags=re.ASCII)[-80:].lstrip("._")
    path = folder / (plain or "file")
    try:
        await asyncio.to_thread(_write, file.file, path)
        (answer,) = await _answers(site, [str(path)], form.get("model"), at, threshold)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return answer


async def _answers(
    site: Site, files: list[str], model: object, at: float | None, threshold: float | None
) -> list[dict[str, Any]]:
    """An object of `PREDICTIONS` for each uploaded file.

    Raises
    ------
    SecondhandError : the page does not have this model, or none for these files; a wrong threshold; no file; or as
        `Site.predict_many`.
    """
    if model and model not in site.models:
        models = ", ".join(site.models) or "no model yet"
        raise SecondhandError(f"model {str(model)[:100]}: this page has {models}")
    if not files:
        raise SecondhandError("There is no file. Send at least one.")
    if threshold is not None:
        check_threshold(threshold)
    name = str(model) if model else site.choose(files)
    served = site.models[name]
    rule = rule_at(served.predictor, threshold)
    return [
        under_rule(answer, rule, served.top) for answer in await site.predict_many(name, files, at)
    ]


def _number(form: Any, key: str) -> float | None:
    text = form.get(key)
    if text is None or text == "":
        return None
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise SecondhandError(f"{key} {str(text)[:100]}: expected a number")
    return value


def _write(source: Any, path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with open(path, "wb") as file:
        shutil.copyfileobj(source, file)
