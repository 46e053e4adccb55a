"""What the tables of sound editors contain, and what of it can be read back."""

from __future__ import annotations

import pytest

from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS
from datasets.sources.base import ReadOptions, read_source
from fields.recordings.outputs.raven import write_raven
from learners.outputs.base import OUTPUTS
from learners.outputs.checks import check_call
from learners.predictions.candidates import Candidates, Unreviewed
from learners.predictions.rows import RowSettings, Windows
from learners.rule.reasons import AMBIGUOUS
from tests.learners.inference.test_predictions import tone
from tests.learners.outputs.test_outputs import MEL, answer, recordings, tabbed  # noqa: F401
from tests.learners.test_calls import call


def test_raven_and_audacity_have_a_table_a_recording(recordings, tmp_path):  # noqa: F811
    names = (str(tmp_path / "recordings"),)
    shape = RowSettings(merge=Windows(), names=names, spectrogram=MEL)
    OUTPUTS["raven"].write(recordings, shape, tmp_path / "raven")
    tables = sorted(p.relative_to(tmp_path / "raven").as_posix() for p in (tmp_path / "raven").rglob("*.txt"))  # fmt: skip
    assert tables == ["deep/x.selections.txt", "x.selections.txt", "x.wav.selections.txt"]
    assert tabbed(tmp_path / "raven/x.selections.txt") == []
    rows = tabbed(tmp_path / "raven/x.wav.selections.txt")
    assert rows[1] == {
        "Selection": "2", "View": "Spectrogram 1", "Channel": "1", "Begin Time (s)": "2.0",
        "End Time (s)": "3.0", "Low Freq (Hz)": "20.0", "High Freq (Hz)": "4000.0",
        "Begin Path": recordings[2].path, "File Offset (s)": "2.0", "Annotation": "b b",
        "Score": "0.700000",
    }  # fmt: skip
    assert [row["Annotation"] for row in rows] == ["a", "b b"]
    # A recording that fits into one window is one row.
    (row,) = tabbed(tmp_path / "raven/deep/x.selections.txt")
    assert (row["Begin Time (s)"], row["End Time (s)"]) == ("0.0", "3.0")
    OUTPUTS["audacity"].write(recordings, shape, tmp_path / "audacity")
    text = (tmp_path / "audacity/x.wav.txt").read_text()
    assert text == "0.0\t1.0\ta\n2.0\t3.0\tb b\n"
    assert (tmp_path / "audacity/x.txt").read_text() == ""


def test_a_format_has_all_windows_of_a_recording():
    with pytest.raises(SecondhandError, match=r"--format raven with --at 2\.5"):
        call("sound", "a", format="raven", at=2.5)


def test_beside_the_recordings_nothing_else_is_touched(recordings, tmp_path):  # noqa: F811
    folder = tmp_path / "recordings"
    with pytest.raises(SecondhandError, match="already exists"):
        check_call(OUTPUTS["raven"], RowSettings(), KINDS["sound"], folder, overwrite=False)
    check_call(OUTPUTS["raven"], RowSettings(), KINDS["sound"], folder, overwrite=True)
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    OUTPUTS["raven"].write(recordings, RowSettings(merge=Windows(), names=(str(folder),)), folder)
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(folder.rglob("*.selections.txt"))) == 3


def test_names_that_a_table_between_tabs_cannot_hold_are_read_back(tmp_path):
    """One recording's table goes by its own name, a table of several by the names in it."""
    names = ["tab\tb.wav", "line\nb.wav", ' "a" .wav', "\u3000wide.wav"]
    files = [tone(tmp_path / name, 1.0) for name in names]
    rows = [answer(file, 'the "b"', 0.8, 0.1, 0.7 + n / 10) for n, file in enumerate(files)]
    expected = {(str(file), 'the "b"', 0.1, 0.7 + n / 10) for n, file in enumerate(files)}
    OUTPUTS["raven"].write(rows, RowSettings(names=[str(tmp_path)]), tmp_path)
    for several in (False, True):
        if several:
            for path in tmp_path.glob("*.txt"):
                path.unlink()
            with (tmp_path / "all.selections.txt").open("w") as stream:
                write_raven(rows, RowSettings(), stream)
        frame, rejected, *_ = read_source(str(tmp_path), ReadOptions())
        actual = frame[["path", "label", "start", "end"]].itertuples(index=False, name=None)
        assert ({*actual}, rejected) == (expected, [])


def test_where_the_formats_may_go(recordings):  # noqa: F811
    with pytest.raises(SecondhandError, match="--format raven is for sound"):
        check_call(OUTPUTS["raven"], RowSettings(), KINDS["picture"], None, overwrite=False)
    with pytest.raises(SecondhandError, match="a label track is for a single recording"):
        OUTPUTS["audacity"].write(recordings, RowSettings(merge=Windows()), None)


def test_what_is_written_is_read_back(recordings, tmp_path):  # noqa: F811
    """By the annotation readers."""
    folder = tmp_path / "recordings"
    expected = [
        (str(folder / "deep/x.wav"), "a", 0.0, 3.0), (str(folder / "x.wav"), "a", 0.0, 1.0),
        (str(folder / "x.wav"), "b b", 2.0, 3.0),
    ]  # fmt: skip
    shape = RowSettings(merge=Windows(), names=(str(folder),), spectrogram=MEL)
    for format in ("raven", "audacity"):
        OUTPUTS[format].write(recordings, shape, folder)
        frame, *_ = read_source(str(folder), ReadOptions())
        rows = sorted(frame[["path", "label", "start", "end"]].itertuples(index=False, name=None))
        assert rows == expected, format
        for path in folder.rglob("*.txt"):
            path.unlink()


def test_candidates_are_tables_of_their_own(recordings, tmp_path):  # noqa: F811
    """Of what was refused, under its best guess, which is no answer."""
    refused = [
        one._replace(label="unknown", reason=AMBIGUOUS).with_more(
            windows=tuple(w._replace(label="unknown", reason=AMBIGUOUS) for w in one.windows)
        )
        for one in recordings
        if one.best
    ]
    names = (str(tmp_path / "recordings"),)
    merge = Candidates(Windows(), by_file=True)
    shape = RowSettings(merge=merge, features=[Unreviewed()], names=names, spectrogram=MEL)
    OUTPUTS["raven"].write(merge(refused), shape, tmp_path / "raven")
    rows = [row for file in (tmp_path / "raven").rglob("*.txt") for row in tabbed(file)]
    assert {row["Review"] for row in rows} == {"unreviewed"}
    assert {row["Annotation"] for row in rows} == {"a", "b", "b b"}
