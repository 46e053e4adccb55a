"""A registry finds what the fields that are here add, and only that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import fields
from datasets.core.registry import Registry, of_fields
from datasets.core.shipped import Shipped, needed_for_body, needed_for_columns, needed_for_files


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A registry ``toys`` of this program, and two fields of which one adds to it by a file and one by a folder."""
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys/__init__.py").write_text(
        "from datasets.core.registry import Registry\n"
        "from types import SimpleNamespace as Toy\n"
        "TOYS = Registry('toys')\n"
    )
    (tmp_path / "toys/ball.py").write_text(
        "from toys import TOYS, Toy\nTOYS.add(Toy(name='ball'))\n"
    )
    for module, name in {"cats/toys": "mouse", "dogs/toys/stick": "stick"}.items():
        file = tmp_path / "fields" / f"{module}.py"
        file.parent.mkdir(parents=True)
        for folder in {file.parent, tmp_path / "fields" / module.partition("/")[0]}:
            (folder / "__init__.py").touch()
        file.write_text(f"from toys import TOYS, Toy\nTOYS.add(Toy(name='{name}'))\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fields, "__path__", [*fields.__path__, str(tmp_path / "fields")])
    yield tmp_path
    for module in [name for name in sys.modules if name.split(".")[0] == "toys"]:
        del sys.modules[module]
    for module in [name for name in sys.modules if name.startswith(("fields.cats", "fields.dogs"))]:
        del sys.modules[module]


def registry() -> Registry[object]:
    toys: Registry[object] = import_module("toys").TOYS
    return toys


def test_a_field_registers_itself_by_a_file_or_a_folder(toys: Path) -> None:
    assert [*of_fields("toys")] == ["fields.cats.toys", "fields.dogs.toys"]
    assert [*registry()] == ["ball", "mouse", "stick"]


def test_a_field_that_is_left_out_is_not_missed(
    toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fields.cats", None)
    assert [*registry()] == ["ball", "stick"]


def test_without_fields_the_core_is_there(toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fields", None)
    assert [*registry()] == ["ball"]


def test_what_needs_a_field_names_it_only_where_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shipped = {
        "cats": Shipped(reads="purrs", alone=(".purr",), bodies=("cat/",)),
        "birds": Shipped(reads="songs", alone=(".song",), columns=("wings",)),
    }
    monkeypatch.setattr("datasets.core.shipped.SHIPPED", shipped)
    here = ["cats"]
    monkeypatch.setattr(
        "datasets.core.shipped.left_out", lambda: [one for one in shipped if one not in here]
    )
    assert needed_for_files(["a.purr"]) == ""
    assert "fields/birds, which reads songs," in needed_for_files(["a.purr", "B.SONG", "c.song"])
    assert needed_for_files(["a.purr", "b.song"]) == ""
    assert "fields/birds" in needed_for_columns(["path", "wings"])
    assert needed_for_body("cat/tabby") == ""
    here.clear()
    assert "fields/cats" in needed_for_body("cat/tabby")
    assert "fields/cats" in needed_for_files(["a.purr"])
