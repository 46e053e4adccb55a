"""Each benchmark produces its figures at its smallest sizes (`--small`).

It runs in this process or in a forked one, because its imports take far longer than its work; so do
the sides of a comparison.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _shared
from tests.forks import Program
from tests.left_out import needs

FOLDER = Path(_shared.__file__).parent
#: Text that shows that the figures were produced.
FIGURES = {
    "bench_audit": r"made up +400 +all +\d+\.\d +\d+\.\d%[\s\S]*answers +\d",
    "bench_attention": r"all +0\.31 M weights learn[\s\S]*attention +0\.10 M weights[\s\S]*attention / all: +\d",
    "bench_app": r"4 of 4 answered, 0 wrong; .* 95th percentile",
    "bench_buckets": r"predict, again .*\d\.\d\d by processor time[\s\S]*train, bucket, second epoch[\s\S]*200 of 200 keys answered",
    "bench_epoch": r"ours / timm by clock +\d[\s\S]*ours / bare by clock +\d",
    "bench_events": r'"rows": \d[\s\S]*"many rows": \d',
    "bench_few": r"sounds 8 +\d\.\d+[\s\S]*macro F1 \d\.\d{3}; ten events of a class: its F1 \d\.\d{3}",
    "bench_fuzz": r"18 mutants of seed 0, 0 disallowed outcomes",
    "bench_gpu": r'"first_s": \d[\s\S]*"step": "head"[\s\S]*"timm_bf16_per_s": \d[\s\S]*"labels": 0, "of": 64,[\s\S]*"step": "epoch".*"ratio": \d[\s\S]*"of_a_step": 0\.0',
    "bench_kills": r"1 of 1 went on to the same weights and answers",
    "bench_many_files": r"2000 rows for 2000 files, 2000 of them different[\s\S]*2 of 2 damaged files listed, 0 others[\s\S]*the same answers",
    "bench_precision": r"test_efficientnet .* fp32: \d\.\d\d of the quickest's time",
    "bench_predict": r"ours, torch +\d+ files/s, of the bare rate \d+\.\d\d  \[[\s\S]*16 tokens: cached \d+ ms, uncached \d+ ms, cached / uncached \d",
    "bench_redraws": r"60 files, 1 redraws[\s\S]*accuracy +95\.0 +\d[\s\S]*guarantee +95\.0 +100\.0",
    "bench_refused": r"3 recordings, 3 new +5 % +\d+\.\d +\d+\.\d",
    "bench_render": r"librosa, default size +\d[\s\S]*gwpy, by hand +\d",
    "bench_samples": r"\| 12 bits \| 0 to 4095 \|[\s\S]*divided by 257 \| 0 to 65535 \|",
    "bench_spans": r"spans: found \d+\.\d[\s\S]*hand: false_alarms \d",
    "bench_speakers": r"ours +\d\.\d{3}[\s\S]*above peer",
    "bench_suggest": r"digits +labels[\s\S]*suggested +\d\.\d{3}[\s\S]*5 of 200 chosen in[\s\S]*searched in \d",
    "bench_time_to_accuracy": r"ours +\d[\s\S]*logistic +\d[\s\S]*ours reaches the \d\.\d{3} of logistic",
    "bench_unknown": r"far accepted: all +\d\.\d{3}[\s\S]*AUROC of probability[\s\S]*combined +\d\.\d{3}[\s\S]*FDR +\d\.\d{3}",
    "check_real_data": r"librosa: at most \S+e-\d+ apart[\s\S]*gwpy: at most \S+e-\d+ apart",
}


def test_each_is_tried_and_backs_a_figure() -> None:
    """A benchmark without a documented figure has to be maintained but is read by nobody."""
    scripts = {file.stem for kind in ("bench", "check") for file in FOLDER.glob(f"{kind}_*.py")}
    assert scripts == FIGURES.keys()
    read = (FOLDER / "README.md").read_text("utf-8")
    assert [name for name in scripts if f"python benchmarks/{name}.py " not in read] == []
    assert len([*FOLDER.glob("*.py")]) <= 25


def test_the_time_of_a_stage_is_without_that_of_stages_within_it(monkeypatch) -> None:
    from benchmarks import bench_many_files

    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(bench_many_files, "worked", lambda: next(clock) / 2)
    monkeypatch.setattr(bench_many_files.time, "monotonic", lambda: 0.0)
    stages = bench_many_files.Stages()
    inner = stages.timed("inner", lambda: "done")
    outer = stages.timed("outer", lambda: [inner(), inner()])
    assert outer() == ["done", "done"]
    # Of eight readings 5 s apart, two pairs enclose the inner stage, and the last follows the outer one.
    assert stages.end() == {"start and end": (5.0, 0.0), "outer": (15.0, 0.0), "inner": (10.0, 0.0)}


class Here(_shared.Side):
    """A side of a comparison that works in this process when told to."""

    do: Callable[[], object]

    def __init__(self, script: str, name: str, *words: str, **_: str) -> None:
        self.name, self.times, self.work = name, [], []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_shared, "serve", lambda work: setattr(self, "do", work))
            patch.setattr(sys, "argv", [script, "--side", name, *words])
            runpy.run_path(script, run_name="__main__")

    def go(self) -> float:
        start, before = time.perf_counter(), time.process_time()
        self.do()
        self.processor = time.process_time() - before
        return time.perf_counter() - start

    def end(self) -> None: ...


_Popen = subprocess.Popen


def start_run(words: list[str], **options: Any) -> subprocess.Popen[str] | Program:
    """Start a run that is killed with all its processes; it is forked, not a fresh interpreter."""
    if not options.get("start_new_session"):
        return _Popen(words, **options)
    return Program(*words[1:], env=options["env"])


#: Those that take over four seconds of a core. `make bench` runs them all at these sizes.
LONG = {
    "bench_app", "bench_buckets", "bench_epoch", "bench_events", "bench_few", "bench_fuzz", "bench_gpu", "bench_kills", "bench_many_files", "bench_render",
    "bench_samples", "bench_spans", "bench_speakers", "bench_time_to_accuracy", "bench_unknown", "check_real_data",
}  # fmt: skip


#: Those that import a field, or ask one of its commands.
OF_FIELDS = {
    "bench_audit": "loop", "bench_buckets": "remote", "bench_suggest": "loop", "bench_unknown": "loop",
}  # fmt: skip


def tried(name: str, *marks: pytest.MarkDecorator) -> Any:
    """A benchmark, which is skipped where its field is left out."""
    return pytest.param(
        name, marks=[*marks, *([needs(OF_FIELDS[name])] if name in OF_FIELDS else [])]
    )


@pytest.mark.parametrize("name", map(tried, sorted(LONG)))
def test_it_says_what_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert not end.value.code
    assert "--small" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        tried(name, *([pytest.mark.long("its command line is tried")] if name in LONG else []))
        for name in sorted(FIGURES)
    ],
)
def test_it_runs_to_its_figures(
    name: str,
    unreported: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(FOLDER / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [file, "--small"])
    monkeypatch.setattr(subprocess, "Popen", start_run)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(_shared, "Side", Here)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("SECONDHAND_CACHE", os.environ["SECONDHAND_CACHE"])
    status: object = 0
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        status = end.code
    assert not status
    assert re.search(FIGURES[name], capfd.readouterr().out)


def test_small_gives_way_to_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    monkeypatch.setattr(sys, "argv", ["x", "--small", "--rounds", "2"])
    arguments = _shared.parse(parser, items=8, rounds=1)
    assert (arguments.items, arguments.rounds, arguments.small) == (8, 2, True)
