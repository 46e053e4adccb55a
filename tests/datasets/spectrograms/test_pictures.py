"""The cache of spectrograms: rendered once, stored intact, shared, removed beyond the limit."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from datasets.audio.settings import MelSettings
from datasets.cache import main, readable
from datasets.core import file_state
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.part import Part, as_part
from datasets.core.store import MAX_BYTES, PICTURE, Store, cache_root
from datasets.kinds.base import spectrogram_from_dict
from datasets.spectrograms.pictures import PictureCache, no_signal

pytestmark = pytest.mark.forks

RATE = 8000
SPECTROGRAM_SETTINGS = MelSettings(rate=RATE, window=0.5, size=(64, 64))


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Treat all files as written a while ago, because a ctime cannot be set."""
    monkeypatch.setattr(file_state, "SETTLED", 0.0)


def write(path, seed=0, seconds=0.5):
    """Write a clip of noise."""
    noise = np.random.default_rng(seed).standard_normal(round(RATE * seconds)) / 10
    soundfile.write(path, noise, RATE)
    return path


def grow_old(path, age=60.0):
    os.utime(path, (time.time() - age,) * 2)


@pytest.fixture
def store(tmp_path):
    return PictureCache(tmp_path / "cache")


@pytest.fixture
def clip(tmp_path):
    return write(tmp_path / "a.wav")


@pytest.fixture
def reads(monkeypatch, tmp_path_factory):
    """The paths that any process decoded, in order."""
    log = tmp_path_factory.mktemp("reads") / "paths"
    log.touch()
    original = MelSettings.read

    def read(self, file):
        with open(log, "a") as stream:
            stream.write(f"{os.path.basename(as_part(file).path)}\n")
        return original(self, file)

    monkeypatch.setattr(MelSettings, "read", read)
    return lambda: log.read_text().splitlines()


class TestPicture:
    @pytest.mark.parametrize("colour", ["grey", "magma", "windows"])
    def test_holds_what_the_settings_render(self, store, clip, colour):
        spectrogram = replace(SPECTROGRAM_SETTINGS, colour=colour)
        with Image.open(store.get(clip, spectrogram)) as image:
            stored = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(stored, spectrogram.picture(clip))

    def test_carries_its_settings(self, store, clip):
        with Image.open(store.get(Part(str(clip), 0.1, 0.4), SPECTROGRAM_SETTINGS)) as image:
            texts = image.info
        assert spectrogram_from_dict(json.loads(texts["spectrogram"])) == SPECTROGRAM_SETTINGS
        assert json.loads(texts["span"]) == [0.1, 0.4, None]

    def test_says_when_there_was_no_signal(self, store, clip, tmp_path):
        soundfile.write(tmp_path / "s.wav", np.zeros(RATE), RATE)
        assert no_signal(store.get(tmp_path / "s.wav", SPECTROGRAM_SETTINGS))
        assert not no_signal(store.get(clip, SPECTROGRAM_SETTINGS))

    def test_one_file_by_all_routes_has_the_same_bytes(self, tmp_path):
        paths = [write(tmp_path / f"{i}.wav", i) for i in range(60)]
        single = PictureCache(tmp_path / "1")
        parallel, _ = PictureCache(tmp_path / "2").render_all(
            paths, SPECTROGRAM_SETTINGS, workers=2
        )
        for path, other in zip(paths, parallel, strict=True):
            image = single.get(path, SPECTROGRAM_SETTINGS)
            assert image.name == other.name
            assert image.read_bytes() == other.read_bytes()


class TestKey:
    def test_second_time_nothing_is_read(self, store, clip, reads):
        first = store.get(clip, SPECTROGRAM_SETTINGS)
        assert store.get(clip, SPECTROGRAM_SETTINGS) == first
        assert PictureCache(store.root).get(clip, SPECTROGRAM_SETTINGS) == first
        assert reads() == ["a.wav"]

    def test_a_copy_is_the_same_picture(self, store, clip, tmp_path, reads):
        (tmp_path / "b.wav").write_bytes(clip.read_bytes())
        assert store.get(tmp_path / "b.wav", SPECTROGRAM_SETTINGS) == store.get(
            clip, SPECTROGRAM_SETTINGS
        )
        assert len(reads()) == 1

    @pytest.mark.parametrize("other", [{"start": 0.1}, {"end": 0.4}, {"at": 0.2}])
    def test_span_and_settings_tell_apart(self, store, clip, other):
        assert store.get(clip, SPECTROGRAM_SETTINGS) != store.get(
            Part(str(clip), **other), SPECTROGRAM_SETTINGS
        )
        assert store.get(clip, SPECTROGRAM_SETTINGS) != store.get(
            clip, replace(SPECTROGRAM_SETTINGS, level="fixed")
        )

    def test_empty_cells_of_a_table_are_no_span(self, store, clip):
        cells = {"path": str(clip), "start": float("nan"), "end": "", "gps": None}
        assert store.get(Part.from_row(cells), SPECTROGRAM_SETTINGS) == store.get(
            clip, SPECTROGRAM_SETTINGS
        )

    def test_a_changed_file_is_rendered_again(self, store, clip):
        before = store.get(clip, SPECTROGRAM_SETTINGS)
        write(clip, seed=1)
        assert store.get(clip, SPECTROGRAM_SETTINGS) != before

    @pytest.mark.parametrize("moved", [False, True])
    def test_one_of_equal_size_and_mtime_is_rendered_again(self, store, clip, tmp_path, moved):
        """As cp -p, rsync and unzip leave it: written into the old file or moved over it."""
        other = write(tmp_path / "other.wav", seed=1)
        for file in (clip, other):
            os.utime(file, (1e9, 1e9))
        before = store.get(clip, SPECTROGRAM_SETTINGS)
        assert os.stat(clip).st_size == os.stat(other).st_size
        if moved:
            os.replace(other, clip)
        else:
            clip.write_bytes(other.read_bytes())
            os.utime(clip, (1e9, 1e9))
        after = store.get(clip, SPECTROGRAM_SETTINGS)
        assert after != before
        assert store.render_all([clip], SPECTROGRAM_SETTINGS) == ([after], [])

    def test_a_file_just_written_is_not_trusted(self, store, clip, monkeypatch):
        monkeypatch.setattr(file_state, "SETTLED", 2.0)
        state = file_state.QuickState.read(clip)
        monkeypatch.setattr(file_state.QuickState, "read", lambda path: state)  # in one tick
        before = store.get(clip, SPECTROGRAM_SETTINGS)
        write(clip, seed=1)
        assert store.get(clip, SPECTROGRAM_SETTINGS) != before

    def test_lines_cut_short_are_passed_over(self, store, clip, tmp_path, reads):
        store.get(clip, SPECTROGRAM_SETTINGS)
        with open(store.root / "sources.jsonl", "a") as stream:
            stream.write('["half a li')
        store.get(write(tmp_path / "b.wav", 1), SPECTROGRAM_SETTINGS)
        again = PictureCache(store.root)
        again.get(clip, SPECTROGRAM_SETTINGS)
        again.get(tmp_path / "b.wav", SPECTROGRAM_SETTINGS)
        assert reads() == ["a.wav", "b.wav"]


class TestFailures:
    @pytest.fixture
    def bad(self, tmp_path):
        path = tmp_path / "bad.wav"
        path.write_bytes(b"RIFF nothing")
        return path

    def test_are_not_tried_again_until_the_file_changes(self, tmp_path, bad, reads):
        for _ in range(2):
            with pytest.raises(BadFile, match="cannot be decoded"):
                PictureCache(tmp_path / "c").get(bad, SPECTROGRAM_SETTINGS)
        assert reads() == ["bad.wav"]
        write(bad)
        assert PictureCache(tmp_path / "c").get(bad, SPECTROGRAM_SETTINGS).exists()

    @pytest.mark.parametrize("workers", [1, 2])
    def test_one_among_many_is_listed(self, store, tmp_path, bad, workers):
        good = [write(tmp_path / f"{i}.wav", i) for i in range(60)]
        for _ in range(2):
            listed = [*good[:7], bad, *good[7:], tmp_path / "absent.wav"]
            paths, rejected = store.render_all(listed, SPECTROGRAM_SETTINGS, workers=workers)
            assert [path is None for path in paths].count(True) == 2
            assert paths[7] is None
            assert paths[-1] is None
            assert [os.path.basename(r.path) for r in rejected] == ["bad.wav", "absent.wav"]
            assert "cannot be decoded" in rejected[0].reason
            assert "no such file" in rejected[1].reason

    def test_an_absent_file_is_tried_again(self, store, tmp_path):
        with pytest.raises(BadFile, match="no such file"):
            store.get(tmp_path / "a.wav", SPECTROGRAM_SETTINGS)
        write(tmp_path / "a.wav")
        assert store.get(tmp_path / "a.wav", SPECTROGRAM_SETTINGS).exists()

    @pytest.mark.slow
    def test_a_decoder_that_takes_its_process_along(self, store, tmp_path):
        good = [write(tmp_path / f"{i}.wav", i) for i in range(50)]
        deadly = write(tmp_path / "deadly.wav", 99)
        paths, rejected = store.render_all(
            [*good, deadly], Deadly(**vars(SPECTROGRAM_SETTINGS)), workers=2
        )
        assert all(path.exists() for path in paths[:-1])
        assert paths[-1] is None
        assert [os.path.basename(r.path) for r in rejected] == ["deadly.wav"]
        assert "the process that read it crashed" in rejected[0].reason

    def test_wrong_span_is_listed(self, store, clip):
        _, rejected = store.render_all([Part(str(clip), 2.0, 1.0)], SPECTROGRAM_SETTINGS)
        assert "is not a valid span" in rejected[0].reason


@dataclass(frozen=True, kw_only=True)
class Deadly(MelSettings):
    """Settings whose reader crashes the process on one file."""

    def read(self, file):
        if os.path.basename(file.path) == "deadly.wav":
            os._exit(1)
        return super().read(file)


class TestMany:
    def test_windows_of_one_recording(self, store, tmp_path):
        path = write(tmp_path / "long.wav", seconds=20)
        items = [Part(str(path), i * 0.5, i * 0.5 + 0.5) for i in range(40)]
        windows = []
        paths, rejected = store.render_all(
            items, SPECTROGRAM_SETTINGS, progress=lambda done, total: windows.append((done, total))
        )
        assert not rejected
        assert len(set(paths)) == 40
        assert windows[0] == (0, 40)
        assert windows[-1] == (40, 40)
        assert windows == sorted(windows)
        with Image.open(paths[30]) as image:
            np.testing.assert_array_equal(
                np.asarray(image.convert("RGB")),
                SPECTROGRAM_SETTINGS.picture(Part(path, start=15, end=15.5)),
            )

    def test_folder_that_cannot_be_written(self, tmp_path, clip):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises((SecondhandError, OSError)):
            PictureCache(tmp_path / "file").render_all([clip], SPECTROGRAM_SETTINGS)


def get_many(root, paths):
    store = PictureCache(root)
    return [store.get(path, SPECTROGRAM_SETTINGS).name for path in paths]


KILLED = """
import os, sys, threading, time
from datasets.spectrograms.pictures import PictureCache
from datasets.audio.settings import MelSettings
spectrogram = MelSettings(rate=8000, window=0.5, size=(64, 64))
print("ready", flush=True)
PictureCache(sys.argv[1]).render_all(sys.argv[2:], spectrogram, workers=int(os.environ["WORKERS"]))
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class TestProcesses:
    @pytest.mark.slow
    def test_several_at_once(self, tmp_path):
        paths = [write(tmp_path / f"{i}.wav", i) for i in range(30)]
        time.sleep(2.1)  # time stamps do not identify files just written
        root = tmp_path / "cache"
        with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
            answers = list(pool.map(get_many, [root] * 4, [paths] * 4))
        assert all(answer == answers[0] for answer in answers)
        assert PictureCache(root).verify() == (30, [])
        assert not list(root.glob("tmp/*"))
        lines = [line for line in (root / "sources.jsonl").read_text().splitlines() if line]
        assert {json.loads(line)[0] for line in lines} == {str(path) for path in paths}

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform != "linux", reason="looks for children in /proc")
    @pytest.mark.parametrize("workers", [1, 2])
    def test_killed_it_leaves_nothing_half_written_and_goes_on(self, tmp_path, reads, workers):
        paths = [str(write(tmp_path / f"{i}.wav", i)) for i in range(400)]
        root = tmp_path / "cache"
        run = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(root), *paths],
            env={**os.environ, "WORKERS": str(workers)},
            stdout=subprocess.PIPE,
        )
        assert run.stdout.readline() == b"ready\n"
        while len(list(Store(root).files(PICTURE))) < 20:
            assert run.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert len(children) == workers
        run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
        deadline = time.monotonic() + 20
        while any(is_running(child) for child in children):
            assert time.monotonic() < deadline, "its workers outlived it"
            time.sleep(0.02)
        stored = list(Store(root).files(PICTURE))
        assert 20 <= len(stored) < 400
        for path in stored:
            with Image.open(path) as image:
                image.load()
        store = PictureCache(root)
        assert store.verify() == (len(stored), [])
        pictures, rejected = store.render_all(paths, SPECTROGRAM_SETTINGS, workers=1)
        assert not rejected
        assert len(set(pictures)) == 400
        assert len(reads()) == 400 - len(stored)


class TestLimit:
    def fill(self, store, tmp_path, count=20):
        paths = [write(tmp_path / f"{i}.wav", i) for i in range(count)]
        pictures = [store.get(path, SPECTROGRAM_SETTINGS) for path in paths]
        for age, picture in enumerate(pictures):  # the first is the oldest
            grow_old(picture, 3600 - age)
        return paths, pictures

    def test_least_recently_used_go_first(self, store, tmp_path):
        paths, pictures = self.fill(store, tmp_path)
        size = sum(picture.stat().st_size for picture in pictures)
        small = PictureCache(store.root, max_bytes=size // 2)
        small.get(paths[0], SPECTROGRAM_SETTINGS)  # used again
        small.get(write(tmp_path / "new.wav", 99), SPECTROGRAM_SETTINGS)
        assert pictures[0].exists()
        assert not pictures[1].exists()
        assert pictures[-1].exists()
        assert sum(small.store.sizes()) <= size // 2
        assert [p.exists() for p in pictures[1:]] == sorted(p.exists() for p in pictures[1:])

    def test_pictures_in_use_stay(self, tmp_path, caplog):
        paths = [write(tmp_path / f"{i}.wav", i) for i in range(10)]
        store = PictureCache(tmp_path / "c", max_bytes=5000)
        with caplog.at_level(logging.WARNING):
            pictures, _ = store.render_all(paths, SPECTROGRAM_SETTINGS)
        assert all(picture.exists() for picture in pictures)
        assert caplog.text.count("more than the cache's limit of 5000 bytes") == 1

    def test_pictures_found_again_by_their_content_are_in_use(self, tmp_path):
        paths, pictures = self.fill(PictureCache(tmp_path / "c"), tmp_path)
        new = [write(tmp_path / f"new{i}.wav", 50 + i) for i in range(5)]
        (tmp_path / "c/sources.jsonl").unlink()
        store = PictureCache(tmp_path / "c", max_bytes=5000)
        rendered, _ = store.render_all([*paths, *new], SPECTROGRAM_SETTINGS, workers=1)
        assert rendered[: len(paths)] == pictures
        assert all(picture.exists() for picture in rendered)

    def test_what_must_be_some(self, store, tmp_path):
        with pytest.raises(SecondhandError, match="max_bytes=0"):
            PictureCache(tmp_path, max_bytes=0)
        with pytest.raises(SecondhandError, match="--workers 0"):
            store.render_all([], SPECTROGRAM_SETTINGS, workers=0)
        assert store.render_all([], SPECTROGRAM_SETTINGS) == ([], [])


class TestUpkeep:
    def test_verify_finds_damage_and_forgery(self, store, tmp_path):
        paths = [write(tmp_path / f"{i}.wav", i) for i in range(4)]
        cut, swapped, other, fine = (store.get(path, SPECTROGRAM_SETTINGS) for path in paths)
        cut.write_bytes(cut.read_bytes()[:-200])
        swapped.write_bytes(other.read_bytes())
        right, wrong = store.verify()
        assert right == 2
        assert set(wrong) == {cut, swapped}
        assert not cut.exists()
        assert fine.exists()
        assert store.get(paths[0], SPECTROGRAM_SETTINGS) == cut
        assert store.verify() == (3, [])

    def test_command(self, store, clip, capsys):
        picture = store.get(clip, SPECTROGRAM_SETTINGS)
        options = ["--cache-dir", str(store.root)]
        assert main(["info", *options]) == 0
        output = capsys.readouterr().out
        assert "limit: 20.0 GiB\n" in output
        assert "decoded pictures: 0 bytes\n" in output
        assert "pictures: 1\n" in output
        assert main(["verify", *options]) == 0
        picture.write_bytes(b"broken")
        assert main(["verify", *options]) == 3
        assert str(picture) in capsys.readouterr().err
        store.get(clip, SPECTROGRAM_SETTINGS)
        assert main(["clear", *options]) == 0
        assert not picture.exists()
        with pytest.raises(SystemExit, match="2"):
            main(["polish"])

    @pytest.mark.parametrize(
        ("size", "text"),
        [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (2**20 - 1, "1.0 MiB"),
            (3 * 2**29, "1.5 GiB"),
            (5000 * 2**30, "5000.0 GiB"),
        ],
    )
    def test_bytes_for_people(self, size, text):
        assert readable(size) == text

    def test_cache_root(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
        assert cache_root() == tmp_path
        monkeypatch.delenv("SECONDHAND_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
        assert cache_root().name == "secondhand"
        assert PictureCache(tmp_path).store.max_bytes == MAX_BYTES
