"""Views of an input: what each sees, their mean, and what a model folder may say of them."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy.special import softmax

from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS
from datasets.kinds.views import PLAIN, TTAView
from learners.backbones.averaging import MEAN_LOGIT, MEAN_PROBABILITY
from learners.backbones.building import build
from learners.backbones.spec import NetworkSpec
from learners.finetune import main
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.model.bundle import CONFIG, Bundle, load_bundle, save_bundle
from learners.model.tta import (
    apply_tta_view,
    average_tta_views,
    check_tta_views,
    tta_views_for,
)
from learners.predict import main as predict
from tests.learners.rules import plain_rule
from tests.pictures import write_pictures

pytestmark = pytest.mark.usefixtures("unreported")

CLASSES = ["a", "b", "c"]
VIEWS = tta_views_for(KINDS["picture"], 6)


def bundle(tta_views: tuple[TTAView, ...] = VIEWS, temperature: float = 1.0) -> Bundle:
    torch.manual_seed(0)
    network, spec, preprocessing = build(
        NetworkSpec("test_resnet", len(CLASSES), size=32, head="linear"), pretrained=False
    )
    with torch.no_grad():
        # An untrained network prefers one class whatever its input; make answers differ between
        # views.
        last, body = network[1][-1], network[0].eval()
        features = body(torch.randn(64, 3, 4, 4).repeat(1, 1, 8, 8)).mean((2, 3))
        last.weight.div_((features @ last.weight.T).std(0)[:, None] / 3)
        last.bias.copy_(-(features @ last.weight.T).mean(0))
    return Bundle(
        built=network.eval(),
        spec=spec,
        classes=CLASSES,
        preprocessing=preprocessing,
        tta_views=tta_views,
        rule=plain_rule(len(CLASSES), temperature=temperature, threshold=0.5),
    )


@pytest.fixture
def batch() -> np.ndarray:
    small = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    return np.ascontiguousarray(small.repeat(4, 2).repeat(4, 3))


# --- what a view sees -----------------------------------------------------------------------------


def test_mirror_shift_and_the_plain_one():
    x = torch.arange(2 * 3 * 4 * 8.0).view(2, 3, 4, 8)
    assert apply_tta_view(x, PLAIN) is x
    assert torch.equal(apply_tta_view(x, TTAView(mirror=True)), x.flip(3))
    moved = apply_tta_view(x, TTAView(shift=0.25))
    assert torch.equal(moved[..., 2:], x[..., :-2])
    assert torch.equal(moved[..., :2], x[..., -2:])
    assert torch.equal(apply_tta_view(x, TTAView(shift=-0.25)), x.roll(-2, 3))


@pytest.mark.parametrize(
    ("x", "y", "box"), [(0, 0, (4, 4, 20, 20)), (-1, -1, (0, 0, 16, 16)), (1, -1, (8, 0, 24, 16))]
)
def test_a_closer_look_is_pillows_crop_scaled_up(x, y, box):
    rng = np.random.default_rng(1)
    picture = rng.random((24, 24), dtype=np.float32)
    view = apply_tta_view(
        torch.from_numpy(picture).expand(1, 3, 24, 24), TTAView(zoom=1.5, x=x, y=y)
    )
    expected = Image.fromarray(picture).crop(box).resize((24, 24), Image.Resampling.BILINEAR)
    assert np.abs(view[0, 0].numpy() - np.asarray(expected)).max() < 1e-5


@pytest.mark.parametrize(
    "view",
    [
        PLAIN,
        TTAView(mirror=True),
        TTAView(shift=-0.2),
        TTAView(mirror=True, zoom=1.15, x=-1, y=0.5),
        TTAView(zoom=4),
    ],
)
def test_an_array_is_looked_at_as_a_tensor_is(view):
    x = np.random.default_rng(2).standard_normal((2, 3, 24, 37)).astype(np.float32)
    np.testing.assert_allclose(
        apply_tta_view(x, view), apply_tta_view(torch.from_numpy(x), view), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("average", [MEAN_PROBABILITY, MEAN_LOGIT])
def test_arrays_are_averaged_as_tensors_are(average):
    logits, features = torch.randn(3, 5, 4) * 5, torch.randn(3, 5, 7)
    tta_views = (PLAIN, TTAView(mirror=True), TTAView(zoom=2))
    tensors = zip(logits, features, strict=True)
    arrays = zip(logits.numpy(), features.numpy(), strict=True)
    of = torch.zeros(5, 3, 8, 8)
    theirs = average_tta_views(lambda x: next(tensors), of, tta_views, average)
    ours = average_tta_views(lambda x: next(arrays), of.numpy(), tta_views, average)
    assert torch.allclose(theirs[0], logits.mean(0), atol=1e-5) is (average is MEAN_LOGIT)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


# --- the mean -------------------------------------------------------------------------------------


def test_the_answer_is_the_mean_over_the_views(batch):
    untrained = bundle()
    predictor = load_predictor(untrained, device="cpu")
    logits, features = predictor.forward(batch)
    # By hand: numpy's mirror and torch's crop, one forward pass each.
    mean, std = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (
        untrained.preprocessing.mean, untrained.preprocessing.std))  # fmt: skip
    x = torch.from_numpy((batch / np.float32(255) - mean) / std)
    side = round(32 / 1.15)
    middle, corner = round((32 - side) / 2), 0
    inputs = [x, torch.from_numpy(x.numpy()[..., ::-1].copy())]
    for start in (middle, corner):
        cut = x[..., start : start + side, start : start + side]
        enlarged = torch.nn.functional.interpolate(cut, (32, 32), mode="bilinear")
        inputs += [enlarged, enlarged.flip(3)]
    with torch.inference_mode():
        each = [softmax(untrained.network(view).double().numpy(), axis=1) for view in inputs]
        maps = [untrained.network[0](view).mean((2, 3)).numpy() for view in inputs]
    assert np.ptp(np.stack(each), axis=0).max() > 0.1, "views that all say the same prove nothing"
    assert softmax(logits.astype(float), axis=1) == pytest.approx(np.mean(each, axis=0), abs=1e-5)
    assert features == pytest.approx(np.mean(maps, axis=0), abs=1e-5)


def test_one_view_is_plain_to_the_bit_and_the_views_can_be_switched_off(batch, caplog):
    plain = load_predictor(bundle((PLAIN,)), device="cpu").forward(batch)
    with caplog.at_level("WARNING"):
        without_views = load_predictor(bundle(), device="cpu", tta=False).forward(batch)
    assert "6 variants of each file" in caplog.text
    for first, second in zip(plain, without_views, strict=True):
        assert np.array_equal(first, second)
    assert tta_views_for(KINDS["picture"], 1) == tta_views_for(KINDS["strain"], 1) == (PLAIN,)
    caplog.clear()
    load_predictor(bundle((PLAIN,)), device="cpu", tta=False)
    assert not caplog.text


# --- which views ----------------------------------------------------------------------------------


def test_views_are_among_what_training_shows():
    tta_views = tta_views_for(KINDS["picture"], 32, min_scale=0.35)
    assert len(tta_views) == len(set(tta_views)) == 12
    assert tta_views[:2] == (PLAIN, TTAView(mirror=True))
    assert tta_views_for(KINDS["picture"], 4) == tta_views[:4]
    assert all(view.zoom**-2 >= 0.35 and not view.shift for view in tta_views)
    unmirrored = tta_views_for(KINDS["picture"], 32, flip=False)
    assert len(unmirrored) == 6
    assert not any(view.mirror for view in unmirrored)
    assert tta_views_for(KINDS["picture"], 9, min_scale=0.9) == (PLAIN, TTAView(mirror=True))


@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_sounds_are_moved_by_half_of_what_training_moves(count, strength):
    tta_views = tta_views_for(KINDS["sound"], count, strength=strength)
    assert len(tta_views) == len(set(tta_views)) == count
    assert tta_views[0] == PLAIN
    reach = min(0.25 * strength, 0.5) / 2
    assert max(abs(view.shift) for view in tta_views) == pytest.approx(reach, abs=1e-4)
    assert all(view == TTAView(shift=view.shift) for view in tta_views)


@pytest.mark.parametrize(
    ("kind", "count", "options", "match"),
    [
        ("strain", 4, {}, "--tta 4: .*strain.*Leave --tta out"),
        ("picture", 4, {"flip": False, "min_scale": 1.0}, "--no-flip, --min-scale 1"),
        ("sound", 4, {"strength": 0.0}, "--augment-strength 0"),
        ("picture", 0, {}, "--tta 0: expected 1"),
        ("sound", -1, {}, "--tta -1"),
        ("picture", 33, {}, "--tta 33"),
    ],
)
def test_views_that_there_are_not(kind: Any, count: int, options: dict[str, Any], match: str):
    with pytest.raises(SecondhandError, match=match):
        tta_views_for(KINDS[kind], count, **options)


# --- in the model folder --------------------------------------------------------------------------


def plain(**changes: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(PLAIN), **changes}


HOSTILE = [
    None, {}, [], "plain", [plain()] * 33, [1], [{}], [plain(zoom=0.5)], [plain(zoom=1e9)],
    [plain(zoom=math.nan)], [plain(zoom="2")], [plain(zoom=True)], [plain(mirror=1)],
    [plain(x=-1.01)], [plain(y=None)], [plain(y=math.inf)], [plain(turn=90)], [plain(), plain(x=[])],
]  # fmt: skip


@pytest.mark.parametrize("tta_views", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_views_are_refused(tmp_path: Path, tta_views: Any):
    folder = save_bundle(bundle((PLAIN,)), tmp_path / "model")
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, "tta": tta_views}))
    with pytest.raises(SecondhandError, match="tta") as error:
        load_bundle(folder)
    assert str(folder / CONFIG) in str(error.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("picture", {"shift": 0.1}), ("sound", {"mirror": True}), ("sound", {"zoom": 1.1}),
     ("strain", {"mirror": True}), ("strain", {"shift": 0.1})],
)  # fmt: skip
def test_views_of_another_kind_of_data_are_refused(kind, options):
    check_tta_views([PLAIN], KINDS[kind])
    with pytest.raises(SecondhandError, match=rf"tta\[1\].*not a view for data of kind {kind}"):
        check_tta_views([PLAIN, TTAView(**options)], KINDS[kind])


# --- by the commands ------------------------------------------------------------------------------


@pytest.mark.slow
def test_calibration_and_prediction_look_alike(tmp_path, capsys):
    pictures = write_pictures(tmp_path / "pictures", classes=2)
    out = tmp_path / "run"
    words = ["--data", str(pictures), "--out", str(out), "--backbone", "test_resnet", "--size", "32",
             "--weights", "none", "--epochs", "1", "--freeze-epochs", "0", "--workers", "0"]  # fmt: skip
    assert main([*words, "--tta"]) == 0
    averaged = load_bundle(out / "model")
    assert averaged.tta_views == tta_views_for(KINDS["picture"], 4)
    saved = pd.read_csv(out / "predictions.csv")
    # The temperature was fitted to the mean over the views, as in the calibration predictions.
    one_view = dataclasses.replace(averaged, tta_views=(PLAIN,))
    for used, agree in ((averaged, True), (one_view, False)):
        answers = list(Predictor(used).predict(saved.path))
        gaps = [abs(a.probability - p) for a, p in zip(answers, saved.probability, strict=True)]
        assert (max(gaps) < 1e-4) == agree
    capsys.readouterr()
    file = str(pictures / "red" / "red_000.jpg")
    assert predict([str(out / "model"), file, "--no-tta"]) == 0
    output = capsys.readouterr()
    assert "4 variants of each file" in output.err
    expected = next(iter(Predictor(replace(averaged, tta_views=(PLAIN,))).predict([file])))
    assert f"{expected.probability:.6f}" in output.out
