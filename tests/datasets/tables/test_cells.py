"""Cells that a spreadsheet would compute are guarded in our tables and restored when read."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
import re
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import BadFile, SecondhandError
from datasets.tables.cells import (
    check_not_spreadsheet,
    column_names,
    csv_bytes,
    csv_text,
    guard,
    mark_csv,
    read_cells,
    read_csv,
    read_dicts,
    read_frame,
    unguard,
    with_points,
    write_rows,
)

#: All texts of up to four of these, and some that occur in practice.
ALPHABET = ("=", "+", "-", "@", "\t", "\r", "'", "1", ".", "x")
TEXTS = [
    *("".join(text) for n in range(1, 5) for text in itertools.product(ALPHABET, repeat=n)),
    *(
        "=SUM(A1)",
        '=HYPERLINK("http://x","y")',
        "@eaDir/a.jpg",
        "-inf",
        "-1.5e-3",
        "\uff1d1",
        "\n=1",
    ),
]


def computed(cell: str) -> bool:
    """Whether a spreadsheet computes the text, by OWASP's rules; numbers are not computed."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d")):
        return False
    try:
        return not math.isfinite(float(cell))
    except ValueError:
        return True


def test_no_text_is_computed_and_each_comes_back() -> None:
    guarded = [guard(text) for text in TEXTS]
    assert not [cell for cell in guarded if computed(str(cell))]
    assert [unguard(cell) for cell in guarded] == TEXTS
    assert len(set(guarded)) == len(set(TEXTS)), "no two texts become one"


SPLIT = [
    "".join(text)
    for n in range(2, 5)
    for text in itertools.product((";", "\t", "\n", "=", "-", "'", '"', " ", "1", "x"), repeat=n)
]


def test_no_part_of_a_text_is_computed_where_its_row_is_split_elsewhere() -> None:
    """At semicolons, as Excel does in many countries, at tabs, or at the line feed in a cell whose quotes are lost."""
    for text in SPLIT:
        guarded = str(guard(text))
        parts = [part.strip(' "') for part in re.split("[;|\t\r\n]", guarded)]
        assert not [part for part in parts[1:] if computed(part)], (text, guarded)
        assert unguard(guarded) == text
    assert guard("0.5;-0.25;-1") == "0.5;-0.25;-1"


@pytest.mark.parametrize(
    "number", ["-1.5", "+3", "-.5", "-1e-05", "-7.", -1.5, 0, None, float("-inf")]
)
def test_a_number_stays_a_number(number: object) -> None:
    assert guard(number) is number
    assert unguard(number) is number


def test_a_table_comes_back_by_each_way(tmp_path: Path) -> None:
    """Column names too; tables without guards from other programs are read as they are."""
    names = [text for text in TEXTS if "\r" not in text and text == text.strip()][::50]
    frame = pd.DataFrame({"path": names, "=1+1": names[::-1], "n": -1.5})
    expected = frame.astype({"n": str})
    file = tmp_path / "a.csv"
    file.write_text(csv_text(frame), encoding="utf-8")
    assert ",-1.5\n" in file.read_text()
    for read in (read_cells, read_frame):
        pd.testing.assert_frame_equal(read(file), expected)
    columns, rows = read_dicts(file.read_text().splitlines(keepends=True))
    assert columns == [*frame]
    assert list(rows) == expected.to_dict("records")
    stream = io.StringIO(newline="")
    write_rows(stream, [[*frame], *frame.astype(object).to_numpy().tolist()])
    assert list(csv.reader(io.StringIO(stream.getvalue()))) == list(
        csv.reader(io.StringIO(file.read_text()))
    )
    file.write_text("path,label\n=a.jpg,=1+1\n'b.jpg,it's\n", encoding="utf-8")
    assert read_cells(file).to_numpy().tolist() == [["=a.jpg", "=1+1"], ["'b.jpg", "it's"]]


@pytest.mark.parametrize("ending", ["csv", "tsv", "txt", "csv.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_table_is_read_as_any_spreadsheet_saves_it(
    tmp_path: Path, separator: str, encoding: str, ending: str
) -> None:
    """The same cells come back, quoted ones with other separators, line breaks and apostrophes, too."""
    rows = [["Mäusebussard, jung", "0,5", "a;b"], ["l'été\tchaud", "", 'ein "Zitat"\nzwei|drei']]
    expected = pd.DataFrame(rows, columns=["Größe", "start", "note"])
    for stated in (False, True):
        text = expected.to_csv(index=False, sep=separator, lineterminator="\r\n")
        content = (f"sep={separator}\r\n" * stated + text).encode(encoding)
        file = tmp_path / f"t.{ending}"
        file.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
        pd.testing.assert_frame_equal(read_csv(file), expected)
        assert column_names(file) == [*expected]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ('path;label;"a,b,c,d"', ["1.png", "fox", "x"]),
        ("path;label;Notes (a, b, c, d)", ["1.png", "fox", "x"]),
        ("path,label,a;b;c;d", ["1.png", "fox", "x"]),
        ("path\tlabel\ta,b;c,d|e,f", ["1.png", "fox", "x, y"]),
    ],
)
def test_a_name_of_a_column_that_holds_separators_does_not_choose_one(
    tmp_path: Path, header: str, row: list[str]
) -> None:
    separator = header[4]
    text = "\n".join([header, separator.join(row), separator.join(row)])
    (tmp_path / "a.csv").write_text(text)
    cells = read_csv(tmp_path / "a.csv")
    assert cells[["path", "label"]].to_numpy().tolist() == [row[:2]] * 2
    assert cells.shape == (2, 3)


def test_a_table_of_one_column_has_no_separator_to_find(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv"):
        (tmp_path / name).write_text('\npath\n"x, y; z.png"\n')
        assert read_csv(tmp_path / name)["path"].tolist() == ["x, y; z.png"]


def test_a_guessed_encoding_is_said_once_and_what_is_none_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes("path,label\na.png,Blåmeis\n".encode("cp1252"))
    assert [read_csv(file)["label"][0] for _ in range(3)] == ["Blåmeis"] * 3
    assert [record.args for record in caplog.records] == [(file,)]
    file.write_bytes(b"path,label\na.png,\x81\xfe\n")
    with pytest.raises(BadFile) as error:
        read_csv(file)
    assert error.value.path == str(file)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["0,5", "12", "", "-1,25e3"], [0.5, 12, math.nan, -1250]),
        (["1,250", "20,500"], [1.25, 20.5]),
        (["1,250", "20"], [math.nan, 20]),  # a thousand, or not
        (["1,250", "0,5"], [1.25, 0.5]),
        (["1.5", "1,250", "x"], [1.5, math.nan, math.nan]),
        ([1.5, 2.5], [1.5, 2.5]),
    ],
)
def test_a_decimal_comma_is_a_point_unless_it_may_mark_thousands(
    written: list[object], read: list[float]
) -> None:
    numbers = pd.to_numeric(with_points(pd.Series(written)), errors="coerce")
    assert numbers.tolist() == pytest.approx(read, nan_ok=True)


@pytest.mark.parametrize("text", ["path\na\n", "path\nä\n", "path\n\udce9\n"])
def test_a_csv_file_has_a_mark_where_excel_needs_one(tmp_path: Path, text: str) -> None:
    """Excel takes UTF-8 without a mark for the encoding of the country; a name's own bytes stay."""
    plain = text.encode("utf-8", "surrogateescape")
    expected = b"\xef\xbb\xbf" + plain if "ä" in text else plain
    assert csv_bytes(text) == expected
    file = tmp_path / "a.csv"
    file.write_bytes(plain)
    mark_csv(file)
    assert file.read_bytes() == expected


@pytest.mark.parametrize("ending", ["xlsx", "XLS", "ods"])
def test_no_csv_is_written_under_the_name_of_a_spreadsheet(ending: str) -> None:
    with pytest.raises(SecondhandError, match=rf"--out t\.{ending}: .*t\.csv"):
        check_not_spreadsheet(Path(f"t.{ending}"))
    check_not_spreadsheet(Path("t.csv"))


def test_there_is_no_other_way_to_write_a_table() -> None:
    """Except for numbers, names of our own, and other programs' formats, which know no guard."""
    others = {
        "datasets/tables/cells.py", "datasets/sources/demos.py", "datasets/sources/idx.py", "datasets/sources/public.py",
        "fields/cameras/outputs/camtrap_dp.py", "learners/training/records.py",
    }  # fmt: skip
    root = Path(__file__).parents[3]
    others = {name for name in others if (root / name).exists()}  # a field may be left out
    writing = {
        str(file.relative_to(root))
        for layer in ("fields", "app", "learners", "datasets")
        for file in (root / layer).rglob("*.py")
        if re.search(r"\bcsv\.(writer|DictWriter)\b|\.to_csv\(", file.read_text(encoding="utf-8"))
    }
    assert writing == others
