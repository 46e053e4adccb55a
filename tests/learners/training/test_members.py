"""Several networks that answer together, from the command to the model folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from datasets.core.errors import SecondhandError
from learners.finetune import main
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle
from learners.training import learner, members
from tests.pictures import write_pictures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unreported")]

QUICK = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8", "--epochs", "1",
         "--freeze-epochs", "0", "--lr", "1e-2", "--workers", "0"]  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), classes=2)


@pytest.fixture(scope="module")
def finished(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "three"
    assert main(["--data", str(pictures), "--out", str(out), *QUICK, "--seeds", "3"]) == 0
    return out


def test_each_member_is_the_network_of_its_seed_on_one_split(finished, pictures, tmp_path):
    loaded = load_bundle(finished / "model")
    assert loaded.spec.members == len(loaded.network.members) == 3
    main(["--data", str(pictures), "--out", str(tmp_path / "one"), *QUICK])
    single = load_bundle(tmp_path / "one/model").network.state_dict()
    first, second, third = (member.state_dict() for member in loaded.network.members)
    assert all(torch.equal(first[name], single[name]) for name in single)
    weights = [next(value for value in state.values() if value.ndim == 4)
               for state in (first, second, third)]  # fmt: skip
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    for name in ("history.csv", "history-2.csv", "history-3.csv",
                 "checkpoint/best.safetensors", "checkpoint/member-3/best.safetensors"):  # fmt: skip
        assert (finished / name).stat().st_size, name
    best = load_file(finished / "checkpoint/member-2/best.safetensors")
    assert all(torch.equal(second[name], best[name]) for name in best)


def test_the_saved_answers_are_the_loaded_ensembles(finished):
    saved = pd.read_csv(finished / "predictions.csv")
    answers = list(Predictor(finished / "model").predict(saved.path))
    probabilities = [answer.probability for answer in answers]
    assert probabilities == pytest.approx(saved.probability.tolist(), abs=1e-4)
    confidence = json.loads((finished / "model/config.json").read_text())["confidence"]
    assert confidence["calibrator"]["temperature"]["n"] == saved.split.eq("calibration").sum()
    # Distances use all members' features.
    reference = load_bundle(finished / "model").rule.distance.reference
    assert reference.shape[1] == 3 * 96
    assert np.linalg.norm(reference, axis=1) == pytest.approx(1, abs=1e-5)


def test_ctrl_c_in_the_second_network_keeps_the_first(pictures, tmp_path, monkeypatch):
    calls: list[int] = []

    def fine_tune(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        learner.fine_tune(*args, **kwargs)

    monkeypatch.setattr(members, "fine_tune", fine_tune)
    out = tmp_path / "run"
    assert main(["--data", str(pictures), "--out", str(out), *QUICK, "--seeds", "3"]) == 130
    assert load_bundle(out / "model").spec.members == 1
    assert len(calls) == 2


@pytest.mark.parametrize("count", ["0", "-1", "17", "1000000"])
def test_numbers_of_networks_that_cannot_be(pictures, tmp_path, count):
    with pytest.raises(SecondhandError, match=f"--seeds {count}"):
        main(["--data", str(pictures), "--out", str(tmp_path / "r"), *QUICK, "--seeds", count])
