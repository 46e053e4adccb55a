"""Suggestions: uncertain files that differ, without those that have a label."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from datasets.core.errors import SecondhandError
from fields.loop import teaching
from fields.loop.teaching import (
    LabelledContent,
    Pool,
    choose_diverse,
    labelled_in,
    margin_uncertainty,
    suggest,
)
from learners.inference.predictor import Predictor
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs, softmax
from learners.runs.folder import record_inputs
from tests.app import sites
from tests.pictures import write_pictures


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Six pictures of each colour and six grey ones, about which the model is unsure."""
    folder = tmp_path_factory.mktemp("pool")
    write_pictures(folder, per_class=6, classes=3, unknown=6)
    return sorted(map(str, folder.rglob("*.jpg")))


@pytest.fixture(scope="module")
def predictor(pool: list[str]) -> Predictor:
    """The model of colours, with distances to its own pictures."""
    predictor = Predictor(sites.colours())
    paths, logits, features = predictor.outputs([path for path in pool if "unknown" not in path])
    labels = np.array([predictor.classes.index(Path(path).parent.name) for path in paths])
    known = Outputs(logits, labels, features)
    # All known items are at distance zero, so any other file is unlike them.
    predictor.rule = fit_rule(known, known, alpha=0.1)
    return predictor


def test_one_burst_is_not_all_that_is_chosen():
    """60 rows are uncertain in one direction; 30 are somewhat surer in three; 100 are sure."""
    rng = np.random.default_rng(0)
    middles = np.eye(8)[[0] * 60 + [1] * 10 + [2] * 10 + [3] * 10 + [4] * 100]
    features = (middles * rng.uniform(1, 9, (190, 1)) + rng.normal(0, 0.01, (190, 8))).astype("f4")
    scores = np.r_[rng.uniform(0.8, 0.9, 60), rng.uniform(0.6, 0.7, 30), np.full(100, 0.1)]
    assert (np.argsort(-scores)[:4] < 60).all(), "by the margin alone it would be one burst"
    chosen = choose_diverse(scores, features, 9)
    assert len({*chosen}) == 9
    assert chosen[0] == scores.argmax()
    assert {int(middles[row].argmax()) for row in chosen[:4]} == {0, 1, 2, 3}, "in any first part"
    assert choose_diverse(scores, features, 4) == chosen[:4]


def test_few_rows_are_all_chosen_and_copies_do_no_harm():
    copies = np.ones((40, 3), np.float32)
    assert choose_diverse([0.1, 0.9, 0.5], copies[:3], 5) == [1, 2, 0]
    assert choose_diverse(np.linspace(0, 1, 40), copies, 5) == [39, 38, 37, 36, 35]
    assert choose_diverse([], np.empty((0, 3), np.float32), 5) == []


def test_a_row_that_is_hardly_another_counts_more_than_a_copy():
    """At an angle of 1e-4: twice the cosine is 2 in float32."""
    row, aside = np.random.default_rng(0).normal(size=(2, 512))
    aside *= 1e-4 * np.linalg.norm(row) / np.linalg.norm(aside)
    rows = np.stack([row, row, row + aside]).astype(np.float32)
    assert choose_diverse([1, 1, 1], rows, 3) == [0, 2, 1]


def test_each_is_the_unsurest_and_farthest_from_those_before():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(30, 5)).astype(np.float32), rng.uniform(size=30)
    chosen = choose_diverse(w, x, 6)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    distances = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    for count in range(1, 6):
        gains = w * distances[:, chosen[:count]].min(axis=1)
        assert chosen[count] == gains.argmax()


def test_how_unsure_is_one_less_the_margin():
    rows = np.array(
        [[0.9, 0.1, 0.0], [0.4, 0.35, 0.25], [0.2, 0.1, 0.1]]
    )  # 0.6 of the background's
    np.testing.assert_allclose(margin_uncertainty(rows), [0.2, 0.95, 0.6])


@pytest.mark.slow
def test_doubtful_and_unlike_files_come_first(predictor, pool):
    asked = Pool(predictor, pool)
    result = suggest(asked, n=6)
    assert (asked.judged, asked.labelled, asked.silent, asked.rejected) == (24, 0, 0, [])
    assert {Path(row.part.path).parent.name for row in result[:4]} == {"unknown"}
    for row in result:
        (answer,) = predictor.predict_detailed([row.part.path])
        out_of_distribution = answer.prediction.reason == "out of distribution"
        p = softmax(answer.logits / predictor.rule.calibrator.temperature.value)
        first, second = np.sort(p)[::-1][:2]
        assert row.score == pytest.approx(
            1.0 if out_of_distribution else 1 - first + second, abs=1e-4
        )
        assert row.guess == answer.prediction.best
        assert row.why.startswith(answer.prediction.reason)
        assert f"{row.guess} {int(100 * first)} %" in row.why
    assert any("out of distribution" in row.why for row in result)


def test_bad_files_are_listed_and_labelled_ones_left_out(predictor, pool, tmp_path, monkeypatch):
    monkeypatch.setattr(teaching, "KEPT", 2)  # it drops rows that it will not need
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    frame = pd.DataFrame({"path": pool[:10], "label": "a", "split": "train"})
    frame.to_csv(tmp_path / "items.csv", index=False)
    asked = Pool(predictor, [*pool, str(broken)], labelled_in(tmp_path / "model"))
    result = suggest(asked, n=2)
    assert [item.path for item in asked.rejected] == [str(broken)]
    assert (asked.judged, asked.labelled) == (14, 10)
    assert not {row.part.path for row in result} & {*pool[:10]}
    assert labelled_in(tmp_path / "elsewhere" / "model") == LabelledContent()
    with pytest.raises(SecondhandError, match="--n 0"):
        suggest(Pool(predictor, pool), n=0)


def test_a_labelled_file_is_known_by_what_is_in_it(predictor, pool, tmp_path, monkeypatch):
    """A label belongs to the content, whatever the file's name. Of unlabelled copies one is
    suggested."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("data/a.jpg", "data/b.jpg")):
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy(pool[number], name)
    items = pd.DataFrame({"path": ["data/a.jpg", "data/b.jpg"], "label": "a"})
    record_inputs(tmp_path, {"items.csv": items})
    shutil.copy(pool[2], "data/b.jpg")
    shutil.copy(pool[3], "copy.jpg")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    monkeypatch.chdir(moved)
    names = [
        pool[0],
        pool[3],
        *(str(tmp_path / n) for n in ("data/a.jpg", "data/b.jpg", "copy.jpg")),
    ]
    asked = Pool(predictor, names, labelled_in(tmp_path / "model"))
    result = suggest(asked)
    assert {row.part.path for row in result} == {names[1], names[3]}
    assert (asked.judged, asked.labelled, asked.copies) == (2, 2, 1)


def test_windows_of_a_recording_are_suggested_by_themselves(tmp_path):
    long = sites.tone(tmp_path / "long.wav", "low", "silence", "high", "low")
    predictor = Predictor(replace(sites.tones(), overlap=0.0))
    rows = [{"path": str(long), "start": 0.0, "end": 1.0}, {"path": "other.wav", "start": ""}]
    pd.DataFrame(rows).to_csv(tmp_path / "items.csv", index=False)
    asked = Pool(predictor, [long], labelled_in(tmp_path / "model"))
    result = suggest(asked)
    assert (asked.judged, asked.labelled, asked.silent) == (2, 1, 1)
    assert sorted((row.part.start, row.part.end) for row in result) == [(2, 3), (3, 4)]
    predictor.close()


def test_a_background_is_one_of_the_two_likeliest(pool, tmp_path):
    bundle = sites.colours()
    rule = replace(bundle.rule, calibrator=replace(bundle.rule.calibrator, background=True))
    predictor = Predictor(replace(bundle, rule=rule))
    path = tmp_path / "grey.png"
    Image.new("RGB", (40, 40), (128, 128, 128)).save(path)
    (answer,) = predictor.predict_detailed([path])
    ((_, score, reason, _),) = suggest(Pool(predictor, [path]))
    p = np.exp(answer.logits) / (1 + np.exp(answer.logits).sum())
    expected = np.sort([*p, 1 - p.sum()])[::-1]
    assert score == pytest.approx(1 - expected[0] + expected[1], abs=1e-4)
    assert ("none of them" in reason) == (1 - p.sum() in expected[:2])
    predictor.close()
