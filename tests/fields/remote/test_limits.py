"""What an address leads to has limits, and what a server does wrong is not the file's fault."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from datasets.core import limits
from datasets.core.address import as_path, is_folder, local
from datasets.core.errors import BadFile, Unavailable
from datasets.sources.table import read_rows
from fields.remote import address, asking
from fields.remote.limits import HOLDERS, SCHEMES, check_address
from tests.datasets.files import picture, write
from tests.fields.remote.servers import Server, packed_tar, zipped


@pytest.mark.parametrize(
    "name",
    [
        "reference://a.jpg::https://host/refs.json", "REFERENCE://a.jpg::https://host/r.json",
        "zip://a.jpg::reference://b.zip::https://host/r.json", "zip://a.jpg:: Reference://x", "FTP://host/a.jpg",
        "github://user:name@main/a.jpg", "local:///etc/passwd", "memory://a.jpg", "zip://a.jpg::file:///all.zip",
        "simplecache://a::s3://bucket/a", "filecache://x::http://host/a", "s3://bucket/a::http://host/b",
        "jupyter://host/a", "dir://a::/tmp", "zip://a::zip://b::zip://c::zip://d::/e.zip", "data://text/plain,a",
    ],
)  # fmt: skip
def test_a_scheme_that_is_not_documented_is_read_nowhere(name: str, tmp_path: Path) -> None:
    for read in (local, as_path, _is_file, is_folder):
        with pytest.raises(BadFile) if read in (local, as_path) else _no(name):
            assert not read(name)
    table = write(
        tmp_path / "t.csv", f'path,label\n"{name}",cat\n{picture(tmp_path / "a.png")},dog\n'
    )
    rows = read_rows(table)
    assert rows.frame["label"].tolist() == ["dog"]
    (refused,) = rows.rejected
    assert refused.path == name
    assert "row 2 of t.csv" in refused.reason


def _is_file(name: str) -> bool:
    return as_path(name).is_file()


class _no:
    """Nothing is opened; whether that is an error or a no is left to the function."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        return kind is not None and issubclass(kind, BadFile)


def test_documented_schemes_are_those_that_are_read() -> None:
    text = Path("docs/buckets.md").read_text()
    assert [one for one in (*SCHEMES, *HOLDERS) if f"{one}://" not in text] == []
    for scheme in SCHEMES:
        check_address(f"zip://a.jpg::{scheme.upper()}://b/c.zip")


@pytest.mark.parametrize("pack", [zipped, packed_tar])
def test_a_member_that_swells_is_refused_and_one_that_does_not_is_read(
    pack: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_UNASKED", 1 << 20)
    name = pack(tmp_path / "small", 1 << 19)  # type: ignore[operator]
    assert os.path.getsize(local(name)) == 1 << 19
    with pytest.raises(BadFile, match=r"large.*bytes are packed here"):
        local(pack(tmp_path / "large", 1 << 24))  # type: ignore[operator]


def test_an_answer_that_does_not_end_is_stopped(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_BYTES", 1 << 20)
    plain, packed = bytes(6 << 20), gzip.compress(bytes(6 << 20))
    server.answers = lambda path: (
        (200, plain, {"Connection": "close", "Content-Length": str(len(plain))})
        if "plain" in path
        else (200, packed, {"Content-Encoding": "gzip"})
    )
    for name in ("plain", "packed"):
        with pytest.raises(BadFile, match=rf"{name}\.jpg.*1,048,576"):
            local(f"{server.url}/{name}.jpg")


def test_a_body_that_breaks_off_and_a_server_that_stumbles_are_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_PAUSES", (0.0,) * 5)
    content = bytes(range(100))

    def answers(path: str) -> tuple[int, bytes, dict[str, str]]:
        count = server.asked[path]
        if "cut" in path and count < 4:
            return 200, content[:50], {"Content-Length": "100", "ETag": '"1"'}
        if "busy" in path and count < 4:
            return 503, b"", {}
        return (503, b"", {}) if "never" in path else (200, content, {"ETag": '"1"'})

    server.answers = answers
    for name in ("cut", "busy"):
        assert Path(local(f"{server.url}/{name}.png")).read_bytes() == content
    with pytest.raises(Unavailable, match="503"):
        local(f"{server.url}/never.png")
    assert 6 <= server.asked["/never.png"] <= 12
    server.answers = lambda path: (200, content, {"ETag": '"1"'})  # what failed is not remembered
    assert Path(local(f"{server.url}/never.png")).read_bytes() == content


def test_a_file_of_which_the_server_says_nothing_is_what_it_holds(server: Server) -> None:
    """No ETag and no time: as many bytes as before may be others."""
    server.answers = lambda path: (200, b"one", {})
    name = f"{server.url}/a.txt"
    first = address.state(name)
    assert Path(local(name)).read_bytes() == b"one"
    server.answers = lambda path: (200, b"two", {})
    address.ask_again(name)
    assert address.state(name) != first
    assert Path(local(name)).read_bytes() == b"two"
