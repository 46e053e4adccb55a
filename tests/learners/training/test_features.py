"""Frozen epochs on stored features: the same head and records with a fraction of the work."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.callback.core import Callback
from fastxtend.callback.channelslast import ChannelsLast
from torch.nn import functional

from learners.backbones.building import NetworkSpec, build
from learners.finetune import main
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.machine.hardware import keep_thread_count
from learners.model.bundle import Bundle
from learners.training import callbacks, features
from learners.training import learner as learner_module
from learners.training.callbacks import Seeds
from learners.training.features import (
    by_part,
    frozen_features,
    head_learner,
    outputs_by_part,
)
from tests.learners.training.test_callbacks import (
    CNN,
    VIT,
    _state,
    folder,  # noqa: F401
    learner,
    quietly,
    records_in,
)

pytestmark = pytest.mark.slow


class Counts(Callback):
    """Count passes through the backbone, and record what the head gets."""

    def before_fit(self) -> None:
        self.through, self.batches, self.losses = 0, [], []
        self.handle = self.model[0].register_forward_pre_hook(self.seen)

    def seen(self, module, inputs) -> None:
        if inputs[0].ndim == 4:
            self.through += len(inputs[0])

    def before_batch(self) -> None:
        self.batches.append((self.training, self.epoch, self.xb[0].clone(), self.yb[0].clone()))

    def after_loss(self) -> None:
        if self.training:
            self.losses.append(self.loss.item())

    def after_fit(self) -> None:
        self.handle.remove()


def frozen_only(learn, epochs: int, views: int, **settings) -> None:
    with patch.object(learner_module, "FROZEN_VERSIONS", views):
        quietly(learn, epochs=0, freeze_epochs=epochs, **settings)


@pytest.mark.parametrize("name", [CNN, VIT])
def test_the_body_sees_each_file_once_a_view(folder, tmp_path, name):  # noqa: F811
    learn = learner(folder, tmp_path, name=name)
    passed = []
    learn.model[0].register_forward_pre_hook(
        lambda module, inputs: passed.append(len(inputs[0])) if inputs[0].ndim == 4 else None
    )
    before = _state(learn.model)
    frozen_only(learn, epochs=5, views=2)  # nothing follows: a probe
    train, valid = learn.dls.train.n, learn.dls.valid.n
    assert sum(passed) == 2 * train + valid
    after = learn.model.state_dict()
    assert all(torch.equal(after[f"0.{n}"], before[f"0.{n}"]) for n in learn.model[0].state_dict())
    head = "1.3.weight" if name == CNN else "1.1.weight"  # behind the pooling
    assert not torch.equal(after[head], before[head])


def test_an_epoch_gives_each_file_once_and_the_next_epoch_the_next_view(folder, tmp_path):  # noqa: F811
    learn = learner(folder, tmp_path, cbs=[counts := Counts()])
    frozen_only(learn, epochs=3, views=2)
    epochs = [
        torch.cat([x for training, at, x, _ in counts.batches if training and at == epoch])
        for epoch in range(3)
    ]
    # The last, smaller batch is dropped, as when files are read.
    assert [len(x) for x in epochs] == [learn.dls.train.n // 8 * 8] * 3
    rows = [{tuple(row.tolist()) for row in x} for x in epochs]
    assert all(len(each) == len(x) for each, x in zip(rows, epochs, strict=True))
    assert not rows[0] & rows[1]
    assert len(rows[0] & rows[2]) > len(rows[0]) // 2
    assert not torch.equal(epochs[0], epochs[2]), "the order is drawn anew"


def test_views_are_of_training_though_its_loader_never_ran(folder, tmp_path):  # noqa: F811
    """fastai tells a loader's transforms whether they are for training only when it starts."""
    learn = learner(folder, tmp_path, size=64, cbs=[Seeds(0)])
    shapes = []
    learn.model[0].register_forward_pre_hook(lambda module, inputs: shapes.append(inputs[0].shape))
    with keep_thread_count(1):  # so that batches are complete
        frozen_only(learn, epochs=1, views=1)
    crops = shapes[: -(-learn.dls.train.n // 8)]
    assert sum(shape[0] for shape in crops) == learn.dls.train.n
    assert {shape[2:] for shape in crops} == {(64, 64)}, "files of 48 x 40, not cropped to 64"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_validation_is_the_whole_networks(folder, tmp_path, precision):  # noqa: F811
    """The reference is plain torch in fp32, whatever training computes in and minimises."""
    records = callbacks.EpochEnd(records_in(tmp_path))
    cbs = [ChannelsLast(), records, *callbacks.mixed_precision(precision, "cpu")]
    learn = learner(folder, tmp_path, cbs=cbs, label_smoothing=0.1, class_weights=True)
    frozen_only(learn, epochs=2, views=1)
    actual = pd.read_csv(tmp_path / "history.csv").iloc[-1][["valid_loss", "accuracy"]].tolist()
    network = learn.model.eval()
    with torch.inference_mode():
        batches = [(network(x.as_subclass(torch.Tensor)), y) for x, y in learn.dls.valid]
    logits = torch.cat([z for z, _ in batches])
    labels = torch.cat([y for _, y in batches]).as_subclass(torch.Tensor)
    right = (logits.argmax(1) == labels).float().mean()
    nll = functional.cross_entropy(logits, labels)
    assert actual == pytest.approx([nll.item(), right.item()], abs=1e-5)


def test_the_head_trains_as_on_the_body_itself(folder, tmp_path):  # noqa: F811
    """The reference is plain torch: the same batches, the backbone in eval mode, AdamW."""
    learn = learner(folder, tmp_path, cbs=[counts := Counts()])
    for layer in learn.model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0  # it would draw other units
    network = copy.deepcopy(learn.model)
    learn.freeze()
    with head_learner(learn, 1, adapt=False) as head_only:
        head_only.fit(1, 1e-2)
    head = network[1].train()
    opt = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0.01)
    losses = []
    for training, _, x, y in counts.batches:
        if training:
            loss = functional.cross_entropy(head[1:](x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
    assert counts.losses == pytest.approx(losses, rel=1e-3)
    for name, value in head.state_dict().items():
        torch.testing.assert_close(learn.model[1].state_dict()[name], value, rtol=1e-3, atol=1e-4)
    # For validation, the head gets the backbone's pooled map of the pictures.
    x = torch.cat([x for x, _ in learn.dls.valid]).as_subclass(torch.Tensor)
    inputs = torch.cat([x for training, _, x, _ in counts.batches if not training])
    torch.testing.assert_close(inputs, network[1][:2](network[0].eval()(x)), rtol=1e-4, atol=1e-4)


def test_batchnorm_follows_the_training_files_where_all_weights_are_to_be_trained(folder, tmp_path):  # noqa: F811
    """The averages follow the definition; the head's input is normalised by the batch."""
    learn = learner(folder, tmp_path, cbs=[counts := Counts()])
    body_inputs: list[torch.Tensor] = []
    norm = next(m for m in learn.model[0].modules() if isinstance(m, torch.nn.BatchNorm2d))
    norm.register_forward_pre_hook(
        lambda module, inputs: body_inputs.append(inputs[0].detach()) if module.training else None
    )
    before = _state(learn.model)
    learn.freeze()
    with head_learner(learn, 2, adapt=True) as head_only:
        head_only.fit(3, 1e-3)
    assert len(body_inputs) == 2 * -(-learn.dls.train.n // 8)
    items = torch.tensor([len(x) for x in body_inputs])
    assert items.unique().tolist() == [2, 8], "the last batch counts for its items"
    part = (items / items.sum())[:, None]
    mean = (part * torch.stack([x.mean((0, 2, 3)) for x in body_inputs])).sum(0)
    var = (part * torch.stack([x.var((0, 2, 3)) for x in body_inputs])).sum(0)
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, var, rtol=1e-4, atol=1e-5)
    assert norm.momentum is not None
    # The backbone's weights are unchanged, its averages are not.
    after = learn.model.state_dict()
    weights = {f"0.{n}" for n, _ in learn.model[0].named_parameters()}
    assert all(torch.equal(after[n], before[n]) for n in weights)
    assert not torch.equal(after["0.bn1.running_mean"], before["0.bn1.running_mean"])
    head_batches = [(x, y) for training, at, x, y in counts.batches if not training and at == 2]
    with learn.no_bar(), learn.no_logging():
        anew = [float(v) for v in learn.validate()]
    logits = learn.model[1].eval()[1:](torch.cat([x for x, _ in head_batches]))
    assert functional.cross_entropy(
        logits, torch.cat([y for _, y in head_batches])
    ).item() == pytest.approx(anew[0], abs=1e-4)


def test_a_last_file_alone_is_normalised_by_the_averages(folder, tmp_path):  # noqa: F811
    """The last feature map is 1 x 1, so a single item gives BatchNorm a single value."""
    learn = learner(folder, tmp_path, size=32)
    learn = learner(folder, tmp_path, size=32, bs=learn.dls.train.n - 1)
    passed = []
    norm = learn.model[0].bn1
    norm.register_forward_pre_hook(
        lambda module, inputs: passed.append(len(inputs[0])) if module.training else None
    )
    quietly(learn, epochs=1, freeze_epochs=1)
    assert passed == 2 * [learn.dls.train.n - 1]


def test_the_seed_says_which_features(folder, tmp_path):  # noqa: F811
    def drawn(seed: int, disturb: bool = False) -> torch.Tensor:
        learn = learner(folder, tmp_path, cbs=[counts := Counts()])
        torch.manual_seed(seed)
        if disturb:
            torch.rand(100)
        frozen_only(learn, epochs=1, views=1)
        features = torch.cat([x for training, _, x, _ in counts.batches if training])
        return features[features[:, 0].argsort()]

    assert torch.equal(drawn(1), drawn(1, disturb=True))
    assert not torch.equal(drawn(1), drawn(2))


def test_no_views_is_the_whole_network_in_every_epoch(folder, tmp_path):  # noqa: F811
    learn = learner(folder, tmp_path, cbs=[counts := Counts()])
    frozen_only(learn, epochs=2, views=0)
    assert counts.through == 2 * (learn.dls.train.n // 8 * 8 + learn.dls.valid.n)


def test_mixup_needs_pictures_and_says_so(folder, tmp_path, caplog):  # noqa: F811
    caplog.set_level(logging.DEBUG)
    learn = learner(folder, tmp_path, mixup=0.4, cbs=[counts := Counts()])
    frozen_only(learn, epochs=1, views=2)
    assert counts.through == learn.dls.train.n // 8 * 8 + learn.dls.valid.n
    assert "--mixup mixes the inputs" in caplog.text


@pytest.mark.parametrize(("name", "precision"), [(CNN, "fp32"), (VIT, "fp32"), (CNN, "bf16")])
def test_the_frozen_body_gives_the_outputs_of_prediction(folder, tmp_path, name, precision):  # noqa: F811
    """The reference opens the files for prediction, in fp32; training features in bf16 are of no use then."""
    learn = learner(folder, tmp_path, name=name, cbs=callbacks.mixed_precision(precision, "cpu"))
    (train,), valid = frozen_features(learn)
    shown = [item.part for ds in (learn.dls.train_ds, learn.dls.valid_ds) for item in ds.items]
    known = by_part(learn, train, valid)
    parts, logits, pooled = zip(*outputs_by_part(learn.model, known, shown), strict=True)
    parts = [part for of_block in parts for part in of_block]
    assert {*parts} == {*shown[0 if precision == "fp32" else learn.dls.train.n :]}
    spec = NetworkSpec(name, 3, learn.dls.one_batch()[0].shape[-1], head="linear")
    _, spec, preprocessing = build(spec, pretrained=False)
    model = Bundle(built=learn.model, spec=spec, classes=[*"abc"], preprocessing=preprocessing)
    _, *expected = load_predictor(model, device="cpu").outputs(parts)
    for ours, theirs in zip((logits, pooled), expected, strict=True):
        np.testing.assert_allclose(np.concatenate(ours), theirs, rtol=1e-4, atol=1e-5)


def test_stored_rows_are_those_of_a_tensor(tmp_path):
    x, stored = torch.randn(7, 3), features.StoredFeatures(tmp_path)
    for part in x.split(2):
        stored.append(part.numpy())
    assert (len(stored), stored.shape) == (7, (7, 3))
    numbers = torch.tensor([5, 0, 5])
    assert torch.equal(stored[numbers], x[numbers])


def test_ctrl_c_gives_the_callbacks_back(folder, tmp_path):  # noqa: F811
    class Stop(Callback):
        def after_epoch(self) -> None:
            raise KeyboardInterrupt

    learn = learner(folder, tmp_path, cbs=[callbacks.Ema(), Stop()])
    loaders, own = learn.dls, [*learn.cbs]
    with pytest.raises(KeyboardInterrupt):
        frozen_only(learn, epochs=5, views=1)
    assert learn.dls is loaders
    assert {*learn.cbs} == {*own}
    assert all(cb.learn is learn for cb in own)
    assert learn.model(torch.zeros(2, 3, 64, 64)).shape == (2, 3)


def test_with_everything_else_and_then_all_weights(folder, tmp_path):  # noqa: F811
    records = records_in(tmp_path)
    cbs = [callbacks.EpochEnd(records), callbacks.Ema(), ChannelsLast(),
           compiled := callbacks.Compile(backend="eager"),
           *callbacks.mixed_precision("bf16", "cpu")]  # fmt: skip
    learn = learner(folder, tmp_path, clip=1.0, cbs=cbs)
    quietly(learn, epochs=1, freeze_epochs=3, lr_mult=10)
    history = pd.read_csv(tmp_path / "history.csv")
    assert history["phase"].tolist() == ["frozen"] * 3 + ["unfrozen"]
    assert history["valid_loss"].notna().all()
    assert compiled in learn.cbs
    assert records.keep.restore(learn.model)
    assert type(learn.model_ema) is torch.nn.Sequential


def test_a_probe_learns_the_head_alone_and_is_a_model_like_any_other(folder, tmp_path):  # noqa: F811
    out = tmp_path / "run"
    words = ["--data", str(folder), "--out", str(out), "--backbone", "embedded", "--size", "48",
             "--bs", "8", "--workers", "0", "--epochs", "0"]  # fmt: skip
    assert main(words) == 0
    history = pd.read_csv(out / "history.csv")
    assert history["phase"].tolist() == ["frozen"]
    assert history["accuracy"].max() > 0.9
    network = Predictor(out / "model").network
    assert [type(layer).__name__ for layer in network[1]][-1] == "Linear"
    pretrained, _, _ = build(NetworkSpec("embedded", 3, 48))
    state, theirs = network[0].state_dict(), pretrained[0].state_dict()
    assert all(torch.equal(state[name], theirs[name]) for name in theirs)
    assert (out / "report/index.html").stat().st_size
    assert Path(out / "predictions.csv").stat().st_size
