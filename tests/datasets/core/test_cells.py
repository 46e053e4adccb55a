"""Cells that a spreadsheet would compute are guarded in our tables and restored when read."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.cells import (
    csv_text,
    guard,
    read_cells,
    read_dicts,
    read_frame,
    unguard,
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


def test_there_is_no_other_way_to_write_a_table() -> None:
    """Except for numbers, names of our own, and other programs' formats, which know no guard."""
    others = {
        "datasets/core/cells.py", "datasets/sources/demos.py", "datasets/sources/public.py",
        "learners/predictions/camtrap.py",
        "learners/inference/shared_program.py", "learners/training/callbacks.py",
    }  # fmt: skip
    root = Path(__file__).parents[3]
    writing = {
        str(file.relative_to(root))
        for layer in ("app", "learners", "datasets")
        for file in (root / layer).rglob("*.py")
        if re.search(r"\bcsv\.(writer|DictWriter)\b|\.to_csv\(", file.read_text(encoding="utf-8"))
    }
    assert writing == others
