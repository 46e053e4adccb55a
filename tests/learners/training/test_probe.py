"""A head fitted to its optimum, and fine-tuning from there."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import ttest_rel
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from datasets.core import progress
from datasets.items.splits import split_units
from learners.backbones.building import build, parameter_groups
from learners.backbones.spec import NetworkSpec
from learners.cli.settings import TrainSettings
from learners.finetune import main
from learners.training import learner, objectives, probe, rows
from learners.training.describe import kept_in_words
from learners.training.keep import LEVEL, Choice, Keep, Kept, choose, shares
from learners.training.objectives import MaskedLabelLoss, class_objective, label_objective
from learners.training.probe import fit_multi_label_probe, fit_probe, last_layer
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:600], dtype=torch.float32), torch.tensor(y[:600])


def logits(fitted: probe.LinearProbe, x: torch.Tensor) -> torch.Tensor:
    return x @ fitted.weight.T + fitted.bias


class Scaler(StandardScaler):
    """scikit-learn's, with half the root mean square of all spreads added to each."""

    def fit(self, x, y=None):
        super().fit(x, y)
        self.scale_ = np.sqrt(self.var_ + self.var_.mean() / 4)
        return self


@pytest.mark.parametrize("width", [64, 1500])
@pytest.mark.parametrize("balanced", [False, True])
def test_it_is_scikit_learns_regression_on_standardised_features(digits, balanced, width):
    """The logits agree to 5e-3 with a fit to a thousandth of the usual tolerance; on which side of it depends on the processor."""
    x, y = digits
    rare = (y > 1) | (torch.arange(len(y)) % 7 == 0)  # a seventh of two classes
    x, y = x[rare], y[rare]
    if width > x.shape[1]:  # more features than rows
        mixed = torch.randn(x.shape[1], width, generator=torch.Generator().manual_seed(0))
        x = (x @ mixed).relu()
    fitted = fit_probe(x, y, 10, balanced=balanced)
    weight = "balanced" if balanced else None
    model = LogisticRegression(C=fitted.strength, max_iter=20_000, tol=1e-8, class_weight=weight)
    theirs = make_pipeline(Scaler(), model).fit(x.double().numpy(), y.numpy())
    expected = theirs.decision_function(x.double().numpy())
    ours = logits(fitted, x).double().numpy()
    assert np.abs(centred(ours) - centred(expected)).max() < 5e-3


def centred(logits: Any) -> Any:
    return logits - logits.mean(1)[:, None]


def test_the_penalty_is_the_one_with_the_least_loss_on_rows_not_seen(digits):
    x, y = digits
    fitted = fit_probe(x, y, 10)
    scores, folds = {}, StratifiedKFold(3, shuffle=True, random_state=0)
    for strength in probe.STRENGTHS:
        model = make_pipeline(Scaler(), LogisticRegression(C=strength, max_iter=500))
        scores[strength] = cross_val_score(
            model, x.numpy(), y.numpy(), cv=folds, scoring="neg_log_loss"
        ).mean()
    assert fitted.strength == max(scores, key=lambda c: scores[c])
    assert fitted.loss == pytest.approx(-scores[fitted.strength], rel=0.2)  # over other folds
    noise = fit_probe(torch.randn(200, 64, generator=torch.Generator().manual_seed(0)), y[:200], 10)
    assert noise.strength == min(probe.STRENGTHS)


@pytest.mark.parametrize("held", [False, True])
def test_a_large_fit_holds_one_fold_out_and_is_the_same(digits, monkeypatch, held):
    x, y = digits
    small, steps = fit_probe(x, y, 10), []
    monkeypatch.setattr(probe, "LARGE", 0)
    monkeypatch.setattr(probe, "MANY", 0 if held else float("inf"))
    with shown_steps(steps):
        large = fit_probe(x, y, 10)
    assert large.strength == small.strength
    assert (centred(logits(large, x)) - centred(logits(small, x))).abs().max() < 0.05
    assert large.loss == pytest.approx(small.loss, rel=0.3)
    done, total = np.array(steps).T
    assert (np.diff(done) >= 0).all(), "it never goes back"
    assert done[-1] == total[-1]
    assert (done[:-1] <= total[:-1]).all()
    assert len(np.unique(done[done > 0.8 * done[-1]])) > 5, "the last fit moves, too"


def test_what_is_left_is_what_the_fits_need():
    """The shares of the way that a last fit of twelve times as many rows speaks of, once it is half way."""
    steps: list[tuple[int, int]] = []
    passes = probe.Passes(
        [1 / 12, 1 / 12, 1.0], lambda done, total=None: steps.append((done, total))
    )
    for fit in (0, 1):
        for _ in range(24):
            passes.of(fit)(0.0)
        passes.ended(fit)
    assert steps[-1] == (4, 4 + 24 * probe.LAST), "the last is expected to take more"
    of_last = passes.of(2)
    for number in range(1, 101):
        of_last(number / 100)
    passes.ended(2)
    done, total = np.array(steps[48 + 2 :]).T  # each end shows, too
    assert (done == 4 + np.clip(np.arange(1, 102), 0, 100)).all()
    left = total - done
    assert (left[:100] >= 1).all(), "none left is said at the end alone"
    assert abs(left[60:99] - np.arange(39, 0, -1)).max() <= 1
    assert left[-1] == 0


@contextmanager
def shown_steps(into):
    """Note how much of each step is done, and its total."""

    @contextmanager
    def note(step):
        yield lambda done, of=None: into.append((done, of or step.total))

    progress.show_with(note)
    try:
        yield
    finally:
        progress.show_with(None)


def test_the_penalty_is_judged_by_whole_groups():
    """Two features tell each speaker's classes, but nothing about another speaker's."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 40)
    y = rng.integers(0, 3, len(groups))
    speaker = rng.normal(0, 3, (12, 3, 20))[groups, y]  # how this speaker says this word
    word = rng.normal(0, 1, (3, 20))[y]
    x = torch.from_numpy((word + speaker + rng.normal(size=speaker.shape)).astype(np.float32))
    targets = torch.from_numpy(y)
    by_rows, by_groups = fit_probe(x, targets, 3), fit_probe(x, targets, 3, groups=groups)
    losses = {}
    for strength in probe.STRENGTHS:
        model = make_pipeline(Scaler(), LogisticRegression(C=strength, max_iter=2000))
        scores = cross_val_score(
            model, x.numpy(), y, groups=groups, cv=GroupKFold(3), scoring="neg_log_loss"
        )
        losses[strength] = -scores.mean()
    assert by_groups.strength == min(losses, key=lambda c: losses[c]) < by_rows.strength
    assert by_groups.loss == pytest.approx(losses[by_groups.strength], rel=0.2)
    labels = torch.nn.functional.one_hot(targets, 3).float()
    by_rows, by_groups = (
        fit_multi_label_probe(x, labels, 3, MaskedLabelLoss(), groups=g) for g in (None, groups)
    )
    assert by_groups.strength < by_rows.strength


def test_two_classes_and_classes_without_a_row(digits):
    x, y = digits
    two = y < 2
    fitted = fit_probe(x[two], y[two], 2)
    assert (logits(fitted, x[two]).argmax(1) == y[two]).all()
    among = fit_probe(x[two], y[two] + 3, 6)  # 3 and 4 only
    probabilities = logits(among, x[two]).softmax(1)
    assert torch.allclose(probabilities[:, 3:5], logits(fitted, x[two]).softmax(1), atol=0.01)
    assert probabilities[:, [0, 1, 2, 5]].max() < 0.01


class Unscaled(rows.Rows):
    def __init__(self, features: torch.Tensor) -> None:
        super().__init__(features)
        self.features, self.raw, self.axes = features, True, None
        self.mean, self.scale = torch.zeros(64).double(), torch.ones(64).double()


def test_rows_of_the_last_class_count_less(digits, monkeypatch):
    """Each of its rows ten times with weight 0.1 counts as each once."""
    x, y = digits
    monkeypatch.setattr(probe, "STRENGTHS", (0.001,))
    monkeypatch.setattr(probe, "Rows", Unscaled)
    repeated = torch.cat([torch.nonzero(y < 9)[:, 0], torch.nonzero(y == 9)[:, 0].repeat(10)])
    single_rows, unweighted, weighted = (
        fit_probe(x[some], y[some], 10, last=last).weight
        for some, last in ((torch.arange(len(y)), 1.0), (repeated, 1.0), (repeated, 0.1))
    )
    assert (weighted - single_rows).abs().max() < 1e-3 * single_rows.abs().max()
    assert (unweighted - single_rows).abs().max() > 0.2 * single_rows.abs().max()


def test_very_few_rows(digits):
    """A fold may have one class, or no rows."""
    x, _ = digits
    for some in (2, 3, 4):
        fitted = fit_probe(x[:some], torch.arange(some), 6)
        assert (logits(fitted, x[:some]).argmax(1) == torch.arange(some)).all()
        assert np.isfinite(fitted.loss)


def test_a_feature_that_never_changes_weighs_nothing(digits):
    x, y = digits
    x = torch.cat([x, torch.full((len(x), 1), 1e6)], dim=1)
    fitted = fit_probe(x, y, 10)
    assert fitted.weight[:, -1].abs().max() == 0
    assert torch.isfinite(logits(fitted, x)).all()


def test_a_feature_that_hardly_spoke_in_training_does_not_decide(digits):
    x, y = digits
    quiet = 1e-4 * torch.rand(len(x), 1, generator=torch.Generator().manual_seed(0))
    fitted = fit_probe(torch.cat([x, quiet], dim=1), y, 10)
    regular, loud = (logits(fitted, torch.cat([x, torch.full_like(quiet, v)], 1)) for v in (0, 1))
    assert (loud - regular).abs().max() < 0.1


@pytest.mark.parametrize(
    ("head", "is_linear"), [("stages", True), ("linear", True), ("cosine", False)]
)
def test_which_heads_are_fitted(head, is_linear):
    network, _, _ = build(NetworkSpec("test_resnet", 3, 32, head=head), pretrained=False)
    assert isinstance(network, nn.Sequential)
    assert isinstance(last_layer(network), nn.Linear) == is_linear


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run one epoch, and keep in ``ends`` the probe and the last weights, which a run deletes."""
    folder = tmp_path_factory.mktemp("probe")
    pictures = write_pictures(folder / "data", per_class=20, classes=3)
    words = ["--data", str(pictures), "--out", str(folder / "run"), "--size", "32", "--bs", "8",
             "--epochs", "1", "--workers", "0"]  # fmt: skip
    real = learner.keep_blend

    def kept(keep: Keep, *others: Any) -> None:
        shutil.copytree(keep.folder, folder / "ends")
        real(keep, *others)

    fit = objectives.fit_probe

    def noted(*args, groups: np.ndarray | None = None, **kwargs):
        if not (folder / "groups.json").exists():  # later fits are of more files
            assert groups is not None
            assert kwargs["device"] == torch.device("cpu"), "that of the training"
            (folder / "groups.json").write_text(json.dumps(np.bincount(groups).tolist()))
        return fit(*args, groups=groups, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objectives, "fit_probe", noted)
        patch.setattr(learner, "keep_blend", kept)
        assert main(words) == 0
    return folder


def test_a_run_begins_with_the_probe_and_its_norms_stay(one_run):
    history = pd.read_csv(one_run / "run/history.csv")
    assert history["phase"].tolist() == ["frozen", "unfrozen"]
    assert history["lr"].iloc[0] == 0
    body, _, _ = build(NetworkSpec("embedded", 3, 32))
    published = body[0].state_dict()
    probe, last = (
        load_file(one_run / "ends" / f"{name}.safetensors") for name in ("probe", "last")
    )
    averages = [name for name in published if name.endswith(("running_mean", "running_var"))]
    weights = [name for name in published if name.endswith("conv_pw.weight")]
    assert averages
    assert weights
    assert all(torch.equal(probe[f"0.{name}"], published[name]) for name in (*averages, *weights))
    assert all(torch.equal(last[f"0.{name}"], published[name]) for name in averages)
    # The first parameter group does not move, while all weights of the others do.
    frozen_ids = {id(parameter) for parameter in parameter_groups(body)[0]}
    frozen = {name for name, parameter in body[0].named_parameters() if id(parameter) in frozen_ids}
    assert all(torch.equal(last[f"0.{name}"], published[name]) for name in frozen)
    others = {*weights} - frozen
    assert frozen & {*weights}
    assert others
    assert not any(torch.equal(last[f"0.{name}"], published[name]) for name in others)


def test_the_fit_of_a_run_knows_what_belongs_together(one_run):
    items = pd.read_csv(one_run / "run/items.csv").fillna({"group": ""})
    sizes = split_units(items.query("split == 'train'")).value_counts()
    assert sorted(json.loads((one_run / "groups.json").read_text())) == sorted(sizes)


def ends_and_kept(folder: Path) -> list[dict[str, torch.Tensor]]:
    files = (folder / "ends/probe", folder / "ends/last", folder / "run/checkpoint/best")
    return [load_file(file.with_suffix(".safetensors")) for file in files]


def test_the_weights_kept_lie_on_the_way_from_the_probe_to_the_last(one_run):
    """The share that the record names, between the probe and the epoch; the log describes the choice."""
    probe, last, kept = ends_and_kept(one_run)
    record = json.loads((one_run / "run/checkpoint/best.json").read_text())
    items = pd.read_csv(one_run / "run/items.csv")["split"].eq("valid").sum()
    assert items == 9, "so that 0.5 * 9 / 30 of the way is expected"
    part = {"frozen": 0, "unfrozen": 1}[record["phase"]]
    if record["share"] is not None:
        part = record["share"]
        assert part in (0.15, 0.25)
    for name, tensor in kept.items():
        expected = torch.lerp(probe[name].double(), last[name].double(), part)
        assert torch.allclose(tensor.double(), expected, atol=1e-5)
    assert not list((one_run / "run").rglob("probe.safetensors")), "what only this needs is gone"
    log = (one_run / "run/log.txt").read_text()
    shares = re.findall(
        r"Blend, (\d+) % of the way from the head-only model: valid_loss ([0-9.]+)", log
    )
    losses = {int(share) / 100: float(loss) for share, loss in shares}
    assert [*losses] == [0.15, 0, 0.25, 1]
    assert record["reached"]["valid_loss"] == pytest.approx(losses[part], abs=1e-4)
    history = pd.read_csv(one_run / "run/history.csv")
    assert [losses[0], losses[1]] == pytest.approx(history.valid_loss.tolist(), abs=1e-4)
    match = re.search(r"Kept (.*)", log)
    assert match is not None
    assert f"validation loss {record['reached']['valid_loss']:.3g}, " in match[1]
    config = json.loads((one_run / "run/model/config.json").read_text())
    assert config["provenance"]["kept"].startswith(match[1])


@pytest.mark.parametrize("several", [False, True])
def test_the_losses_of_items_average_to_that_of_validation(digits, several):
    x, y = digits[0][:50], digits[1][:50]
    logits, objective = nn.Linear(64, 10)(x).detach(), class_objective(TrainSettings())
    if several:
        y = nn.functional.one_hot(y, 10).float()
        objective = label_objective(TrainSettings())
    losses, figures = objective.losses(logits, y), objective.figures(logits, y)
    assert losses.shape == (50,)
    assert losses.mean() == pytest.approx(figures["valid_loss"], abs=1e-5)
    if several:
        assert [*figures] == ["valid_loss"]
        one = nn.functional.binary_cross_entropy_with_logits(logits[49], y[49])
    else:
        assert figures["accuracy"] == pytest.approx((logits.argmax(1) == y).float().mean().item())
        one = nn.functional.cross_entropy(logits[49:], y[49:])
    assert losses[49] == pytest.approx(one.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("items", "gain", "noise", "expected"),
    [(50, 0.0, 0.1, 0.5), (50, 0.005, 0.1, 0.5), (50, 0.1, 0.1, 1.0), (50, -0.5, 0.1, 0.0),
     (5, 0.1, 0.3, 0.5), (1, 5.0, 0.0, 0.5), (20, 0.1, 0.0, 1.0)],
)  # fmt: skip
def test_only_clear_evidence_moves_the_share(items, gain, noise, expected):
    """By scipy's paired test: the last weights are better by ``gain``, and those at a quarter by half of it."""
    rng = np.random.default_rng(0)
    losses = {0.5: rng.exponential(1.0, items)}
    for share, part in ((0.0, -1.0), (0.25, 0.5), (1.0, 1.0)):
        losses[share] = losses[0.5] - part * gain + rng.normal(0, noise, items)
    assert choose(losses, 30) == Choice(expected, "expected" if expected == 0.5 else "better")
    if items > 1 and noise:
        tested = ttest_rel(losses[0.5], losses[1.0], alternative="greater")
        assert (tested.pvalue < LEVEL) == (expected == 1.0)


@pytest.mark.parametrize("groups", [4, 15])
@pytest.mark.parametrize("most", [1, 12])  # files in a group; the groups are of different sizes
def test_weights_that_are_no_better_replace_half_way_as_seldom_where_files_of_a_group_are_alike(
    groups, most
):
    """The levels are 2.5 % for a quarter and the last epoch, 16 % for the head: 21 % together. Counting files it is 52 %."""
    rng, better = np.random.default_rng(groups), {0.0: 0, 0.25: 0, 1.0: 0}
    draws = 300
    for _ in range(draws):
        group = np.repeat(np.arange(groups), rng.integers((most + 1) // 2, most + 1, groups))
        shared, own = rng.normal(size=(4, groups)), rng.normal(size=(4, len(group)))
        losses = dict(zip(shares(60), 1 + 0.1 * shared[:, group] + 0.05 * own, strict=True))
        kept = choose(losses, 60, group)
        if kept.share != 0.5:
            better[kept.share] += 1
    assert sum(better.values()) < 0.27 * draws
    assert better[0.25] + better[1.0] < 0.08 * draws


def test_weights_that_are_better_in_every_group_replace_half_way():
    group = np.repeat(np.arange(15), 10)
    gains = 0.1 + 0.1 * np.random.default_rng(0).normal(size=15)[group]
    worse = np.full(150, -1.0)
    losses = {0.5: gains, 0.0: gains - worse, 0.25: gains - worse, 1.0: np.zeros(150)}
    assert choose(losses, 150, group) == Choice(1.0, "better")
    assert choose(losses, 150, np.zeros(150)) == Choice(0.5, "expected")  # one group shows nothing


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.0), (0.25, 0.5), (1.0, 0.5)])
def test_the_head_alone_is_kept_on_weaker_evidence(share, expected):
    """Better by one and a half standard errors, on nine files."""
    noise = np.arange(9) - 4.0
    gains = noise / noise.std(ddof=1) + 1.5 / 3
    assert choose({0.5: gains, share: np.zeros(9)}, 30).share == expected


@pytest.mark.parametrize(("items", "gain", "share"), [(9, 0.0, 0.0), (9, 1.0, 1.0), (60, 0.0, 0.5)])
def test_a_head_that_will_learn_from_all_files_is_expected_of_few(items, gain, share):
    losses = np.random.default_rng(0).exponential(1.0, items)
    candidates = dict.fromkeys(shares(items), losses) | {1.0: 1.02 * losses - gain}
    assert choose(candidates, items, cross_fitted=True).share == share


@pytest.mark.parametrize(
    ("right", "ending"),
    [
        (59, "; with 60 items a difference of 1 may be chance"),
        (60, "60 right"),
        (50, "Head-only: loss 0.2, 60 right"),
    ],
)
def test_what_is_said_of_a_difference_to_the_head_alone(right, ending):
    reached = {"valid_loss": 0.1, "accuracy": right / 60}
    probe = {"valid_loss": 0.2, "accuracy": 1.0}
    summary = kept_in_words(Kept("expected", "unfrozen", 2, 2, 0.5, 60, reached, probe))
    assert summary.startswith(
        "a blend, 50 % of the way from the head-only model to epoch 2: validation loss 0.1, no others on the way are clearly "
        f"better; {right} of 60 right. Head-only: loss 0.2, 60 right"
    )
    assert summary.endswith(ending)


def test_from_a_layer_it_changes_what_the_rows_say_otherwise(digits):
    """Six rows of a known and of a new class; a fit to these rows alone forgets the others."""
    x, y = digits
    ordinary = fit_probe(x, y, 10)
    zero = (torch.zeros(10, x.shape[1]), torch.zeros(10))
    again = fit_probe(x, y, 10, start=zero)
    assert torch.allclose(logits(again, x).softmax(1), logits(ordinary, x).softmax(1), atol=0.02)
    old = fit_probe(x[y < 9], y[y < 9], 10)
    weight, bias = old.weight.clone(), old.bias.clone()
    weight[9], bias[9] = 0, 0
    some = torch.cat([torch.nonzero(y == c).flatten()[:6] for c in (3, 9)])
    fitted = fit_probe(x[some], y[some], 10, start=(weight, bias))
    plain = fit_probe(x[some], y[some], 10)
    known = y < 9
    right = [
        [
            (logits(f, x[part]).argmax(1) == y[part]).float().mean().item()
            for part in (known, ~known)
        ]
        for f in (fitted, plain)
    ]
    assert right[0][0] > 0.7 > 0.2 > right[1][0]
    assert right[0][1] > 0.7
