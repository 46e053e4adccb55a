"""Planted wrong labels and copies are found; correct ones are not reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from datasets.core.part import Part
from datasets.images.opening import open_picture
from learners.evaluation import held_out
from learners.evaluation.figures import score_items
from learners.evaluation.suspects import (
    HIGH,
    LOW,
    hardest_items,
    is_copy,
    label_suspects,
    near_duplicates,
)
from learners.rule.base import read_rule
from learners.rule.scores.knn import KNN
from tests.learners.evaluations import make_bundle, make_evaluation


def test_a_seeded_part_of_many_training_items_is_the_reference(monkeypatch):
    monkeypatch.setattr(held_out, "REFERENCE_ITEMS", 100)
    rows = pd.DataFrame({"path": range(400), "split": ["train", "valid"] * 200, "label": "a"})
    samples = [held_out.reference_rows(rows, seed)["path"].tolist() for seed in (0, 0, 1)]
    assert [len(set(paths)) for paths in samples] == [100] * 3
    assert not any(path % 2 for path in samples[0])
    assert samples[0] == samples[1] != samples[2]


def test_suspects_are_those_of_the_paper_written_out():
    bundle = make_bundle()
    evaluation = make_evaluation(bundle, valid=200, ood=5, seed=3)
    evaluation.logits *= 4
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    suspects = label_suspects(evaluation, scored, bundle.classes)
    known = scored.where(scored.labels >= 0)
    threshold = [known.after[known.labels == c, c].mean() for c in range(3)]
    expected = {}
    for row, p, label in zip(known.rows, known.after, known.labels, strict=True):
        above = [c for c in range(3) if p[c] >= threshold[c]]
        best = max(above, key=lambda c: p[c], default=label)
        if best != label and p[label] <= LOW and p[best] >= HIGH:
            expected[row] = bundle.classes[best]
    assert len(expected) > 3
    assert dict(zip(suspects["row"], suspects["suggested"], strict=True)) == expected
    margins = suspects["suggested_probability"] - suspects["label_probability"]
    assert margins.is_monotonic_decreasing


def test_a_model_that_is_sure_of_nothing_suspects_nothing():
    bundle = make_bundle([f"class {n}" for n in range(40)])
    evaluation = make_evaluation(bundle)
    evaluation.logits *= 0.2
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    assert hardest_items(evaluation, scored)["label_probability"].max() <= LOW
    assert label_suspects(evaluation, scored, bundle.classes).empty


def test_the_hardest_are_known_items_by_the_probability_of_their_label():
    bundle = make_bundle()
    evaluation = make_evaluation(bundle)
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    hard = hardest_items(evaluation, scored, n=10)
    known = scored.where(scored.labels >= 0)
    of_label = np.sort(known.after[np.arange(len(known.rows)), known.labels])
    assert hard["label_probability"].tolist() == pytest.approx(of_label[:10])
    assert not hard["path"].str.startswith("unknown").any()


def test_copies_are_told_by_their_features():
    bundle = make_bundle()
    evaluation = make_evaluation(bundle)
    assert not is_copy(
        evaluation, bundle, score_items(evaluation, bundle.classes, bundle.rule)
    ).any()
    evaluation.features[7] = 3 * bundle.rule.distance.reference[11]
    copies = is_copy(evaluation, bundle, score_items(evaluation, bundle.classes, bundle.rule))
    assert np.flatnonzero(copies).tolist() == [7]
    bare = make_bundle(distance=False)
    assert not is_copy(evaluation, bare, score_items(evaluation, bare.classes, bare.rule)).any()


@pytest.fixture
def scenes(tmp_path: Path) -> list[Path]:
    """Return unrelated pictures: 20 for training, then 20 held out."""
    rng = np.random.default_rng(0)
    paths = []
    for n in range(40):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        paths.append(tmp_path / f"{n:02d}.jpg")
        small.resize((120, 120), Image.Resampling.BICUBIC).save(paths[-1])
    return paths


def opened(source: Part) -> Image.Image:
    return open_picture(source.path)


def trained_rows(paths: list[Path], labels: list[str]) -> pd.DataFrame:
    frame = pd.DataFrame({"path": [str(path) for path in paths], "label": labels})
    return frame.assign(start=np.nan, end=np.nan, gps=np.nan)


def prepared(scenes: list[Path]):
    bundle = make_bundle()
    evaluation = make_evaluation(
        bundle, valid=20, calibration=0, ood=0, silent=0, paths=scenes[20:]
    )
    rng = np.random.default_rng(5)
    reference = rng.normal(size=(20, 8)).astype(np.float32)
    reference /= np.linalg.norm(reference, axis=1, keepdims=True)
    arrays = {**bundle.rule.arrays(), "distance.reference": reference}
    bundle.rule = read_rule(bundle.rule.to_json(), arrays)
    trained = trained_rows(scenes[:20], ["a", "b"] * 10)
    return bundle, evaluation, reference, trained


def test_a_planted_copy_in_another_size_encoding_and_crop_is_found(scenes):
    bundle, evaluation, reference, trained = prepared(scenes)
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    assert near_duplicates(evaluation, bundle, scored, trained, opened).empty
    with Image.open(scenes[3]) as picture:
        again = picture.convert("RGB")
    moved = again.crop((6, 4, 120, 118)).resize((90, 90))
    moved.save(scenes[20 + 9], quality=60)
    rng = np.random.default_rng(1)
    evaluation.features[9] = reference[3] * 7 + rng.normal(0, 0.2, 8)
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    pairs = near_duplicates(evaluation, bundle, scored, trained, opened)
    assert pairs["row"].tolist() == [9]
    assert pairs["train_path"].tolist() == [str(scenes[3])]
    assert pairs["train_label"].tolist() == ["b"]
    assert 0.8 < pairs["correlation"][0] <= 1


def test_a_copy_is_found_among_the_files_that_its_body_has_learnt_from(scenes):
    """Each fold has features of its own, and rows of its own."""
    bundle, evaluation, reference, trained = prepared(scenes)
    with Image.open(scenes[16]) as picture:
        picture.resize((90, 90)).save(scenes[20 + 9], quality=60)
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(8, 8)))[0].astype(np.float32)
    evaluation.features = evaluation.features @ turn
    evaluation.features[9] = 5 * reference[16] @ turn
    rows = np.arange(2, 20)[::-1]
    knn = KNN()
    knn.fit(reference[rows] @ turn, (), ())
    evaluation.folds = np.zeros(len(evaluation.predictions), np.int64)
    distance = replace(bundle.rule.distance, knn=knn)
    evaluation.rules = {0: replace(bundle.rule, distance=distance)}
    evaluation.of_reference, evaluation.by_body = np.zeros(20, np.int64), {0: rows}
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    pairs = near_duplicates(evaluation, bundle, scored, trained, opened)
    assert pairs["row"].tolist() == [9]
    assert pairs["train_path"].tolist() == [str(scenes[16])]
    evaluation.by_body = {0: rows[1:]}  # a training file has become unreadable
    assert near_duplicates(evaluation, bundle, scored, trained, opened).empty


def test_pictures_that_all_look_alike_are_no_duplicates_unless_they_are(scenes):
    """Written digits, and spectrograms of one word, are alike by nature."""
    bundle, evaluation, reference, trained = prepared(scenes)
    with Image.open(scenes[0]) as picture:
        common = np.asarray(picture.convert("RGB"), float)
    for path in scenes:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"), float)
        Image.fromarray((0.65 * common + 0.35 * pixels).astype(np.uint8)).save(path, quality=95)
    evaluation.features[4] = reference[6]
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    assert near_duplicates(evaluation, bundle, scored, trained, opened).empty
    with Image.open(scenes[6]) as picture:
        picture.resize((100, 100)).save(scenes[20 + 4], quality=70)
    pairs = near_duplicates(evaluation, bundle, scored, trained, opened)
    assert pairs["row"].tolist() == [4]


def test_pictures_that_are_gone_or_empty_are_no_duplicates(scenes):
    bundle, evaluation, reference, trained = prepared(scenes)
    evaluation.features[0] = reference[0]
    evaluation.features[1] = reference[1]
    scenes[20].unlink()
    for path in (scenes[1], scenes[21]):
        Image.new("RGB", (50, 50), "white").save(path)
    pairs = near_duplicates(
        evaluation, bundle, score_items(evaluation, bundle.classes, bundle.rule), trained, opened
    )
    assert pairs.empty


def test_nothing_is_claimed_where_rows_and_features_do_not_fit(scenes):
    bundle, evaluation, _, trained = prepared(scenes)
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    pairs = near_duplicates(evaluation, bundle, scored, trained.head(19), opened)
    assert pairs.empty
    bundle.rule = read_rule(bundle.rule.to_json())
    assert near_duplicates(evaluation, bundle, scored, trained, opened).empty
