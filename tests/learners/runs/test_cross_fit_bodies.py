"""Cross-fitting of bodies: each file is measured by the network that has not seen it, and the model learns from all."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.special import softmax

from datasets.core.errors import SecondhandError
from datasets.items.facts import Unsplit
from datasets.steps.earlier import are_all_learnt
from datasets.steps.reading import read_items
from learners.cli.settings import Settings
from learners.evaluation.held_out import outputs_of_rows
from learners.finetune import main
from learners.loading.predictor import load_predictor
from learners.model.bundle import Bundle, load_bundle
from learners.rule.scores.knn import KNN
from learners.rule.scores.rmds import PER_AXIS, RMDS
from learners.runs import cross_fit_bodies, stages
from learners.runs.cross_fit_bodies import divide
from learners.runs.run import Prepared, prepare
from learners.training import learner
from learners.training.keep import Choice, Kept, middle
from learners.training.members import Training
from tests.asked import asked
from tests.learners.mislabelled import write_mislabelled
from tests.learners.stops import Stop, assert_same, interrupt_in, with_callback
from tests.pictures import write_pictures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unreported")]

FILES = 36


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, unreported: None) -> list[str]:
    return write_mislabelled(tmp_path_factory.mktemp("bodies"), epochs=1)


def share_kept(monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
    """Let the trainings keep these shares of the way, one after the other."""
    left = [*shares]
    monkeypatch.setattr(learner, "choose", lambda *a, **k: Choice(left.pop(0), "better"))


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with two bodies; ``taught`` beside it has the number of files that each training learnt from."""
    out, counts = tmp_path_factory.mktemp("runs") / "whole", list[int]()
    real = cross_fit_bodies.train_members

    def train(training: Training, *more: Any) -> Any:
        counts.append(training.taught["path"].nunique())
        (out.parent / "taught").write_text(json.dumps(counts))
        return real(training, *more)

    with pytest.MonkeyPatch.context() as patch:
        share_kept(patch, 1.0, 0.25)
        patch.setattr(cross_fit_bodies, "train_members", train)
        assert main([*words, "--cross-fit", "2", "--out", str(out)]) == 0
    return out


def measured(run: Path) -> pd.DataFrame:
    answers = pd.read_csv(run / "predictions.csv").query("split == 'calibration'")
    return answers.set_index("path")


def bodies(run: Path) -> list[tuple[Bundle, pd.DataFrame]]:
    """Of each body of a run its network under the model's rule, and its items."""
    model, found = load_bundle(run / "model"), []
    for folder in sorted((run / "checkpoint").glob("body-*")):
        network = deepcopy(model.network)
        network.load_state_dict(load_file(folder / "checkpoint/best.safetensors"))
        items = pd.read_csv(folder / "items.csv").assign(group="")
        found.append((replace(model, built=network), items))
    return found


def outputs(model: Bundle, items: pd.DataFrame) -> tuple[NDArray[Any], NDArray[Any]]:
    for name in ("start", "end", "gps"):
        items = items.assign(**{name: np.nan}) if name not in items else items
    found, _, paths = outputs_of_rows(load_predictor(model, engine="torch"), items)
    assert paths == items["path"].tolist()
    assert found.features is not None
    return found.logits, found.features


def test_every_file_is_measured_by_the_body_that_has_not_seen_it(whole: Path) -> None:
    """The saved bodies give the probabilities and the distances of the run."""
    answers, model = measured(whole), load_bundle(whole / "model")
    temperature = model.rule.calibrator.temperature
    assert temperature.n == len(answers) == FILES == model.metrics["calibration_items"]
    assert model.metrics["cross_fit_folds"] == 2
    assert model.metrics["cross_fit_bodies"]
    seen, away, near = list[str](), list[float](), list[float]()
    axes = min(items["split"].eq("train").sum() for _, items in bodies(whole)) // PER_AXIS
    for body, items in bodies(whole):
        fold = items.loc[items["split"].eq("calibration")]
        learnt = items.loc[items["split"].eq("train")]
        assert len(learnt) + items["split"].eq("valid").sum() == FILES - len(fold)
        logits, features = outputs(body, fold)
        p = softmax(logits / temperature.value, axis=1)
        written = answers.loc[fold["path"]]
        assert written["best"].tolist() == [body.classes[n] for n in p.argmax(axis=1)]
        np.testing.assert_allclose(written["probability"], p.max(axis=1), atol=1e-4)
        seen += fold["path"].tolist()
        _, reference = outputs(body, learnt)
        numbers = [body.classes.index(name) for name in learnt["label"]]
        score, knn = RMDS(axes), KNN()
        score.fit(reference, (), numbers)
        knn.fit(reference, (), ())
        away += (-score.squares(features)[0]).tolist()
        near += knn.score(features, ()).tolist()
    assert sorted(seen) == sorted(answers.index)
    ranks = (1 + (np.array(away)[:, None] >= np.array(away)).sum(axis=1)) / (1 + FILES)
    copies = np.array(near) >= -model.rule.distance.copy
    expected = np.where(copies, 1.0, ranks)
    np.testing.assert_allclose(answers.loc[seen, "distance_p"], expected, atol=1e-4)
    assert (~copies).sum() > 5


def test_the_model_learns_from_all_files_by_the_recipe_of_the_bodies(whole: Path) -> None:
    kept = json.loads((whole / "checkpoint/best.json").read_text())
    assert (kept["why"], kept["share"], kept["reached"]) == ("bodies", 0.25, {})
    history = pd.read_csv(whole / "history.csv")
    assert history["train_loss"].notna().all()
    assert history["valid_loss"].isna().all(), "its validation files teach it"
    model = load_bundle(whole / "model")
    *of_bodies, of_model = json.loads((whole.parent / "taught").read_text())
    assert of_model == FILES
    learnt = [int(items["split"].eq("train").sum()) for _, items in bodies(whole)]
    assert of_bodies == learnt
    reference = model.rule.distance.reference
    assert reference is not None
    assert len(reference) == FILES
    weights = load_file(whole / "model/model.safetensors")
    for number in "12":
        other = load_file(whole / f"checkpoint/body-{number}/checkpoint/best.safetensors")
        assert any(not torch.equal(other[n], w) for n, w in weights.items() if n.startswith("0."))
    assert "one of 2 bodies that had not seen it" in model.provenance["protocol"]


def test_a_model_whose_body_has_seen_all_files_is_continued_with_new_ones_only(
    words: list[str], whole: Path, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "run")]
    with pytest.raises(SecondhandError, match="has learnt from all of these files"):
        main(["--from", str(whole / "model"), "--data", words[1], *out])
    new = write_pictures(tmp_path / "new", per_class=8)
    data = asked(data=[words[1], str(new)], from_=whole / "model")
    table = read_items(data)
    old = table.frame["path"].isin(measured(whole).index)
    assert old.sum() == FILES
    assert set(table.frame["split"][old]) == {"train"}
    assert {"valid", "calibration"} < set(table.frame["split"][~old])


def test_ctrl_c_gives_a_model_and_resuming_the_same_weights(
    words: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the second body leaves the first, measured by its fold; a kill after that costs no bit either."""
    out, started = tmp_path / "run", [*words, "--cross-fit", "2"]
    batches = -(-pd.read_csv(whole / "checkpoint/body-1/items.csv")["split"].eq("train").sum() // 8)
    share_kept(monkeypatch, 1.0, 0.25)
    stop = Stop(int(batches) + 1, what=KeyboardInterrupt)
    assert with_callback(monkeypatch, stop, [*started, "--out", str(out)]) == 130
    first, items = bodies(out)[0]
    fold = items.loc[items["split"].eq("calibration")]
    assert sorted(measured(out).index) == sorted(fold["path"])
    kept = load_file(out / "model/model.safetensors")
    assert all(torch.equal(kept[n], w) for n, w in first.network.state_dict().items())
    assert "cross_fit_folds" not in load_bundle(out / "model").metrics
    assert are_all_learnt(out), "its parts of the files are not those of the items.csv"
    trained = out / "checkpoint/body-1/checkpoint/best.safetensors"
    before = trained.stat().st_mtime_ns
    interrupt_in(monkeypatch, stages, "measured_by", ["--resume", str(out)])
    assert main(["--resume", str(out)]) == 0
    assert trained.stat().st_mtime_ns == before, "it is not trained again"
    assert_same(whole, out)


def test_the_head_alone_is_measured_by_heads(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as most bodies can only have kept it, no more are trained."""
    turns = list[int]()
    real = cross_fit_bodies._train

    def train(run: Prepared, turn: int, *more: Any, **named: Any) -> Any:
        turns.append(turn)
        return real(run, turn, *more, **named)

    monkeypatch.setattr(cross_fit_bodies, "_train", train)
    out = tmp_path / "run"
    assert main([*words, "--cross-fit", "auto", "--out", str(out)]) == 0
    assert turns == [1, 2]
    metrics = load_bundle(out / "model").metrics
    assert (metrics["cross_fit_folds"], metrics["calibration_items"]) == (10, FILES)
    assert not metrics["cross_fit_body"]
    assert "cross_fit_bodies" not in metrics
    assert len(pd.read_csv(out / "history.csv")) == 1


@pytest.fixture(scope="module")
def prepared(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    values = {"data": words[1], "backbone": "test_resnet", "size": 32, "weights": words[-1]}
    folder = tmp_path_factory.mktemp("prepared")
    return prepare(folder, Settings().but(**values, device="cpu"))


def grouped(run: Prepared, groups: list[str]) -> Prepared:
    """The run with its files in these groups, one after the other."""
    names = [groups[n % len(groups)] for n in range(len(run.items.table.frame))]
    frame = run.items.table.frame.assign(group=names)
    table = replace(run.items.table, frame=frame).knowing(Unsplit(frame.assign(split="")))
    return replace(run, items=run.items._replace(table=table, rows=frame))


def test_groups_stay_together_and_every_class_in_training(prepared: Prepared) -> None:
    groups = [f"site{n}" for n in range(12)]
    asked = replace(prepared, settings=prepared.settings.but(cross_fit=4))
    folds = divide(grouped(asked, groups))
    assert folds is not None
    assert set(folds.of_items) == {0, 1, 2, 3}
    for number, items in folds.items.items():
        rows = items.rows
        assert (rows["split"].eq("calibration") == (folds.of_items == number)).all()
        assert rows.groupby("group")["split"].nunique().max() == 1
        assert set(rows["split"]) == {"train", "valid", "calibration"}
        assert rows.loc[rows["split"].eq("train"), "label"].nunique() == 3


def test_the_background_in_a_recording_that_is_held_out_teaches_nothing(prepared: Prepared) -> None:
    """Windows without a call in the recordings of the calls; and background of its own, which is in no recording."""
    frame = prepared.items.table.frame
    own = frame.iloc[:4].assign(path=[f"noise{n}" for n in range(4)])
    quiet = pd.concat([frame, own]).assign(label="unknown", split="train")
    table = replace(prepared.items.table, background=quiet)
    rows = pd.concat([frame, quiet], ignore_index=True)
    asked = prepared.settings.but(cross_fit=3)
    folds = divide(
        replace(prepared, settings=asked, items=prepared.items._replace(table=table, rows=rows))
    )
    assert folds is not None
    for items in folds.items.values():
        calls = items.table.frame.set_index("path")["split"]
        for background in (items.table.background, items.rows.query("label == 'unknown'")):
            splits = background.set_index("path")["split"]
            assert len(splits) == FILES + 4
            assert splits.loc[calls.index].tolist() == calls.tolist()
            assert splits.loc[own["path"]].eq("train").all()


@pytest.mark.parametrize(
    ("values", "groups", "why"),
    [
        ({"cross_fit": 3}, ["a", "b"], "only 2 groups of files"),
        ({"cross_fit": 2}, ["a"], "only 1 group of files"),
        ({"cross_fit": 2}, ["a", "b"], "belong to one group"),
    ],
)
def test_files_that_cannot_be_divided_are_named(
    prepared: Prepared, values: dict[str, Any], groups: list[str], why: str
) -> None:
    run = grouped(replace(prepared, settings=prepared.settings.but(**values)), groups)
    with pytest.raises(SecondhandError, match=f"--cross-fit {values['cross_fit']}: .*{why}"):
        divide(run)
    assert divide(replace(run, settings=prepared.settings.but(cross_fit="auto"))) is None


def test_files_that_measure_by_name_are_not_divided(prepared: Prepared) -> None:
    table = prepared.items.table
    named = table.knowing(Unsplit(table.frame))
    run = replace(prepared, items=prepared.items._replace(table=named))
    asked = replace(run, settings=run.settings.but(cross_fit=2))
    with pytest.raises(SecondhandError, match=r"--cross-fit 2: .*calibration and valid, which"):
        divide(asked)
    assert divide(replace(run, settings=run.settings.but(cross_fit="auto"))) is None


def test_a_head_alone_has_no_body_to_cross_fit(prepared: Prepared) -> None:
    """Also where the backbone decides that only a head is trained, and where such a run is resumed."""
    asked = prepared.settings.but(cross_fit=2, epochs=0)
    asked.check()
    assert divide(replace(prepared, settings=asked)) is None
    assert divide(replace(prepared, settings=asked.but(freeze_epochs=2))) is not None


def kept_of(phase: str, epoch: int, share: float | None) -> Kept:
    return Kept("better", phase, epoch, 5, share, 9, {"valid_loss": 1.0}, None)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([("unfrozen", 5, 0.5), ("frozen", 1, None), ("unfrozen", 5, 0.25)], 2),
        ([("unfrozen", 5, None), ("unfrozen", 5, 0.5), ("unfrozen", 5, None)], 0),
        ([("unfrozen", 2, None), ("unfrozen", 4, None), ("unfrozen", 3, None)], 2),
        ([("unfrozen", 5, 0.5), ("frozen", 1, None)], 1),
        ([("frozen", 3, None), ("frozen", 1, None), ("frozen", 2, None)], 2),
    ],
)
def test_the_middle_one_decides(kept: list[tuple[str, int, float | None]], expected: int) -> None:
    given = [kept_of(*one) for one in kept]
    assert middle(given) == given[expected]
