"""Kinds of files tell themselves apart by suffix, and the rest of the program never does."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.part import Box, Part
from datasets.kinds.base import KINDS, Kind, find_kind, kind_of, spectrogram_from_dict

ROOT = Path(__file__).parents[3]
OURS = ("picture", "sound", "strain")
FILES = [
    path
    for package in ("datasets", "learners", "app", "fields", "secondhand")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "datasets/kinds" not in path.as_posix()
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.JPG", "picture"),
        ("b/c.rf64", "sound"),
        ("e.txt", "strain"),
        ("f.txt.gz", "strain"),
        ("notes.pdf", None),
        ("wav", None),
    ],
)
def test_the_longest_suffix_tells_the_kind(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind
    assert find_kind(name) is (kind and KINDS[kind])


def test_ours_are_registered_and_sent_to_other_processes() -> None:
    assert {*OURS} <= {*KINDS.ours()}
    assert pickle.loads(pickle.dumps([*KINDS.ours().values()])) == [*KINDS.ours().values()]


def test_a_kind_without_settings_has_no_spectrogram() -> None:
    with pytest.raises(SecondhandError, match=r"kind='picture' \(must be one of sound, strain\)"):
        spectrogram_from_dict({"kind": "picture", "renderer": 1})


def test_a_kind_must_be_drawn_or_be_a_picture() -> None:
    class Film(Kind):
        name, suffixes = "film", (".mp4",)

    with pytest.raises(SecondhandError, match="'film' has no settings"):
        Film()


def test_a_kind_is_drawn_with_the_settings_of_a_network_of_its_own() -> None:
    mel = {"rate": 16_000, "n_mels": 64}
    assert [name for name in OURS if KINDS[name].takes(mel)] == ["sound"]
    assert all(KINDS[name].takes({}) for name in OURS)


def test_the_cells_of_a_part_are_columns_of_its_kind() -> None:
    part = Part("a", 1.0, 2.5, 1126259450.5, Box(0.1, 0.2, 0.3, 0.4))
    cells = {name: KINDS[name].cells(part) for name in ("picture", "sound", "strain")}
    assert cells["picture"] == {"x": "0.1", "y": "0.2", "width": "0.3", "height": "0.4"}
    assert cells["sound"] == {"start": "1.0", "end": "2.5"}
    assert cells["strain"] == {"gps": "1126259450.5"}
    assert all(KINDS[name].cells(Part("a")) == {} for name in OURS)


def test_a_moment_is_asked_of_a_signal_alone() -> None:
    for name in ("sound", "strain"):
        KINDS[name].check_moment(1.5)
    KINDS["picture"].check_moment(None)
    with pytest.raises(SecondhandError, match=r"--at 1\.5"):
        KINDS["picture"].check_moment(1.5)


def _names_ours(nodes: Iterable[ast.AST | None]) -> bool:
    return any(isinstance(one, ast.Constant) and one.value in OURS for one in nodes)


def comparisons(path: Path) -> Iterator[str]:
    """The comparisons, and look-ups in `KINDS`, in which a file names one of our kinds, or imports its module."""
    named: list[ast.AST | None]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            named = [one for part in (node.left, *node.comparators) for one in ast.walk(part)]
            of_kind = _names_ours(named) and "kind" in ast.unparse(node)
        elif isinstance(node, ast.Dict):  # a table of the kinds
            keys = [one.value for one in node.keys if isinstance(one, ast.Constant)]
            named, of_kind = [*node.keys], len(keys) > 1 and {*keys} <= {*OURS}
        elif isinstance(node, ast.Subscript) and _names_ours([node.slice]):
            named, of_kind = [node.slice], "KINDS" in ast.unparse(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("datasets.kinds"):
            named = [ast.Constant(node.module.rpartition(".")[2])]  # type: ignore[union-attr]
            of_kind = True
        else:
            continue
        if of_kind and _names_ours(named):
            yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def test_no_other_file_asks_which_kind_it_is() -> None:
    """It asks what the kind can do; so one file is enough to add a kind."""
    assert [line for path in FILES for line in comparisons(path)] == []
