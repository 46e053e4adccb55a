"""A learning curve of the run's own trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from learners import distributed
from learners.cli.settings import Settings
from learners.finetune import main
from learners.runs import growing, stages
from learners.training import members
from tests.learners.stops import QUICK
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


def test_parts_are_trained_as_the_whole_and_go_on_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = write_pictures(tmp_path / "data", per_class=10)
    words = ["--data", str(pictures), *QUICK, "--epochs", "1", "--learning-curve", "--full"]
    out, real, learnt = tmp_path / "run", members.train_members, list[Any]()

    def stopped(folder: Path, loaded: Any, *more: Any) -> Any:
        if learnt:
            raise KeyboardInterrupt
        learnt.append(loaded.rows)
        return real(folder, loaded, *more)

    monkeypatch.setenv("SECONDHAND_ONNX", "0")
    monkeypatch.setattr(growing, "DRAWS", {1 / 2: 1, 3 / 4: 1})
    monkeypatch.setattr(growing, "train_members", stopped)
    curves = []
    monkeypatch.setattr(stages, "report", lambda folder, learnt, made: curves.append(made.curve))
    assert main([*words, "--out", str(out)]) == 130
    assert len(pd.read_csv(out / "learning_curve.csv").columns) == 5
    monkeypatch.setattr(growing, "train_members", real)
    assert main(["--resume", str(out)]) == 0
    assert not (out / "parts").exists()

    items = pd.read_csv(out / "items.csv")
    (part,) = learnt
    whole = items["split"].eq("train")
    half = part.loc[part["split"].eq("train")]
    assert set(half["path"]) < set(items["path"][whole])
    assert len(half) == sum((n + 1) // 2 for n in items["label"][whole].value_counts())
    assert len(part) - len(half) == (~whole).sum()
    found = pd.read_csv(out / "learning_curve.csv")
    answers = pd.read_csv(out / "predictions.csv").query("split == 'calibration'")
    assert len(found.columns) == 6
    assert found.columns[-1] == f"{whole.sum()}-1"
    assert found[["path", "truth"]].values.tolist() == answers[["path", "truth"]].values.tolist()
    assert found.iloc[:, -1].tolist() == answers["best"].tolist()
    assert [len(curve.points) for curve in curves] == [2, 3]
    assert curves[1].said.startswith(f"With all {whole.sum()} labels the network is right in")


def test_what_it_does_not_go_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SecondhandError, match="--full without --learning-curve"):
        Settings().but(full=True).check()
    Settings().but(full=True, learning_curve=True, head="concat").check()
    with pytest.raises(SecondhandError, match="leave out --from"):
        Settings().but(**{"full": True, "learning_curve": True, "from": tmp_path}).check()
    monkeypatch.setattr(distributed, "count", lambda: 2)
    with pytest.raises(SecondhandError, match="--full: the parts are trained in one process"):
        main(["--data", "demo:digits", "--learning-curve", "--full", "--out", str(tmp_path / "r")])
