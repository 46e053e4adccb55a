"""Routes beside the page, for programs and scripts that want no client of Gradio's: JSON both ways.

    curl -F file=@photo.jpg http://127.0.0.1:7860/ask

One request an answer: Gradio takes two, an upload and a call, and longer over them than over the file.
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

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.serving import Busy
from app.views import told, without_paths
from datasets.errors import SecondhandError

if TYPE_CHECKING:
    from starlette.requests import Request

    from app.backend import Site
    from app.serving import Limits

#: What a form takes besides its file.
REST_OF_FORM = 16 << 10


def routes(site: Site, limits: Limits, auth: Sequence[tuple[str, str]] | None) -> list[Route]:
    """``GET /health`` and ``POST /ask``.

    A form with ``file`` and, where wanted, ``model`` (else the first for the file's kind), ``at`` (a
    GPS time in seconds, for strain) and ``threshold`` (0 to 1; else the model's own rule) is answered by one object of `app.inputs.ANSWERS`, else by ``{"error": …}``
    with a status that says whose turn it is: 4xx the client's, 503 the same again in a moment. A file
    that cannot be read is no error: its answer is "unknown" and the reason "bad file: …".

    Parameters
    ----------
    auth : names and passwords, given as HTTP Basic; None lets everybody ask. Health needs none.
    """

    async def health(request: Request) -> JSONResponse:
        waiting = sum(served.waiting for served in site.models.values())
        return JSONResponse({"status": "ok", "models": len(site.models), "waiting": waiting})

    async def ask(request: Request) -> JSONResponse:
        try:
            _let_in(request, auth)
            _measure(request, limits)
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
