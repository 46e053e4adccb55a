"""Each benchmark runs to its figures, at its smallest sizes (`--small`).

In this process or in one that is forked, for to import what they need takes far longer than what they
do; so do the sides that take turns, but for the Trainer's, which must not see our `datasets`.
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

from benchmarks import _record, _sides, table
from tests.forks import Program

FOLDER = Path(_record.__file__).parent
#: What tells that the figures were reached.
FIGURES = {
    "bench_app": r"4 of 4 answered, 0 wrong; .* 95th percentile",
    "bench_bad_files": r"16 files listed[\s\S]*accuracy with 16 bad files 0\.\d+",
    "bench_cluster": r"ratio \d+\.\d\d \[",
    "bench_confidence": r"one prediction, 512 features: [\s\S]*all of it +\d+\.\d\d s",
    "bench_epoch": r"ours / fastai by clock +\d[\s\S]*ours / bare by clock +\d",
    "bench_export": r"test_resnet 64 px, batches of 1: eager .* ratio \d+",
    "bench_few": r"data \| files a class \| defaults[\s\S]*\| 8 \| \d\.\d{3} \|",
    "bench_fuzz": r"18 mutants of seed 0, 0 disallowed outcomes",
    "bench_generate": r"8 tokens: cached .* ratio \d+",
    "bench_growth": r"files +32 [\s\S]*classes +8 [\s\S]*seconds +8 [\s\S]*growth.png",
    "bench_kills": r"1 of 1 went on to the same weights and answers",
    "bench_leave_class_out": r"left out +AUROC[\s\S]*mean +\d\.\d{3}",
    "check_pictures": r"librosa: at most \S+e-\d+ apart[\s\S]*gwpy: at most \S+e-\d+ apart",
    "bench_peers": r"ours / timm by clock +\d[\s\S]*ours / trainer by clock +\d",
    "bench_precision": r"test_efficientnet .* fp32: \d\.\d\d of the quickest's time",
    "bench_predict": r"ratio \d+\.\d\d  \[",
    "bench_qscan": r"8 s in a batch of 1, 224 x 224 a view: ours \d",
    "bench_rare": r"split by time: macro F1 \d\.\d{3}; ten events of a class: its F1 \d\.\d{3}",
    "bench_render": r"one process +\d+\.\d\dx the bare cost with our encoder",
    "bench_rows": r"first batch +\d+\.\d s, .* GB",
    "bench_scratch": r"difference +mean [+-]0\.\d{4}",
    "bench_speakers": r"ours +\d\.\d{3}[\s\S]*above peer",
    "bench_scores": r"digits-small: left out +digits-small: strangers[\s\S]*combined +\d\.\d{3}",
    "bench_search": r"mean +\d\.\d{3}[\s\S]*20000 rows of 64: searched in \d",
    "bench_strangers": r"far accepted: all +\d\.\d{3}",
    "bench_suggest": r"digits +labels[\s\S]*suggested +\d\.\d{3}[\s\S]*5 of 200 chosen in",
    "bench_triggers": r"10 triggers in 2 hdf5 files [\s\S]*peak of memory",
    "check_events": r'"rows": \d[\s\S]*"many rows": \d',
    "check_glitch_model": r"left out: it needs a model of glitches",
    "check_gw150914": r"tile energies \d\.\de[-+]\d\d[\s\S]*4 s view: values",
}

#: Else it begins a process for to remove what the next one writes.
MORE = {"bench_rows": ["--folder", "rows"]}


def test_each_is_tried() -> None:
    scripts = {file.stem for kind in ("bench", "check") for file in FOLDER.glob(f"{kind}_*.py")}
    assert scripts == FIGURES.keys()


class Here(_sides.Side):
    """A side that works in this process when it is told to go."""

    do: Callable[[], object]

    def __init__(self, script: str, name: str, *words: str, **_: str) -> None:
        self.name, self.times, self.work = name, [], []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_sides, "serve", lambda work: setattr(self, "do", work))
            patch.setattr(sys, "argv", [script, "--side", name, *words])
            runpy.run_path(script, run_name="__main__")

    def go(self) -> float:
        began, before = time.perf_counter(), time.process_time()
        self.do()
        self.processor = time.process_time() - before
        return time.perf_counter() - began

    def end(self) -> None: ...


_Run, _Popen = subprocess.run, subprocess.Popen


def ran(words: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
    """A benchmark that calls itself: not from a fresh interpreter."""
    if words[:1] != [sys.executable] or not words[1].endswith(".py"):
        return _Run(words, **how)
    program = Program(*words[1:], env=how.get("env"))
    out, said = program.communicate(timeout=250)
    assert program.returncode == 0, said
    if how.get("stdout") is None:
        print(out, end="", flush=True)
    return subprocess.CompletedProcess(words, 0, out.encode())


def begun(words: list[str], **how: Any) -> subprocess.Popen[str] | Program:
    """Nor the runs that are killed, each with all its processes."""
    if not how.get("start_new_session"):
        return _Popen(words, **how)
    return Program(*words[1:], env=how["env"])


_Apart = _sides.Side


def side(script: str, name: str, *words: str, **environment: str) -> _sides.Side:
    return (_Apart if name == "trainer" else Here)(script, name, *words, **environment)


#: Those that take over four seconds of a core. `make bench` runs them all, at these sizes.
LONG = {
    "bench_app", "bench_cluster", "bench_epoch", "bench_export", "bench_few", "bench_kills", "bench_peers",
    "bench_qscan", "bench_render", "bench_scratch", "bench_speakers", "check_events",
    "check_pictures",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LONG))
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
        pytest.param(name, marks=pytest.mark.long("its command line is tried"))
        if name in LONG
        else name
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
    from datasets.drawings import pictures as cache

    monkeypatch.chdir(tmp_path)
    file = str(FOLDER / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [file, "--small", *MORE.get(name, [])])
    monkeypatch.setattr(subprocess, "run", ran)
    monkeypatch.setattr(subprocess, "Popen", begun)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(_sides, "Side", side)
    monkeypatch.setattr(cache, "CHUNK", cache.CHUNK)  # which one of them changes
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("SECONDHAND_CACHE", os.environ["SECONDHAND_CACHE"])
    monkeypatch.setenv("SECONDHAND_RESULTS", str(tmp_path / "results.json"))
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
    given = _record.parse(parser, items=8, rounds=1)
    assert (given.items, given.rounds, given.small) == (8, 2, True)


def test_small_figures_stand_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDHAND_RESULTS", str(tmp_path / "results.json"))
    for words, figure in (([], 1.0), (["--small"], 2.0)):
        monkeypatch.setattr(sys, "argv", ["x", *words])
        _record.record("it", {"ratio": figure})
    assert {name: entry["figures"]["ratio"] for name, entry in _record.read().items()} == {
        "it": 1.0,
        "it, small": 2.0,
    }
    (small, _) = table.ratios(_record.read())[::-1]
    assert small[:4] == ("it, small: ", 2.0, 2.0, 2.0)
    assert table.table([small]).startswith(f"{_record.processor()}, {os.cpu_count()} cores:")
    assert "| it, small:  | 2.00 | 2.00 to 2.00 |" in table.table([small])
