"""The command: a table of clusters to name, and a sheet with a section per cluster."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datasets.steps.reading import load_table
from fields.loop.discover import main
from learners.inference.predictor import Predictor
from learners.model.bundle import save_bundle
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from tests.app import sites
from tests.pictures import write_pictures


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of colours with distances, and pictures of its classes and of an unknown one."""
    folder = tmp_path_factory.mktemp("world")
    write_pictures(folder / "pool", per_class=8, unknown=12)
    bundle = sites.colours()
    predictor = Predictor(bundle)
    files = sorted(map(str, (folder / "pool").rglob("*.jpg")))
    known = [path for path in files if "unknown" not in path]
    paths, logits, features = predictor.outputs(known)
    labels = np.array([predictor.classes.index(Path(path).parent.name) for path in paths])
    items = Outputs(logits, labels, features)
    bundle = replace(bundle, rule=fit_rule(items, items, alpha=0.1))  # others use it, too
    save_bundle(bundle, folder / "run" / "model")
    return folder


def test_a_named_cluster_is_a_class_of_the_next_training(world, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(world)
    out = tmp_path / "found.csv"
    assert main(["run/model", "pool", "--out", str(out), "--fdr", "0.3"]) == 0
    output = capsys.readouterr().out
    rows = list(csv.DictReader(out.open()))
    assert [*rows[0]] == ["path", "label", "cluster", "new", "p_value", "why", "guess"]
    assert "Refused:" in output
    assert "Cluster 1: " in output
    page = (tmp_path / "found" / "index.html").read_text()
    assert page.count("<img") == min(len(rows), page.count("<img"))
    assert "<h2>Cluster 1: " in page
    first = [row for row in rows if row["cluster"] == "1"]
    assert {Path(row["path"]).parent.name for row in first} == {"unknown"}
    assert len(first) >= 5

    # Name the cluster, and label one of its files differently; leave the other rows empty.
    first[2]["label"], first[1]["label"] = "grey", "red"
    first[0]["label"] = "grey"
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    table = load_table([str(world / "pool"), str(out)])
    counts = table.frame["label"].value_counts()
    assert counts["grey"] == len(first) - 1
    with pytest.raises(Exception, match=r"found\.csv already exists"):
        main(["run/model", "pool", "--out", str(out)])


def test_bad_calls_and_files(world, tmp_path, capsys):
    model, pool = str(world / "run" / "model"), str(world / "pool")
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    out = ["--out", str(tmp_path / "found.csv")]
    with pytest.raises(Exception, match=r"--fdr 0\.0 "):
        main([model, pool, "--fdr", "0", *out])
    assert main([model, pool, str(bad), *out]) == 3
    assert "bad.jpg: " in capsys.readouterr().err
    assert main([model, pool, "--fdr", "0.001", "--out", str(tmp_path / "strict.csv")]) == 0
    assert "24 calibration files are too few" in capsys.readouterr().out
    red = str(world / "pool" / "red")
    assert main([model, red, "--out", str(tmp_path / "none.csv")]) in (0, 3)
    shown = capsys.readouterr()
    assert (
        f"secondhand suggest {model} {red}" in shown.out
        or f"secondhand audit {model} {red}" in shown.err
    )
    with pytest.raises(Exception, match="no file can be used"):
        main([model, str(bad), "--out", str(tmp_path / "never.csv")])
