"""Values in templates are escaped."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jinja2
import pytest
from markupsafe import Markup

from learners.report.templates import _environment, flags, number, render, short

ROOT = Path(__file__).parents[3]
EVIL = "<script>alert(1)</script>\"'&\x00\x1b\u202e"


def filled(template: str, **values: object) -> str:
    return _environment("learners.report").from_string(template).render(values)


def test_outside_texts_are_never_markup():
    html = filled('<b title="{{ evil }}">{{ evil }}</b>{{ evil|short(12) }}', evil=EVIL)
    assert html.count("<") == 2
    assert html.count('"') == 2
    assert not {"\x00", "\x1b", "\u202e"} & {*html}
    assert "&lt;script&gt;" in html


def test_drawings_stay_as_they_are():
    svg = Markup("<svg>\n</svg>")
    assert filled("{{ drawn }}{{ words }}", drawn=svg, words="5\u00a0%") == f"{svg}5\u00a0%"


def test_what_is_not_given_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="is undefined"):
        render("learners.report", "folds.html", missing=[], links={})


def test_texts_are_cut_and_fractions_rounded():
    assert short("x" * 10_000, 50) == "x" * 49 + "…"
    assert [number(v) for v in (0.12345, 3, "a", None, float("nan"))] == ["0.123", 3, "a", "", ""]


def test_an_installed_package_has_what_is_read_beside_its_code():
    (patterns,) = re.findall(
        r"^DATA = ({.*?})", (ROOT / "setup.py").read_text(encoding="utf-8"), re.M | re.S
    )
    packed = {
        path
        for package, pattern in ast.literal_eval(patterns).items()
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    files = {
        path
        for room in ("fields", "app", "learners", "datasets")
        for path in (ROOT / room).rglob("*.*")
    }
    assert {path for path in files if path.suffix not in (".py", ".pyc")} == packed


def test_flags_are_code_and_all_else_is_text() -> None:
    marked = flags("a <b> (--labelled-completely) --x")
    code = '<code class="flag">--{}</code>'
    assert marked == f"a &lt;b&gt; ({code.format('labelled-completely')}) {code.format('x')}"
