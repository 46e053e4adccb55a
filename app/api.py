"""How programs ask: Gradio's endpoints /ask, /ask_many and /models, and one plain request.

curl -F file=@photo.jpg http://127.0.0.1:7860/ask
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

from app.serving import Busy, Limits, Site, Visits
from app.views import told, without_paths
from datasets.core.errors import SecondhandError

if TYPE_CHECKING:
    from starlette.requests import Request


#: What a form takes besides its file.
REST_OF_FORM = 16 << 10
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
#: One object a file: the fields of `learners.inference.Prediction` (its path as "file", the bare
#: name) and the rule, null for what is not a number.
ANSWERS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            **dict.fromkeys(("file", "label", "best", "reason"), _TEXT),
            **dict.fromkeys(("probability", "distance_p", "start", "end", "at"), _NUMBER),
            **{key: {"type": "array", "items": _TOP} for key in ("top", "branch")},
            "windows": {"type": "array", "items": {"type": "object"}},
            "set": {"type": "array", "items": _TEXT},
            "rule": _RULE,
        },
    },
}


def raw(component: Any) -> Any:
    """A Gradio component for files that hands on their paths and fetches nothing from addresses.

    One that takes several files gives a list, else the path or None. Gradio would decode a picture
    with all of Pillow's formats, write it anew and hand that on: the answer would not be the one that
    ``learners.predict`` gives, and those decoders would be open to all who ask. Methods are replaced on
    the component: Gradio writes a stub file into the source folder for every subclass of one.
    """
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


def add_api(site: Site) -> None:
    """Add the endpoints to the Blocks that is being built. They have no place on the page."""
    names = list(site.models)
    with gr.Column(visible=False):
        file = raw(gr.File(label="file"))
        files = raw(gr.File(file_count="multiple", label="files"))
        model = gr.Dropdown(names, value=None, label="model")
        at = gr.Number(label="at", value=None)
        threshold = gr.Number(label="threshold", value=None)
        out: Any = gr.JSON(label="answers")
        out.api_info = out.api_info_as_output = lambda: ANSWERS
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


def routes(site: Site, auth: Sequence[tuple[str, str]] | None, visits: Visits) -> list[Route]:
    """``GET /health`` and ``POST /ask``, which wants no client of Gradio's and is one request, not two.

    A form with ``file`` and, where wanted, ``model`` (else the first for the file's kind), ``at`` (a
    GPS time in seconds, for strain) and ``threshold`` (0 to 1; else the model's own rule) is answered
    by one object of `ANSWERS`, else by ``{"error": …}`` with a status that says whose turn it is: 4xx
    the client's, 503 the same again in a moment. A file that cannot be read is no error: its answer is
    "unknown" and the reason "bad file: …".

    Parameters
    ----------
    auth : names and passwords, given as HTTP Basic; None lets everybody ask. Health needs none.
    visits : its counts are a part of the page's health.
    """

    async def health(request: Request) -> JSONResponse:
        waiting = sum(served.waiting for served in site.models.values())
        counts = {"arriving": visits.arriving, "broken_off": visits.broken_off}
        return JSONResponse(
            {"status": "ok", "models": len(site.models), "waiting": waiting, **counts}
        )

    async def ask(request: Request) -> JSONResponse:
        try:
            _let_in(request, auth)
            _measure(request, site.limits)
            async with request.form(max_files=1, max_fields=3) as form:
                return JSONResponse(await _answer(site, form))
        except HTTPException as error:
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        except Busy as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        except SecondhandError as error:
            return JSONResponse({"error": str(error)}, 422)

    return [Route("/health", health), Route("/ask", ask, methods=["POST"])]


def _let_in(request: Request, auth: Sequence[tuple[str, str]] | None) -> None:
    if not auth:
        return
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    known = [base64.b64encode(f"{name}:{password}".encode()) for name, password in auth]
    # All are compared, each in constant time: how long it takes tells nothing.
    same = [hmac.compare_digest(given.strip().encode(), one) for one in known]
    if kind.lower() != "basic" or not any(same):
        raise HTTPException(
            401, "This page needs a name and a password.", {"WWW-Authenticate": "Basic"}
        )


def _measure(request: Request, limits: Limits) -> None:
    """Refuse by the stated length, before anything is read; the server reads no more than that."""
    length = request.headers.get("content-length", "")
    if not length.isascii() or not length.isdigit():
        raise HTTPException(411, "State the length of the request (Content-Length).")
    if int(length) > (limits.megabytes << 20) + REST_OF_FORM:
        raise HTTPException(413, f"More than the {limits.megabytes} MB that this page takes.")


async def _answer(site: Site, form: Any) -> dict[str, Any]:
    file = form.get("file")
    if not getattr(file, "filename", None):
        raise HTTPException(400, "Send a form with a file: curl -F file=@photo.jpg")
    name = form.get("model") or site.choose([file.filename])
    if name not in site.models:
        raise HTTPException(400, f"model: this page has {', '.join(site.models)}")
    at, threshold = _number(form, "at"), _number(form, "threshold")
    if threshold is not None and not 0 <= threshold <= 1:
        raise HTTPException(400, f"threshold {threshold}: 0 to 1")
    folder = Path(site.uploads) / secrets.token_hex(16)
    path = folder / (
        re.sub(r"[^\w.-]", "_", file.filename, flags=re.ASCII)[-80:].lstrip("._") or "file"
    )
    try:
        await asyncio.to_thread(_write, file.file, path)
        answer = await site.answer(name, str(path), at)
    except Busy:
        raise
    except SecondhandError as error:
        raise SecondhandError(without_paths(str(error), str(path))) from None
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return told(answer, site.rule(name, threshold))


def _number(form: Any, key: str) -> float | None:
    given = form.get(key)
    if given is None or given == "":
        return None
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(400, f"{key}: a number is wanted")
    return value


def _write(source: Any, path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with open(path, "wb") as file:
        shutil.copyfileobj(source, file)
