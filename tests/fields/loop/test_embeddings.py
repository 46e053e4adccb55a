"""The embeddings of a pool: computed once, found again exactly, never lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.file_state import FileState
from datasets.core.part import Part
from fields.loop import embeddings
from fields.loop.embeddings import Embeddings
from learners.inference.predictor import Predictor
from learners.model.bundle import hash_of_features, save_bundle
from tests.app import sites
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bundle(sites.colours(), tmp_path_factory.mktemp("colours") / "model")


@pytest.fixture(scope="module")
def predictor(model: Path) -> Iterator[Predictor]:
    predictor = Predictor(model)
    yield predictor
    predictor.close()


@pytest.fixture
def pool(tmp_path: Path) -> list[str]:
    folder = write_pictures(tmp_path / "pool", per_class=4)
    return sorted(map(str, folder.rglob("*.jpg")))


@pytest.fixture
def store(tmp_path: Path, model: Path, predictor: Predictor) -> Embeddings:
    return Embeddings(tmp_path / "pool.parquet", model, predictor)


def record_predictions(predictor: Predictor, patch: pytest.MonkeyPatch) -> list[str]:
    """Record the files that a predictor is asked about from now on."""
    asked: list[str] = []
    windows = predictor.predict_windows

    def counted(paths, **options):  # type: ignore[no-untyped-def]
        paths = list(paths)
        asked.extend(map(str, paths))
        return windows(paths, **options)

    patch.setattr(predictor, "predict_windows", counted)
    return asked


def changed(model: Path, target: Path, old: str, new: str) -> Path:
    """Copy a model folder with a change in its config.json."""
    config = Path(shutil.copytree(model, target)) / "config.json"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    return target


def rows(file: Path) -> pd.DataFrame:
    return pd.read_parquet(file)


def test_the_nearest_are_those_by_the_cosine_of_the_features(store, pool, predictor):
    assert store.extend(pool) == (12, 0, 0, [])
    near = store.search(pool[0], top=11)
    _, _, features = predictor.outputs(pool)
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = features[1:].astype(float) @ features[0]  # without the first itself
    np.testing.assert_allclose([one.similarity for one in near], np.sort(cosines)[::-1], atol=1e-3)
    by_path = dict(zip(pool[1:], cosines, strict=True))
    for path, similarity in ((one.part.path, one.similarity) for one in near):
        assert similarity == pytest.approx(by_path[path], abs=1e-3)
    assert [Path(one.part.path).parent.name for one in near[:3]] == ["blue"] * 3
    assert [one.part for one in store.search(pool[0], top=3)] == [one.part for one in near[:3]]
    assert {one.part.path for one in store.search(pool[0], files=pool[6:8])} == {*pool[6:8]}
    table = rows(store.file)
    assert list(table) == [
        "path", "start", "end", "at", "embedding", "network", *FileState._fields,
    ]  # fmt: skip
    stored = np.stack([np.frombuffer(cell, "<f2") for cell in table["embedding"]])
    np.testing.assert_allclose(stored, features, atol=1e-3)
    assert set(table["network"]) == {store.model}


def test_blocks_make_no_difference(store, pool, monkeypatch):
    store.extend(pool)
    expected = store.search(pool[5], top=5)
    monkeypatch.setattr(embeddings, "ROWS", 3)
    monkeypatch.setattr(embeddings, "BLOCK", 2)
    nearest = store.search(pool[5], top=5)
    assert [one.part for one in nearest] == [one.part for one in expected]
    np.testing.assert_allclose([one[1] for one in nearest], [one[1] for one in expected], rtol=1e-5)
    store.extend([shutil.copy(pool[0], store.file.parent / "more.jpg")])
    assert len(store.search(pool[5], top=99)) == 12


def test_only_what_is_new_or_has_changed_is_read(store, pool, predictor, tmp_path, monkeypatch):
    store.extend(pool[:8])
    asked = record_predictions(predictor, monkeypatch)
    before = store.file.read_bytes()
    assert store.extend(pool[:8]) == (0, 8, 0, [])
    assert asked == []
    assert store.file.read_bytes() == before
    shutil.copy(pool[11], pool[2])  # another picture under this name
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    result = store.extend([*pool[:10], str(broken)])
    assert (result.new, result.kept) == (3, 7)
    assert [item.path for item in result.rejected] == [str(broken)]
    assert asked == [pool[2], pool[8], pool[9], str(broken)]
    table = rows(store.file)
    assert sorted(table["path"]) == pool[:10]
    near = store.search(pool[11], top=1)
    assert near[0].part.path == pool[2]
    assert near[0].similarity == pytest.approx(1, abs=1e-3)


def test_a_picture_that_took_anothers_place_is_read_whatever_its_time(store, pool):
    """cp -p, rsync and unzip keep the old size and time. A bad file loses its row."""
    store.extend(pool)
    others = [Path(pool[n]).stat() for n in (0, 1)]
    picture = Path(pool[11]).read_bytes()  # a red one
    for path, content, stat in zip(pool, (picture, b"no picture"), others, strict=False):
        assert len(content) <= stat.st_size
        Path(path).write_bytes(content.ljust(stat.st_size, b"\0"))
        os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    result = store.extend(pool)
    assert (result.new, result.kept, [one.path for one in result.rejected]) == (1, 10, [pool[1]])
    assert sorted(rows(store.file)["path"]) == [pool[0], *pool[2:]]
    (near,) = store.search(pool[11], top=1)
    assert near.part.path == pool[0]
    assert near.similarity == pytest.approx(1, abs=1e-3)


def test_a_file_is_in_it_once_by_whatever_name_and_not_by_one_that_is_no_text(store, pool):
    near = pool[0].replace("/pool/", "/./pool//")
    undecodable = os.fsdecode(b"x\xff.jpg")
    result = store.extend([pool[0], near, undecodable])
    assert (result.new, [item.reason for item in result.rejected]) == (
        1,
        ["its name is not valid UTF-8: rename it"],
    )
    assert list(rows(store.file)["path"]) == pool[:1]
    assert store.extend([near])[:2] == (0, 1)


def test_what_another_model_made_is_refused_and_stays(store, pool, model, tmp_path):
    store.extend(pool[:3])
    before = store.file.read_bytes()
    other = changed(model, tmp_path / "other", '"overlap": 0.25', '"overlap": 0.5')
    ood_item = Embeddings(store.file, other)
    for ask in (lambda: ood_item.extend(pool), lambda: ood_item.nearest(np.ones((1, 512)))):
        with pytest.raises(SecondhandError) as error:
            ask()
        assert hash_of_features(model) in str(error.value)
        assert hash_of_features(other) in str(error.value)
    assert store.file.read_bytes() == before
    assert os.listdir(tmp_path).count(".pool.parquet.part") == 0


def test_the_hash_is_of_what_makes_features_alone(model, tmp_path):
    same = changed(model, tmp_path / "same", '"valid_accuracy": 0.9', '"valid_accuracy": 0.8')
    assert hash_of_features(same) == hash_of_features(model)
    other = changed(same, tmp_path / "other", '"overlap": 0.25', '"overlap": 0.5')
    assert hash_of_features(other) != hash_of_features(model)
    with pytest.raises(SecondhandError, match="not a model folder"):
        hash_of_features(tmp_path)


class Killed(BaseException): ...


def test_after_a_kill_it_goes_on_from_the_last_part(
    store, pool, model, predictor, tmp_path, monkeypatch
):
    def killed() -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "PART_ROWS", 5)
        windows = predictor.predict_windows

        def dies(paths, **options):  # type: ignore[no-untyped-def]
            for number, one in enumerate(windows(paths, **options)):
                if number == 7:
                    # the process ends without clean-up
                    patch.setattr(store, "_write_part", lambda rows: killed())
                    killed()
                yield one

        patch.setattr(predictor, "predict_windows", dies)
        with pytest.raises(Killed):
            store.extend(pool)
    assert not store.file.exists()
    again = Embeddings(store.file, model, predictor)
    asked = record_predictions(predictor, monkeypatch)
    assert again.extend(pool) == (7, 5, 0, [])
    assert asked == pool[5:]
    assert sorted(rows(store.file)["path"]) == pool
    assert not list(tmp_path.glob(".*")), "nothing is left beside it"


def test_ctrl_c_keeps_what_is_done(store, pool, model, predictor, monkeypatch):
    windows = predictor.predict_windows

    def stopped(paths, **options):  # type: ignore[no-untyped-def]
        for number, one in enumerate(windows(paths, **options)):
            if number == 7:
                raise KeyboardInterrupt
            yield one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "predict_windows", stopped)
        with pytest.raises(KeyboardInterrupt):
            store.extend(pool)
    assert store.extend(pool)[:2] == (5, 7)


def test_a_full_disk_costs_nothing_that_was_there(store, pool, tmp_path, monkeypatch):
    store.extend(pool[:6])
    before = store.file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            store.extend(pool)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
    assert store.file.read_bytes() == before
    assert store.extend(pool)[:2] == (6, 6)


HOLDS = """
import sys
from pathlib import Path
from learners.files.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_of_two_that_extend_a_file_the_second_is_refused(store, pool):
    store._parts.mkdir()
    words = [sys.executable, "-c", HOLDS, str(store._parts)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(
            SecondhandError, match=rf"--embeddings {store.file} is in use by process {other.pid}"
        ):
            store.extend(pool)
        other.communicate()
    assert store.extend(pool[:1]).new == 1


def test_other_files_are_no_embeddings(store, pool, tmp_path):
    with pytest.raises(SecondhandError, match=r"does not exist. Name files to embed"):
        store.search(pool[0])
    pd.DataFrame({"path": ["a"], "embedding": [b"12"]}).to_parquet(store.file)
    with pytest.raises(BadFile, match="other columns than a file of embeddings"):
        store.extend(pool)
    store.file.write_bytes(b"PAR1 and no more")
    with pytest.raises(BadFile, match="cannot be read as embeddings"):
        store.extend(pool)
    assert store.file.read_bytes() == b"PAR1 and no more"


def test_windows_of_a_recording_are_found_as_windows(tmp_path):
    model = save_bundle(sites.tones(), tmp_path / "model")
    long = sites.tone(tmp_path / "long.wav", "low", "silence", "low", "high", "low")
    high = sites.tone(tmp_path / "high.wav", "high")
    quiet = sites.tone(tmp_path / "quiet.wav", "silence")
    embeddings = Embeddings(tmp_path / "pool.parquet", model)
    files = [str(long), str(high), str(quiet)]
    assert embeddings.extend(files) == (2, 0, 1, [])
    table = rows(embeddings.file).set_index("path")
    silent = (table["start"] >= 1) & (table["end"] <= 2)
    assert len(table.loc[str(long)]) >= 5
    assert not silent.any()
    assert embeddings.search(high, top=1)[0].part.start == pytest.approx(3, abs=0.3)
    (same_window,) = embeddings.search(Part(str(long), at=3.5), top=1)
    assert same_window.part.path == str(high)
    nearest = embeddings.search(Part(str(long), at=0.5), top=20)
    assert {one.part.path for one in nearest} == {str(long), str(high)}
    assert all(one.part.start > 0.5 for one in nearest if one.part.path == str(long))
    assert [one.part.path for one in embeddings.search(long)] == [str(high)], (
        "all of it is the example"
    )
    with pytest.raises(BadFile, match="no signal"):
        embeddings.search(quiet)
    (tmp_path / "cut.wav").write_bytes(long.read_bytes()[:30])
    with pytest.raises(BadFile, match=r"cut\.wav"):
        embeddings.search(tmp_path / "cut.wav")
    embeddings.predictor.close()


def test_what_of_its_own_file_is_the_example():
    def is_own(row: tuple[float | None, ...], asked: tuple[float | None, ...]) -> bool:
        return embeddings._overlap(Part("a", *row), Part("a", *asked))

    assert is_own((), ()), "a picture"
    assert is_own((3.0, 4.0), (3.5, 5.0))
    assert not is_own((3.0, 4.0), (4.0, 5.0))
    assert is_own((3.0, 4.0), (None, None, 3.2))
    assert not is_own((3.0, 4.0), (None, None, 4.2))
    assert is_own((None, None, 100.1), (None, None, 100.3)), "of strain the same moment"
    assert not is_own((None, None, 100.1), (None, None, 101.3))
