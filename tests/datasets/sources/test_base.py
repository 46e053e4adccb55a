"""Which source reads a path; one of another package is one object and one line of its metadata."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.sources.base import SOURCES, ReadOptions, find_source, read_source
from tests.datasets.files import picture, write

ROOT = Path(__file__).parents[3]
PACKAGE = """
import pandas as pd

from datasets.sources.base import Rows, Source

def read(path, options):
    lines = (line.split(" = ") for line in path.read_text().splitlines())
    rows = [{"path": str(path.parent / name), "label": label} for name, label in lines]
    return Rows(pd.DataFrame(rows), [], "labels of arrows")

ARROWS = Source(
    name="arrows", order=1, claims=lambda path, options: path.suffix == ".arrows", read=read
)
ALL = Source(name="all", order=0, claims=lambda path, options: True, read=read)
"""
CALL = """
import logging
import sys
from datasets.items.table import load_table
from datasets.sources.base import ReadOptions
logging.basicConfig()
for name in sys.argv[1:]:
    table = load_table(name, ReadOptions(learned=False))
    print(table.note, *table.frame["label"])
"""


def test_a_source_of_another_package_reads_what_none_of_ours_claims(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "arrows-1.0.dist-info").mkdir(parents=True)
    write(
        site / "arrows-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: arrows\nVersion: 1\n"
    )
    points = (
        "[secondhand.sources]\narrows = arrows:ARROWS\nall = arrows:ALL\nbroken = arrows:NOTHING\n"
    )
    write(site / "arrows-1.0.dist-info/entry_points.txt", points)
    write(site / "arrows.py", PACKAGE)
    for n in range(2):
        picture(tmp_path / f"{n}.png")
    ours = write(tmp_path / "t.csv", "path,label\n0.png,fox\n1.png,deer\n")
    theirs = write(tmp_path / "t.arrows", "0.png = wolf\n1.png = owl\n")

    def labels(code: str, *names: Path) -> subprocess.CompletedProcess[str]:
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, names)],
            env=os.environ | paths, capture_output=True, text=True, timeout=200,
        )  # fmt: skip

    done = labels(CALL, ours, theirs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [" fox deer", "labels of arrows wolf owl"]
    assert "arrows:NOTHING" in done.stderr
    assert labels(CALL + "print('arrows' in sys.modules)", ours).stdout.endswith("False\n")


def test_every_source_has_a_name_and_an_order_of_its_own() -> None:
    orders = [source.order for source in SOURCES.ours()]
    assert len({*orders}) == len(orders)
    assert len(SOURCES.ours()) >= 11


CLAIMED = {
    "demo:digits": "demo", "gwosc:GW150914": "gwosc", "esc50": "public", "photos": "folder",
    "labels.csv": "table", "labels.txt": "table", "track.txt": "audacity", "selections.txt": "raven",
    ".": "raven", "found.json": "megadetector", "package": "camtrap-dp",
    "package/datapackage.json": "camtrap-dp",
}  # fmt: skip


@pytest.mark.parametrize(("name", "source"), CLAIMED.items())
def test_a_path_is_claimed_by_its_name_and_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "package"):
        Path(folder).mkdir()
    write(tmp_path / "labels.csv", "path,label\n")
    write(tmp_path / "labels.txt", "path\tlabel\n")
    write(tmp_path / "track.txt", "0\t1\twren\n")
    write(tmp_path / "selections.txt", "Selection\tBegin Time (s)\tEnd Time (s)\n")
    write(tmp_path / "found.json", '{"images": [{"file": "a.jpg"}]}')
    write(tmp_path / "package" / "datapackage.json", "{}")
    assert find_source(name, ReadOptions()).name == source


def test_what_no_source_claims_is_said_with_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(SecondhandError, match=r"nowhere: there is no such.*demo:digits.*esc50"):
        read_source(str(tmp_path / "nowhere"), ReadOptions())
    text = write(tmp_path / "notes.txt", "rain")
    with pytest.raises(SecondhandError, match=r"notes\.txt: .*Raven.*Audacity.*path,label"):
        read_source(str(text), ReadOptions())
    sheet = write(tmp_path / "labels.xlsx", "PK")
    with pytest.raises(SecondhandError, match=r"labels\.xlsx: .*path,label") as error:
        read_source(str(sheet), ReadOptions())
    assert "Raven" not in str(error.value)
