"""The command on sound and strain: the same path as for pictures, after rendering."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile
import yaml

from datasets.audio.settings import MelSettings
from datasets.core import file_state
from datasets.core.errors import SecondhandError
from datasets.items.facts import Origin
from datasets.items.settings import SignalSettings
from datasets.sources import glitches
from datasets.steps.reading import read_items
from learners.finetune import main
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.runs.run import load_items
from tests.asked import asked
from tests.learners.backbones.saved import audiomae, change, save
from tests.pictures import write_pictures

pytestmark = pytest.mark.usefixtures("unreported")

RATE = 8000
QUICK = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--bs", "8", "--epochs", "2",
         "--workers", "0", "--lr", "1e-2"]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "signal-cache"
    monkeypatch.setenv("SECONDHAND_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Low and high tones in noise, mostly short, some of several seconds, one silent."""
    root = tmp_path_factory.mktemp("tones")
    rng = np.random.default_rng(0)
    for label, hertz in (("low", 400), ("high", 2500)):
        (root / label).mkdir()
        for number in range(12):
            seconds = 3.2 if number % 4 == 0 else 0.9
            t = np.arange(round(seconds * RATE)) / RATE
            noise = 0.02 * rng.standard_normal(len(t))
            sound = 0.2 * np.sin(2 * np.pi * hertz * rng.uniform(0.9, 1.1) * t) + noise
            soundfile.write(root / label / f"{label}{number:02d}.wav", sound, RATE)
    soundfile.write(root / "low" / "silent.wav", np.zeros(RATE), RATE)
    (root / "low" / "broken.wav").write_bytes(b"RIFF no sound at all")
    return root


@pytest.mark.slow
def test_sound_is_cut_trained_on_and_answered(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_state, "SETTLED", 0.0)  # treat the files as written a while ago
    out = tmp_path / "run"
    flags = ["--overlap", "0.5", "--spectrogram", "{window: 1, n_mels: 32, picture: [32, 48]}"]
    assert main(["--data", str(tones), "--out", str(out), *flags, *QUICK]) == 0
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["spectrogram"]["window"] == 1.0
    assert config["spectrogram"]["size"] == [32, 48]
    assert config["spectrogram"]["rate"] == RATE
    assert config["overlap"] == 0.5
    resolved = yaml.safe_load((out / "config.yaml").read_text())
    assert resolved["spectrogram"] == "{window: 1.0, n_mels: 32, picture: [32, 48]}"
    assert resolved["lr_mult"] == 1.0  # random weights
    rejected = pd.read_csv(out / "rejected.csv").set_index("path")["reason"]
    assert "no signal" in rejected[str(tones / "low" / "silent.wav")]
    assert str(tones / "low" / "broken.wav") in rejected
    items = pd.read_csv(out / "items.csv")
    assert len(items) == 24
    assert "windows" in (out / "log.txt").read_text()
    answers = pd.read_csv(out / "predictions.csv").set_index("path")
    assert answers.index.is_unique, "a recording is one answer"
    held_out = items.loc[items["split"].ne("train"), "path"].tolist()
    predictor = Predictor(out / "model")
    for path, row in zip(held_out, predictor.predict(held_out), strict=True):
        assert row.probability == pytest.approx(answers.loc[path, "probability"], abs=1e-5)
        assert bool(row.windows) == (soundfile.info(path).duration > 1.1)
    monkeypatch.setattr(MelSettings, "read", None)  # all has been rendered
    again = tmp_path / "again"
    assert main(["--data", str(tones), "--out", str(again), *flags, *QUICK]) == 0
    assert (again / "predictions.csv").read_bytes() == (out / "predictions.csv").read_bytes()


@pytest.mark.slow
def test_a_backbone_of_sound_brings_its_recipe_and_the_users_settings_win(
    tones: Path, tmp_path: Path
) -> None:
    save(tmp_path / "ears", "test_vit", in_chans=1, img_size=64, global_pool="avg")
    recipe = {"rate": 4000, "n_fft": 256, "hop": 60, "n_mels": 64, "fmin": 50, "fmax": 2000}
    normalisation = {"mean": [-6.0], "std": [3.0]}
    change(tmp_path / "ears", mel={**recipe, "log": "ln"}, pretrained_cfg=normalisation)
    ears, out = f"local-dir:{tmp_path / 'ears'}", tmp_path / "run"
    (tmp_path / "own.yaml").write_text("n_mels: 48\nhop: 50\n")
    words = ["--data", str(tones), "--epochs", "0", "--workers", "0"]
    words += ["--spectrogram", str(tmp_path / "own.yaml")]
    assert main([*words, "--out", str(out), "--backbone", ears]) == 0
    config = json.loads((out / "model" / "config.json").read_text())
    settings = {name: config["spectrogram"][name] for name in recipe}
    assert settings == {**recipe, "n_mels": 48, "hop": 50}
    assert config["spectrogram"]["level"] == "fixed"
    assert config["spectrogram"]["window"] == 63 * 60 / 4000
    assert config["network"]["backbone"] == "test_vit?global_pool=avg"
    assert config["network"]["size"] == 64
    assert config["preprocessing"]["resize"] == "squash"
    log = (out / "log.txt").read_text()
    assert (
        "spectrogram settings of the backbone's training: window 0.945, size (64, 64), rate 4000"
        in log
    )
    assert "spectrogram settings differ from the backbone's training: " in log
    assert "n_mels 48 instead of 64" in log
    assert "hop 50 instead of 60" in log
    shutil.rmtree(tmp_path / "ears")  # the model no longer needs it
    files = sorted((tones / "low").glob("low*.wav"))[:3]
    for answer in load_predictor(out / "model", threshold=0).predict(map(str, files)):
        assert answer.best in ("low", "high")
    assert not np.isnan(answer.probability)


@pytest.mark.slow
def test_a_backbone_whose_input_is_no_square_is_trained_saved_and_asked(
    tones: Path, tmp_path: Path
) -> None:
    audiomae(tmp_path / "ears")
    for label in ("low", "high"):
        (tmp_path / "few" / label).mkdir(parents=True)
        for path in sorted((tones / label).glob(f"{label}*[1-9].wav"))[:6]:
            shutil.copy(path, tmp_path / "few" / label)
    ears, out = ["--backbone", f"local-dir:{tmp_path / 'ears'}"], tmp_path / "run"
    words = [
        "--data",
        str(tmp_path / "few"),
        "--epochs",
        "1",
        "--workers",
        "0",
        "--bs",
        "4",
        "--tta",
        "2",
    ]
    assert main([*words, *ears, "--out", str(out)]) == 0
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["spectrogram"]["scale"] == "kaldi"
    assert config["spectrogram"]["window"] == (1023 * 160 + 400) / 16_000
    for part in ("network", "preprocessing"):
        assert (config[part]["size"], config[part]["width"]) == (128, 1024)
    assert "Input: 128 x 1024 pixels" in (out / "model" / "README.md").read_text()
    predictor = Predictor(out / "model")
    files = sorted(str(path) for path in (tones / "low").glob("low*.wav"))[:3]
    opened = predictor.open(files[0])
    assert isinstance(opened, np.ndarray)
    assert opened.shape == (3, 128, 1024)
    assert all(not answer.reason.failed for answer in predictor.predict(files))
    pictures = write_pictures(tmp_path / "pictures", classes=2, per_class=8)
    with pytest.raises(SecondhandError, match=r"--backbone .* of kind pic"):
        main(["--data", str(pictures), *ears, "--out", str(tmp_path / "no")])


@pytest.mark.slow
def test_strain_is_trained_on_and_answered_at_a_time(tmp_path: Path) -> None:
    names = ("Blip_sim", "Power_Line_sim")
    rows = glitches.write_demo(tmp_path / "data", per_class=6, classes=names, duration=16)
    pd.DataFrame(rows)[["path", "label", "group", "gps"]].to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "run"
    flags = ["--spectrogram", "{durations: [0.5, 1, 2], context: 16, picture: [32, 32]}"]
    assert main(["--data", str(tmp_path / "t.csv"), "--out", str(out), *flags, *QUICK]) == 0
    settings = json.loads((out / "model" / "config.json").read_text())["spectrogram"]
    assert (settings["kind"], settings["durations"], settings["layout"]) == (
        "strain",
        [0.5, 1, 2],
        "channels",
    )
    answers = pd.read_csv(out / "predictions.csv")
    row = answers.iloc[0]
    (again,) = Predictor(out / "model").predict([row["path"]], at=row["gps"])
    assert again.probability == pytest.approx(row["probability"], abs=1e-5)


@pytest.mark.slow
def test_glitches_in_strain_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.sources.demos._PER_CLASS", {"glitches": 4})
    own = glitches.write_demo(tmp_path / "own", per_class=1, classes=["No_Glitch_sim"], duration=64)
    from datasets.steps.reading import load_table

    table = load_table("demo:glitches", settings={"strain": own[0]["path"]})
    assert "SIMULATED glitches" in table.fact(Origin).note
    assert own[0]["path"] in table.fact(Origin).note
    # The events are in that strain, at its times.
    assert (table.frame["gps"] - own[0]["gps"]).abs().max() <= 32
    with pytest.raises(SecondhandError, match=r"--strain .*: no strain file"):
        load_table("demo:glitches", settings={"strain": str(tmp_path / "nothing")})
    with pytest.raises(SecondhandError, match="--strain"):
        load_table("demo:sounds", settings={"strain": own[0]["path"]})


def test_spans_of_a_table_set_the_window_not_their_files(tones: Path, tmp_path: Path) -> None:
    long = sorted(tones.glob("*/*0[048].wav"))
    rows = [(p, p.parent.name, t, t + 0.4) for p in long for t in (0.0, 0.5, 1.0, 1.5)]
    table = pd.DataFrame(rows, columns=["path", "label", "start", "end"]).assign(group="")
    table["group"] = [path.stem for path in table["path"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    data = asked(data=str(tmp_path / "t.csv"))
    loaded = load_items(read_items(data), data, tmp_path)
    assert isinstance(loaded.spectrogram, MelSettings)
    assert loaded.spectrogram.window == pytest.approx(0.4, abs=0.011)
    assert loaded.rows["item"].nunique() == len(loaded.table.frame)


def test_settings_of_another_kind_are_all_named(tones: Path, tmp_path: Path) -> None:
    settings = "{durations: [1], context: 20, rate: 8000}"
    with pytest.raises(SecondhandError, match="--spectrogram durations, context"):
        SignalSettings(spectrogram=settings).for_kind("sound")
    with pytest.raises(SecondhandError, match="--spectrogram level"):
        SignalSettings(spectrogram="pcen").for_kind("picture")
    with pytest.raises(SecondhandError, match="--spectrogram hop"):
        SignalSettings(spectrogram="{fmin: 30, hop: 9}").for_kind("strain")
    assert SignalSettings().for_kind("picture") == {}
    assert SignalSettings(spectrogram="{picture: [8, 9], fmin: 3}").for_kind("strain") == {
        "size": (8, 9),
        "fmin": 3.0,
    }


@pytest.mark.slow
def test_a_fold_that_chooses_nothing(tones: Path, tmp_path: Path) -> None:
    """The other folds are trained on, the whole fold is answered, and the last epoch is kept."""
    files = sorted(tones.glob("*/*[0-9].wav"))
    names = [file.parent.name for file in files]
    folds = ["a" if number % 3 else "b" for number in range(len(files))]
    table = tmp_path / "clips.csv"
    pd.DataFrame({"path": files, "label": names, "fold": folds}).to_csv(table, index=False)
    out = tmp_path / "run"
    flags = ["--data", str(table), "--fold", "b", "--keep", "last"]
    assert main([*flags, *QUICK, "--out", str(out)]) == 0
    items = pd.read_csv(out / "items.csv").set_index("path")
    assert (items["split"] == "train").sum() == folds.count("a")
    answers = pd.read_csv(out / "predictions.csv")
    assert sorted(answers["path"]) == sorted(
        str(f) for f, n in zip(files, folds, strict=True) if n == "b"
    )
    record = json.loads((out / "checkpoint" / "best.json").read_text())
    history = pd.read_csv(out / "history.csv")
    assert record["reached"]["valid_loss"] == pytest.approx(
        history["valid_loss"].iloc[-1], abs=1e-4
    )
    assert record["epoch"] == 2
