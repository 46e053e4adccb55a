"""Events in the held-out recordings of a run that is cross-fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.core.part import Part
from fields.recordings.held_out import held_out_events
from learners.finetune import main
from learners.runs.cross_fitting import as_measured
from learners.runs.run import Run
from learners.training import probe
from tests.learners.runs.test_cross_fitting import runs, words  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unreported")]


def test_calls_in_recordings_are_heard_by_the_head_that_has_not_seen_their_recording(
    words: list[str],  # noqa: F811
    runs: list[Run],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls with labels drawn by lot, which heads can only learn by heart; more background files than recordings, so that
    there are folds of the background alone.
    """
    monkeypatch.setattr(probe, "STRENGTHS", (100.0,))
    for tolerance in ("EXACT", "ROUGH", "NEAR"):
        monkeypatch.setattr(probe, tolerance, 0.3)
    rng = np.random.default_rng(3)
    for name in ("hours", "quiet"):
        (tmp_path / name).mkdir()
    for n in range(6):
        noise = rng.normal(0, 0.1, 6 * 8000)
        soundfile.write(tmp_path / "hours" / f"{n}.wav", noise, 8000)
        names = rng.permutation(["frog", "newt", "frog", "newt"])
        spans = [f"{1.4 * i + 0.2}\t{1.4 * i + 0.8}\t{name}\n" for i, name in enumerate(names)]
        (tmp_path / "hours" / f"{n}.txt").write_text("".join(spans))
    for n in range(12):
        soundfile.write(tmp_path / "quiet" / f"{n}.wav", rng.normal(0, 0.001, 8000), 8000)
    call = [
        "--data",
        str(tmp_path / "hours"),
        *words[2:],
        "--labelled-completely",
        "--threshold",
        "0",
    ]
    folders = ["--background", str(tmp_path / "quiet"), "--cache-dir", str(tmp_path / "cache")]
    assert main([*call, *folders, "--out", str(tmp_path / "run")]) == 0
    ((run,), cross) = runs, runs[0].cross
    assert cross is not None
    table = run.items.table
    fold_of = table.frame.assign(fold=cross.folds).groupby("path")["fold"].agg(["min", "max"])
    assert (fold_of["min"] == fold_of["max"]).all(), "no recording is in two folds"
    assert len({*fold_of["min"]}) == 6 == run.bundle.metrics["cross_fit_folds"]
    measured = replace(table, frame=as_measured(table.frame, cross))
    facts = run.bundle.metrics["events"]
    assert (facts["recordings"], facts["events"]) == (6, 24)
    found = wrong = 0
    for path, fold in fold_of["min"].items():
        alone = measured.frame.loc[measured.frame["path"].eq(str(path))]
        of_fold = held_out_events(cross.predictors[fold], replace(measured, frame=alone))
        assert of_fold is not None
        assert of_fold["recordings"] == 1
        found += of_fold["found"]
        wrong += of_fold["false_alarms"]
    assert (facts["found"], facts["false_alarms"]) == (found, wrong)
    by_heart = held_out_events(run.predictor, measured)
    assert by_heart is not None
    assert by_heart["found"] - by_heart["false_alarms"] > found - wrong + 5
    # Windows between the calls are judged by the head that has not seen their recording, too.
    answers = pd.read_csv(tmp_path / "run" / "predictions.csv").query("split == 'background'")
    between = answers.loc[answers["path"].isin(fold_of.index)]
    assert len(between)
    for path, start, end, probability in between[
        ["path", "start", "end", "probability"]
    ].itertuples(index=False):
        (other,) = cross.predictors[fold_of["min"][path]].predict([Part(path, start, end)])
        assert other.probability == pytest.approx(probability, abs=1e-4)
