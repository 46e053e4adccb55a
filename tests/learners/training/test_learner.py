from __future__ import annotations

import numpy as np
import pytest
import torch
from fastai.torch_core import set_seed

from datasets.core.errors import SecondhandError
from learners.backbones.building import parameter_groups
from learners.cli.settings import TrainSettings
from learners.training.callbacks import undisturbed_randomness
from learners.training.learner import find_lr
from learners.training.objectives import class_objective
from tests.learners.training.test_callbacks import CNN, VIT, _state, folder, learner, quietly  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [CNN, VIT])
def test_freezing_and_graded_rates_act_on_every_family(folder, tmp_path, name):  # noqa: F811
    learn = learner(folder, tmp_path, name=name)
    groups = parameter_groups(learn.model)
    assert len(learn.opt.param_lists) == len(groups) == 4
    for frozen_to in (-1, -2, 0):
        learn.freeze_to(frozen_to)
        first = frozen_to % len(groups)
        for index, group in enumerate(groups):
            trained = sum(p.requires_grad for p in group)
            # fastai trains norms in frozen groups too; nothing else may train there.
            norms = {id(p) for m in learn.model.modules() if "Norm" in type(m).__name__
                     for p in m.parameters()}  # fmt: skip
            expected = len(group) if index >= first else sum(id(p) in norms for p in group)
            assert trained == expected, (frozen_to, index)
    before = _state(learn.model[0])
    learn.freeze()
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 1e-2)
    frozen = [n for n, p in learn.model[0].named_parameters() if not p.requires_grad]
    assert frozen
    assert all(torch.equal(before[n], learn.model[0].state_dict()[n]) for n in frozen)
    learn.unfreeze()
    learn.opt.set_hyper("lr", slice(1e-5, 1e-2))
    rates = [group["lr"] for group in learn.opt.hypers]
    np.testing.assert_allclose(rates, np.geomspace(1e-5, 1e-2, 4), rtol=1e-6)


def test_fine_tune_goes_from_frozen_to_all_with_half_the_rate(folder, tmp_path):  # noqa: F811
    learn = learner(folder, tmp_path)
    quietly(learn, lr=1e-2)
    assert learn.opt.frozen_idx == 0
    # The recorder holds the last phase, where the head's rate peaks at half of the frozen phase's.
    assert max(learn.recorder.lrs) == pytest.approx(5e-3, rel=0.05)
    assert learn.recorder.lrs[0] == pytest.approx(1e-3), "one cycle: from a fifth of the peak"
    assert learn.recorder.lrs[-1] < 1e-3, "and down again"


def test_lr_find_leaves_weights_and_randomness_alone(folder, tmp_path):  # noqa: F811
    runs = []
    for searched in (False, True):
        learn = learner(folder, tmp_path)
        learn.dls.train.rng.seed(3)
        before = _state(learn.model)
        set_seed(1)
        if searched:
            with learn.no_bar(), learn.no_logging():
                test = find_lr(learn)
            assert 1e-7 < test.valley < 10
            assert 1e-7 < test.slide < 10
            assert test.lrs == sorted(test.lrs)
            assert len(test.lrs) == len(test.losses)
            assert test.lrs[0] == pytest.approx(1e-7)
            for name, value in before.items():
                assert torch.equal(learn.model.state_dict()[name], value), name
        quietly(learn, epochs=1, freeze_epochs=0)
        runs.append(_state(learn.model))
    for name, value in runs[0].items():
        assert torch.equal(runs[1][name], value), name


def test_undisturbed_randomness_covers_all_generators():
    import random

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with undisturbed_randomness():
        first = draw()
    assert draw() == first


def test_it_learns(folder, tmp_path):  # noqa: F811
    learn = learner(folder, tmp_path)
    learn.unfreeze()
    with learn.no_bar(), learn.no_logging():
        learn.fit(6, 5e-3)
    losses = learn.recorder.losses
    # tensors would keep the activations in memory
    assert {type(loss) for loss in losses} == {float}
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_steps_are_those_of_torch_weight_by_weight(folder, tmp_path):  # noqa: F811
    """The reference is its plain loop in float64; weights are channels-last, as in training."""
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)),
            torch.nn.Parameter(torch.randn(7))]  # fmt: skip
    theirs = [torch.nn.Parameter(p.detach().double()) for p in ours]
    opt = learner(folder, tmp_path).opt_func(ours, lr=0.01, weight_decay=0.1)
    oracle = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1, foreach=False)
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            other.grad = torch.randn_like(other)
            one.grad = other.grad.float()
        opt.step()
        oracle.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


def test_rare_classes_weigh_more(folder, tmp_path):  # noqa: F811
    loss = class_objective(TrainSettings(class_weights=True), [10, 20, 30]).loss
    np.testing.assert_allclose(loss.func.weight, [2.0, 1.0, 2 / 3], rtol=1e-6)


def test_a_background_counts_as_one_class_at_most():
    counts, settings = [10, 20, 30, 200], TrainSettings()
    assert class_objective(settings, counts[:3], False).loss.func.weight is None
    assert class_objective(settings, counts, True).loss.func.weight.tolist() == pytest.approx(
        [1, 1, 1, 0.1]
    )
    assert class_objective(settings, [10, 20, 30, 5], True).loss.func.weight.tolist() == [
        1,
        1,
        1,
        1,
    ]
    weights = class_objective(TrainSettings(class_weights=True), counts, True).loss.func.weight
    assert (weights * torch.tensor(counts)).tolist() == pytest.approx([65] * 4)


def test_attention_alone_is_trained(folder, tmp_path):  # noqa: F811
    learn = learner(folder, tmp_path, name=VIT, train="attention")
    before = _state(learn.model)
    names = {id(p): name for name, p in learn.model.named_parameters()}
    taught = {names[id(p)] for group in learn.opt.param_lists for p in group}
    assert taught == {n for n in names.values() if ".attn." in n or n.startswith("1.")}
    quietly(learn, epochs=1, freeze_epochs=1, train="attention")
    after = learn.model.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(after[name], value)}
    assert changed == taught
    assert all(p.grad is None for n, p in learn.model.named_parameters() if n not in taught)


def test_a_network_without_attention_says_so(folder, tmp_path):  # noqa: F811
    with pytest.raises(SecondhandError, match="--train attention: the backbone has no attention"):
        learner(folder, tmp_path, name=CNN, train="attention")
