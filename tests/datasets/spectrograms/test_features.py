"""The store of features: what was kept comes back, what is damaged does not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from datasets.cache import main
from datasets.spectrograms import features
from datasets.spectrograms.features import KeptFeatures, features_in

KEYS = [hashlib.sha256(bytes([i])).hexdigest() for i in range(4)]


def test_vectors_come_back_and_damaged_ones_do_not(tmp_path: Path) -> None:
    vector = np.array([1.5, -2, 3e-9], np.float32)
    kept = KeptFeatures(tmp_path)
    for key in KEYS:
        assert kept.get(key) is None
        kept.add(key, vector)
    for file, content in zip(
        features_in(tmp_path).files(), (b"", b"no numbers", None), strict=False
    ):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] if content is None else content)
    found = [KeptFeatures(tmp_path).get(key) for key in KEYS]
    assert sum(one is None for one in found) == 3
    assert all(np.array_equal(one, vector) for one in found if one is not None)


def test_what_no_array_holds_is_not_unpickled(tmp_path: Path) -> None:
    kept = KeptFeatures(tmp_path)
    kept.add(KEYS[0], np.zeros(3, np.float32))
    np.save(features_in(tmp_path).path_of(KEYS[0]), np.array([{}], dtype=object))
    assert kept.get(KEYS[0]) is None


def test_the_store_is_bounded_and_the_cache_command_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = KeptFeatures(tmp_path)
    for key in KEYS:
        kept.add(key, np.zeros(1000, np.float32))
    assert main(["info", "--cache-dir", str(tmp_path)]) == 0
    assert "features: 16.1 KiB" in capsys.readouterr().out
    for age, key in enumerate(KEYS):
        os.utime(features_in(tmp_path).path_of(key), (1e9 + age, 1e9 + age))
    monkeypatch.setattr(features, "MAX_BYTES", 9000)
    opened = KeptFeatures(tmp_path)
    assert [opened.get(key) is not None for key in KEYS] == [False, False, True, True]
    assert main(["clear", "--cache-dir", str(tmp_path)]) == 0
    assert not list(features_in(tmp_path).files())


def test_a_store_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "features").write_bytes(b"")  # a file where the folder would be
    kept = KeptFeatures(tmp_path)
    kept.add(KEYS[0], np.zeros(3, np.float32))
    assert kept.get(KEYS[0]) is None
