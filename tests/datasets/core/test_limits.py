"""What comes from elsewhere has limits, and what a server does wrong is not the file's fault."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets.core import limits
from datasets.core.errors import BadFile, SecondhandError, Unavailable
from datasets.core.guarded import guarded
from datasets.images.opening import open_picture
from datasets.kinds.base import find_kind
from datasets.tables.cells import read_cells


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


def _dies() -> None:
    os.abort()


def _takes() -> int:
    return len(bytes(2 * limits.MOST_MEMORY))


@pytest.mark.parametrize("read", [_dies, _takes])
def test_a_reader_that_dies_or_takes_too_much_costs_one_table(read: object) -> None:
    with pytest.raises(BadFile, match=r"a\.ods"):
        guarded("a.ods", read)  # type: ignore[arg-type]
    assert guarded("a.ods", sum, [1, 2]) == 3


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
