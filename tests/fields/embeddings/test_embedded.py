"""Embeddings of another network are trained on and predicted without their files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.facts import Inputs
from datasets.steps.reading import load_table
from learners import evaluate, finetune, predict
from learners.inference.embedding import embed
from learners.model.bundle import load_bundle
from tests.left_out import of_field
from tests.pictures import write_pictures

CLASSES, WIDTH = ("ant", "bee", "cat"), 12
CENTRES = 4 * np.random.default_rng(1).standard_normal((len(CLASSES) + 1, WIDTH))


def draw(n: int, seed: int, cluster: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings of n items and their cluster numbers; the last cluster is of no class."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, len(CLASSES), n) if cluster is None else np.full(n, cluster)
    return (CENTRES[numbers] + rng.standard_normal((n, WIDTH))).astype(np.float32), numbers


def write(file: Path, values: np.ndarray, network: str = "perch_v2", **columns: object) -> Path:
    paths = [f"{file.stem}/{n:03d}.jpg" for n in range(len(values))]
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    table = pa.table({"path": paths, **columns, "embedding": embedding})
    pq.write_table(table.replace_schema_metadata({"network": network}), file)
    return file


def named(numbers: np.ndarray) -> list[str]:
    return [CLASSES[number] for number in numbers]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with embeddings and a run on them. The files that they name do not exist."""
    folder = tmp_path_factory.mktemp("world")
    values, numbers = draw(180, 0)
    write(folder / "known.parquet", values, label=named(numbers))
    write(folder / "unknown.parquet", draw(30, 1, len(CLASSES))[0])
    values, numbers = draw(40, 2)
    values[7, 3] = np.nan
    write(folder / "new.parquet", values, label=named(numbers))
    data = ["--data", str(folder / "known.parquet"), "--unknown", str(folder / "unknown.parquet")]
    assert finetune.main([*data, "--out", str(folder / "run")]) == 0
    return folder


def test_a_run_of_embeddings_has_a_model_of_their_network(world):
    bundle = load_bundle(world / "run/model")
    assert (bundle.kind.name, bundle.spec.backbone, bundle.spec.size) == (
        "embedding", "embedding/perch_v2", WIDTH,
    )  # fmt: skip
    assert bundle.classes == [*CLASSES]
    assert bundle.metrics["calibration_accuracy"] > 0.95
    assert bundle.metrics["unknown_accepted"] < 0.2
    page = (world / "run/report/index.html").read_text()
    assert "perch_v2" in page
    rows = pd.read_csv(world / "run/items.csv")
    assert set(rows["path"]) >= {str(world / f"known/{n:03d}.jpg") for n in range(180)}
    assert f"embeddings of width {WIDTH} of perch_v2" in (world / "run/model/README.md").read_text()


def rows_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_predictions_name_each_item_as_the_file_does(world, capsys):
    capsys.readouterr()
    assert predict.main([str(world / "run/model"), str(world / "new.parquet")]) == 3
    rows = rows_of(capsys)
    assert [row["path"] for row in rows] == [f"new/{n:03d}.jpg" for n in range(40)]
    assert rows[7]["reason"] == "bad file: its embedding has NaN or infinite values"
    truth = named(draw(40, 2)[1])
    hits = [
        row["best"] == name for n, (row, name) in enumerate(zip(rows, truth, strict=True)) if n != 7
    ]
    assert np.mean(hits) > 0.95
    assert predict.main([str(world / "run/model"), str(world / "unknown.parquet")]) == 0
    assert np.mean([row["label"] == "unknown" for row in rows_of(capsys)]) > 0.8


def test_predictions_are_written_to_a_file(world, tmp_path, capsys):
    out = tmp_path / "answers.csv"
    words = [str(world / "run/model"), str(world / "unknown.parquet"), "--out", str(out)]
    assert predict.main(words) == 0
    assert len(pd.read_csv(out)) == 30
    with pytest.raises(SecondhandError, match="already exists"):
        predict.main(words)


def test_another_network_and_another_width_are_refused(world, tmp_path):
    values = draw(5, 3)[0]
    other = write(tmp_path / "other.parquet", values, "birdnet")
    narrow = write(tmp_path / "narrow.parquet", values[:, :9].copy())
    model = str(world / "run/model")
    with pytest.raises(SecondhandError, match=r"other\.parquet.*birdnet.*perch_v2"):
        predict.main([model, str(other)])
    with pytest.raises(SecondhandError, match=r"narrow\.parquet.*width 9.*width 12"):
        predict.main([model, str(narrow)])
    with pytest.raises(SecondhandError, match=r"other\.parquet.*birdnet.*perch_v2"):
        evaluate.main([model, "--data", str(other), "--no-labels", "--out", str(tmp_path / "r")])


def test_evaluation_with_and_without_labels(world, tmp_path):
    model, data = str(world / "run/model"), str(world / "new.parquet")
    unknown = ["--unknown", str(world / "unknown.parquet")]
    assert evaluate.main([model, "--data", data, *unknown, "--out", str(tmp_path / "a")]) == 0
    figures = json.loads((tmp_path / "a/report.json").read_text())
    assert len(pd.read_csv(tmp_path / "a/predictions.csv")) == 39 + 30
    assert any("NaN" in item["reason"] for item in figures["left_out"])
    assert evaluate.main([model, "--data", data, "--no-labels", "--out", str(tmp_path / "b")]) == 0
    assert len(pd.read_csv(tmp_path / "b/predictions.csv")) == 39


def test_suggestions_are_labels_to_train_with(world, tmp_path, capsys):
    """The table is filled in and given beside the embeddings, which need no labels."""
    suggest = of_field("fields.loop.suggest")
    out, pool = tmp_path / "next.csv", world / "pool.parquet"
    values, numbers = draw(60, 4)
    write(pool, values)
    words = [str(pool), str(world / "known.parquet"), "--n", "24", "--out", str(out)]
    assert suggest.main([str(world / "run/model"), *words]) == 0
    assert (
        "model's run (labelled or given as --unknown), and copies of them: 180"
        in capsys.readouterr().err
    )
    rows = pd.read_csv(out, dtype=str)
    truth = dict(
        zip([str(world / f"pool/{n:03d}.jpg") for n in range(60)], named(numbers), strict=True)
    )
    assert set(rows["path"]) <= truth.keys()
    rows.assign(label=rows["path"].map(truth)).to_csv(out, index=False)
    table = load_table([str(pool), str(out)])
    assert (table.kind, len(table.frame), len(table.fact(Inputs).lookup)) == ("embedding", 24, 60)
    assert not table.rejected
    assert (out.with_suffix("") / "index.html").is_file()


def test_an_audit_draws_and_reads_items_of_embeddings(world, tmp_path, capsys):
    audit = of_field("fields.loop.audit")
    out, values = tmp_path / "audit.csv", draw(80, 8)
    write(world / "site.parquet", values[0])
    model = str(world / "run/model")
    assert audit.main([model, str(world / "site.parquet"), "--n", "20", "--out", str(out)]) == 0
    rows = pd.read_csv(out, dtype=str)
    truth = dict(
        zip([str(world / f"site/{n:03d}.jpg") for n in range(80)], named(values[1]), strict=True)
    )
    rows.assign(label=rows["path"].map(truth)).to_csv(out, index=False)
    capsys.readouterr()
    assert audit.main([model, "--labels", str(out)]) == 0
    assert "Labelled: 20 of the 20 files drawn from 80" in capsys.readouterr().out


def test_search_ranks_by_cosine(world, capsys):
    search = of_field("fields.loop.search")
    capsys.readouterr()
    words = ["new/003.jpg", str(world / "new.parquet"), "--top", "5"]
    assert search.main([str(world / "run/model"), *words]) == 0
    rows = rows_of(capsys)
    values, _ = draw(40, 2)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    cosines = unit @ unit[3]
    cosines[[3, 7]] = -2
    order = np.argsort(-cosines)[:5]
    assert [row["path"] for row in rows] == [f"new/{n:03d}.jpg" for n in order]
    np.testing.assert_allclose(
        [float(row["similarity"]) for row in rows], cosines[order], atol=2e-6
    )
    with pytest.raises(SecondhandError, match=r"gone\.jpg.*none of the 40 items"):
        search.main([str(world / "run/model"), "gone.jpg", str(world / "new.parquet")])


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["--epochs", "3"], ["--epochs 3"]),
        (["--epochs", "5", "--backbone", "resnet18", "--tta", "4"], ["--epochs 5", "--backbone resnet18", "--tta 4"]),
        (["--resize", "pad"], ["--resize pad"]),
        (["--kind", "picture"], ["known.parquet", "picture"]),
        (["--head", "stages"], ["--head stages"]),
        (["--from", "run/model"], ["--from", "run/model"]),
    ],
)  # fmt: skip
def test_settings_of_a_body_are_refused_together(world, tmp_path, monkeypatch, words, messages):
    monkeypatch.chdir(world)
    out = ["--out", str(tmp_path / "run")]
    with pytest.raises(SecondhandError) as refused:
        finetune.main(["--data", "known.parquet", *words, *out])
    assert all(text in str(refused.value) for text in messages), str(refused.value)
    assert not (tmp_path / "run").exists()


def test_embeddings_without_labels_are_an_error_only_alone(world, tmp_path):
    with pytest.raises(SecondhandError, match=r"unknown\.parquet: no column 'label'"):
        load_table(str(world / "unknown.parquet"))
    values, numbers = draw(12, 5)
    labels = [*named(numbers)[:-1], ""]
    table = load_table(str(write(tmp_path / "some.parquet", values, label=labels)))
    assert [item.reason for item in table.rejected] == ["no label (row 13 of some.parquet)"]
    pd.DataFrame({"path": ["some/011.jpg", "other.jpg"], "label": ["dog", "dog"]}).to_csv(
        tmp_path / "labels.csv", index=False
    )
    sources = [str(tmp_path / "some.parquet"), str(tmp_path / "labels.csv")]
    table = load_table(sources, learned=False)
    assert len(table.frame) == 12
    assert [(Path(item.path).name, item.reason) for item in table.rejected] == [
        ("other.jpg", "has no embedding in the files given")
    ]


def test_class_folders_of_birdnets_files_are_labels(tmp_path):
    values, numbers = draw(40, 6)
    for n, (row, name) in enumerate(zip(values, named(numbers), strict=True)):
        file = tmp_path / "dawn" / name / f"{n // 10}.birdnet.embeddings.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as stream:
            stream.write(f"{3.0 * n}\t{3.0 * n + 3}\t{','.join(map(str, row.tolist()))}\n")
    (tmp_path / "dawn" / CLASSES[0] / "bad.birdnet.embeddings.txt").write_text("nothing\n")
    table = load_table(str(tmp_path / "dawn"))
    assert (table.kind, table.classes, table.fact(Inputs).lookup.network) == (
        "embedding",
        [*CLASSES],
        "BirdNET",
    )
    assert sorted(table.frame["label"]) == sorted(named(numbers))
    assert sorted(table.frame["start"]) == [3.0 * n for n in range(40)]
    assert [Path(item.path).name for item in table.rejected] == ["bad.birdnet.embeddings.txt"]


def test_labels_and_trees_are_trained_as_of_files(world, tmp_path, unreported):
    values, numbers = draw(120, 7)
    labels = ["ant|bee" if n == 2 else CLASSES[n] for n in numbers]
    data = ["--data", str(write(tmp_path / "several.parquet", values, label=labels))]
    assert finetune.main([*data, "--labels", "multi", "--out", str(tmp_path / "many")]) == 0
    assert load_bundle(tmp_path / "many/model").metrics["calibration_map"] > 0.9
    (tmp_path / "tree.csv").write_text("label,parent\nant,insect\nbee,insect\ninsect,\ncat,\n")
    data = ["--data", str(world / "known.parquet"), "--classes-table", str(tmp_path / "tree.csv")]
    assert finetune.main([*data, "--out", str(tmp_path / "tree")]) == 0
    tree = load_bundle(tmp_path / "tree/model").rule.tree
    assert tree is not None
    assert "insect" in tree.names


def test_embeddings_of_a_body_give_what_its_pictures_give(tmp_path, unreported):
    """The reference is a run on pictures: the same files, parts, backbone and head."""
    photos = write_pictures(tmp_path / "photos", per_class=30)
    frame = load_table(str(photos), check=False).frame
    parts = np.random.default_rng(0).permutation(np.arange(len(frame)) % 4)
    frame = frame[["path", "label"]].assign(
        split=[("train", "train", "valid", "calibration")[part] for part in parts]
    )
    frame.to_csv(tmp_path / "items.csv", index=False)
    features, _ = embed(frame["path"], size=32)
    np.savez(
        tmp_path / "items.npz", **{n: frame[n].to_numpy(str) for n in frame}, embedding=features
    )
    alike = ["--near-duplicates", "ignore", "--head", "linear"]
    pictures = ["--size", "32", "--epochs", "0", "--workers", "0"]
    for name, words in (("items.csv", pictures), ("items.npz", [])):
        out = ["--out", str(tmp_path / name.replace(".", "-"))]
        assert finetune.main(["--data", str(tmp_path / name), *alike, *words, *out]) == 0
    ours, theirs = (
        pd.read_csv(tmp_path / run / "predictions.csv").set_index("path")
        for run in ("items-npz", "items-csv")
    )
    assert len(ours) == len(theirs)
    assert ours["label"].eq(theirs["label"]).all()
    np.testing.assert_allclose(
        ours["probability"], theirs.loc[ours.index, "probability"], atol=2e-5
    )
