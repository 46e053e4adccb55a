"""Bursts stay in one part of a split; classes that merely look alike do not form clusters."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile
from PIL import Image
from sklearn.datasets import load_digits

from datasets.core.part import Part
from datasets.images import opening
from datasets.images.opening import open_picture
from datasets.items import describe, duplicates
from datasets.items.duplicates import SHIFT, correlation, find_clusters, thumbnails_of
from datasets.items.facts import NearDuplicates, Sessions
from datasets.items.loaded import Loaded
from datasets.items.settings import SignalSettings
from datasets.steps.base import Asked
from datasets.steps.reading import load_grouped, read_items
from datasets.steps.split import divide
from learners.runs.run import load_items
from tests.asked import asked
from tests.datasets.images.test_capture_time import photo
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow

SCENES, SHOTS = 8, 3  # bursts per class, pictures per burst


def prepare_items(data: Asked, folder: Path) -> Loaded:
    """Return the items of a run with these settings."""
    return load_items(read_items(data), data, folder)


def scene(seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def bursts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 8 bursts of 3 crops of various size and quality, and 8 single pictures."""
    folder = tmp_path_factory.mktemp("bursts")
    for k, label in enumerate(("apple", "pear")):
        (folder / label).mkdir()
        for n in range(2 * SCENES):
            full = scene(100 * k + n)
            for shot in range(SHOTS if n < SCENES else 1):
                crop = full.crop((shot * 4, shot * 3, 82 + shot * 4, 82 + shot * 3))
                file = folder / label / f"scene{n:02d}_{shot}.jpg"
                crop.resize((70 - shot, 70 - shot)).save(file, quality=85 - 10 * shot)
    return folder


def scene_of(frame: pd.DataFrame) -> pd.Series:
    return frame["label"] + frame["path"].str.extract(r"(scene\d+)_")[0]


def test_a_burst_is_on_one_side_unless_it_is_to_be_ignored(bursts):
    default = asked(data=str(bursts))
    table = load_grouped(default)
    for seed in (0, 1, 2):
        frame, dropped = divide(table.frame, replace(default, seed=seed))
        assert not dropped
        assert frame.groupby(scene_of(frame))["split"].nunique().max() == 1
    assert table.get(NearDuplicates) == NearDuplicates(together=(3,) * 16)
    folds = asked(data=str(bursts), cv=4, fold="2")
    tested, dropped = divide(table.frame, folds)
    assert not dropped
    assert tested.groupby(scene_of(tested))["split"].nunique().max() == 1
    ungrouped = frame["group"].eq("")
    assert (frame.loc[ungrouped].groupby(scene_of(frame)).size() == 1).all()
    assert ungrouped.sum() == 2 * SCENES

    ignoring = asked(data=str(bursts), near_duplicates="ignore")
    table = load_grouped(ignoring)
    frame, _ = divide(table.frame, ignoring)
    assert table.get(NearDuplicates) is None
    assert frame.groupby(scene_of(frame))["split"].nunique().max() > 1


def test_a_photo_is_opened_once_for_check_thumbnail_and_time(bursts, tmp_path, monkeypatch):
    """Openings are counted in a file, because checks run in other processes."""
    count, opened = tmp_path / "opened", opening.opened

    def counted(source, name):
        with count.open("a") as file:
            file.write(f"{source}\n")
        return opened(source, name)

    monkeypatch.setattr(opening, "opened", counted)
    load_grouped(asked(data=str(bursts)))
    assert sorted(count.read_text().split()) == sorted(map(str, bursts.glob("*/*.jpg")))


def test_the_log_counts_them_and_the_same_comes_again(bursts, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    data = asked(data=str(bursts))
    first = prepare_items(data, tmp_path)
    assert (
        "Near-duplicates stay in one split: 48 files in 16 clusters, the largest of 3"
        in caplog.text
    )
    again = prepare_items(data, tmp_path)
    pd.testing.assert_frame_equal(first.table.frame, again.table.frame)
    saved = pd.read_csv(tmp_path / "items.csv", keep_default_na=False)
    assert saved["group"].tolist() == first.table.frame["group"].tolist()


def test_what_the_data_say_is_not_overruled(bursts, tmp_path):
    files = sorted(bursts.glob("*/*.jpg"))
    rows = pd.DataFrame({"path": map(str, files), "label": [f.parent.name for f in files]})
    rows["shot"] = [file.stem[-1] for file in files]
    rows["split"] = rows["shot"].map({"0": "train", "1": "valid", "2": "calibration"})
    rows["group"] = rows["shot"].map({"0": "first site", "1": "second site", "2": ""})

    def grouped(columns: list[str], **settings: object) -> pd.DataFrame:
        rows[["path", "label", *columns]].to_csv(tmp_path / "t.csv", index=False)
        data = asked(data=str(tmp_path / "t.csv"), **settings)
        return load_grouped(data).frame

    assert grouped(["split"])["group"].eq("").all()
    rows["fold"] = rows["shot"]
    assert grouped(["fold"], fold="1")["group"].eq("").all()
    assert grouped(["fold"], cv="fold")["group"].eq("").all()
    # Near-duplicates never join two given groups; items without a group stay with their
    # near-duplicates.
    table_of_groups = grouped(["group"])
    has_group = rows["group"].ne("").to_numpy()
    assert (
        table_of_groups["group"].to_numpy()[has_group].tolist() == rows["group"][has_group].tolist()
    )
    assert table_of_groups["group"].str.startswith("near-duplicates").sum() == 2 * SCENES
    rows.loc[rows["shot"].eq("1"), "group"] = ""
    joined = grouped(["group"])
    burst = scene_of(joined).duplicated(keep=False)
    assert joined.loc[burst, "group"].eq("first site").all()
    # The data's own test items stay there; the rest is split without dividing a burst.
    rows["split"] = rows["shot"].map({"0": "train", "1": "train", "2": "test"})
    data = asked(data=str(tmp_path / "t.csv"))
    frame, dropped = divide(grouped(["split"]), data)
    assert not dropped
    assert frame["split"].eq("test").sum() == 2 * SCENES
    not_test = frame.loc[frame["split"].ne("test")]
    assert not_test.groupby(scene_of(not_test))["split"].nunique().max() == 1


def test_a_class_that_is_one_burst_is_split_all_the_same_and_said(bursts, tmp_path, caplog):
    for label in ("apple", "pear"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for file in (bursts / label).glob("scene*_0.jpg"):
            (tmp_path / "data" / label / file.name).write_bytes(file.read_bytes())
    for shot in range(8):
        crop = scene(907).crop((shot, 0, 80 + shot, 80))
        (tmp_path / "data" / "plum").mkdir(exist_ok=True)
        crop.save(tmp_path / "data" / "plum" / f"{shot}.jpg", quality=90)
    loaded = prepare_items(asked(data=str(tmp_path / "data")), tmp_path)
    frame = loaded.table.frame
    assert set(frame.loc[frame["label"].eq("plum"), "split"]) == {"train", "valid", "calibration"}
    assert (
        "not kept together: 1 cluster of 8 files, which holds more than half of a class"
        in caplog.text
    )
    assert loaded.table.get(NearDuplicates).divided


def test_classes_that_look_alike_are_no_clusters(tmp_path):
    """Pictures of one colour under noise, and written digits, are similar by nature, up to 0.88."""
    noise = asked(data=str(write_pictures(tmp_path)))
    assert load_grouped(noise).get(NearDuplicates) == NearDuplicates()
    digits = load_digits()
    pictures = [
        Image.fromarray((255 - 15 * digit).astype(np.uint8)) for digit in digits.images[:600]
    ]
    thumbnails = thumbnails_of(
        [Part(str(n)) for n in range(600)], lambda item: pictures[int(item.path)].resize((64, 64))
    )
    clusters = find_clusters(thumbnails, np.arange(600), digits.target[:600].astype(str))
    assert sum(clusters.sizes) <= 6
    assert not clusters.ungrouped


def test_fine_texture_is_found_among_smooth_pictures():
    """Its lowest frequencies are weak; their pattern counts, not their strength."""
    rng = np.random.default_rng(0)
    texture = rng.integers(0, 256, (32, 32), dtype=np.uint8)
    coarse = rng.integers(0, 256, (40, 3, 3), dtype=np.uint8)
    smooth = [np.asarray(Image.fromarray(one).resize((32, 32))) for one in coarse]
    thumbnails = np.stack([*smooth, texture, np.roll(texture, 2, axis=1)])
    clusters = find_clusters(thumbnails, np.arange(42), np.array(["a", "b"] * 21))
    assert clusters.number.tolist() == [-1] * 40 + [0, 0]


def test_a_recording_in_another_encoding_is_found(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("low", "high"):
        folder = tmp_path / "data" / label
        folder.mkdir(parents=True)
        for n in range(12):
            # Chirps of different times and frequencies.
            t = np.arange(16_000) / 8000
            wave = 0.02 * rng.normal(size=t.size)
            for start in rng.uniform(0, 1.8, 4):
                pitch = rng.uniform(300, 3500)
                wave += np.where((t > start) & (t < start + 0.15), 0.4, 0) * np.sin(
                    6.28 * pitch * t
                )
            soundfile.write(folder / f"{n:02d}.wav", wave, 8000)
            if n == 3:
                soundfile.write(folder / "again.ogg", 0.5 * wave, 8000)
    signal = SignalSettings(cache_dir=tmp_path / "cache")
    table = load_grouped(asked(signal, data=str(tmp_path / "data")))
    clustered = table.frame.loc[table.frame["group"].ne("")]
    assert {
        tuple(sorted(Path(p).name for p in rows)) for _, rows in clustered.groupby("group")["path"]
    } == {("03.wav", "again.ogg")}
    assert clustered["group"].nunique() == 2


def correlation_at_all_shifts(thumbnails: np.ndarray) -> np.ndarray:
    """The largest correlation of each pair, from every shift by itself."""
    values = thumbnails - thumbnails.mean((1, 2), keepdims=True)
    values /= np.linalg.norm(values, axis=(1, 2), keepdims=True)
    shifts, count = range(-SHIFT, SHIFT + 1), len(values)
    best = np.full((count, count), -np.inf)
    for move in itertools.product(shifts, shifts):
        moved = np.roll(values, move, (1, 2)).reshape(count, -1)
        np.maximum(best, values.reshape(count, -1) @ moved.T, out=best)
    return best


def test_the_correlation_is_the_largest_of_small_shifts():
    one = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    moves = [(0, 0), (SHIFT, -SHIFT), (SHIFT + 1, 0), (0, SHIFT + 1), (-SHIFT - 1, 0)]
    thumbnails = np.stack([np.roll(one, move, (0, 1)) for move in moves])
    found = correlation(thumbnails, thumbnails)
    assert found == pytest.approx(correlation_at_all_shifts(thumbnails), abs=1e-5)
    assert (found[0] > 0.99).tolist() == [True, True, False, False, False]


def test_candidates_lose_nothing_against_all_pairs(bursts):
    """The reference compares every pair at every shift."""
    from scipy.sparse.csgraph import connected_components

    files = sorted(bursts.glob("*/*.jpg"))
    thumbnails = thumbnails_of([Part(str(f)) for f in files], lambda item: open_picture(item.path))
    best = correlation_at_all_shifts(thumbnails)
    labels = np.array([file.parent.name for file in files])
    clusters = find_clusters(thumbnails, np.arange(len(files)), labels)
    _, expected = connected_components(best >= 0.75, directed=False)
    sizes = np.bincount(expected)
    assert sorted(clusters.sizes) == sorted(sizes[sizes > 1])
    for number in range(len(clusters.sizes)):
        assert len(set(expected[clusters.number == number])) == 1


def test_among_many_files_the_same_copies_are_found(monkeypatch):
    """Many files are compared with those of the nearest cells alone; and most pairs by their lowest frequencies."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(40, 216, (1500, 6, 6), dtype=np.uint8)
    different = np.stack([np.asarray(Image.fromarray(one).resize((32, 32))) for one in coarse])
    copies = np.roll(different[:200], (2, -3), (1, 2)) + rng.integers(-6, 7, (200, 32, 32))
    thumbnails = np.concatenate([different, np.clip(copies, 0, 255).astype(np.uint8)])
    files, labels = np.arange(1700), np.array(["a", "b"] * 850)
    among_all = find_clusters(thumbnails, files, labels)
    assert among_all.sizes == [2] * 200
    assert (among_all.number[:200] == among_all.number[1500:]).all()
    monkeypatch.setattr(duplicates, "CELLED", 1000)
    monkeypatch.setattr(duplicates, "CELL", 100)
    in_cells = find_clusters(thumbnails, files, labels)
    assert (in_cells.number == among_all.number).all()


def hard_set() -> tuple[np.ndarray, np.ndarray]:
    """Thumbnails and labels: 60 equal pictures, bursts of 40 and 25 frames, pictures of one colour, pairs, and others.

    More frames are alike than each is compared with.
    """
    rng = np.random.default_rng(3)
    coarse = rng.integers(40, 216, (203, 6, 6), dtype=np.uint8)
    scenes = np.stack([np.asarray(Image.fromarray(one).resize((32, 32))) for one in coarse])

    def frames(scene: np.ndarray, count: int) -> np.ndarray:
        moved = [np.roll(scene, rng.integers(-2, 3, 2), (0, 1)) for _ in range(count)]
        light = rng.uniform(0.6, 1.1, (count, 1, 1))
        return np.clip(moved * light + rng.normal(0, 2, (count, 32, 32)), 0, 255).astype(np.uint8)

    burst, short = frames(scenes[1], 40), frames(scenes[2], 25)
    pairs = np.concatenate([frames(scene, 1) for scene in scenes[103:143]])
    same, flat = np.repeat(scenes[:1], 60, 0), np.full((20, 32, 32), 77, np.uint8)
    thumbnails = np.concatenate([same, burst, short, pairs, flat, scenes[3:]])
    labels = np.array([*"a" * 60, *"b" * 40, *"c" * 25, *"abcd" * 10, *"abcd" * 5, *"bcda" * 50])
    order = rng.permutation(len(thumbnails))
    return thumbnails[order], labels[order]


@pytest.mark.parametrize("cells", [False, True])
def test_of_bursts_copies_and_flat_pictures_the_clusters_are_those_of_all_pairs(cells, monkeypatch):
    from scipy.sparse.csgraph import connected_components

    if cells:
        monkeypatch.setattr(duplicates, "CELLED", 100)
        monkeypatch.setattr(duplicates, "CELL", 40)
    thumbnails, labels = hard_set()
    clusters = find_clusters(thumbnails, np.arange(len(labels)), labels)
    visible = np.flatnonzero(np.ptp(thumbnails, axis=(1, 2)))
    assert len(labels) - len(visible) == 20
    alike = correlation_at_all_shifts(thumbnails[visible]) >= 0.85
    _, of_visible = connected_components(alike, directed=False)
    expected = np.full(len(labels), -1)
    expected[visible] = of_visible
    sizes = np.bincount(of_visible)
    assert sorted(clusters.sizes) == [*[2] * 40, 25, 40, 60] == sorted(sizes[sizes > 1])
    for number in range(len(clusters.sizes)):
        assert len(set(expected[clusters.number == number])) == 1


def test_equal_pictures_of_one_file_join_only_other_files():
    """Windows of one recording are not compared; silence of two recordings connects them."""
    rng = np.random.default_rng(0)
    silence, quiet, *others = rng.integers(0, 256, (32, 32, 32), dtype=np.uint8)
    thumbnails = np.stack([silence, silence, silence, quiet, quiet, *others])
    files = np.array([0, 0, 1, 2, 2, *range(3, 33)])
    clusters = find_clusters(thumbnails, files, np.array([*"aaabb", *"abc" * 10]))
    assert clusters.sizes == [2]
    assert clusters.number.tolist() == [0, 0, 0] + [-1] * 32


@pytest.mark.parametrize("rows_of_a_file", [1, 3])
def test_with_all_cells_searched_the_nearest_are_those_of_all_rows(rows_of_a_file, monkeypatch):
    """The reference sorts the similarities to all rows."""
    monkeypatch.setattr(duplicates, "CELLED", 100)
    monkeypatch.setattr(duplicates, "CELL", 1 + 900 // duplicates.PROBES)
    points = np.abs(np.random.default_rng(0).normal(size=(900, 66))).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    files = np.arange(900) // rows_of_a_file
    near = duplicates._nearest_rows(points, files)
    similar = points.astype(np.float64) @ points.T.astype(np.float64)
    similar[files[:, None] == files] = -1
    expected = np.argsort(-similar, axis=1)[:, : duplicates.NEIGHBOURS]
    assert (near == expected).all()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_pictures_of_one_colour_are_in_no_cluster(count):
    thumbnails = np.full((count, 32, 32), 200, np.uint8)
    clusters = find_clusters(thumbnails, np.arange(count), np.array(["a"] * count, str))
    assert clusters.number.tolist() == [-1] * count
    assert clusters.sizes == clusters.ungrouped == []


def test_different_pictures_of_an_equal_hash_are_different():
    weights = [int(w) for w in np.random.default_rng(0).integers(1, 2**63, 128, np.uint64)]
    odd = next(n for n in range(1, 128) if weights[n] % 2)
    words = np.zeros((4, 128), np.uint64)
    words[:2, 0] = 12345
    words[2, odd] = 12345 * weights[0] * pow(weights[odd], -1, 2**64) % 2**64
    thumbnails = words.view(np.uint8).reshape(4, 32, 32)
    assert duplicates._first_equal(thumbnails, np.arange(4)).tolist() == [0, 0, 2, 3]
    assert duplicates._first_equal(thumbnails, np.array([1, 3])).tolist() == [0, 1]


@pytest.fixture
def outing(tmp_path: Path) -> Path:
    """Six hourly sessions with four photos of each of two classes, and a later near-duplicate."""
    start = datetime(2023, 5, 1, 12)
    for n in range(48):
        session, label = n // 8, ("apple", "pear")[n % 2]
        photo(
            tmp_path / "data" / label / f"session{session}_{n:02d}.jpg",
            start + timedelta(hours=session, minutes=n % 8),
            scene=scene(n),
        )
    photo(tmp_path / "data/apple/session0_again.jpg", start + timedelta(days=3), scene=scene(0))
    return tmp_path / "data"


def session_of(frame: pd.DataFrame) -> pd.Series:
    return frame["path"].str.extract(r"(session\d+)_")[0]


def test_photos_of_a_session_are_on_one_side_with_their_near_duplicates(outing, caplog):
    caplog.set_level(logging.INFO)
    data = asked(data=str(outing))
    table = load_grouped(data)
    assert table.get(Sessions) == Sessions(files=49, together=6)
    assert "one camera took less than 10 minutes apart) stay in one split: 49 files" in caplog.text
    for seed in (0, 1, 2):
        frame, dropped = divide(table.frame, replace(data, seed=seed))
        assert not dropped
        held_out = frame["split"].ne("train")  # with few sessions, held-out parts may share one
        assert held_out.groupby(session_of(frame)).nunique().max() == 1
        assert set(frame.loc[~held_out, "label"]) == {"apple", "pear"}
    folds = asked(data=str(outing), cv=3, fold="1")
    frame, _ = divide(load_grouped(folds).frame, folds)
    tested = frame["split"].eq("test")
    assert tested.groupby(session_of(frame)).nunique().max() == 1
    ignoring = asked(data=str(outing), near_duplicates="ignore")
    table = load_grouped(ignoring)
    assert table.get(Sessions) is None
    assert table.frame["group"].eq("").all()


def test_sequences_of_a_table_are_sessions_of_photos_without_a_time(outing, tmp_path):
    """They stay on one side."""
    lines = ["path,label,seq_id"]
    for n, file in enumerate(sorted(outing.glob("*/session*_??.jpg"))):
        scene(n).save(file)
        lines.append(f"{file},{file.parent.name},{file.name.partition('_')[0]}")
    (tmp_path / "items.csv").write_text("\n".join(lines))
    data = asked(data=str(tmp_path / "items.csv"))
    table = load_grouped(data)
    assert table.get(Sessions) == Sessions(files=48, together=6)
    frame, _ = divide(table.frame, data)
    held_out = frame["split"].ne("train")
    assert held_out.groupby(session_of(frame)).nunique().max() == 1


def test_what_is_named_by_the_data_comes_before_the_sessions(outing):
    by_name = asked(data=str(outing), group_by=r"_(\d|a)")
    table = load_grouped(by_name)
    assert table.get(Sessions) is None
    assert table.frame["group"].nunique() == 6


def test_sessions_that_leave_nothing_to_hold_out_are_not_used(outing, caplog):
    """One long session leaves nothing to hold out and cannot be divided into five folds."""
    folds = asked(data=str(outing), cv=7)
    table = load_grouped(folds)
    assert table.get(Sessions).files == 0
    assert table.get(Sessions).files_apart > 0
    assert describe.sessions(table.get(Sessions)).startswith("not kept together: 4")
    assert "sessions, because no split is possible (--cv 7" in describe.sessions(
        table.get(Sessions)
    )
    assert not table.frame["group"].str.startswith("session").any()
    for n, file in enumerate(sorted(outing.glob("*/*.jpg"))):
        photo(file, datetime(2023, 5, 1, 12, n), scene=scene(n))
    caplog.clear()
    data = asked(data=str(outing))
    table = load_grouped(data)
    assert table.get(Sessions) == Sessions(files_apart=49, divided=1)
    assert "figures may be too good" in caplog.text
    frame, _ = divide(table.frame, data)
    assert {*frame["split"]} == {"train", "valid", "calibration"}
