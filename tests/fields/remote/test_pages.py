"""Pages that link to files are folders."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from datasets.core.address import is_folder, local
from datasets.core.scanning import LINK_LOOP, files_below
from datasets.sources.base import ReadOptions, read_source
from fields.remote.walking import TOO_DEEP
from tests.datasets.files import picture, write
from tests.fields.remote.servers import Server, page


def test_pages_of_links_give_files_and_folders_below_them_once(server: Server) -> None:
    """Those of Apache, nginx and lighttpd: with links that sort, to themselves, above and elsewhere."""
    others = [
        "?C=N;O=D",
        "?C=M&amp;O=A",
        "#top",
        "./",
        ".",
        "../",
        "/",
        "/data",
        "https://other.org/data/x.png",
    ]
    tree = {
        "/data/": page(*others, "red%20fox/", "R%C3%A4h/", "v1.0/", "/data/v1.0/"),
        "/data/red%20fox/": page(*others, "1.png", "./1.png", "1.png#x"),
        "/data/R%C3%A4h/": page(*others, "50%25.png"),
        "/data/v1.0/": page(*others, f"{server.url}/data/v1.0/3.png"),
    }
    server.answers = lambda path: (
        tree.get(path)
        or ((301, b"", {"Location": f"{path}/"}) if f"{path}/" in tree else (200, b"x", {"ETag": path}))
    )  # fmt: skip
    files, left_out = files_below(f"{server.url}/data/")
    names = [file.removeprefix(f"{server.url}/data/") for file in files]
    assert (sorted(names), left_out) == (["Räh/50%25.png", "red fox/1.png", "v1.0/3.png"], [])
    assert Path(local(files[0])).read_bytes() == b"x"
    assert is_folder(f"{server.url}/data/v1.0")


def test_a_class_folder_has_the_same_name_on_a_web_server(server: Server, tmp_path: Path) -> None:
    """Also with characters that an address writes as escapes, and with what looks like one; a table is literal, but for a #."""
    names = ["50% grey", "A#1", "a+b", "x;y", "red fox", "red%20fox", "Räh", "what?"]
    content = picture(tmp_path / "x.png").read_bytes()
    written = [quote(name, safe="#") for name in names]
    table = "path,label\n" + "".join(
        f"{cell}/1.png,{name}\n" for cell, name in zip(written, names, strict=True)
    )

    def answers(path: str) -> tuple[int, bytes, dict[str, str]]:
        if path == "/data/":
            return page(*(f"{quote(name)}/" for name in names))
        folder = unquote(path.removeprefix("/data/"))
        if path == "/data" or folder in names:
            return 301, b"", {"Location": f"{path}/"}
        if folder.rstrip("/") in names:
            return page("1.png", "2.png")
        if path.endswith("items.csv"):
            return 200, table.encode(), {"ETag": "table", "Content-Type": "text/csv"}
        return 200, content, {"ETag": path, "Content-Type": "image/png"}

    server.answers = answers
    for name in names:
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in "12":
            write(tmp_path / "data" / name / f"{number}.png", "")
    (tmp_path / "data" / "items.csv").write_text(table)
    for there in (f"{server.url}/data", str(tmp_path / "data")):
        frame = read_source(f"{there}/", ReadOptions()).frame
        assert sorted(frame["label"]) == sorted([*names, *names]), there
        frame = read_source(f"{there}/items.csv", ReadOptions()).frame
        assert frame["label"].tolist() == names, there
        assert all(Path(local(path)).is_file() for path in frame["path"]), there
    assert Path(local(f"{server.url}/data/50%25%20grey/1.png")).read_bytes() == content


@pytest.mark.parametrize(
    ("answer", "why", "requests"),
    [
        (lambda path: page("a/", "1.png"), LINK_LOOP, 12),
        (lambda path: page(f"{path.count('/')}/", f"{path.count('/')}.png"), TOO_DEEP, 150),
    ],
)  # fmt: skip
def test_folders_without_end_are_left_out(
    server: Server, answer: object, why: str, requests: int
) -> None:
    def answers(path: str) -> tuple[int, bytes, dict[str, str]]:
        if path.endswith("/"):
            return answer(path)  # type: ignore[operator, no-any-return]
        return 301, b"", {"Location": f"{path}/"}

    server.answers = answers
    files, left_out = files_below(f"{server.url}/data")
    assert files
    assert [one.reason for one in left_out] == [why]
    assert server.asked.total() <= requests
