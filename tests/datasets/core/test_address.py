"""What is on a disk needs no door, and an address is answered by the door of its scheme alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from datasets.core import address
from datasets.core.doors import DOORS, Door
from datasets.core.errors import BadFile, Rejected
from datasets.core.file_state import FileState
from datasets.core.part import AnyPath
from datasets.core.scanning import walk
from datasets.kinds.base import find_kind


@pytest.fixture
def attic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The door of ``attic://``, which has files of a folder; what it was told to read ahead."""
    ahead: list[list[str]] = []

    def at(name: str) -> Path:
        return tmp_path / name.removeprefix("attic://")

    def walked(name: str, rejected: list[Rejected]) -> Iterator[str]:
        yield from (
            f"attic://{file.relative_to(tmp_path)}" for file in sorted(at(name).rglob("*.*"))
        )

    def read_ahead(items: Iterator[Any], path_of: Callable[[Any], AnyPath]) -> Iterator[Any]:
        every = [*items]
        ahead.append([str(path_of(item)) for item in every])
        yield from every

    door = Door(
        name="attic",
        example="attic://fox",
        schemes=("attic",),
        path=at,
        local=at,
        state=lambda name: (os.path.getsize(at(name)), 0, 0, 7),
        member=lambda name: name.partition("#")[0],
        is_held=lambda name: False,
        plain_name=lambda name: PurePosixPath(name).name,
        contents=lambda name: name.replace(".box", "/box"),
        matches=lambda pattern: [pattern],
        walk=walked,
        nameless=lambda name: [Rejected(name, "no name")],
        read_ahead=read_ahead,
        put=lambda file, name: None,
        without_secrets=lambda name: name.replace("SECRET", ""),
        remembered=lambda name: name.replace("SECRET", ""),
        hidden=lambda text: text.replace("SECRET", ""),
        ask_again=lambda name: None,
        work_for=lambda run: None,
    )
    things = dict(DOORS.ours())
    monkeypatch.setattr(DOORS, "_things", things)
    DOORS.add(door)
    return ahead


@pytest.mark.parametrize(
    "name", ["C:/a.jpg", "demo:digits", "a::b.jpg", "file:///a.jpg", "/data/a.jpg"]
)
def test_what_is_on_a_disk_is_asked_of_no_door(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DOORS, "ours", lambda: pytest.fail("asked"))
    assert not address.is_address(name)
    assert address.local(name) is name
    assert address.as_path(name) == Path(name)
    assert address.member(name) == address.without_secrets(name) == address.remembered(name) == name
    assert address.absolute(name) == os.path.abspath(name)
    assert address.split(name) == os.path.split(name)
    assert [*address.read_ahead([name], str)] == [name]
    assert not address.is_folder(name)
    assert not address.is_held(name)
    assert address.nameless_in(Path(name)) == []


def test_a_door_answers_for_the_addresses_of_its_scheme(
    attic: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "fox").mkdir()
    (tmp_path / "fox/1.png").write_bytes(b"12345")
    name = "attic://fox/1.png"
    assert Path(address.local(name)).read_bytes() == b"12345"
    assert (address.absolute(name), address.exists(name)) == (name, True)
    assert address.is_folder("ATTIC://fox".lower())
    assert [*walk("attic://", [])] == [name]
    assert find_kind(f"{name}#3") == find_kind("1.png")
    state = FileState.read(name)
    assert state is not None
    assert (state.size, state.inode) == (5, 7)
    assert address.contents("/data/a.box") == "/data/a/box"
    assert address.without_secrets(f"{name}SECRET") == address.hidden(f"{name}SECRET") == name


def test_files_are_read_ahead_from_the_first_address_on(attic: list[list[str]]) -> None:
    names = ["/data/1.png", "/data/2.png", "attic://3.png", "/data/4.png"]
    read = address.read_ahead(iter(names), str)
    assert [next(read), next(read)] == names[:2]
    assert attic == []
    assert [*read] == names[2:]
    assert attic == [names[2:]]


def test_a_scheme_without_a_door_is_refused_and_the_others_are_named(
    attic: list[list[str]],
) -> None:
    assert [*address.read_ahead(["cellar://a.png"], str)] == ["cellar://a.png"]
    for ask in (address.as_path, address.local, address.without_secrets, address.matches):
        with pytest.raises(
            BadFile, match=r"cellar://a.*cellar:// is not read.*attic://"
        ) as refused:
            ask("cellar://USER:WORD@a.png?key=WORD")
        assert "WORD" not in str(refused.value)


def test_no_sentence_has_a_secret_where_there_is_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DOORS, "_things", {})
    monkeypatch.setattr(DOORS, "_all", dict)
    said = "cellar://USER:WORD@host/a.png?key=WORD is not there. Why?"
    assert address.hidden(said) == "cellar://host/a.png is not there. Why?"
    assert address.hidden("a@b? no") == "a@b? no"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_a_bad_file_which_nothing_waits_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    os.mkfifo(tmp_path / "a.wav")
    for name in ("a.jpg", "a.wav"):
        kind = find_kind(name)
        assert kind is not None
        with pytest.raises(BadFile, match="a pipe"):
            kind.look(str(tmp_path / name), True)
