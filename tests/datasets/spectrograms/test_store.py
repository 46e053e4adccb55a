"""The size-limited store of spectrograms and decoded pictures: what stays and what is removed."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.store import FAILURE, PICTURE, PIXELS, CacheError, Store

KEYS = [hashlib.sha256(bytes([n])).hexdigest() for n in range(6)]


@pytest.fixture
def filled(tmp_path: Path) -> Store:
    """Files of 10 bytes, the first least recently used, and a store opened on them."""
    store = Store(tmp_path)
    for n, key in enumerate(KEYS):
        os.utime(store.add(key, PICTURE, b"0123456789"), (1e9 + n, 1e9 + n))
    return Store(tmp_path)


def there(store: Store) -> list[int]:
    return [n for n, key in enumerate(KEYS) if store.path_of(key, PICTURE).exists()]


@pytest.mark.parametrize(("limit", "remaining"), [(60, 6), (59, 5), (30, 3), (29, 2), (-1, 0)])
def test_the_least_recently_used_make_room(filled, limit, remaining):
    assert filled.make_room(limit) == 10 * remaining == sum(filled.sizes())
    assert there(filled) == list(range(6))[6 - remaining :]


def test_what_is_in_use_stays(filled):
    assert filled.touch(filled.path_of(KEYS[1], PICTURE))
    assert not filled.touch(filled.path_of("ab" * 32, PICTURE))
    assert filled.make_room(0) == 10
    assert there(filled) == [1]


def test_files_of_others_are_not_touched(filled):
    others = [filled.root / "ab/holiday.png", filled.path_of(KEYS[0], ".txt")]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(b"mine")
    assert len(filled.sizes()) == 6
    filled.clear()
    assert not filled.sizes()
    assert all(other.exists() for other in others)


def test_all_that_is_derived_has_one_limit(filled):
    for n, ending in enumerate((PIXELS, FAILURE)):
        os.utime(filled.add(KEYS[n], ending, b"01234"), (1e9 - 2 + n, 1e9 - 2 + n))
    assert sum(filled.sizes()) == 70
    assert filled.make_room(65) == 65
    assert (filled.sizes(PIXELS), filled.sizes(FAILURE), len(filled.sizes(PICTURE))) == ([], [5], 6)


def test_halves_are_swept_when_nobody_can_be_at_them(filled):
    old, new = (filled.root / "tmp" / f"{name}.part" for name in ("old", "new"))
    for half in (old, new):
        half.write_bytes(b"half")
    os.utime(old, (time.time() - 3600,) * 2)
    filled.sweep()
    assert (old.exists(), new.exists()) == (False, True)


def test_errors_say_which_cache_and_what_to_do(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheError, match=f"cache {tmp_path}/file cannot be written.*--cache-dir"):
        Store(tmp_path / "file").add(KEYS[0], PICTURE, b"")
    with pytest.raises(SecondhandError, match="max_bytes=-1"):
        Store(tmp_path, -1)
