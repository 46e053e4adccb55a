"""Prediction: what the network gets, and what becomes of its logits."""

from __future__ import annotations

import math
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from datasets.core import file_state
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Part
from datasets.images import boxes
from datasets.images.decoded import DecodedPictures, PictureOpener, keep_decoded
from datasets.images.opening import Preprocessing
from datasets.kinds.views import PLAIN
from learners.backbones.building import NetworkSpec, build
from learners.inference.engine import TorchEngine
from learners.inference.options import Computing, Opening
from learners.inference.passed import Passed
from learners.inference.predictions import Prediction
from learners.inference.predictor import Predictor, fetched_behind
from learners.loading.predictor import load_predictor
from learners.machine.hardware import keep_thread_count
from learners.model.bundle import Bundle
from tests.learners.rules import plain_rule

ROOT = Path(__file__).parents[3]
CLASSES = ["a", "b", "c", "d"]
TEMPERATURE = 1.7


def bundle(preprocessing: Preprocessing | None = None) -> Bundle:
    torch.manual_seed(0)
    network, spec, preparation = build(
        NetworkSpec("test_resnet", len(CLASSES), size=48), pretrained=False
    )
    # Norms as after training, and answers that differ between pictures.
    network.train()
    with torch.no_grad():
        for _ in range(20):
            network(torch.randn(16, 3, 48, 48))
        # An untrained network prefers one class whatever its input.
        network.eval()
        features = network[1][:-1](
            network[0](torch.rand(64, 3, 48, 48) * torch.rand(64, 3, 1, 1) * 4 - 2)
        )
        weight = network[1][-1].weight
        weight -= (
            (weight @ features.mean(0))[:, None]
            * features.mean(0)
            / features.mean(0).square().sum()
        )
    return Bundle(
        built=network.eval(),
        spec=spec,
        classes=CLASSES,
        preprocessing=preprocessing or preparation,
        rule=plain_rule(len(CLASSES), temperature=TEMPERATURE, threshold=0.5),
    )


@pytest.fixture(scope="module")
def model() -> Bundle:
    return bundle()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures of many sizes, modes and orientations, some JPEGs decoded at a reduced size."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)

    def noise(height: int, width: int, channels: int = 3) -> Image.Image:
        small = rng.integers(0, 256, (9, 7, channels), dtype=np.uint8)
        return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)

    turned = Image.Exif()
    turned[274] = 6
    noise(60, 90).save(folder / "0.jpg", quality=85)
    noise(900, 700).save(folder / "1_large.jpg", quality=85)
    noise(50, 80).save(folder / "2_turned.jpg", exif=turned)
    noise(64, 64).convert("L").save(folder / "3_grey.png")
    noise(70, 40, 4).save(folder / "4_rgba.png")
    noise(70, 40).convert("P").save(folder / "5_palette.png")
    Image.fromarray(rng.integers(0, 65536, (52, 50)).astype(np.uint16)).save(folder / "6_deep.png")
    noise(20, 21).save(folder / "7_tiny.webp")
    for index in range(8, 13):
        noise(48 + index, 100 - index).save(folder / f"{index}.jpg")
    return sorted(folder.iterdir())


def same(first: list[Prediction], second: list[Prediction]) -> None:
    for one, two in zip(first, second, strict=True):
        assert (one.path, one.label, one.best, one.reason) == (
            two.path, two.label, two.best, two.reason,
        )  # fmt: skip
        assert one.probability == pytest.approx(two.probability, abs=1e-5, nan_ok=True)


def test_what_has_passed_through_the_network_does_not_pass_again(model, pictures, tmp_path):
    """Not under another rule either; a file that cannot be read is tried again."""
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    files, seen = [*pictures, tmp_path / "bad.jpg"], []
    expected = [*load_predictor(model, device="cpu").predict_detailed(files)]
    computing = Computing(device="cpu", bs=2)
    predictor = Predictor(model, passed=Passed(tmp_path), computing=computing)
    hook = predictor.network[0].register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
    some = [*predictor.predict_detailed(files[3:6])]
    again = [*predictor.under(plain_rule(len(CLASSES))).predict_detailed(files)]
    hook.remove()
    assert sum(seen) == len(pictures)
    for ours, theirs in [
        *zip(some, expected[3:6], strict=True),
        *zip(again, expected, strict=True),
    ]:
        assert ours.prediction.path == theirs.prediction.path
        assert ours.prediction.reason.failed == theirs.prediction.reason.failed
        if theirs.logits is None:
            assert ours.logits is None
        else:
            np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-5)
            np.testing.assert_allclose(ours.features, theirs.features, atol=1e-5)


@pytest.mark.parametrize("keeps", [False, True])
def test_batches_may_be_handed_over_before_the_outputs_of_earlier_ones_are_fetched(
    model, pictures, tmp_path, keeps
):
    """As for a GPU, here on the CPU: the same answers, and each batch but the first is handed over before the one before it
    is fetched. A batch of files that cannot be read has no outputs."""
    files = [*pictures[:3]]
    for n in range(4):
        (tmp_path / f"{n}.jpg").write_bytes(b"no picture")
        files.append(tmp_path / f"{n}.jpg")
    files += [*pictures[3:], pictures[0]]
    computing = Computing(device="cpu", engine="torch", bs=2)
    expected = [*Predictor(model, computing=computing).predict_detailed(files)]
    passed = Passed(tmp_path) if keeps else None
    predictor, happened = Predictor(model, passed=passed, computing=computing), []
    engine = predictor._arithmetic

    def start(inputs):
        fetch = engine.hand_over(inputs)
        number = sum(what == "start" for what, _ in happened)
        happened.append(("start", number))

        def fetched():
            happened.append(("fetch", number))
            return fetch()

        return fetched

    assert engine.start is None
    engine.start = start
    answers = [*predictor.predict_detailed(files)]
    assert [one.prediction.path for one in answers] == [*map(str, files)]
    for ours, theirs in zip(answers, expected, strict=True):
        assert ours.prediction.label == theirs.prediction.label
        assert (ours.logits is None) == (theirs.logits is None)
        if theirs.logits is not None:
            np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-5)
            np.testing.assert_allclose(ours.features, theirs.features, atol=1e-5)
    batches = sum(what == "start" for what, _ in happened)
    assert batches > 2
    assert sorted(happened) == [(what, n) for what in ("fetch", "start") for n in range(batches)]
    for n in (0, batches - 2):  # between neither and the next lies a batch without pictures
        assert happened.index(("start", n + 1)) < happened.index(("fetch", n))


@pytest.mark.parametrize("way", ["call", "hand_over"])
def test_a_network_that_is_loaded_with_the_first_batch_still_gives_gradients(way):
    """As on a GPU, where heat maps need them; "cpu:0" is loaded as late as that."""
    one = bundle()
    engine = TorchEngine(one, "cpu:0", (PLAIN,))
    batch = np.random.default_rng(0).integers(0, 256, (2, 3, 48, 48), dtype=np.uint8)
    given = engine(batch) if way == "call" else engine.hand_over([*batch])()
    expected = TorchEngine(bundle(), "cpu", (PLAIN,))(batch)
    for ours, theirs in zip(given, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    engine.network(torch.rand(2, 3, 48, 48)).sum().backward()
    assert all(weight.grad is not None for weight in engine.network.parameters())


def test_outputs_are_fetched_in_order_and_no_more_wait_than_is_said():
    waiting, most = set(), []

    def started():
        for n in range(5):
            waiting.add(n)
            most.append(len(waiting))
            yield lambda n=n: waiting.remove(n) or n

    for ahead in (0, 1, 2):
        most.clear()
        assert [*fetched_behind(started(), ahead)] == [*range(5)]
        assert max(most) == ahead + 1
        assert not waiting


@pytest.mark.slow
@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(size=48, interpolation="bicubic", crop=0.9),
        Preprocessing(
            size=48, mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2), crop=1.0, resize="squash"
        ),
        Preprocessing(size=48, mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2), resize="pad"),
    ],
)
def test_the_network_sees_what_validation_saw(pictures, preprocessing):
    from datasets.loaders.blocks import Augmentation, PictureBlock, dataloaders

    batches: list[torch.Tensor] = []
    predictor = load_predictor(bundle(preprocessing), device="cpu", bs=5)
    predictor.network[0].register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0]))
    with keep_thread_count(1):  # one after the other
        list(predictor.predict(pictures))
    frame = pd.DataFrame({"path": [str(path) for path in pictures], "label": "a", "split": "valid"})
    frame = pd.concat([frame, frame.head(4).assign(split="train")], ignore_index=True)
    block = PictureBlock(preprocessing, Augmentation())
    dls = dataloaders(frame, block, CLASSES, bs=4, workers=0)
    expected = torch.cat([batch[0] for batch in dls.valid]).as_subclass(torch.Tensor)
    assert len(expected) == len(pictures)
    assert expected.std() > 0.3
    torch.testing.assert_close(torch.cat(batches), expected, rtol=0, atol=1e-6)


def test_what_is_kept_is_not_opened_again_and_answered_the_same(
    model, pictures, tmp_path, monkeypatch
):
    monkeypatch.setattr(file_state, "SETTLED", 0.0)
    store = DecodedPictures(tmp_path, max_bytes=2**24)
    # NaN is not equal to itself
    expected = str(list(load_predictor(model, device="cpu").predict(pictures)))
    keep_decoded(
        PictureOpener(model.preprocessing, 0.35, store),
        [],
        [Part(str(file)) for file in pictures],
    )
    monkeypatch.setattr(boxes, "open_picture", None)
    assert str(list(Predictor(model, opening=Opening(decoded=store)).predict(pictures))) == expected


@pytest.mark.parametrize("threads", [1, 2, 5, 40])
@pytest.mark.parametrize("count", [1, 3, 17])
def test_the_answer_is_the_same_whatever_the_number_of_threads(model, pictures, threads, count):
    predictor = load_predictor(model, device="cpu")
    batch = np.stack([predictor.open(str(path)) for path in islice(cycle(pictures), count)])
    with keep_thread_count(threads):
        logits, features = predictor.forward(batch)
    mean, std = (
        np.array(v)[:, None, None] for v in (model.preprocessing.mean, model.preprocessing.std)
    )
    with torch.inference_mode():
        expected = model.network(torch.from_numpy((batch / 255.0 - mean) / std).float()).numpy()
    assert len(features) == count
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())


def test_the_probability_is_of_the_softmax_at_the_temperature(model, pictures):
    predictor = load_predictor(model, top=3, threshold=0, device="cpu")
    answers = list(predictor.predict(pictures))
    opened = [predictor.open(str(path)) for path in pictures]
    assert not any(isinstance(picture, BadFile) for picture in opened)
    mean, std = (
        np.array(v)[:, None, None] for v in (model.preprocessing.mean, model.preprocessing.std)
    )
    x = torch.from_numpy((np.stack(opened) / 255.0 - mean) / std).float()  # type: ignore[arg-type]
    with torch.inference_mode():
        logits = model.network(x).double().numpy() / TEMPERATURE
    expected = np.exp(logits - logits.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    assert len({round(answer.probability, 4) for answer in answers}) > 5, "nothing is told apart"
    for answer, row in zip(answers, expected, strict=True):
        order = np.argsort(-row)
        assert answer.best == CLASSES[order[0]]
        assert answer.probability == pytest.approx(row.max(), abs=1e-5)
        assert [name for name, _ in answer.top] == [CLASSES[i] for i in order[:3]]
        assert [p for _, p in answer.top] == pytest.approx(row[order[:3]], abs=1e-5)
        assert math.isnan(answer.distance_p)


@pytest.mark.parametrize("bs", [1, 5, 64])
def test_every_batch_size_and_thread_count_gives_the_same_answers(model, pictures, bs):
    expected = list(load_predictor(model, bs=32, workers=1).predict(pictures))
    assert [answer.path for answer in expected] == [str(path) for path in pictures]
    same(list(load_predictor(model, bs=bs, workers=4).predict(pictures)), expected)


def test_the_order_is_that_of_the_call(model, pictures):
    mixed = [pictures[i] for i in (7, 0, 7, 12, 3, 1)]
    single = {str(path): next(Predictor(model).predict([path])) for path in set(mixed)}
    same(list(load_predictor(model, bs=4).predict(mixed)), [single[str(path)] for path in mixed])


@pytest.mark.parametrize("bs", [1, 3, 32])
def test_bad_files_among_good_ones(model, pictures, tmp_path, bs):
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "cut.jpg").write_bytes(pictures[0].read_bytes()[:300])
    (tmp_path / "empty.png").touch()
    bad = [tmp_path / name for name in ("text.jpg", "cut.jpg", "empty.png", "absent.jpg")]
    answers = list(
        load_predictor(model, bs=bs).predict([*bad[:3], *pictures[:4], bad[3], *pictures[4:6]])
    )
    refused, good = [*answers[:3], answers[7]], [*answers[3:7], *answers[8:]]
    same(good, list(Predictor(model).predict(pictures[:6])))
    for answer, path, reason in zip(
        refused, bad, ["not a picture", "truncated", "empty file", "no such file"], strict=True
    ):
        assert answer.path == str(path)
        assert (answer.label, answer.best, answer.top) == ("unknown", "", [])
        assert answer.reason.startswith("bad file: ")
        assert reason in answer.reason
        assert math.isnan(answer.probability)


@pytest.mark.parametrize("threshold", [0, 0.4, 0.95, 1, None])
def test_below_the_threshold_it_is_unknown(model, pictures, threshold):
    answers = list(load_predictor(model, threshold=threshold).predict(pictures))
    limit = 0.5 if threshold is None else threshold  # the model's own
    for answer in answers:
        accepted = answer.probability >= limit
        assert answer.label == (answer.best if accepted else "unknown")
        assert answer.reason == ("" if accepted else "ambiguous")
        assert answer.best in CLASSES
    if threshold == 0:
        assert all(answer.label == answer.best for answer in answers)
    if threshold == 1:
        assert any(answer.label == "unknown" for answer in answers)


def test_a_model_without_settings_asks_for_95_per_cent(model):
    bare = Predictor(Bundle(model.network, model.spec, CLASSES, model.preprocessing))
    assert bare.rule.threshold.value == 0.95
    assert bare.rule.calibrator.temperature.value == 1


@pytest.mark.parametrize("top", [1, 4, 9])
def test_so_many_classes_are_listed(model, pictures, top):
    (answer,) = load_predictor(model, top=top).predict(pictures[:1])
    probabilities = [p for _, p in answer.top]
    assert len(probabilities) == min(top, len(CLASSES))
    assert probabilities == sorted(probabilities, reverse=True)
    assert answer.top[0] == (answer.best, answer.probability)
    if top >= len(CLASSES):
        assert sum(probabilities) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"threshold": 1.1}, "threshold 1.1: expected"),
        ({"threshold": -0.1}, "threshold -0.1: expected"),
        ({"threshold": math.nan}, "threshold nan: expected"),
        ({"top": 0}, "--top 0"),
        ({"device": "gpu"}, "one of auto, cpu, cuda"),
    ],
)
def test_wrong_settings_are_refused(model, options, match):
    with pytest.raises(SecondhandError, match=match):
        load_predictor(model, **options)


@pytest.mark.parametrize("wrap", [lambda picture: picture, lambda picture: [picture]])
@pytest.mark.parametrize("make", [lambda: Image.new("RGB", (9, 9)), lambda: np.zeros((9, 9, 3))])
def test_pictures_in_memory_are_refused(model, make, wrap):
    with pytest.raises(SecondhandError, match="expected the name of a file"):
        list(Predictor(model).predict(wrap(make())))


def test_one_file_alone_starts_one_worker(model, pictures):
    """Starting takes time; workers that exist are reused."""
    predictor = load_predictor(model, device="cpu", workers=3)
    for files, workers in ((pictures[:1], 1), (pictures[:3], 3), (pictures[:1], 3)):
        assert len(list(predictor.predict(files))) == len(files)
        assert predictor.decoder._openers.workers == workers
    predictor.close()


def test_no_files_give_no_answers_and_no_batch_is_no_setting(model):
    assert list(Predictor(model).predict([])) == []
    for path in ("a.jpg", Path("a.jpg")):
        with pytest.raises(SecondhandError, match=r"\['a.jpg'\]"):
            list(Predictor(model).predict(path))
    with pytest.raises(SecondhandError, match="--bs 0"):
        list(load_predictor(model, bs=0).predict(["x.jpg"]))
