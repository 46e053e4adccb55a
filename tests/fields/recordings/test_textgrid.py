"""TextGrids as praatio writes them, and by Praat's description of the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from praatio.data_classes.interval_tier import IntervalTier
from praatio.data_classes.point_tier import PointTier
from praatio.textgrid import Textgrid

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from datasets.steps.reading import load_table
from tests.datasets.files import reasons, sound, write

CALLS = [(0.01, 0.03, "wren"), (0.03, 0.04, "robin"), (0.05, 0.07, "wren"), (0.08, 0.1, "robin")]


def grid(path: Path, *, long: bool = True, encoding: str = "utf-8", **tiers: list[Any]) -> Path:
    """Write intervals, or points, of tiers of 0.1 s, and a recording."""
    written = Textgrid(0, 0.1)
    for name, entries in tiers.items():
        kind = PointTier if len(entries[0]) == 2 else IntervalTier
        written.addTier(kind(name, entries, 0, 0.1))
    written.save(str(path), "long_textgrid" if long else "short_textgrid", includeBlankSpaces=True)
    path.write_bytes(path.read_text("utf-8").encode(encoding))
    sound(path.with_suffix(".wav"))
    return path


def spans(table: Items) -> list[tuple[float, float, str]]:
    columns = table.frame[["start", "end", "label"]]
    return sorted(columns.itertuples(index=False, name=None))


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be", "latin-1"])
def test_intervals_with_a_text_are_spans(tmp_path: Path, long: bool, encoding: str) -> None:
    words = {"wren": 'mésange "bleue"'}
    entries = [(*times, words.get(text, text)) for *times, text in CALLS]
    file = grid(tmp_path / "a.TextGrid", long=long, encoding=encoding, calls=entries)
    for source in (file, tmp_path):
        table = load_table(source)
        assert spans(table) == entries
        assert {*table.frame["path"]} == {str(tmp_path / "a.wav")}
        assert not table.rejected


def test_what_praat_takes_for_a_comment_is_one(tmp_path: Path) -> None:
    """The example of Praat's manual, with its noise."""
    sound(tmp_path / "a.wav")
    file = write(tmp_path / "a.TextGrid", """File type = "ooTextFile"
Object class = "TextGrid"
0 0.1 <exists> ! a "comment" of 3 numbers
1 tier named "IntervalTier" "calls" from 0 to 0.1 seconds with 4 intervals coming:
0 to 0.01 "wren" 0.01 to 0.02 "" 0.02 .05 "IntervalTier" 5e-2 0.1
"two
lines"
""")  # fmt: skip
    table = load_table(file, learned=False)
    assert spans(table) == [(0, 0.01, "wren"), (0.02, 0.05, "IntervalTier"), (0.05, 0.1, "two lines")]  # fmt: skip


def test_one_of_several_tiers_is_named(tmp_path: Path) -> None:
    file = grid(
        tmp_path / "a.TextGrid", calls=CALLS, noise=[(0, 0.1, "rain")], peaks=[(0.02, "wren")]
    )
    with pytest.raises(SecondhandError, match=r"a\.TextGrid: .*'calls', 'noise', 'peaks'.*--tier"):
        load_table(tmp_path)
    assert spans(load_table(file, settings={"tier": "calls"})) == CALLS
    with pytest.raises(SecondhandError, match=r"'Calls'\. It has 'calls', 'noise', 'peaks'"):
        load_table(file, settings={"tier": "Calls"})
    with pytest.raises(SecondhandError, match=r"a\.TextGrid, line \d+: .*a point"):
        load_table(file, settings={"tier": "peaks"})
    other = grid(tmp_path / "b.TextGrid", peaks=[(0.02, "wren")], calls=CALLS)
    assert spans(load_table(other)) == CALLS, "points cannot be meant"


def test_a_tier_that_no_source_has_is_a_wrong_flag(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav")
    track = write(tmp_path / "a.txt", "0\t0.02\twren\n")
    for source in (track, tmp_path):
        with pytest.raises(SecondhandError, match=r"--tier calls"):
            load_table(source, settings={"tier": "calls"})


def test_bad_intervals_and_files_are_listed_and_the_rest_goes_on(tmp_path: Path) -> None:
    file = grid(tmp_path / "a.TextGrid", calls=[*CALLS])
    text = file.read_text().replace("xmin = 0.05 ", "xmin = soon ").replace("0.08", "1e999")
    write(file, text)
    good = grid(tmp_path / "b.TextGrid", calls=CALLS)
    for name, damaged in {
        "c": text[: len(text) // 2],
        "d": text.replace("intervals: size = 7", "intervals: size = 600"),
        "e": "",
        "f": "ooBinaryFile\x08TextGrid",
        "g": text.replace('"calls"', '"calls'),
        "h": text[: text.index("name =")],
    }.items():
        sound(tmp_path / f"{name}.wav")
        write(tmp_path / f"{name}.TextGrid", damaged)
    write(tmp_path / "gone.TextGrid", good.read_text())
    table = load_table(tmp_path)
    assert spans(table) == sorted([*CALLS[:2], *CALLS])
    listed = reasons(table)
    assert "numbers of seconds" in listed[f"a.TextGrid, line {line_of(text, 'soon')}"]
    assert "numbers of seconds" in listed[f"a.TextGrid, line {line_of(text, 'xmin = 1e999')}"]
    assert {f"{name}.TextGrid" for name in "cdefgh"} <= listed.keys()
    assert "600" in listed["d.TextGrid"]
    first = line_of(good.read_text(), "intervals [2]")
    assert "no recording" in listed[f"gone.TextGrid, line {first}"]


def line_of(text: str, mark: str) -> int:
    """Line of the text of the interval that a mark stands in."""
    return 1 + text.count("\n", 0, text.index("text =", text.index(mark)))
