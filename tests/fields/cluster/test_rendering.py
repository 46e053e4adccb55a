"""Work on a Dask cluster: each item is answered once, whatever happens to the workers."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from datasets.core.errors import SecondhandError
from datasets.render import RenderSettings, main, render
from datasets.spectrograms.pictures import PictureCache
from fields.cluster import client as _client
from fields.cluster.client import connect
from fields.cluster.workers import ClusterSettings
from tests.fields.cluster.clusters import (
    halve,
    here,
    kill_when,
    path_of,
    record,
    refuse,
    scheduler_and_workers,
)

pytestmark = pytest.mark.slow

__all__ = ["here"]  # a fixture

pytest.importorskip("distributed", reason="pip install 'secondhand[cluster]'")


def clips(folder: Path, count: int) -> list[Path]:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        values = rng.standard_normal(8000) / 10
        soundfile.write(folder / f"{number:03}.wav", values, 16_000)
    return sorted(folder.iterdir())


def test_each_item_is_answered_once(here):
    work = [[1, 2], [3], [1, 2], [4, 5, 6]]  # a repeated chunk is asked and answered twice
    assert dict(here.map_chunks(halve, work, None)) == {
        0: [0.5, 1.0], 1: [1.5], 2: [0.5, 1.0], 3: [2.0, 2.5, 3.0],
    }  # fmt: skip
    assert list(here.map_chunks(halve, [], None)) == []


def test_pictures_and_failures_are_those_of_one_machine(here, tmp_path, monkeypatch):
    files = clips(tmp_path / "clips", 20)
    (tmp_path / "clips" / "cut.wav").write_bytes(files[0].read_bytes()[:20])
    monkeypatch.chdir(tmp_path)  # relative names, for workers in another folder
    monkeypatch.setattr(
        "fields.cluster.client.connect", lambda *_, **__: contextlib.nullcontext(here)
    )
    drawn = partial(RenderSettings, files=["clips"])
    theirs = render(
        drawn(out="theirs", cache_dir="shared", added=(ClusterSettings(cluster="tcp://here:1"),))
    )
    ours = render(drawn(out="ours", cache_dir="own", workers=1))
    assert [path for path, _ in theirs[0]] == [path for path, _ in ours[0]]
    assert theirs[1] == ours[1]
    assert [path for path, _ in theirs[1]] == ["clips/cut.wav"]
    assert bytes_of(tmp_path / "theirs") == bytes_of(tmp_path / "ours")
    assert bytes_of(tmp_path / "shared") == bytes_of(tmp_path / "own")  # and no marker file is left


def test_a_worker_that_does_not_see_a_file_is_named(here, monkeypatch):
    visible = iter([True])  # seen by the client, then not by the worker
    monkeypatch.setattr(_client, "exists", lambda path: next(visible, False))
    with pytest.raises(SecondhandError, match=r"worker \S+ on \S+ does not see /nowhere/2\.wav"):
        list(here.map_chunks(halve, [[2]], None, path_of=path_of))


def test_a_file_that_nobody_sees_is_left_to_the_task(here):
    results = here.map_chunks(halve, [[2]], None, path_of=path_of)
    assert list(results) == [(0, [1.0])]


def test_a_worker_that_does_not_see_the_folder_is_named(here, monkeypatch, tmp_path):
    marker = contextlib.nullcontext(tmp_path / "elsewhere" / "x.shared")
    monkeypatch.setattr("fields.cluster.client.shared_marker", lambda folder: marker)
    with pytest.raises(SecondhandError, match=f"does not see the folder {tmp_path}/elsewhere"):
        list(here.map_chunks(halve, [[2]], None, folder=tmp_path))


def test_a_worker_of_another_version_is_named(here, monkeypatch):
    monkeypatch.setattr(_client, "RENDERER_VERSION", float("nan"))  # equal to no other version
    with pytest.raises(SecondhandError, match="has another version"):
        list(here.map_chunks(halve, [[2]], None))


def test_what_ends_a_run_reaches_the_user(here):
    with pytest.raises(SecondhandError, match="not today"):
        list(here.map_chunks(refuse, [[2]], None))
    with pytest.raises(SecondhandError, match=r"TypeError.*versions"):
        list(here.map_chunks(halve, [["word"]], None))


def test_no_scheduler_is_said_in_time(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and never answers
        port = silent.getsockname()[1]
        start = time.monotonic()
        with (
            pytest.raises(SecondhandError, match=f"tcp://127.0.0.1:{port}: no scheduler responds"),
            connect(f"tcp://127.0.0.1:{port}", timeout=1),
        ):
            pass
    with (
        pytest.raises(SecondhandError, match=r"dask scheduler.*--cluster local"),
        connect(f"tcp://127.0.0.1:{port}", timeout=1),
    ):
        pass
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("address", ["", "10.0.0.1:8786", "http://10.0.0.1:8786", "tcp://host"])
def test_a_wrong_address_is_a_wrong_call(address, tmp_path, capsys):
    (file,) = clips(tmp_path / "clips", 1)
    out = ["--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "c")]
    assert main([str(file), *out, "--cluster", address]) == 2
    assert f"--cluster {address!r}" in capsys.readouterr().err


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SecondhandError, match=r"pip install -e .\.\[cluster\]"), connect("local"):
        pass


def test_a_killed_worker_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = clips(tmp_path / "clips", 120)
    drawn = partial(RenderSettings, files=[*map(str, files)])
    log = tmp_path / "log"
    with scheduler_and_workers(tmp_path) as (address, workers):
        shared = PictureCache(tmp_path / "shared")
        half = partial(drawn_at_least, shared.root, 20)
        with kill_when(half, workers[0]) as killer:
            rendered, rejected = render(
                drawn(out="theirs", cache_dir="shared", added=(ClusterSettings(cluster=address),))
            )
            assert not killer.is_alive()  # it died during the job, not afterwards
        # The other worker alone; finished chunks are not asked again.
        with connect(address) as cluster:
            work = [[n, n + 1] for n in range(0, 20, 2)]
            answers = dict(cluster.map_chunks(partial(record, log), work, None))
    single_cache = PictureCache(tmp_path / "own")
    ours, _ = render(drawn(out="ours", cache_dir="own", workers=2))
    assert rejected == []
    assert [path for path, _ in rendered] == [path for path, _ in ours] == files
    assert bytes_of(tmp_path / "theirs") == bytes_of(tmp_path / "ours")
    pictures = {path: data for path, data in bytes_of(shared.root).items() if path.suffix == ".png"}
    assert pictures == {p: d for p, d in bytes_of(single_cache.root).items() if p.suffix == ".png"}
    assert answers == dict(enumerate(work))
    lines = [line.split() for line in log.read_text().splitlines()]
    assert Counter(number for number, _ in lines) == Counter(map(str, range(20)))
    assert {pid for _, pid in lines} == {str(workers[1].pid)}


def test_a_file_that_kills_its_workers_is_listed_and_the_rest_goes_on():
    import psutil

    before, me = dict(os.environ), psutil.Process()
    others = {*me.children(recursive=True)}  # such as the server of a bucket
    with connect("local", workers=2) as cluster:
        listening = {
            process: {c.laddr.ip for c in process.net_connections("inet") if c.status == "LISTEN"}
            for process in [me, *{*me.children(recursive=True)} - others]
        }
        work = [[1, 2], [3, -1, 5], [7], [8, 9]]
        answers = dict(cluster.map_chunks(halve, work, "died"))
    assert len([process for process in listening if listening[process]]) == 3
    assert set().union(*listening.values()) == {"127.0.0.1"}
    assert answers == {0: [0.5, 1.0], 1: [1.5, "died", 2.5], 2: [3.5], 3: [4.0, 4.5]}
    _, alive = psutil.wait_procs([p for p in listening if listening[p] and p != me], timeout=20)
    assert not alive
    assert os.environ == before, "Dask's settings for its workers stay"


def test_no_workers_is_said_in_time(tmp_path):
    with scheduler_and_workers(tmp_path, 1) as (address, workers):
        with connect(address, patience=3) as cluster:
            workers[0].kill()
            with pytest.raises(SecondhandError, match="no workers for 3 s"):
                list(cluster.map_chunks(halve, [[1], [2]], None))
        with pytest.raises(SecondhandError, match="has no workers"), connect(address, patience=1):
            pass


def drawn_at_least(root: Path, count: int) -> bool:
    return sum(1 for _ in root.glob("*/*.png")) >= count


def bytes_of(folder: Path) -> dict[Path, bytes]:
    """Return the contents of every file but the path hashes."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "sources.jsonl"
    }
