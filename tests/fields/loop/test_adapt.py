"""The step that is chosen, the layers that hold it, and the command."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from datasets.core.errors import SecondhandError
from fields.loop import adapt
from fields.loop.adapt import Head, Moments, Seen, Shift, best_step, main, neighbours
from learners.backbones.building import logits_and_features
from learners.inference.predictor import Predictor
from learners.model.bundle import load_bundle
from learners.rule.fitting import uncalibrated
from tests.app import sites
from tests.pictures import write_pictures

CENTRES = 6 * np.eye(4, 12)


def draw(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """Features [n, 12] of four classes around `CENTRES`."""
    return CENTRES[labels] + rng.normal(size=(len(labels), 12))


class NearestMean:
    """A head whose classes are `CENTRES`, and that is only as sure as the distances to them tell."""

    def probabilities(self, seen: Seen, shift: Shift | None = None) -> np.ndarray:
        x = seen.inputs if shift is None else seen.inputs * shift.scale + shift.offset
        return softmax(-((x[:, None] - CENTRES) ** 2).sum(axis=2) / 4, axis=1)

    def best(self, seen: Seen, shift: Shift | None = None) -> np.ndarray:
        return self.probabilities(seen, shift).argmax(axis=1)


def seen(features: np.ndarray, unit: np.ndarray | None = None) -> Seen:
    rows = np.arange(len(features)) if unit is None else unit
    return Seen(features.astype(np.float32), features.astype(np.float32), rows, len(features), [])


@pytest.fixture
def source() -> Moments:
    rng = np.random.default_rng(0)
    return Moments.of(draw(rng, np.arange(400) % 4))


def test_a_whole_step_gives_a_site_the_mean_and_nearly_the_spread_of_the_source() -> None:
    rng = np.random.default_rng(0)
    old = rng.normal(size=(4000, 3)) * (1, 2, 3)
    new = rng.normal(size=(4000, 3)) * (2, 2, 1) + (5, 0, -5)
    shift = Shift.between(Moments.of(old), Moments.of(new), 1.0)
    moved = new * shift.scale + shift.offset
    assert moved.mean(axis=0) == pytest.approx(old.mean(axis=0), abs=1e-9)
    # A quarter of the mean variance, 14 / 3, is added to each.
    floor = old.var(axis=0).mean() / 4
    expected = np.sqrt((old.var(axis=0) + floor) / (new.var(axis=0) + floor)) * new.std(axis=0)
    assert moved.std(axis=0) == pytest.approx(expected)
    none = Shift.between(Moments.of(old), Moments.of(new), 0.0)
    assert new * none.scale + none.offset == pytest.approx(new)


def test_a_site_that_is_moved_is_moved_back(source: Moments) -> None:
    rng = np.random.default_rng(1)
    labels = np.arange(120) % 4
    site = seen(draw(rng, labels) * 0.7 + (5, -3, 0, 2, *8 * [1.0]))
    head = NearestMean()
    step = best_step(head, source, site)
    assert step is not None
    assert step.after > step.before
    shift = Shift.between(source, Moments.of(site.inputs), step.step)
    before, after = ((head.best(site, one) == labels).mean() for one in (None, shift))
    assert before < 0.8
    assert after > 0.97


@pytest.mark.parametrize("n", [20, 60, 300])
def test_nothing_is_done_for_files_of_the_same_source(source: Moments, n: int) -> None:
    chosen = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        chosen.append(best_step(NearestMean(), source, seen(draw(rng, rng.integers(0, 4, n)))))
    assert sum(one is not None for one in chosen) <= 1


def test_a_mixture_of_few_classes_is_not_taken_for_another_site(source: Moments) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        site, labels = seen(draw(rng, np.arange(60) % 2)), np.arange(60) % 2
        step = best_step(NearestMean(), source, site)
        assert step is None, seed
        # The mean and the spread alone would give them the other classes, too.
        whole = Shift.between(source, Moments.of(site.inputs), 1.0)
        assert (NearestMean().best(site, whole) == labels).mean() < 0.9


def test_windows_of_a_stretch_are_neighbours_of_others_only() -> None:
    rng = np.random.default_rng(0)
    features, unit = rng.normal(size=(30, 4)), np.arange(30) // 3
    features[1::3] = features[::3] + 1e-3  # nearly copies
    near = neighbours(seen(features, unit))
    assert near.shape == (30, adapt.NEIGHBOURS)
    assert (unit[near] != unit[:, None]).all()
    x = (features - features.mean(axis=0)) / np.sqrt(
        features.var(axis=0) + features.var(axis=0).mean() / 4
    )
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    cosines = np.where(unit[:, None] == unit, -2, x @ x.T)
    expected = np.argsort(-cosines, axis=1)[:, : adapt.NEIGHBOURS]
    assert [set(row) for row in near.tolist()] == [set(row) for row in expected.tolist()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    sites.write_run(folder / "run")
    write_pictures(folder / "source", per_class=8)
    write_pictures(folder / "site", per_class=8)
    return folder


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole step, however the files look."""
    monkeypatch.setattr(adapt, "best_step", lambda *_: adapt.Step(1.0, 0.25, 0.5))


def adapted(world: Path, out: Path, *more: str) -> int:
    words = [str(world / "run/model"), str(world / "site"), "--out", str(out)]
    return main([*words, "--like", str(world / "source"), *more])


def test_the_copy_has_the_shift_in_its_last_layer_alone(
    world: Path, tmp_path: Path, capsys, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = Shift(np.float64(1.5), np.float64(-0.25))
    monkeypatch.setattr(
        Shift,
        "between",
        lambda source, site, step: Shift(
            np.full(len(site.mean), moved.scale), np.full(len(site.mean), moved.offset)
        ),
    )
    assert adapted(world, tmp_path / "out") == 0
    old, new = load_bundle(world / "run/model"), load_bundle(tmp_path / "out")
    files = sorted(map(str, (world / "site").rglob("*.jpg")))
    _, before, features = Predictor(old).outputs(files)
    _, after, same = Predictor(new).outputs(files)
    np.testing.assert_array_equal(same, features)
    layer = old.network[1][-1]  # type: ignore[index]
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    # What the layer gives of x is W x + b; of 1.5 x - 0.25 it is 1.5 (W x + b) + 0.25 (-W 1) - 0.5 b.
    expected = 1.5 * (before - bias) - 0.25 * weight.sum(axis=1) + bias
    assert after == pytest.approx(expected, abs=1e-4)
    for key, values in old.network[0].state_dict().items():  # type: ignore[index]
        assert (values == new.network[0].state_dict()[key]).all()  # type: ignore[index]


def test_the_copy_says_what_it_was_adapted_to(
    world: Path, tmp_path: Path, capsys, always: None
) -> None:
    out = tmp_path / "out"
    assert adapted(world, out) == 0
    said = capsys.readouterr().out
    assert f"24 files of {world / 'site'}, 100 % of the way" in said
    assert "is not known without labels" in said
    config = json.loads((out / "config.json").read_text())
    old = json.loads((world / "run/model/config.json").read_text())
    assert config["metrics"] == {}, "they were those of other files"
    assert config["confidence"] == old["confidence"]
    assert config["provenance"]["adapted"]["step"] == 1.0
    assert config["provenance"]["lineage"][-1]["model"] == "run"
    card = (out / "README.md").read_text()
    assert "without labels" in card
    assert "was not measured" in card
    reference = "reference.safetensors"
    assert (out / reference).read_bytes() == (world / "run/model" / reference).read_bytes()
    with pytest.raises(SecondhandError, match="already exists"):
        adapted(world, out)
    assert adapted(world, out, "--overwrite") == 0


def test_its_onnx_file_gives_the_same(world: Path, tmp_path: Path, capsys, always: None) -> None:
    pytest.importorskip("onnxruntime")
    from learners.inference.exporting import write_network
    from learners.model.bundle import add_onnx

    sites.write_run(tmp_path / "run")
    add_onnx(load_bundle(tmp_path / "run/model"), tmp_path / "run/model", write_network)
    assert load_bundle(tmp_path / "run/model").onnx
    words = [str(tmp_path / "run/model"), str(world / "site"), "--like", str(world / "source")]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    new = load_bundle(tmp_path / "out")
    assert new.onnx
    files = sorted(map(str, (world / "site").rglob("*.jpg")))
    _, by_onnx, _ = Predictor(new).outputs(files)
    _, by_torch, _ = Predictor(replace(new, onnx=None)).outputs(files)
    assert by_onnx == pytest.approx(by_torch, abs=1e-3)


def test_files_like_those_of_the_training_leave_the_model_alone(
    world: Path, tmp_path: Path, capsys
) -> None:
    assert adapted(world, tmp_path / "out") == 0
    assert capsys.readouterr().out.startswith("Nothing is written. 24 files of")
    assert not (tmp_path / "out").exists()


def test_the_run_of_the_model_tells_what_it_was_trained_on(world: Path) -> None:
    source = sorted(map(str, (world / "source").rglob("*.jpg")))
    rows = ["path,label,start,end", *(f"{path},red,{n},{n + 1}" for path in source for n in (0, 5))]
    items = world / "run/items.csv"
    items.write_text("\n".join(rows))
    parts = adapt.training_files(world / "run/model")
    items.unlink()
    assert [part.path for part in parts] == source
    assert all(part.start is None and part.end is None for part in parts)
    with pytest.raises(SecondhandError, match=r"items\.csv.*--like PATH"):
        adapt.training_files(world / "run/model")


def test_stretches_of_recordings_are_the_units(tmp_path: Path) -> None:
    long = sites.tone(tmp_path / "long.wav", *["high"] * 65)
    short = sites.tone(tmp_path / "short.wav", "low")
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    settings = adapt.AdaptSettings(model="", paths=[], out=tmp_path / "out", workers=1)
    predictor = adapt.inputs_predictor(sites.tones(), settings)
    files = [str(long), str(short), str(tmp_path / "bad.wav")]
    found = adapt.look(predictor, files, 1000)
    assert (found.files, found.units) == (2, 4), "65 s are three stretches of 30 s"
    assert found.counted == f"{len(found.inputs)} windows of 2 files"
    assert len(found.inputs) == len(found.features) == len(found.unit) >= 66
    assert [row.path for row in found.rejected] == files[2:]
    assert len(adapt.look(predictor, files, 10).inputs) == 10
    nothing = adapt.look(predictor, files[2:], 10)
    assert (nothing.units, len(nothing.inputs)) == (0, 0)
    predictor.close()


def test_what_cannot_be_adapted_says_why(world: Path, tmp_path: Path) -> None:
    few = write_pictures(tmp_path / "few", per_class=3)
    model, like = str(world / "run/model"), ["--like", str(world / "source")]
    with pytest.raises(SecondhandError, match=r"too few, 9 files\. 20 files"):
        main([model, str(few), "--out", str(tmp_path / "out"), *like])
    with pytest.raises(SecondhandError, match="is the model itself"):
        main([model, str(few), "--out", model, "--overwrite", *like])
    bundle = load_bundle(model)
    terms = bundle.rule.threshold  # type: ignore[attr-defined]
    sure = replace(terms, target=0.95, accuracy_low=0.951, message="")
    with pytest.raises(SecondhandError, match=r"guarantees an accuracy of 0\.95.*adjust"):
        adapt.check_adaptable(replace(bundle, rule=replace(bundle.rule, threshold=sure)), "it")
    rule = uncalibrated(3, multi_label=True)
    with pytest.raises(SecondhandError, match="predicts several labels"):
        adapt.check_adaptable(replace(bundle, rule=rule), "it")


def test_the_layers_of_several_members_each_have_their_part() -> None:
    import torch
    from torch import nn

    from learners.backbones.building import Ensemble

    bundle = sites.colours()
    one = bundle.network
    assert isinstance(one, nn.Sequential)
    members = Ensemble([one, deepcopy(one)])
    both = replace(bundle, built=members, spec=replace(bundle.spec, members=2))
    head = Head(both)
    rng = np.random.default_rng(0)
    width = one[1][-1].in_features
    shift = Shift(rng.uniform(0.5, 2, 2 * width), rng.normal(size=2 * width))
    pictures = torch.from_numpy(rng.normal(size=(3, *bundle.spec.input_shape)).astype(np.float32))
    predictor = adapt.inputs_predictor(both, adapt.AdaptSettings(model="", paths=[], out=Path()))
    with torch.inference_mode():
        inputs, _ = logits_and_features(predictor.network, pictures)
        expected, _ = logits_and_features(head.shifted(shift), pictures)
    found = head.logits(inputs.numpy(), shift)
    assert found == pytest.approx(expected.numpy(), abs=1e-4)
