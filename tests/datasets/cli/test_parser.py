"""The commands' parser: what words and YAML mean by the type of a setting, and what is wrong with others."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from datasets.cli.conflicts import Conflict
from datasets.cli.options import Checked, Limits, option, positional
from datasets.cli.parser import Parser, WrongCall, converted, metavar
from datasets.core.errors import SecondhandError


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, "3", 3), (int, 3, 3), (float, "1e-5", 1e-5), (float, 3, 3.0), (str, "3", "3"), (Path, "a b", Path("a b")),
        (bool, True, True), (int | None, None, None), (str | None, "null", None), (str, "null", "null"),
        (int | str | None, "5", 5), (int | str | None, "fold", "fold"), (str | int | None, "5", "5"),
        (float | Literal["auto"], "auto", "auto"), (float | Literal["auto"], "2", 2.0),
        (Literal["a", "b"], "b", "b"), (str | list[str], ["a", "b"], ["a", "b"]), (list[str], ["a"], ["a"]),
        (tuple[int, int], "[4,5]", (4, 5)), (tuple[int, int], "4,5", (4, 5)), (tuple[int, int], [4, 5], (4, 5)),
    ],
)  # fmt: skip
def test_a_value_is_read_by_the_type_of_its_setting(hint: Any, value: Any, expected: Any) -> None:
    found = converted(hint, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("hint", "value", "wanted"),
    [
        (int, "x", "a whole number"), (int, 2.5, "a whole number"), (int, True, "a whole number"),
        (int, None, "a whole number"), (float, "", "a number"), (str, 3, "text"), (bool, "yes", "yes or no"),
        (float | Literal["auto", "off"] | None, "fast", "a number or auto, off"), (list[str], [1], "texts"),
        (tuple[int, int], "4", "two whole numbers"), (tuple[int, int], [4, "x"], "two whole numbers"),
    ],
)  # fmt: skip
def test_what_it_must_be_is_said(hint: Any, value: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^must be {wanted}$"):
        converted(hint, value)


def test_the_placeholder_of_a_value_shows_its_type() -> None:
    hints = (int, float | Literal["auto"] | None, Literal["a", "b"], Path | None, str)
    assert [metavar(hint) for hint in hints] == ["N", "X|auto", "{a,b}", "PATH", None]


@dataclass(kw_only=True)
class Shared(Checked):
    """hardware"""

    bs: int = option(8, "Batch size.", limits=Limits(low=1))


@dataclass(kw_only=True)
class Drawing(Shared):
    """drawing

    More about it.
    """

    model: str = positional("Model folder.")
    paths: list[str] = positional("Files.", [])
    kind: Literal["dots", "lines"] = option("dots", "What to draw, 20 % of it.")
    data: str = option(MISSING, "Data.", once=True)
    names: list[str] = option([], "Names.")
    grid: bool = option(True, "Draw a grid.")

    conflicts = (Conflict("grid", "kind", remedy="use --kind dots"),)


HELP = """usage: python -m learners.draw MODEL [PATH...] [flags]

Draw.

examples:
  draw it
"""


def parser() -> Parser:
    return Parser(HELP, Drawing, files=True)


def read(*words: str) -> dict[str, Any]:
    return parser().read(words)


def test_words_without_a_flag_may_stand_anywhere() -> None:
    expected = {"model": "m", "paths": ["a", "b"], "data": "d", "bs": 2}
    assert read("m", "a", "b", "--data", "d", "--bs", "2") == expected
    assert read("--data", "d", "m", "--bs=2", "a", "b") == expected
    assert read("m", "a", "--bs", "2", "b", "--data=d") == expected
    assert read("m", "--data", "d") == {"model": "m", "data": "d"}


def test_flags_that_can_be_repeated_are_kept_and_others_taken_last() -> None:
    found = read("m", "--data", "d", "--names", "a", "--names", "b", "--bs", "1", "--bs", "2")
    assert (found["names"], found["bs"]) == (["a", "b"], 2)
    with pytest.raises(SecondhandError, match="--data is given 2 times"):
        read("m", "--data", "d", "--data", "e")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("m --data d --kind dot", "--kind dot: must be dots, lines"),
        ("m --data d --bs", "--bs needs a value"),
        ("m --data d --grid=no", "A switch takes no value: write --grid or --no-grid"),
        ("m --data d --knid dots", "there is no flag --knid. Did you mean --kind?"),
        ("", "MODEL and --data are missing.\nusage: python -m learners.draw MODEL"),
    ],
)
def test_a_wrong_call_is_told_in_a_line(words: str, message: str, capsys: Any) -> None:
    with pytest.raises(WrongCall) as error:
        read(*words.split())
    assert str(error.value).startswith(message)
    with pytest.raises(SystemExit) as end:
        parser().chosen(words.split())
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {error.value}\n(python -m learners.draw --help)\n"


def test_all_that_is_wrong_with_the_values_is_told() -> None:
    words = ["m", "--data", "d", "--bs", "0", "--kind", "lines", "--no-grid"]
    with pytest.raises(SecondhandError) as error:
        parser().parse(Drawing, words)
    assert str(error.value) == (
        "invalid settings: --bs 0 (must be 1 or more); --no-grid with --kind lines (use --kind dots)"
    )
    assert parser().parse(Drawing, words[:3]) == Drawing(model="m", data="d")


def test_the_help_has_a_group_for_each_class_of_settings() -> None:
    text = parser().format_help()
    assert text.index("\ndrawing:\n") < text.index("\nhardware:\n")
    assert "What to draw, 20 % of it. (default: dots)" in text
    assert "Batch size. (range: 1 or more; default: 8)" in text
    assert "Draw a grid. (default: on)" in text
    assert "Data. (required)" in text
    assert text.endswith("\nexamples:\n  draw it\n")


def test_a_file_gives_what_no_flag_gives(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("bs: 3\ngrid: false\nnames: [a]\n")
    words = ["m", "--data", "d", "--config", str(file), "--bs", "2"]
    assert read(*words) == {"model": "m", "data": "d", "bs": 2, "grid": False, "names": ["a"]}
    with pytest.raises(SystemExit):
        read(*words, "--print_config")
    file.write_text(capsys.readouterr().out)
    assert parser().parse(Drawing, ["--config", str(file)]) == parser().parse(Drawing, words)
