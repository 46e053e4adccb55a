from __future__ import annotations

import copy
import json
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from fastai.data.core import DataLoaders
from fastai.learner import AvgSmoothLoss, Learner
from fastxtend.callback.channelslast import ChannelsLast
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from datasets.core.errors import SecondhandError
from datasets.items.splits import assign_splits
from datasets.loaders.blocks import Augmentation, PictureBlock, dataloaders
from datasets.steps.reading import load_table
from learners.backbones.building import NetworkSpec, build
from learners.cli.settings import TrainSettings
from learners.training import callbacks
from learners.training import learner as learner_module
from learners.training.checkpoints import Checkpoints
from learners.training.keep import Epoch, Keep, Kept
from learners.training.learner import find_lr, fine_tune, keep_blend, make_learner
from learners.training.objectives import class_objective
from learners.training.probe import ByPart
from learners.training.records import History, Improvements, Records
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow
aten = torch.ops.aten

CNN, VIT = "test_resnet", "test_vit"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def learner(
    folder: Path,
    path: Path,
    *,
    name: str = CNN,
    size: int = 32,
    bs: int = 8,
    cbs: list = (),
    **settings,
) -> Learner:
    torch.manual_seed(0)
    table = load_table(folder)
    frame, _ = assign_splits(table.frame)
    size = 160 if name == VIT else size
    spec = NetworkSpec(name, 3, size, head="linear", dropout=0.5)
    network, _, preprocessing = build(spec, pretrained=False)
    train = TrainSettings(bs=bs, freeze_epochs=1, **settings)
    block = PictureBlock(preprocessing, Augmentation())
    dls: DataLoaders = dataloaders(frame, block, table.classes, bs=bs, workers=0, path=str(path))
    learn = make_learner(
        dls, network, preprocessing, train,
        objective=class_objective(train, [14, 14, 14]), cbs=list(cbs),
    )  # fmt: skip
    learn.remove_cb(learn.progress) if hasattr(learn, "progress") else None
    return learn


def records_in(folder: Path, **how) -> Records:
    checkpoint = folder / "checkpoint"
    return Records(
        History(folder / "history.csv"), Keep(checkpoint, **how), Checkpoints(checkpoint)
    )


def quietly(learn: Learner, epochs: int = 1, freeze_epochs: int = 1, **settings) -> None:
    rates = {"lr": 1e-3, "lr_mult": 100.0}
    train = TrainSettings(epochs=epochs, freeze_epochs=freeze_epochs, **rates | settings)
    with learn.no_bar(), learn.no_logging():
        fine_tune(learn, train)


@pytest.mark.parametrize("name", [CNN, VIT])
def test_cpu_autocast_computes_in_bfloat16_and_returns_float32(folder, tmp_path, name):
    learn = learner(folder, tmp_path, name=name, cbs=callbacks.mixed_precision("bf16", "cpu"))
    modes, outputs = set(), set()
    layers = (torch.nn.Conv2d, torch.nn.Linear)
    for module in learn.model.modules():
        if isinstance(module, layers):
            module.register_forward_hook(lambda m, i, out: modes.add((learn.training, out.dtype)))
    learn.add_cb(_Spy(lambda learn: outputs.add(learn.pred.dtype)))
    quietly(learn, freeze_epochs=0)
    # Validation computes as prediction does.
    assert modes == {(True, torch.bfloat16), (False, torch.float32)}
    assert outputs == {torch.float32}
    assert {p.dtype for p in learn.model.parameters()} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_is_left_when_a_batch_fails(folder, tmp_path):
    def fail(learn):
        raise KeyboardInterrupt

    learn = learner(folder, tmp_path, cbs=[*callbacks.mixed_precision("bf16", "cpu"), _Spy(fail)])
    with pytest.raises(KeyboardInterrupt):
        quietly(learn)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("horizon", "epochs"), [(0.5, 2), (0.1, 1)])  # 10 and 5 steps
def test_ema_equals_the_average_computed_by_hand(folder, tmp_path, horizon, epochs):
    ema = callbacks.Ema(horizon)
    record: list[dict[str, torch.Tensor]] = []
    learn = learner(folder, tmp_path, cbs=[ema, _Spy(lambda learn: None)])
    learn.add_cb(_AfterStep(lambda learn: record.append(_state(learn.model))))
    before = _state(learn.model)
    learn.unfreeze()
    with learn.no_bar(), learn.no_logging():
        learn.fit(epochs, 1e-2)
    steps = epochs * len(learn.dls.train)
    decay = 1 - 1 / max(2, horizon * steps)  # over at least two steps
    assert len(record) == steps
    average = before
    for state in record:
        for name, value in state.items():
            if value.is_floating_point():
                average[name] = decay * average[name] + (1 - decay) * value
    ours = learn.model_ema.state_dict()
    for name, value in average.items():
        if value.is_floating_point():
            torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(ours[name], record[-1][name])
    moved = [n for n in ours if "running_mean" in n and not torch.equal(ours[n], before[n] * 0)]
    assert moved, "BatchNorm's averages never moved"


def test_validation_and_the_kept_weights_are_the_average(folder, tmp_path):
    records = records_in(tmp_path)
    learn = learner(folder, tmp_path, cbs=[callbacks.Ema(), callbacks.EpochEnd(records)])
    quietly(learn, epochs=1, freeze_epochs=0)
    fresh = copy.deepcopy(learn.model)
    assert records.keep.restore(fresh)
    for name, value in learn.model_ema.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name


@pytest.mark.parametrize("last", [False, True])
def test_the_best_or_the_last_epoch_is_kept(tmp_path, last):
    """The second of three epochs is worse than the first, and the third as well."""
    keep, weights = Keep(tmp_path, last=last), []
    assert keep.restore(nn.Linear(2, 2)) is None
    for epoch, loss in enumerate((0.1, 0.7, 0.4), 1):
        network = nn.Linear(2, 2)
        weights.append(network.state_dict())
        figures = {"train_loss": 1.0, "valid_loss": loss, "accuracy": 0.5}
        kept = keep.offer(network, Epoch("unfrozen", epoch, 3, figures, 6))
        assert kept == (last or epoch == 1)
    restored = nn.Linear(2, 2)
    facts = Keep(tmp_path).restore(restored)
    reached = {"valid_loss": 0.4 if last else 0.1, "accuracy": 0.5}
    why = "last" if last else "lowest"
    assert facts == Kept(why, "unfrozen", 3 if last else 1, 3, None, 6, reached, None)
    expected = weights[-1 if last else 0]
    assert all(torch.equal(restored.state_dict()[n], value) for n, value in expected.items())
    record = json.loads((tmp_path / "best.json").read_text())
    assert record["epoch"] == facts.epoch


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 3), ("f1", 2), ("", 1)])
def test_the_epoch_of_the_highest_metric_is_kept(tmp_path, metric, best):
    """Of equal accuracies the one of the lower loss."""
    keep = Keep(tmp_path, metric=metric)
    rows = [(0.1, 0.5, 0.2), (0.7, 0.8, 0.9), (0.4, 0.8, 0.6), (0.5, 0.8, 0.6)]
    for epoch, (loss, accuracy, f1) in enumerate(rows, 1):
        figures = {"train_loss": 1.0, "valid_loss": loss, "accuracy": accuracy, "f1": f1}
        keep.offer(nn.Linear(2, 2), Epoch("unfrozen", epoch, 4, figures, 6))
    kept = Keep(tmp_path).restore(nn.Linear(2, 2))
    assert kept.epoch == best
    assert kept.why == ("highest" if metric else "lowest")
    assert kept.reached["f1"] == rows[best - 1][2]


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_a_blend_is_chosen_by_the_metric(folder, tmp_path, monkeypatch, metric):
    """The last weights have the highest figure; those half way are expected to be best."""
    learn = learner(folder, tmp_path, keep=metric)
    keep = Keep(tmp_path, metric=metric, fitted=True)
    for phase, number in (("frozen", 1), ("unfrozen", 1)):
        figures = {"valid_loss": 1.0, "accuracy": 0.2, "f1": 0.2}
        keep.offer(learn.model, Epoch(phase, number, 1, figures, 9))
    measured = iter([0.4, 0.3, 0.5, 0.9])  # of half way, the probe, a quarter, and the last
    objective = class_objective(TrainSettings(keep=metric), [14, 14, 14])
    figures = lambda logits, targets: {  # noqa: E731
        "valid_loss": 1.0, "accuracy": 0.5, "f1": 0.5, metric: next(measured)
    }  # fmt: skip
    monkeypatch.setattr(type(objective), "figures", lambda self, *pair: figures(*pair))
    keep_blend(keep, learn, objective, 1)
    assert (keep.kept.why, keep.kept.way) == ("highest", 1.0)
    assert keep.kept.reached[metric] == 0.9


@pytest.mark.parametrize(("share", "count"), [(1.0, 3), (1e-9, 1)])
def test_improved_networks_can_be_used_during_the_training(
    folder, tmp_path, monkeypatch, share, count
):
    """Two head-only epochs on cached features and three of all weights; the fourth of the five improves nothing."""
    x, written = torch.rand(2, 3, 32, 32), []
    records = records_in(tmp_path)

    def write(network: nn.Sequential, kept: Kept, features: ByPart) -> None:
        assert features == []  # the head is trained by steps
        assert not network.training
        written.append(((kept.phase, kept.epoch), network(x)))
        torch.rand(9)  # as writing a model may: the training is not disturbed

    records.improvements = Improvements("unfrozen", write, share=share)
    learn = learner(folder, tmp_path, cbs=[callbacks.EpochEnd(records)])
    losses, offer = iter([0.9, 0.8, 0.7, 0.75, 0.1]), records.keep.offer
    monkeypatch.setattr(
        records.keep,
        "offer",
        lambda x, epoch: offer(x, epoch._replace(figures={"valid_loss": next(losses)})),
    )
    states = []
    learn.add_cb(_AfterEpoch(lambda learn: states.append(copy.deepcopy(learn.model.state_dict()))))
    quietly(learn, epochs=3, freeze_epochs=2)
    epochs = [("frozen", 1), ("frozen", 2), ("unfrozen", 1)]
    assert [kept for kept, _ in written] == epochs[:count]
    for epoch, (_, outputs) in zip((1, 2, 3), written, strict=False):
        learn.model.load_state_dict(states[epoch - 1])
        torch.testing.assert_close(learn.model.eval()(x), outputs)


@pytest.mark.parametrize(
    "name", [CNN, pytest.param(VIT, marks=pytest.mark.long("a convolutional network is tried"))]
)
def test_compile_makes_two_graphs_in_a_fine_tune_and_leaves_names_alone(
    folder, tmp_path, monkeypatch, caplog, name
):
    from torch._dynamo.utils import counters

    caplog.set_level("INFO")
    monkeypatch.setattr(learner_module, "FROZEN_VERSIONS", 0)
    torch._dynamo.reset()
    counters.clear()
    # Dynamo traces and guards as usual; the compiled code is run uncompiled.
    compiled = callbacks.Compile(backend="eager")
    learn = learner(folder, tmp_path, name=name, cbs=[compiled])
    names = list(learn.model.state_dict())
    quietly(learn, epochs=2, freeze_epochs=1)
    assert 1 <= counters["stats"]["unique_graphs"] <= 4
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    assert caplog.text.count("Compiling the training step") == 1
    assert list(learn.model.state_dict()) == names
    learn.freeze()
    learn.unfreeze()
    assert type(learn.model) is torch.nn.Sequential


def test_the_compiled_step_has_the_gradients_of_the_eager_one(folder, tmp_path, monkeypatch):
    """A small network without trial compilations and precompiled headers, which take seconds."""
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "vec_isa_ok", True)
    monkeypatch.setattr(config, "cpp_cache_precompile_headers", False)
    gradients = []
    for cbs in ([], [callbacks.Compile()]):
        torch._dynamo.reset()
        learn = learner(folder, tmp_path, cbs=[*cbs, _Fixed(32)])
        learn.model[0] = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        learn.model[1] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
        learn.unfreeze()
        with learn.no_bar(), learn.no_logging(), pytest.raises(KeyboardInterrupt):
            learn.fit(1, 0.0)
        gradients.append({n: p.grad for n, p in learn.model.named_parameters()})
    for name, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], value, rtol=1e-3, atol=1e-4, msg=name)


class _Parts(callbacks.Callback):
    """Give the same 40 random pictures in each epoch, in batches of any size; keep what each step has."""

    order = -20

    def __init__(self) -> None:
        self.steps: list[tuple[float, list[torch.Tensor]]] = []
        self.x = torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        self.y = torch.arange(40) % 3

    def before_batch(self) -> None:
        part = slice(self.iter * self.dl.bs, (self.iter + 1) * self.dl.bs)
        self.learn.xb, self.learn.yb = (self.x[part],), (self.y[part],)

    def after_step(self) -> None:
        gradients = [p.grad.clone() for p in self.learn.model.parameters()]
        self.steps.append((self.opt.hypers[-1]["lr"], gradients))


def test_accumulated_batches_train_as_one_of_their_size(folder, tmp_path):
    """Gradients, clipped, learning rates, weights and their average; a network without BatchNorm."""
    results = []
    for bs, accumulate in ((16, None), (4, 16)):
        learn = learner(
            folder, tmp_path, bs=bs, accumulate=accumulate, clip=0.1,
            cbs=[parts := _Parts(), callbacks.Ema(0.5)],
        )  # fmt: skip
        torch.manual_seed(0)
        learn.model[0] = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU())
        learn.model[1] = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 3))
        learn.opt = None
        learn.dls.train.n = 32  # two batches of 16
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(3, 1e-2)
        results.append((parts.steps, learn.model.state_dict(), learn.model_ema.state_dict()))
    (steps, *states), (accumulated, *accumulated_states) = results
    assert len(steps) == len(accumulated) == 3 * 2
    for (lr, gradients), (our_lr, ours) in zip(steps, accumulated, strict=True):
        assert our_lr == pytest.approx(lr)
        torch.testing.assert_close(ours, gradients, rtol=1e-5, atol=1e-5)
    for state, ours in zip(states, accumulated_states, strict=True):
        torch.testing.assert_close(ours, state, rtol=1e-4, atol=1e-4)


def test_the_last_step_of_an_epoch_may_have_fewer_batches(folder, tmp_path):
    learn = learner(folder, tmp_path, bs=4, accumulate=16, cbs=[parts := _Parts()])
    assert len(learn.dls.train) == 10
    gradients = []
    learn.model[0] = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    learn.model[1] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    learn.opt = None
    with learn.no_bar(), learn.no_logging():
        learn.fit(2, 0.0)
    loss = learn.loss_func(learn.model(parts.x[32:]), parts.y[32:])
    gradients = torch.autograd.grad(loss, [*learn.model.parameters()])
    assert len(parts.steps) == 2 * 3
    for of_epoch in (parts.steps[2][1], parts.steps[5][1]):
        torch.testing.assert_close(of_epoch, list(gradients), rtol=1e-5, atol=1e-6)


def test_batches_of_one_item_train_and_leave_batchnorm_alone(folder, tmp_path, caplog):
    """The last feature map is 1 x 1, so a single item gives BatchNorm a single value."""
    caplog.set_level("DEBUG")
    learn = learner(folder, tmp_path, size=32, bs=1)
    states: list[dict[str, torch.Tensor]] = []
    learn.add_cb(_AfterEpoch(lambda learn: states.append(_state(learn.model))))
    quietly(learn)
    assert "BatchNorms use their running averages" in caplog.text
    assert torch.isfinite(torch.tensor([float(v) for v in learn.recorder.values[-1]])).all()
    frozen, unfrozen = states
    unchanged = {name for name in frozen if torch.equal(frozen[name], unfrozen[name])}
    buffers = {name for name, _ in learn.model.named_buffers()}
    assert unchanged == buffers
    assert not (frozen["0.bn1.running_mean"] == 0).any(), "the frozen epoch has found them"


@pytest.mark.parametrize("every", [None, 2, 4, 50])
@pytest.mark.parametrize("batch", [3, 5])
def test_a_loss_that_is_no_number_ends_the_run_with_the_remedy(folder, tmp_path, every, batch):
    """At the end of its block, or of the epoch of 5 batches; it is named, and not those that it has spoilt."""
    learn, seen = learner(folder, tmp_path), []

    def spoil(learn: Learner) -> None:
        if learn.training:
            seen.append(learn.iter + 1)
            if learn.iter + 1 == batch and learn.epoch == 1:
                learn.pred = learn.pred * float("nan")

    learn.add_cb(_Spy(spoil))
    learn.loss_blocks.every = every
    with (
        learn.no_bar(), learn.no_logging(),
        pytest.raises(SecondhandError, match=rf"loss is nan in epoch 2, batch {batch}\. Lower --lr"),
    ):  # fmt: skip
        learn.fit(3, 1e-3)
    steps = every or 1
    assert seen == [1, 2, 3, 4, 5, *range(1, min(5, -(-batch // steps) * steps) + 1)]


def test_losses_that_are_looked_at_in_blocks_are_those_of_each_step(folder, tmp_path):
    """fastai's own are the reference; the last block of an epoch of 5 steps is shorter."""
    found = []
    for every in (None, 1, 2, 50):
        learn = learner(folder, tmp_path, cbs=[callbacks.Seeds(0)])
        learn.loss_blocks.every = every
        if every is None:
            learn.remove_cb(callbacks.LossBlocks)
            learn.recorder.smooth_loss = AvgSmoothLoss()
        with learn.no_bar(), learn.no_logging():
            learn.fit(2, 1e-3)
        reached = [row[0] for row in learn.recorder.values]
        found.append(([*map(float, learn.recorder.losses)], reached, learn.recorder.iters))
        assert len(found[-1][0]) == 2 * len(learn.dls.train)
    assert found[1:] == found[:1] * 3


class _Waits(callbacks.Callback):
    """Counts, in each training step, what waits for a device: numbers and arrays of tensors, and copies to the CPU."""

    order = -50

    def __init__(self) -> None:
        self.steps: list[list[str]] = []
        self.entered = ExitStack()

    def before_batch(self) -> None:
        if self.training:
            self.steps.append(found := [])
            self.entered.enter_context(_Methods(found))
            self.entered.enter_context(_Numbers(found))
            self.learn.add_cb(end := _Last(self.entered.close))
            self.entered.callback(self.learn.remove_cb, end)


class _Last(callbacks.Callback):
    order = 1000

    def __init__(self, act) -> None:
        self.act = act

    def after_batch(self) -> None:
        self.act()


class _Methods(TorchFunctionMode):
    WAITING = (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist)

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in self.WAITING:
            self.found.append(function.__name__)
        return function(*args, **kwargs or {})


class _Numbers(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (aten._local_scalar_dense, aten.nonzero, aten.equal):
            self.found.append(str(function))
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("how", [{}, {"accumulate": 16, "mixup": 0.2}])
def test_a_step_waits_for_the_device_only_at_the_end_of_a_block(folder, tmp_path, how):
    """With all callbacks of a run: what is a number here would be a wait for the kernels of a GPU."""
    cbs = [
        *callbacks.mixed_precision("bf16", "cpu"), callbacks.Ema(), callbacks.Seeds(0), callbacks.ShowProgress(),
        callbacks.EpochEnd(records_in(tmp_path)), ChannelsLast(), waits := _Waits(),
    ]  # fmt: skip
    learn = learner(folder, tmp_path, bs=4, clip=1.0, cbs=cbs, **how)
    learn.loss_blocks.every = 4
    learn.unfreeze()
    with learn.no_bar(), learn.no_logging():
        learn.fit(2, 1e-3)  # the schedules of rates compute with tensors on the CPU, on each device
    assert len(waits.steps) == 2 * len(learn.dls.train) == 20
    of_epoch = [False, False, False, True, False, False, False, True, False, False]
    assert [bool(step) for step in waits.steps] == of_epoch * 2
    learn = learner(folder, tmp_path, cbs=[waits := _Waits()])
    learn.remove_cb(callbacks.LossBlocks)
    learn.recorder.smooth_loss = AvgSmoothLoss()
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 1e-3)
    assert all(waits.steps), "fastai's own losses are copied to the CPU in each step"


def test_tf32_is_for_training_steps_alone(folder, tmp_path, monkeypatch):
    allowed, seen = [False], []
    monkeypatch.setattr(callbacks, "allow_tf32", lambda on: allowed.append(on))
    (tf32,) = callbacks.mixed_precision("tf32", "cuda")
    spy = _Spy(lambda learn: seen.append((learn.training, allowed[-1])))
    learn = learner(folder, tmp_path, cbs=[tf32, spy])
    with learn.no_bar(), learn.no_logging():
        learn.fit(2, 1e-3)
    assert {*seen} == {(True, True), (False, False)}
    assert not allowed[-1]
    find_lr(learn)  # ends within the training
    assert not allowed[-1]


def test_fp16_skips_steps_whose_gradients_overflow_and_lowers_the_scale(folder, tmp_path):
    """By torch's scaler for the CPU; the average of the weights does not count such a step."""
    mixed, seen = callbacks.MixedPrecision("fp16"), list[tuple[float, dict, dict]]()

    def overflow(learn: Learner) -> None:
        if learn.training and learn.iter == 1:
            learn.pred = learn.pred * 1e35

    def note(learn: Learner) -> None:
        if learn.training:
            states = _state(learn.model), _state(learn.ema.ema_model)
            seen.append((learn.scaler.get_scale(), *states))

    after = _Last(lambda: note(learn))
    learn = learner(folder, tmp_path, cbs=[mixed, callbacks.Ema(0.5), _Spy(overflow), after])
    mixed.before_fit, mixed.autocast = (lambda: None), nullcontext()
    learn.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    learn.unfreeze()
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, 1e-3)
    assert [scale for scale, *_ in seen] == [2.0**16, *[2.0**15] * 4]
    weights, averages = ([state[of]["1.3.weight"] for state in seen] for of in (1, 2))
    for of_step in (weights, averages):
        same = [torch.equal(one, next) for one, next in pairwise(of_step)]
        assert same == [True, False, False, False]


def test_history_has_a_row_for_each_epoch_of_both_phases(folder, tmp_path):
    import pandas as pd

    learn = learner(folder, tmp_path, cbs=[callbacks.EpochEnd(records_in(tmp_path))])
    quietly(learn, epochs=2, freeze_epochs=1)
    rows = pd.read_csv(tmp_path / "history.csv")
    assert list(rows.phase) == ["frozen", "unfrozen", "unfrozen"]
    assert list(rows.epoch) == [1, 1, 2]
    assert {"train_loss", "valid_loss", "accuracy", "lr", "seconds"} <= set(rows.columns)
    assert rows.accuracy.between(0, 1).all()


@pytest.mark.parametrize(
    "precision", [pytest.param("fp32", marks=pytest.mark.long("bf16 is tried")), "bf16"]
)
def test_all_of_them_together(folder, tmp_path, precision):
    """Precision, EMA, compilation, channels-last and clipping in one run."""
    records = records_in(tmp_path)
    cbs = [
        *callbacks.mixed_precision(precision, "cpu"),
        callbacks.Ema(),
        callbacks.Compile(backend="eager"),
        ChannelsLast(),
        callbacks.EpochEnd(records),
    ]
    learn = learner(folder, tmp_path, cbs=cbs, clip=1.0, mixup=0.2)
    quietly(learn, epochs=1)
    assert records.keep.restore(learn.model)
    assert all("_orig_mod" not in name for name in learn.model.state_dict())
    learn.remove_cbs([c for c in learn.cbs if isinstance(c, callbacks.CpuAutocast)])
    probabilities, _ = learn.get_preds()
    fresh, _, _ = build(NetworkSpec(CNN, 3, 64, head="linear"), pretrained=False)
    records.keep.restore(fresh)
    fresh.eval()
    with torch.inference_mode():
        again = torch.cat([fresh(x.as_subclass(torch.Tensor)) for x, _ in learn.dls.valid]).softmax(
            1
        )
    torch.testing.assert_close(probabilities, again, rtol=1e-4, atol=1e-5)


class _Spy(callbacks.Callback):
    order = 30

    def __init__(self, act) -> None:
        self.act = act

    def after_pred(self) -> None:
        self.act(self.learn)


class _Fixed(callbacks.Callback):
    """Always give the same batch, and stop before its step."""

    order = -20

    def __init__(self, size: int) -> None:
        self.size = size

    def before_batch(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(8, 3, self.size, self.size)
        self.learn.xb, self.learn.yb = (x,), (torch.arange(8) % 3,)

    def before_step(self) -> None:
        raise KeyboardInterrupt


class _AfterEpoch(callbacks.Callback):
    def __init__(self, act) -> None:
        self.act = act

    def after_epoch(self) -> None:
        self.act(self.learn)


class _AfterStep(callbacks.Callback):
    order = -10

    def __init__(self, act) -> None:
        self.act = act

    def after_step(self) -> None:
        self.act(self.learn)


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
