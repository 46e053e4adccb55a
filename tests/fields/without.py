"""Calls commands as if a field were not there: ``python -m tests.fields.without CALLS OUT``.

CALLS is a JSON file with a list of calls for each field. All are made in a process of the field, forked from this one,
which has imported what they share. OUT gets the exit status and the output of each.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from tests.pictures import sketch

#: What the calls import; none of it is of a field.
SHARED = (
    "app.interface", "app.serving", "learners.adjust", "learners.elsewhere.evaluation", "learners.evaluate",
    "learners.finetune", "learners.runs.finetuning", "learners.runs.stages", "secondhand.commands", "sklearn.decomposition",
    "sklearn.linear_model",
)  # fmt: skip


def call(words: list[str]) -> int:
    """The exit status of a command; ``page MODEL…`` builds the page of these models without serving it."""
    from secondhand.__main__ import main

    if words[0] == "page":
        return _build_page(words[1:])
    sys.argv = ["secondhand", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _build_page(models: list[str]) -> int:
    from app.interface import build_page
    from app.serving import Site, load
    from app.settings import PageSettings

    settings, served = PageSettings(port=0), {}
    for model in models:
        one = load(Path(model), settings, taken=served.keys())
        served[one.name] = one
    build_page(Site(served, "/nowhere", settings)).close()
    return 0


def printed_by(words: list[str]) -> tuple[int, str]:
    """The exit status of a call, and what it prints."""
    with TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            status = call(words)
        except Exception:
            traceback.print_exc()
            status = -1
        sys.stdout.flush()
        sys.stderr.flush()
        file.seek(0)
        return status, file.read()


def main() -> None:
    calls: dict[str, list[list[str]]] = json.loads(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[2])
    sketch(pytest.MonkeyPatch())
    for name in SHARED:
        import_module(name)
    assert [name for name in sys.modules if name.startswith("fields.")] == []
    found: dict[str, Any] = {}
    for field, each in calls.items():
        child = os.fork()
        if not child:
            sys.modules[f"fields.{field}"] = None  # type: ignore[assignment]
            out.with_suffix(f".{field}").write_text(json.dumps([*map(printed_by, each)]))
            os._exit(0)
        os.waitpid(child, 0)
        file = out.with_suffix(f".{field}")
        found[field] = json.loads(file.read_text()) if file.exists() else []
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
