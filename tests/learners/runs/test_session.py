"""A session of a fastai user: learners by name, what one does with them, and the model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from fastai.callback.core import Callback
from fastai.callback.schedule import slide, valley
from fastai.data.transforms import Normalize
from fastai.interpret import ClassificationInterpretation
from fastai.learner import Learner
from fastai.losses import LabelSmoothingCrossEntropyFlat
from fastai.metrics import F1Score, accuracy
from fastai.torch_core import set_seed
from fastai.vision.augment import RandomResizedCrop, Resize, ResizeMethod
from fastai.vision.data import ImageDataLoaders

import secondhand
from datasets.core.errors import SecondhandError
from learners.model.bundle import load_bundle
from learners.rule.settings import ConfidenceSettings
from tests.learners.training.test_callbacks import CNN, VIT
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow
mpl.use("agg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def loaders(folder: Path, item_tfms: Any, **options: Any) -> ImageDataLoaders:
    return ImageDataLoaders.from_folder(
        folder, valid_pct=0.4, seed=0, bs=8, num_workers=0, item_tfms=item_tfms, **options
    )


class Spy(Callback):
    """A callback of one's own: counts the steps of the optimizer."""

    steps = 0

    def after_step(self) -> None:
        Spy.steps += 1


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Learner:
    """A learner that has found its rate and was fine-tuned, with loss, metrics and callback of one's own."""
    set_seed(0)
    learn = secondhand.vision_learner(
        loaders(folder, Resize(64)), CNN, weights="none",
        metrics=[accuracy, F1Score(average="macro")], loss_func=LabelSmoothingCrossEntropyFlat(),
        cbs=[Spy()], path=tmp_path_factory.mktemp("learner"),
    )  # fmt: skip
    with learn.no_bar(), learn.no_logging():
        found = learn.lr_find(suggest_funcs=(slide, valley), show_plot=False, num_it=60)
        learn.fine_tune(10, 1e-2, pct_start=0.5, div=2.0)
    assert 1e-7 < found.valley < 10
    return learn


def test_what_a_fastai_user_does_with_it(trained: Learner) -> None:
    assert isinstance(trained, Learner)
    assert trained.arch is not None
    assert Spy.steps > 10 * 4
    assert trained.recorder.metric_names == [
        "epoch", "train_loss", "valid_loss", "accuracy", "f1_score", "time"
    ]  # fmt: skip
    # The shape of one-cycle was given: half of the steps up from half of the peak of the second phase.
    rates = trained.recorder.lrs
    assert rates[0] == pytest.approx(max(rates) / 2, rel=0.01)
    assert np.argmax(rates) == pytest.approx(len(rates) / 2, abs=1)
    with trained.no_bar():
        interpretation = ClassificationInterpretation.from_learner(trained)
        assert interpretation.confusion_matrix().shape == (3, 3)
        trained.show_results()
    right = interpretation.confusion_matrix().trace() / interpretation.confusion_matrix().sum()
    assert right > 0.8
    trained.freeze()
    matrices = [p for group in trained.opt.param_lists[:-1] for p in group if p.ndim > 1]
    assert matrices
    assert not any(p.requires_grad for p in matrices)  # norms are trained, as in fastai
    trained.unfreeze()


def test_one_call_writes_a_model_folder_that_answers_alike(
    trained: Learner, tmp_path: Path
) -> None:
    model = secondhand.save_learner(trained, tmp_path / "model")
    paths = list(trained.dls.valid_ds.items)
    with trained.no_bar():
        expected, _ = trained.get_preds(dl=trained.dls.test_dl(paths))
    bundle = load_bundle(model)
    assert bundle.classes == ["blue", "green", "red"]
    assert bundle.spec.head == "fastai"
    assert bundle.preprocessing.crop == 1.0
    predictor = secondhand.load_predictor(model)
    names, logits, features = predictor.outputs(paths)
    assert names == [str(path) for path in paths]
    answered = torch.from_numpy(logits).softmax(1)
    assert (answered - expected).abs().max() < 0.02
    assert features.shape == (len(paths), bundle.rule.distance.reference.shape[1])
    near = predictor.predict([paths[0]])
    assert next(iter(near)).best == bundle.classes[expected[0].argmax()]
    # It can be trained further, and saved again.
    with trained.no_bar(), trained.no_logging():
        trained.fit(1, 1e-4)
    secondhand.save_learner(trained, model, ConfidenceSettings(threshold=0.9))
    assert load_bundle(model).rule.threshold.value == 0.9


@pytest.mark.parametrize(
    ("transform", "resize", "crop"),
    [
        (Resize(64), "crop", 1.0),
        (Resize(64, ResizeMethod.Squish), "squash", 1.0),
    ],
)
def test_learner_around_a_vit_and_its_preprocessing(
    folder: Path, tmp_path: Path, transform: Any, resize: str, crop: float
) -> None:
    torch.manual_seed(0)
    learn = secondhand.learner(loaders(folder, transform), VIT, weights="none", path=tmp_path)
    assert len(learn.opt_func.__name__)
    assert len(learn.splitter(learn.model)) == 4
    normalize = next(t for t in learn.dls.valid.after_batch.fs if isinstance(t, Normalize))
    model = secondhand.save_learner(learn, tmp_path / "model")
    found = load_bundle(model).preprocessing
    assert (found.resize, found.crop) == (resize, crop)
    assert found.mean == pytest.approx(normalize.mean.flatten().tolist())


def test_what_cannot_be_is_said(folder: Path, tmp_path: Path) -> None:
    dls = loaders(folder, Resize(160))
    with pytest.raises(SecondhandError, match="test_vit gives no feature maps: use learner"):
        secondhand.vision_learner(dls, VIT, weights="none")
    with pytest.raises(SecondhandError, match="nearest names"):
        secondhand.learner(dls, "resnet81")
    with pytest.raises(SecondhandError, match="not one of vision_learner or learner"):
        secondhand.save_learner(Learner(dls, torch.nn.Flatten(), loss_func=len), tmp_path / "x")
    with pytest.raises(SecondhandError, match="instead of \\[batch, 3, size, size\\]"):
        secondhand.learner(loaders(folder, Resize((64, 96))), VIT, weights="none")
    squeezed = secondhand.learner(
        loaders(folder, RandomResizedCrop(64)), CNN, weights="none", path=tmp_path
    )
    with pytest.raises(SecondhandError, match=r"grey values in the mean. Use Resize\(size\)"):
        secondhand.save_learner(squeezed, tmp_path / "model")
    assert not (tmp_path / "model").exists()
