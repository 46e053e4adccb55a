"""What a command prints: messages and warnings, one line of progress, the result."""

from __future__ import annotations

import errno
import io
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.core import progress
from datasets.core.files import write_beside
from datasets.core.program import CleanedStream
from learners.cli import console, live, result

METRICS = {
    "calibration_items": 154,
    "calibration_accuracy": 147 / 154,
    "calibration_accuracy_interval": [0.909, 0.982],
    "calibration_coverage": 112 / 154,
    "calibration_accuracy_of_accepted": 1.0,
    "calibration_accuracy_of_accepted_interval": [0.968, 1.0],
    "valid_items": 150,
    "valid_accuracy": 1.0,
    "unknown_items": 158,
    "unknown_accepted": 33 / 158,
}


#: A command that prints a line to each stream, opens a file, or asks for a standard output.
COMMAND = """
import sys
from learners.cli import console

def main():
    if sys.argv[1:]:
        console.require_output()
    print("a result")
    print("a message", file=sys.stderr)
    return 0

console.run(main)
"""


@pytest.mark.parametrize(
    ("closed", "words", "status", "out", "err"),
    [
        ("", "", 0, "a result\n", "a message\n"),
        (">&-", "", 0, "", "a message\n"),
        ("2>&-", "", 0, "a result\n", ""),
        ("<&- >&- 2>&-", "", 0, "", ""),
        (">&-", "x", 2, "", "error: standard output is closed. Name a file with --out\n"),
        ("> /dev/null", "x", 0, "", "a message\n"),
    ],
)
def test_closed_streams_mix_nothing_and_lose_no_result(closed, words, status, out, err) -> None:
    call = f'exec "$0" -c "$1" {words} {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", call, sys.executable, COMMAND], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


@pytest.mark.parametrize(
    ("name", "status"),
    [("file/below/x.csv", 2), ("x" * 300, 2), ("full", 1)],
)
def test_a_path_that_cannot_be_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, status: int
) -> None:
    (tmp_path / "file").write_text("kept")
    out = tmp_path / name

    def main() -> int:
        if name == "full":
            raise OSError(errno.ENOSPC, "the run needs 9 MiB", str(out))
        write_beside(out, b"")
        return 0

    with pytest.raises(SystemExit) as end:
        console.run(main)
    error = capsys.readouterr().err
    assert end.value.code == status
    assert error.startswith(f"error: {out}")
    assert "--out" in error
    assert ("the run needs 9 MiB" in error) == (name == "full")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.skipif(
    os.name == "nt", reason="there no folder can be removed while it is the current one"
)
def test_a_call_from_a_folder_that_is_gone_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    called = []
    with pytest.raises(SystemExit) as end:
        console.run(lambda: called.append(1) or 0)
    assert (end.value.code, called) == (2, [])
    assert "current folder" in capsys.readouterr().err


class Screen(io.StringIO):
    """A terminal that keeps all that is written to it."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ignore the caller's variables and remove handlers afterwards."""
    for name in (console.QUIET, console.VERBOSE, "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    root, handlers = logging.getLogger(), logging.getLogger().handlers
    levels = {name: logging.getLogger(name).level for name in ("", *console.OURS)}
    # Tests close all handlers: another test's log.txt would be opened again.
    root.handlers = []
    yield
    root.handlers = handlers
    progress.show_with(None)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def on_terminal(monkeypatch: pytest.MonkeyPatch, name: str = "stderr") -> Screen:
    screen = Screen()
    monkeypatch.setattr(sys, name, screen)
    return screen


def log_all(file: Path | None = None) -> None:
    console.log_to_terminal(file)
    log = logging.getLogger("learners.somewhere")
    log.debug("detail")
    log.info("message")
    log.warning("problem")


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda: None, "message\nwarning: problem\n"),
        (console.be_verbose, "detail\nmessage\nwarning: problem\n"),
        (console.be_quiet, "warning: problem\n"),
    ],
)
def test_a_pipe_gets_plain_lines_and_the_file_everything(
    choose: Any, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in (console.QUIET, console.VERBOSE):
        monkeypatch.setenv(name, "")  # so that a change is undone afterwards
    choose()
    log_all(tmp_path / "log.txt")
    assert capsys.readouterr() == ("", expected)
    text = (tmp_path / "log.txt").read_text()
    assert [text.count(word) for word in ("detail", "message", "problem")] == [1, 1, 1]


def test_a_warning_is_coloured_on_a_terminal_without_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = on_terminal(monkeypatch)
    log_all()
    assert "\x1b[33;1mwarning:\x1b[0m problem\n" in screen.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    screen = on_terminal(monkeypatch)
    log_all()
    assert screen.getvalue() == "message\nwarning: problem\n"


def test_the_live_line_is_removed_before_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch)
    console.log_to_terminal()
    monkeypatch.setattr(live, "REFRESH", 0.0)
    with progress.step("Outer"):
        with progress.step("Computing features", 40) as advance:
            advance(10)
            before = len(screen.getvalue())
            logging.getLogger("learners").info("a message")
            after = screen.getvalue()[before:]
            time.sleep(0.01)
            advance(20)
        assert "20 of 40 files" in screen.getvalue()
        assert "left" in screen.getvalue()
    assert "10 of 40 files" in screen.getvalue()[:before]
    erased, message, rest = after.partition("a message\n")
    assert "\x1b[2K" in erased, "the line is cleared first"
    assert message
    assert "10 of 40 files" in rest, "and drawn again below"
    assert screen.getvalue().rstrip().endswith("\x1b[2K"), "nothing is left of it"
    assert not live._open
    assert sys.stderr is screen


def test_a_step_within_a_step_is_drawn_and_not_spelled_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = on_terminal(monkeypatch)
    cleaned = CleanedStream(screen)
    monkeypatch.setattr(sys, "stderr", cleaned)  # as `use_utf8_output` does in a command
    console.log_to_terminal()
    with progress.step("Outer"):
        for _ in range(2):
            with progress.step("Calibrating", 2) as advance:
                advance(1)
                print("\x1b]0;a stranger's title", file=sys.stderr)
                advance(2)
    assert "2 of 2 files" in screen.getvalue()
    assert screen.getvalue().count("\\x1b") == 2, "only what others print is spelled out"
    assert sys.stderr is cleaned


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_worker_does_not_draw_its_parents_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch)
    console.log_to_terminal()
    with progress.step("Rendering", 4):
        child = os.fork()
        if not child:
            os._exit(0 if not live._open and sys.stderr is screen else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_pipe_hears_of_a_long_step_twice_as_late_each_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    console.log_to_terminal()
    with progress.step("Writing the report"):
        pass
    for _ in progress.counted(range(100), "Rendering", 100, "spectrograms"):
        clock[0] += 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Writing the report …"
    assert lines[1] == "Rendering: 10 of 100 spectrograms, about 2 min left"
    assert [int(line.split()[1]) for line in lines[1:]] == [10, 20, 40, 80]


def test_nothing_is_shown_by_default_and_with_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.step("Writing the report"):
        pass
    monkeypatch.setenv(console.QUIET, "1")
    screen = on_terminal(monkeypatch)
    console.log_to_terminal()
    with progress.step("Computing features", 2) as advance:
        advance(1)
    assert screen.getvalue() == ""
    assert capsys.readouterr().err == ""


def test_the_line_tells_how_much_is_done_and_the_time_left() -> None:
    assert live.line("Features", 0, 0, "files", 0.0) == "Features  0 files"
    assert live.line("Features", 12, 24, "files", 2.0).endswith(
        "━━╌╌╌╌╌╌╌╌╌╌╌╌  12 of 24 files, 6 s left"
    )
    assert [live.duration(s) for s in (40, 180, 7800)] == ["40 s", "3 min", "2 h 10 min"]


def test_the_bar_gives_way_to_the_words_of_a_long_line() -> None:
    title = "Fitting heads without a tenth of the files"
    lines = [live.line(title, done, 10, "folds", 0.01, columns=80) for done in (0, 5, 10)]
    assert all(len(line) < 80 for line in lines)
    assert lines[1].endswith("  5 of 10 folds, 8 min left")
    bars = [line.count("━") + line.count("╌") for line in lines]
    assert min(bars) >= live.SHORTEST_BAR, "as long from the first to the last"
    assert len({*bars}) == 1
    assert live.line(title, 5, 10, "folds", 0.01, columns=50) == (
        f"{title}  5 of 10 folds, 8 min left"
    )


def test_no_line_of_the_result_ends_between_a_number_and_its_percent_sign() -> None:
    sentence = "Named right: 428 of 433 files (99 %, 95 % limits 97 to 100 %)."
    for width in range(12, 70):
        lines = result.wrapped(sentence, width).split("\n")
        assert " ".join(lines) == sentence
        assert max(map(len, lines)) <= width
        assert not any(line.startswith("%") for line in lines)


def test_each_count_of_the_result_says_what_it_is_of() -> None:
    protocol = "a random split of 4 classes; near-duplicates kept together: none"
    lines = result.sentences(METRICS, [("Pear", "Apple", 3)], protocol)
    assert lines == [
        "Named right: 147 of 154 calibration files (95 %, 95 % limits 91 to 98 %).",
        "Answers 112 of 154 calibration files; 112 of 112 answered files are right (100 %, 95 % limits 97 to 100 %).",
        "Refuses 42 of 154 calibration files, and 125 of 158 files of unknown classes.",
        "Mixed up most often: Pear as Apple (3).",
        "Measured on a random split of 4 classes. Near-duplicates kept together: none.",
    ]
    assert not result.answers_almost_nothing(METRICS)
    assert result.next_commands(METRICS, "predict model", "adjust model", "report.html") == [
        "Look at the report:  report.html",
        "Predict:             predict model FILE...",
        "Answer more files:   adjust model",
    ]


@pytest.mark.parametrize(
    ("share", "text"),
    [(344 / 345, "99.7 %"), (0.9999, "99.9 %"), (0.994, "99 %"), (1.0, "100 %"), (0.0002, "0.1 %"), (0.0, "0 %")],
)  # fmt: skip
def test_only_all_are_100_percent_and_only_none_0(share: float, text: str) -> None:
    few_wrong = {**METRICS, "calibration_accuracy_of_accepted": share}
    assert f"right ({text}, 95 % limits" in result.sentences(few_wrong)[1]


def test_a_model_that_answers_almost_nothing_says_so_first() -> None:
    few = {
        "calibration_items": 2,
        "calibration_accuracy": 1.0,
        "calibration_accuracy_interval": [0.16, 1.0],
        "calibration_coverage": 0.0,
    }
    lines = result.sentences(few)
    assert result.answers_almost_nothing(few)
    assert lines[0].startswith("This model will answer almost nothing")
    assert "Add files to every class" in lines[0]
    by_site = result.sentences(few, groups=4)[0]
    assert by_site.endswith(
        "Only 4 groups: files of further groups help, more files of these do not."
    )
    assert lines[1].startswith("Named right: 2 of 2 calibration files")
    assert lines[2] == "Refuses 2 of 2 calibration files."
    test_only = {n.replace("calibration", "test"): value for n, value in few.items()}
    lines = result.sentences({**test_only, "test_items": 25, "calibration_items": 15})
    assert "only 15 calibration files" in lines[0]
    many = {**METRICS, "calibration_coverage": 0.05}
    assert "--target-accuracy" in result.sentences(many)[0]


@pytest.mark.parametrize("own", [12, 80])
def test_a_model_that_answers_fewer_than_half_names_a_looser_rule(own) -> None:
    points = [
        {"keep_known": None, "threshold": threshold, "answered": answered, "right": answered,
         "low": 0.8, "high": 0.99, "unknown": 0}
        for threshold, answered in ((None, own), (0.8, 90))
    ]  # fmt: skip
    metrics = {
        "test_items": 112,
        "test_accuracy": 0.7,
        "test_coverage": own / 112,
        "test_accuracy_of_accepted": 1.0,
        "operating_points": {
            "split": "test", "items": 112, "unknown_items": 0, "default": 0, "points": points,
        },
    }  # fmt: skip
    text = " ".join(result.sentences(metrics))
    command = result.next_commands(metrics, "predict", "adjust model", "page")[-1]
    if own == 80:
        assert "fewer than half" not in text
        assert command.endswith("adjust model")
    else:
        assert "With --threshold 0.8 it answers 90 of 112 test files" in text
        assert "95 % limits 80 to 99 %" in text
        assert "adjust model --threshold 0.8 --out" in command


def test_the_test_part_counts_where_there_is_one() -> None:
    test = {
        name.replace("calibration", "test"): value
        for name, value in METRICS.items()
        if "calibration" in name
    }
    assert result.sentences({**METRICS, **test, "test_items": 10})[0].startswith(
        "Named right: 10 of 10 test files"
    )


@pytest.mark.parametrize(
    ("part", "folds", "measured", "files"),
    [
        ("test", 0, "40 test files", "test files"),
        ("test", 10, "40 test files", "test files"),
        ("calibration", 0, "40 calibration files", "calibration files"),
        ("calibration", 10, "40 files, each by a head that had not seen it", "files"),
    ],
)
def test_a_multi_label_model_has_precision_and_recall(
    part: str, folds: int, measured: str, files: str
) -> None:
    metrics = {
        f"{part}_items": 40,
        f"{part}_map": 0.875,
        f"{part}_coverage": 0.75,
        f"{part}_precision": 0.9,
        f"{part}_recall": 0.8,
        "unknown_items": 10,
        "unknown_answered": 0.2,
        "cross_fit_folds": folds,
    }
    assert result.sentences(metrics) == [
        f"Mean average precision 0.875 on {measured}.",
        f"Names labels in 30 of 40 {files}, and names labels in 2 of 10 files of unknown classes.",
        "90 % of the labels named are right (precision).",
        "80 % of the labels present are named (recall).",
    ]


def test_the_worst_confusions_are_those_of_the_reported_part() -> None:
    rows = [("calibration", "a", "b")] * 2 + [("calibration", "b", "a"), ("valid", "c", "a")]
    rows += [("calibration", "a", "a"), ("calibration", "a", "")]
    table = pd.DataFrame(rows, columns=["split", "truth", "best"])
    assert result.find_confusions(table, METRICS) == [("a", "b", 2), ("b", "a", 1)]
    assert result.find_confusions(table, {"calibration_map": 1.0}) == []


def test_the_result_is_a_box_on_a_terminal_and_plain_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = result.sentences(METRICS)
    result.print_result(lines)
    assert capsys.readouterr().out.splitlines() == lines
    screen = on_terminal(monkeypatch, "stdout")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    result.print_result(lines, alarm=True)
    box = screen.getvalue().splitlines()
    assert box[0].startswith("╭─ Result ─")
    assert lines[0] in box[1]
    assert "\x1b[3" not in screen.getvalue(), "no colours"


def test_limits_that_are_wide_because_of_groups_are_explained() -> None:
    line = "The limits are wide because files of one group count together."
    assert line not in result.sentences(METRICS)
    assert line in result.sentences({**METRICS, "calibration_accuracy_interval": [0.03, 1.0]})
    # As wide as those of 52 independent files in ten folds.
    folded = {**METRICS, "calibration_accuracy_interval": [0.36, 0.69], result.CROSS_FIT: 10}
    assert line not in result.sentences(folded)


@pytest.mark.parametrize(
    ("calibration", "uncalibrated", "words"),
    [
        (100, [], []),
        (99, [], ["99 calibration files of 150 files in all: too few to show how sure"]),
        (1, ["a"], ["1 calibration file of 150 files in all", "No calibration file of a: "]),
        (0, [*"abcdefg"], ["0 calibration files of 150", "of a, b, c, d, e and 2 more: "]),
    ],
)
def test_the_result_says_what_few_files_do_not_show(calibration, uncalibrated, words) -> None:
    lines = result.small_data({"calibration_items": calibration}, 150, uncalibrated)
    assert len(lines) == len(words)
    assert all(text in line for text, line in zip(words, lines, strict=True))


def test_each_label_has_its_counts_and_of_many_those_with_mistakes() -> None:
    metrics = {"test_items": 9, "test_map": 0.5, "test_coverage": 1.0}
    two = [("bird", 4, 3, 5), ("rain", 1, 1, 1)]
    assert result.sentences(metrics, labels=two)[-2:] == [
        "bird: in 4 files, found in 3, missed in 1; named wrongly in 2.",
        "rain: in 1 file, found in 1, missed in 0; named wrongly in 0.",
    ]
    many = [(f"c{n:02d}", 5, 5, 5) for n in range(result.LISTED + 2)]
    many[-1] = ("worst", 5, 0, 0)
    lines = result.sentences(metrics, labels=many)
    assert lines[-result.LISTED - 1].startswith("worst: ")
    assert lines[-1] == "The report has the other 2 labels."
