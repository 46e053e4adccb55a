"""``--from``: a run that continues from another run's model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.steps.base import Asked
from datasets.steps.reading import read_items
from learners.cli.settings import Settings
from learners.finetune import main
from learners.loading.predictor import load_predictor
from learners.model.bundle import Bundle, load_bundle
from learners.model.tensors import sha256
from learners.rule.tree_rule import TreeRule
from learners.runs import stages
from learners.runs.resolve import resolve
from learners.runs.stages import maybe_of_new_class
from learners.runs.warm_start import inherited
from learners.tasks.single import resolve_tree
from tests.learners.stops import QUICK, Stop, assert_same, interrupt
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow
#: Training settings; the model brings those of the network.
TRAIN = ["--epochs", "2", "--bs", "8", "--lr", "1e-3", "--workers", "0", "--precision", "fp32"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of three classes, a run ``old`` on two of them, and later corrections."""
    root = tmp_path_factory.mktemp("continuing")
    pictures = write_pictures(root / "pictures", per_class=14, unknown=2)
    shutil.copytree(pictures, root / "two", ignore=shutil.ignore_patterns("blue", "*_013.jpg"))
    for file in sorted((pictures / "blue").iterdir())[
        :3
    ]:  # unknown to the old run; the third class
        Image.open(file).rotate(180).save(root / "two" / "unknown" / file.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "report", lambda run, evaluation: None)
        assert main(["--data", str(root / "two"), *QUICK, "--out", str(root / "old")]) == 0
    wrong = pd.read_csv(root / "old" / "items.csv").query("split == 'train'")["path"].iloc[0]
    rows = [(str(file), "blue") for file in sorted((pictures / "blue").iterdir())]
    copy = shutil.copy(wrong, root / "seen.jpg")
    rows += [(str(pictures / "red" / "red_013.jpg"), "red"), (str(copy), "red")]
    table = pd.DataFrame(rows, columns=["path", "label"])
    table.to_csv(root / "corrected.csv", index=False)
    return root


@pytest.fixture(scope="module")
def new_run(root: Path) -> Path:
    words = ["--from", str(root / "old/model"), "--data", str(root / "corrected.csv"), *TRAIN]
    assert main([*words, "--out", str(root / "new")]) == 0
    return root / "new"


def test_it_has_the_network_of_its_model_and_all_classes(root: Path, new_run: Path) -> None:
    old, new = load_bundle(root / "old/model"), load_bundle(new_run / "model")
    assert new.classes == ["blue", "green", "red"]
    assert (new.spec.backbone, new.spec.size, new.spec.head) == (
        old.spec.backbone, old.spec.size, old.spec.head,
    )  # fmt: skip
    assert new.preprocessing == old.preprocessing
    log = (new_run / "log.txt").read_text()
    assert "Classes kept: green, red" in log
    assert "Classes added: blue" in log
    weights = [dict(bundle.network[0].named_parameters()) for bundle in (old, new)]  # type: ignore[index]
    away = max((weights[0][n] - weights[1][n]).abs().max().item() for n in weights[0])
    assert 0 < away < 0.1, "from its weights, not from others drawn at random"


def test_no_item_has_changed_sides_and_the_report_tells_before_and_after(
    root: Path, new_run: Path
) -> None:
    parts = [
        pd.read_csv(run / "items.csv").query("label != 'unknown'").set_index("path")["split"]
        for run in (root / "old", new_run)
    ]
    assert parts[1][parts[0].index].equals(parts[0])
    report = json.loads((new_run / "report/report.json").read_text())
    compared = report["before_after"]
    n_held_out = parts[0].ne("train").sum()
    assert [(row["items of"], row["model"], row["items"]) for row in compared["subsets"][:2]] == [
        ("held out before", "before", n_held_out),
        ("held out before", "after", n_held_out),
    ]
    assert compared["classes"][0]["change"] == "new"
    assert f"Held-out files of classes that both models know: {n_held_out}" in compared["message"]
    page = (new_run / "report/index.html").read_text()
    assert "<h2>What has changed?</h2>" in page
    label = pd.read_csv(root / "old/items.csv").query("split == 'train'")["label"].iloc[0]
    corrected = report["tables"].get("Corrected labels", [])
    assert [(row["labelled before"], row["label"]) for row in corrected] == [(label, "red")]


def test_unknown_files_that_look_like_a_class_learnt_since_are_named_and_not_counted(
    root: Path, new_run: Path
) -> None:
    unknown = [str(file) for file in sorted((root / "two" / "unknown").iterdir())]
    best = {
        one.path: one.best
        for one in load_predictor(new_run / "model", device="cpu").predict(unknown)
    }
    doubtful = {path for path in unknown if best[path] == "blue"}
    assert {str(path) for path in (root / "two" / "unknown").glob("blue*")} <= doubtful
    rejected = pd.read_csv(new_run / "rejected.csv").query("reason.str.contains('new class')")
    assert set(rejected["path"]) == doubtful
    answers = pd.read_csv(new_run / "predictions.csv").query("split == 'unknown'")
    assert set(answers["path"]) == set(unknown) - doubtful
    report = json.loads((new_run / "report/report.json").read_text())
    names = {Path(row["path"]).name for row in report["left_out"]}
    assert {Path(path).name for path in doubtful} <= names


def test_where_it_comes_from_stands_in_the_model_and_its_card(root: Path, new_run: Path) -> None:
    provenance = json.loads((new_run / "model/config.json").read_text())["provenance"]
    (parent,) = provenance["lineage"]
    assert parent["model"] == "old"
    assert parent["data"] == "two"
    assert parent["weights_sha256"] == sha256(root / "old/model/model.safetensors")
    assert parent["items_sha256"] == sha256(root / "old/items.csv")
    assert provenance["items_sha256"] == sha256(new_run / "items.csv")
    assert (
        f"Trained from `old` (weights SHA-256 `{parent['weights_sha256']}`), trained on `two`"
        in ((new_run / "model/README.md").read_text())
    )
    assert str(root) not in (new_run / "model/config.json").read_text()


def test_stopped_it_goes_on_bit_for_bit(
    root: Path, new_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--from", str(root / "old/model"), "--data", str(root / "corrected.csv"), *TRAIN]
    monkeypatch.setattr(stages, "report", lambda run, evaluation: None)
    out = root / "stopped"
    interrupt(monkeypatch, Stop(2, "after_epoch"), [*words, "--out", str(out)])
    assert main(["--resume", str(out)]) == 0
    assert_same(new_run, out)


def settings_from_origin(asked: Settings, origin: Bundle) -> Settings:
    return resolve(asked, inherited(asked, origin))


@pytest.fixture(scope="module")
def origin(root: Path) -> Bundle:
    return load_bundle(root / "old/model")


def test_a_flag_that_contradicts_the_model_is_named(root: Path, origin: Bundle) -> None:
    folder = str(root / "old/model")
    words = ["--from", folder, "--data", "x", "--size", "64", "--backbone", "embedded"]
    with pytest.raises(SecondhandError) as error:
        main([*words, "--kind", "picture", "--weights", "none", "--resize", "pad"])
    message = str(error.value)
    assert message.startswith(
        f"--from {folder} cannot be combined with --backbone embedded (the model has test_resnet"
    )
    assert "--size 64 (the model has 32)" in message
    assert "--weights none (the model has published)" in message
    assert "--resize pad (the model has crop)" in message
    assert "--kind" not in message
    same_ones = Settings().but(**{"from": root / "old/model"}, size=32, kind="picture")
    assert settings_from_origin(same_ones, origin).network.backbone == origin.spec.backbone
    settings = {"kind": "sound", "rate": 8000, "size": [64, 64]}
    sound_model = Bundle(**{**vars(origin), "spectrogram": settings})
    assert settings_from_origin(
        same_ones.but(kind="sound", spectrogram="{rate: 8000, picture: [64, 64]}"), sound_model
    )
    with pytest.raises(
        SecondhandError,
        match=r"--spectrogram rate: 44100 \(the model has 8000\), --spectrogram picture: \[32",
    ):
        settings_from_origin(
            same_ones.but(kind="sound", spectrogram="{rate: 44100, picture: [32, 64]}"), sound_model
        )
    with pytest.raises(SecondhandError, match="--kind picture"):
        settings_from_origin(same_ones, sound_model)
    squashed = replace(origin, preprocessing=replace(origin.preprocessing, resize="squash"))
    assert settings_from_origin(same_ones, squashed).network.resize == "squash"


def test_what_its_run_was_told_of_splits_holds_for_new_files(
    root: Path, origin: Bundle, tmp_path: Path
) -> None:
    """A new file of a held-out group is held out; contradicting flags are an error."""
    model = tmp_path / "run" / "model"
    shutil.copytree(root / "old", tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint"))
    config = yaml.safe_load((root / "old/config.yaml").read_text())
    sites = r"_(?P<site>\d+)\."
    changed = config | {"group_by": sites, "near_duplicates": "ignore", "label_column": "species"}
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump(changed))
    table = pd.read_csv(root / "old/items.csv", keep_default_na=False)
    table = table.assign(group=table["path"].str.extract(sites, expand=False))
    first = table.drop_duplicates("group").set_index("group")["split"]
    table.assign(split=table["group"].map(first)).to_csv(tmp_path / "run/items.csv", index=False)
    settings = Settings().but(**{"from": model}, data=[str(root / "pictures")])
    inherited = settings_from_origin(settings, origin)
    splits = inherited.splits
    assert (splits.group_by, splits.near_duplicates) == (sites, "ignore")
    assert inherited.data.label_column == "species"
    again = settings_from_origin(settings.but(group_by=sites), origin)
    assert (again.data, again.splits) == (inherited.data, splits)

    frame = read_items(Asked.by(*inherited.sections.values())).frame
    new = frame.loc[~frame["rehearsed"] & frame["group"].isin(first.index)]
    assert len(new) == 13
    assert new["split"].tolist() == new["group"].map(first).tolist()
    assert {*new["split"]} - {"train"}
    with pytest.raises(SecondhandError) as error:
        settings_from_origin(settings.but(label_column="kind"), origin)
    assert "--label-column kind (the model has species)" in str(error.value)
    assert settings_from_origin(settings.but(group_by="(.)"), origin).splits.group_by == "(.)"
    with pytest.raises(SecondhandError, match="--near-duplicates keep-together"):
        settings_from_origin(settings.but(near_duplicates="keep-together"), origin)
    # Groups that the old run did not use may lie in several parts of its split.
    plain = settings.but(**{"from": root / "old/model"}, group_by="([a-z]+)_")
    with pytest.raises(SecondhandError, match=r"--group-by .*files of the group 'green'"):
        read_items(Asked.by(*settings_from_origin(plain, origin).sections.values()))


def test_from_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(SecondhandError, match="not a model folder"):
        main(["--from", str(tmp_path), "--data", "x"])


def test_several_networks_begin_as_those_of_the_model(origin: Bundle) -> None:
    from learners.backbones.building import Ensemble, NetworkSpec, build, copy_weights

    for head in ("stages", "cosine"):
        spec = NetworkSpec("test_resnet", 3, 32, head=head)
        (old, *_), (new, *_) = (build(s, pretrained=False) for s in (spec, spec))
        assert not isinstance(old, Ensemble)
        assert not isinstance(new, Ensemble)
        fresh = new[1][-1].weight.clone()
        copy_weights(old, new, [2, None, 0])
        last = new[1][-1].weight
        assert torch.equal(last[0], old[1][-1].weight[2])
        assert torch.equal(last[2], old[1][-1].weight[0])
        assert torch.equal(last[1], fresh[1] if head == "cosine" else torch.zeros_like(fresh[1]))
        assert all(torch.equal(a, b) for a, b in zip(old[0].parameters(), new[0].parameters(), strict=True))  # fmt: skip


def test_a_tree_of_classes_is_learnt_beside_and_handed_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors in it are reported before training."""
    monkeypatch.setattr(stages, "report", lambda run, evaluation: None)
    table = tmp_path / "classes.csv"
    words = ["--from", str(root / "old/model"), "--data", str(root / "corrected.csv"), *TRAIN]
    words += ["--epochs", "0", "--threshold", "0.4", "--out", str(tmp_path / "run")]
    table.write_text("label,parent\ncold,\nblue,cold\ngreen,cold\n")
    with pytest.raises(SecondhandError, match=r"classes\.csv: 1 class .*'red'"):
        main([*words, "--classes-table", str(table)])
    assert not (tmp_path / "run").exists()
    table.write_text("label,parent\ncold,\nblue,cold\ngreen,cold\nred,\n")
    assert main([*words, "--classes-table", str(table)]) == 0
    bundle = load_bundle(tmp_path / "run/model", network=False)
    assert isinstance(bundle.rule, TreeRule)
    tree = bundle.rule.tree
    assert tree.names == ("blue", "green", "red", "cold")
    answers = pd.read_csv(tmp_path / "run/predictions.csv")
    assert {json.loads(branch)[0][0] for branch in answers["branch"]} <= {"cold", "red"}
    settings = Settings().but(**{"from": tmp_path / "run/model"})
    assert resolve_tree(settings, bundle.classes, bundle) is tree
    with pytest.raises(SecondhandError, match="--classes-table with all classes"):
        resolve_tree(settings, [*bundle.classes, "white"], bundle)


def test_unknown_classes_that_look_like_a_class_learnt_since_are_in_doubt_accepted_or_not() -> None:
    after = pd.DataFrame(
        {
            "path": ["known.jpg", "old.jpg", "refused.jpg", "other.jpg", "fresh.jpg"],
            "best": ["c", "c", "c", "a", "c"],
            "label": ["c", "c", "unknown", "a", "c"],
            "split": ["valid", *["unknown"] * 4],
        }
    )
    old = {"known.jpg", "old.jpg", "refused.jpg", "other.jpg"}
    doubtful = maybe_of_new_class(after, old, ["c"])
    assert after["path"][doubtful].tolist() == ["old.jpg", "refused.jpg"]
