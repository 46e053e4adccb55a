"""A list to label is opened in a spreadsheet."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from datasets.tables.cells import read_cells
from fields.loop.listing import as_text


def test_no_spreadsheet_computes_a_name_and_each_is_read_as_it_was(tmp_path: Path) -> None:
    labels = ["=SUM(A1)", "+1 more", "-cmd", "@home", "'=x", "-1.5", "plain"]
    paths = [f"{sign}{n}.jpg" for n, sign in enumerate(("=", "+", "-", "@", "\t", "'=", ""))]
    listed = [
        {"path": path, "label": "", "guess": label, "at": -1.5}
        for path, label in zip(paths, labels, strict=True)
    ]
    text = as_text(["path", "label", "guess", "at"], listed)
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    signs = tuple("=+-@\t\r")
    assert {cell for cell in cells if cell.startswith(signs)} <= {"-1.5", "-1.500000"}
    (tmp_path / "next.csv").write_text(text)
    read = read_cells(tmp_path / "next.csv")
    assert read["path"].tolist() == paths
    assert read["guess"].tolist() == labels
    assert read["at"].astype(float).tolist() == [-1.5] * len(paths)
