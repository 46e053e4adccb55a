"""What comes from elsewhere has limits, and what a server does wrong is not the file's fault."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sys
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets.core import address, limits
from datasets.core.address import as_path, is_file, is_folder, local
from datasets.core.errors import BadFile, SecondhandError, Unavailable
from datasets.core.guarded import guarded
from datasets.core.members import ParquetMembers
from datasets.core.scanning import LINK_LOOP, TOO_DEEP, files_below
from datasets.images.opening import open_picture
from datasets.kinds.base import find_kind
from datasets.sources.base import ReadOptions, read_source
from datasets.sources.table import read_rows
from datasets.tables.cells import read_cells
from tests.datasets.files import picture, write

#: Status, body and headers.
Answer = tuple[int, bytes, dict[str, str]]


class Server:
    """A web server whose answers a function gives: status, body and headers by path.

    Attributes
    ----------
    asked : paths of its requests, counted.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answers = lambda path: (404, b"", {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked[self.path] += 1
                status, body, headers = outer.answers(self.path)
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)
                    self.close_connection = self.close_connection or "Content-Length" in headers

            do_HEAD = do_GET

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *words: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def page(*links: str) -> tuple[int, bytes, dict[str, str]]:
    text = "".join(f"<tr><td><a class=x href='{link}'>x</a>" for link in links)
    return 200, f"<html><table>{text}</table>".encode(), {"Content-Type": "text/html"}


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
    for read in (local, as_path, is_file, is_folder):
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
    assert [one for one in (*limits.SCHEMES, *limits.HOLDERS) if f"{one}://" not in text] == []
    for scheme in limits.SCHEMES:
        limits.check_address(f"zip://a.jpg::{scheme.upper()}://b/c.zip")


def zipped(file: Path, size: int) -> str:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.wav", bytes(size))
    return f"zip://a/b.wav::{file}"


def packed_tar(file: Path, size: int) -> str:
    with tarfile.open(file, "w:gz") as archive:
        about = tarfile.TarInfo("a/b.wav")
        about.size = size
        archive.addfile(about, io.BytesIO(bytes(size)))
    return f"tar://a/b.wav::{file}"


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
    monkeypatch.setattr(address, "_PAUSES", (0.0,) * 5)
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
    """Also with characters that an address writes as escapes, and with what looks like one; a table is literal."""
    names = ["50% grey", "A#1", "a+b", "x;y", "red fox", "red%20fox", "Räh", "what?"]
    content = picture(tmp_path / "x.png").read_bytes()
    table = "path,label\n" + "".join(f"{quote(name)}/1.png,{name}\n" for name in names)

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


def far_sheet(file: Path) -> None:
    """One cell in the last row and column."""
    kinds = "application/vnd.openxmlformats"
    ns = "http://schemas.openxmlformats.org"
    sheet = f"{kinds}-officedocument.spreadsheetml"
    cells = (
        '<row r="1"><c r="A1" t="inlineStr"><is><t>path</t></is></c></row>'
        '<row r="1048576"><c r="XFD1048576" t="inlineStr"><is><t>x</t></is></c></row>'
    )
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{ns}/package/2006/content-types"><Default Extension="xml" ContentType="application/xml"/><Default Extension="rels" ContentType="{kinds}-package.relationships+xml"/><Override PartName="/xl/workbook.xml" ContentType="{sheet}.sheet.main+xml"/><Override PartName="/xl/worksheets/sheet1.xml" ContentType="{sheet}.worksheet+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{ns}/package/2006/relationships"><Relationship Id="rId1" Type="{ns}/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{ns}/spreadsheetml/2006/main" xmlns:r="{ns}/officeDocument/2006/relationships"><sheets><sheet name="s" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{ns}/package/2006/relationships"><Relationship Id="rId1" Type="{ns}/officeDocument/2006/relationships/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{ns}/spreadsheetml/2006/main"><sheetData>{cells}</sheetData></worksheet>',
    }
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, f'<?xml version="1.0"?>{text}')


def long_line(file: Path) -> None:
    with gzip.open(file, "wb", 1) as out:
        out.write(b"path,label\na.jpg," + bytes([99]) * (3 << 20) + b"\n")


def many_cells(file: Path) -> None:
    with gzip.open(file, "wb", 1) as out:
        out.write(b"path,label,x\n" + b"a,b,\n" * (11 << 20))


def same_labels(file: Path) -> None:
    """One label of 32 MB in 200 rows: 6 GB."""
    words = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(200, np.int32)), pa.array(["c" * (32 << 20)])
    )
    table = pa.table({"path": ["a.jpg"] * 200, "label": words})
    pq.write_table(
        table, file, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 30
    )


@pytest.mark.parametrize(
    ("name", "make"),
    [("a.xlsx", far_sheet), ("a.csv.gz", long_line), ("b.csv.gz", many_cells), ("a.parquet", same_labels)],
)  # fmt: skip
def test_a_small_table_that_swells_is_one_error(name: str, make: object, tmp_path: Path) -> None:
    make(tmp_path / name)  # type: ignore[operator]
    assert (tmp_path / name).stat().st_size < 1 << 20
    with pytest.raises(BadFile, match=name):
        read_cells(tmp_path / name)


def test_an_array_that_is_not_used_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez_compressed(file, path=np.array(["a"]), label=np.array(["c"]), other=np.zeros(10))
    content = file.read_bytes()
    with zipfile.ZipFile(file, "w") as archive, zipfile.ZipFile(io.BytesIO(content)) as old:
        for one in old.namelist():
            data = old.read(one)
            archive.writestr(one, data[:-80] if one == "other.npy" else data)  # cut off
    assert read_cells(file).to_dict("list") == {"path": ["a"], "label": ["c"]}


def test_pictures_that_a_table_repeats_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    file, size = tmp_path / "a.parquet", 24 << 20
    same = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(64, np.int32)), pa.array([bytes(size)], pa.binary())
    )
    pq.write_table(
        pa.table({"image": same}),
        file,
        compression="zstd",
        store_schema=False,
        dictionary_pagesize_limit=1 << 30,
    )
    members = ParquetMembers(str(file))
    before = pa.total_allocated_bytes()
    assert len(members.open("image/3.png", "rb").read()) == size
    assert pa.total_allocated_bytes() - before < 32 * size
    for row in (63, 0, 5):
        assert len(members.open(f"image/{row}.png", "rb").read()) == size


def _dies() -> None:
    os.abort()


def _takes() -> int:
    return len(bytes(2 * limits.MOST_MEMORY))


@pytest.mark.parametrize("read", [_dies, _takes])
def test_a_reader_that_dies_or_takes_too_much_costs_one_table(read: object) -> None:
    with pytest.raises(BadFile, match=r"a\.ods"):
        guarded("a.ods", read)  # type: ignore[arg-type]
    assert guarded("a.ods", sum, [1, 2]) == 3


def _zip(file: Path, colours: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for colour in colours:
            for number in range(2):
                archive.writestr(f"{colour}/{number}.png", colour)


def _tar(file: Path, members: list[tuple[str, str]]) -> None:
    with tarfile.open(file, "w") as archive:
        for name, text in members:
            about = tarfile.TarInfo(name)
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text.encode()))


def _class_tar(file: Path, colours: str) -> None:
    _tar(file, [(f"{colour}/{n}.png", colour) for colour in colours for n in range(2)])


def _shard(file: Path, colours: str) -> None:
    pairs = [(f"{number}", colour) for number, colour in enumerate(colours * 2)]
    _tar(file, [(f"{n}.{end}", text) for n, text in pairs for end in ("png", "cls")])


def _parquet(file: Path, colours: str) -> None:
    pictures = [{"bytes": colour.encode(), "path": "a.png"} for colour in colours * 2]
    pq.write_table(pa.table({"image": pictures, "label": [*colours] * 2}), file)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("all.zip", _zip), ("all.tar", _class_tar), ("shard-000.tar", _shard), ("all.parquet", _parquet),
    ],
)  # fmt: skip
def test_an_archive_that_is_replaced_is_read_as_it_is_now(
    name: str, pack: Callable[[Path, str], None], in_place: bool, tmp_path: Path
) -> None:
    """Each file is its label: new labels have new files, also where all has the same size as before."""
    file = tmp_path / name
    for labels in ("ab", "cd"):
        written = file if in_place else tmp_path / f"beside-{name}"
        pack(written, labels)
        written.replace(file)
        rows = read_source(str(file), ReadOptions(kind="picture")).frame
        contents = [Path(local(path)).read_text() for path in rows["path"]]
        assert contents == [*rows["label"]]
        assert sorted(contents) == sorted(labels * 2)


def test_too_many_open_files_are_no_fault_of_a_file() -> None:
    with pytest.raises(SecondhandError, match=r"too many open files.*ulimit -n"):
        limits.check_open_files(OSError(24, "Too many open files", "/data/a.jpg"))
    of_torch = "Too many open files. Communication with the workers is no longer possible. Please"
    for said in (of_torch, "received 0 items of ancdata"):
        with pytest.raises(SecondhandError, match=r"too many open files.*ulimit -n"):
            limits.check_open_files(RuntimeError(said))
    limits.check_open_files(FileNotFoundError(2, "No such file"))
    limits.check_open_files(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize(
    ("number", "winerror", "expected"),
    [
        (errno.EBUSY, None, "is held by another program (Device or resource busy): close it"),
        (errno.ETXTBSY, None, "is held by another program (Text file busy)"),
        (errno.EAGAIN, None, "is held by another program (Resource temporarily unavailable)"),
        (errno.EACCES, 32, "is held by another program (Permission denied)"),
        (errno.EACCES, 33, "is held by another program (Permission denied)"),
        (errno.EACCES, None, "check its permissions, and whether another program holds it"),
        (errno.EPERM, None, "check its permissions, and whether another program holds it"),
        (errno.EIO, None, "cannot be read now: Input/output error"),
        (errno.ESTALE, None, "cannot be read now: Stale file handle"),
        (errno.ENOENT, None, "there is no such file"),
        (errno.EISDIR, None, "is a folder, not a file"),
        (errno.EINVAL, None, None),  # of a place before the beginning, which damage leads to
        (None, None, None),
    ],
)
def test_what_the_system_does_not_let_be_read_is_not_damaged(
    number: int | None, winerror: int | None, expected: str | None
) -> None:
    said = "Unable to open file (unable to lock file)"  # what a library makes of it
    error = OSError(said) if number is None else OSError(number, said)
    error.winerror = winerror  # type: ignore[attr-defined]
    reason = limits.unread("a.jpg", error)
    if expected is None:
        assert reason is None
    else:
        assert reason is not None
        assert expected in reason.reason
        passes = number not in (errno.ENOENT, errno.EISDIR)
        assert isinstance(reason, Unavailable) == passes  # then a later run asks again
    assert limits.unread("a.jpg", ValueError("no picture")) is None
    with pytest.raises(SecondhandError, match="too many open files"):
        limits.unread("a.jpg", OSError(errno.EMFILE, "Too many open files"))


@pytest.mark.parametrize(
    ("name", "number"), [("a.png", errno.EBUSY), ("a.wav", errno.EACCES), ("a.hdf5", errno.EIO)]
)
def test_each_kind_says_that_a_file_is_held(
    tmp_path: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Windows keeps others from a file that a program has open, so its answer is made here."""
    (tmp_path / name).write_bytes(bytes(1000))
    of_system = io.open

    def held(file: object, *args: Any, **options: Any) -> Any:
        if str(file).endswith(name):
            raise OSError(number, "held", str(file))
        return of_system(file, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", held)
    monkeypatch.setattr("io.open", held)  # of pathlib
    kind = find_kind(name)
    assert kind is not None
    with pytest.raises(Unavailable, match=r"held by another|another program holds|read now"):
        kind.open(str(tmp_path / name))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_disk_that_fails_is_not_a_damaged_picture() -> None:
    with pytest.raises(Unavailable, match="cannot be read now: Input/output error"):
        open_picture("/proc/self/mem")  # whose first page cannot be read
