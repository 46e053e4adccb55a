"""The API for programs: ``POST /predict``, ``GET /models`` and ``GET /health``.

curl -F file=@photo.jpg http://127.0.0.1:7860/predict
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import math
import secrets
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.door import Traffic
from app.rules import rule_at
from app.serving import Busy, Site
from app.uploads import tells_parts
from app.views import under_rule
from datasets.core.errors import SecondhandError
from learners.rule.thresholds import check_threshold

if TYPE_CHECKING:
    from starlette.datastructures import FormData
    from starlette.requests import Request


#: Bytes of a form besides its files.
REST_OF_FORM = 16 << 10


def routes(site: Site, traffic: Traffic) -> list[Route]:
    """The API, of which all but ``/health`` asks for a name and a password of the site's settings (HTTP Basic).

    ``POST /predict`` takes a form with ``file``, once or several times, and, optionally, ``model`` (else the first
    for the kind of the files), ``at`` (the GPS time of strain, the seconds from the start of a sound) and
    ``threshold`` (0 to 1; else the model's rule). The result is what `app.views.under_rule` makes of the prediction,
    or a list of several, or ``{"error": …}`` with status 4xx (the request is wrong) or 503 (try again in a moment).
    A file that cannot be read is no error: its label is "unknown" and the reason "bad file: …".

    Parameters
    ----------
    traffic : counts that ``/health`` reports.
    """

    async def health(request: Request) -> JSONResponse:
        waiting = sum(served.waiting for served in site.models.values())
        models = {"models": len(site.models), "failed": list(site.not_opened())}
        counts = {"arriving": traffic.arriving, "disconnected": traffic.disconnected}
        return JSONResponse({"status": "ok", **models, "waiting": waiting, **counts})

    async def answer(request: Request) -> JSONResponse:
        try:
            _let_in(request, site.settings.passwords)
            if request.method != "POST":
                return JSONResponse(_models(site))
            _measure(request, site.settings.max_mb * site.settings.max_files)
            async with request.form(max_files=site.settings.max_files, max_fields=3) as form:
                answers = await _predict(site, form)
            return JSONResponse(answers if len(answers) > 1 else answers[0])
        except HTTPException as error:
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        except Busy as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        except SecondhandError as error:
            return JSONResponse({"error": str(error)}, 422)

    return [
        Route("/health", health),
        Route("/models", answer),
        Route("/predict", answer, methods=["POST"]),
    ]


def _models(site: Site) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "kind": served.kind.name,
            "classes": served.predictor.classes,
            "rule": rule_at(served.predictor, None).as_json(),
        }
        for name, served in site.models.items()
    ]


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
    """Refuse a request of more than ``most`` MB before its body is read; the server reads no more than it announces."""
    length = request.headers.get("content-length", "")
    if not length.isascii() or not length.isdigit():
        raise HTTPException(
            411, "The header Content-Length is missing. Send the request's length in it."
        )
    if int(length) > (most << 20) + REST_OF_FORM:
        raise HTTPException(413, f"The request is larger than {most} MB. Send fewer files.")


async def _predict(site: Site, form: FormData) -> list[dict[str, Any]]:
    """What `app.views.under_rule` makes of the prediction of each file of a form.

    Raises
    ------
    HTTPException : there is no file, or a file is too large. SecondhandError : a wrong field, or as `Site.predict_many`.
    """
    files = [
        file for file in form.getlist("file") if isinstance(file, UploadFile) and file.filename
    ]
    if not files:
        raise HTTPException(400, "The form has no file. Send one: curl -F file=@photo.jpg")
    if max(file.size or 0 for file in files) > (site.settings.max_mb << 20):
        raise HTTPException(
            413, f"A file is larger than the {site.settings.max_mb} MB that this page takes."
        )
    at, threshold, model = _number(form, "at"), _number(form, "threshold"), form.get("model")
    if model and model not in site.models:
        models = ", ".join(site.models) or "no model yet"
        raise SecondhandError(f"model {str(model)[:100]}: this page has {models}")
    if threshold is not None:
        check_threshold(threshold)
    folder = Path(site.uploads) / secrets.token_hex(16)
    try:
        paths = await asyncio.to_thread(_write, files, folder)
        name = (
            str(model) if model else site.choose([p for p in paths if not tells_parts(p)] or paths)
        )
        served = site.models[name]
        rule = rule_at(served.predictor, threshold)
        answers = await site.predict_many(name, paths, at)
        return [under_rule(answer, rule, served.top) for answer in answers]
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _number(form: FormData, key: str) -> float | None:
    text = form.get(key)
    if text is None or text == "":
        return None
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise SecondhandError(f"{key} {str(text)[:100]}: expected a number")
    return value


def _plain_name(name: str) -> str:
    """The name under which an upload is written: letters and digits of any script, and its ending."""
    composed = unicodedata.normalize("NFC", name)
    plain = "".join(
        c if unicodedata.category(c)[0] in "LMN" or c in ".-" else "_" for c in composed
    )
    # A name has 255 bytes, and a letter up to four. A hidden file would be nobody's.
    plain = plain[-60:]
    return f"file{plain}" if not plain.strip("._") or plain[0] in "._" else plain


def _write(files: Sequence[UploadFile], folder: Path) -> list[str]:
    """Write each file under its own name in a folder of its own."""
    paths = []
    for number, file in enumerate(files):
        path = folder / str(number) / _plain_name(file.filename or "")
        path.parent.mkdir(parents=True)
        with open(path, "wb") as opened:
            shutil.copyfileobj(file.file, opened)
        paths.append(str(path))
    return paths
