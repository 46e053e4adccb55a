"""Public sets from a server on this machine: their tables, and all that can go wrong on the way."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging
import re
import shutil
import socket
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from PIL import Image

from datasets import _catalog_download, _catalog_unpack, catalog
from datasets.cache import cache_root
from datasets.errors import BadFile, SecondhandError
from datasets.splits import assign_splits
from datasets.strain import read_strain
from datasets.table import load_table
from tests.datasets import lookalikes
from tests.datasets.lookalikes import Server, publish, serving, tarred, zipped


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path / "cache"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving() as state:
        monkeypatch.setenv("SECONDHAND_MIRROR", state.base + "/")
        yield state


@pytest.fixture
def esc50(server: Server, monkeypatch: pytest.MonkeyPatch) -> bytes:
    content = lookalikes.esc50()
    publish(server, monkeypatch, "esc50", content)
    return content


def place(name: str) -> Path:
    return cache_root() / "sets" / name


def left(name: str) -> list[str]:
    return sorted(path.name for path in place(name).iterdir()) if place(name).exists() else []


# The tables


def test_esc50_has_its_folds_and_recordings(esc50: bytes) -> None:
    table = load_table("esc50")
    assert table.kind == "sound"
    assert not table.rejected
    got = {Path(r.path).name: (r.label, r.fold, r.group) for r in table.frame.itertuples()}
    assert got == {row[0]: (row[3], str(row[1]), str(row[5])) for row in lookalikes.ESC50}
    assert set(table.frame["split"]) == {""}
    assert "CC BY-NC" in table.note
    assert "Piczak" in table.note
    frame, moved = assign_splits(table.frame, fold="1")
    assert not moved
    assert set(frame.loc[frame["split"].ne("train"), "fold"]) == {"1"}


def test_urbansound8k_keeps_a_recording_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, monkeypatch, "urbansound8k", lookalikes.urbansound8k())
    frame = load_table("urbansound8k").frame
    got = {Path(r.path).name: (r.label, r.fold, r.group) for r in frame.itertuples()}
    assert got == {row[0]: (row[7], str(row[5]), str(row[1])) for row in lookalikes.URBAN}
    # 58.5 s is a time in the recording that the clip was cut from, not in the clip.
    assert frame[["start", "end", "gps"]].isna().all(axis=None)


def test_pets_come_with_the_official_split(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(server, monkeypatch, "pets", *lookalikes.pets())
    table = load_table("pets")
    assert not table.rejected
    assert table.classes == ["Abyssinian", "american bulldog"]
    splits = {Path(r.path).stem: r.split for r in table.frame.itertuples()}
    assert splits["Abyssinian_100"] == splits["american_bulldog_101"] == "train"
    assert splits["Abyssinian_102"] == splits["american_bulldog_102"] == "test"
    assert len(splits) == 6


@pytest.mark.parametrize(("name", "size"), [("imagenette", "320"), ("imagenette-160", "160")])
def test_imagenette_has_words_for_its_numbers(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, size: str
) -> None:
    publish(server, monkeypatch, name, lookalikes.imagenette(size))
    table = load_table(name)
    assert table.classes == ["English springer", "tench"]
    assert table.frame["split"].value_counts().to_dict() == {"train": 4, "valid": 2}


@pytest.mark.parametrize(("name", "timed"), [("gravityspy", False), ("gravityspy-v1d1", True)])
def test_gravityspy_draws_three_views_as_channels(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, timed: bool
) -> None:
    publish(
        server, monkeypatch, name, *lookalikes.gravityspy(tmp_path, event_time=timed), pin=False
    )
    table = load_table(name)
    assert table.kind == "picture"
    rows = table.frame.set_index(table.frame["path"].map(lambda path: Path(path).stem))
    words = {"train": "train", "validation": "valid", "test": "test"}
    for index, (glitch, label, split) in enumerate(lookalikes.GLITCHES):
        assert (rows.at[glitch, "label"], rows.at[glitch, "split"]) == (label, words[split])
        gps = rows.at[glitch, "gps"]
        assert gps == 1132401286.5 + index if timed else np.isnan(gps)
        views = lookalikes.glitch_views(index)
        drawn = np.asarray(Image.open(rows.at[glitch, "path"]))
        assert drawn.shape == (140, 170, 3)
        for channel, view in enumerate(("0.5.png", "2.0.png", "4.0.png")):
            assert np.abs(drawn[:, :, channel] / 255 - views[view][0]).max() <= 0.5 / 255 + 1e-6
    assert left(name) == ["files"]  # the 3 GB are not kept twice


def test_gravityspy_follows_no_link_out_of_the_file(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table, _ = lookalikes.gravityspy(tmp_path)
    with h5py.File(tmp_path / "glitches.h5", "a") as file:
        del file["Blip/train/zhs0kbBnyE/2.0.png"]
        file["Blip/train/zhs0kbBnyE/2.0.png"] = h5py.ExternalLink("/etc/passwd", "/")
    content = (tmp_path / "glitches.h5").read_bytes()
    publish(server, monkeypatch, "gravityspy", table, content, pin=False)
    with pytest.raises(BadFile, match=r"no Blip/train/zhs0kbBnyE/2\.0\.png"):
        load_table("gravityspy")
    assert left("gravityspy") == []


def test_an_event_has_its_time_and_both_detectors(server: Server, tmp_path: Path) -> None:
    lookalikes.event(server, tmp_path)
    table = load_table("gwosc:GW150914")
    assert table.kind == "strain"
    assert [Path(path).name[:4] for path in table.frame["path"]] == ["H-H1", "L-L1"]
    assert (table.frame["gps"] == 1126259462.4).all()
    assert set(table.frame["label"]) == {"Chirp"}
    assert set(table.frame["group"]) == {"GW150914"}
    assert set(table.frame["split"]) == {"test"}
    assert "gwosc.org" in table.note
    strain = read_strain(table.frame["path"].iloc[0], at=1126259462.4, context=16.0)
    assert strain.rate == 4096
    asked = len(server.asked)
    load_table("gwosc:GW150914")
    assert len(server.asked) == asked == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"hdf5"', '"txt"'), "GWOSC has no 32 s of strain"),
        (("https://gwosc.org/", "https://example.org/"), "is no HDF5 file of gwosc.org"),
        (("https://gwosc.org/", "file:///"), "is no HDF5 file of gwosc.org"),
        (("1126259462.4", "NaN"), "no GPS time"),
        (('"GPS"', '"gps"'), "not what the event API answers"),
        (("{", "["), "not what the event API answers"),
    ],
)
def test_an_odd_answer_about_an_event(
    server: Server, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    lookalikes.event(server, tmp_path)
    path = "/gwosc.org/eventapi/json/event/GW150914"
    server.files[path] = server.files[path].decode().replace(*change).encode()
    with pytest.raises(SecondhandError, match=said):
        load_table("gwosc:GW150914")
    assert not [path for path, _ in server.asked if path.endswith("hdf5")]


@pytest.mark.parametrize("name", ["", "../../etc", "a/b", "GW150914?x=1"])
def test_what_is_no_event(server: Server, name: str) -> None:
    with pytest.raises(SecondhandError, match="not the name of an event"):
        load_table(f"gwosc:{name}")
    assert not server.asked


# Names


def test_an_unknown_name_lists_what_there_is(server: Server) -> None:
    for call in (lambda: load_table("esc500"), lambda: catalog.fetch("esc500")):
        with pytest.raises(SecondhandError, match="esc500") as error:
            call()
        for name in (*catalog.SETS, "gwosc:EVENT"):
            assert name in str(error.value)


def test_a_folder_of_that_name_wins_and_the_note_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for label in ("cat", "dog"):
        for index in range(2):
            path = tmp_path / "pets" / label / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(lookalikes.jpeg(hash((label, index)) % 2**32))
    monkeypatch.chdir(tmp_path)
    table = load_table("pets")
    assert table.classes == ["cat", "dog"]
    assert "the folder pets" in table.note
    assert not server.asked


def test_the_command_lists_fetches_and_refuses(
    esc50: bytes, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalog.main([]) == 0
    listed = capsys.readouterr().out
    assert all(re.search(rf"^{re.escape(name)} .*GB", listed, re.M) for name in catalog.SETS)
    assert re.search(r"^gravityspy +3\.3 GB +no hash", listed, re.M)
    assert not server.asked
    assert catalog.main(["esc50"]) == 0
    assert capsys.readouterr().out.strip() == str(place("esc50") / "files")
    lookalikes.event(server, tmp_path)
    assert catalog.main(["gwosc:GW150914"]) == 0
    assert capsys.readouterr().out.count("--at 1126259462.4") == 2
    assert catalog.main(["nothing"]) == 2
    assert "esc50" in capsys.readouterr().err


def test_the_published_hashes() -> None:
    """Those that a library of ours knows too are its own; all have the form of a hash."""
    spec = importlib.util.find_spec("torchvision")  # its text alone: to import it takes seconds
    assert spec is not None
    assert spec.origin is not None
    text = "".join(
        Path(spec.origin).with_name("datasets").joinpath(name).read_text()
        for name in ("oxford_iiit_pet.py", "imagenette.py")
    )
    known = dict(re.findall(r'"(https://[^"]+)", "([0-9a-f]{32})"', text))
    files = [file for public in catalog.SETS.values() for file in public.files]
    compared = [file for file in files if file.url in known]
    assert len(compared) == 4
    for file in compared:
        assert file.hashes == (f"md5:{known[file.url]}",)
    for file in files:
        assert file.url.startswith("https://")
        assert all(re.fullmatch(r"md5:[0-9a-f]{32}", known) for known in file.hashes)


# The way from the server


def test_what_is_fetched_once_is_not_fetched_again(esc50: bytes, server: Server) -> None:
    first = load_table("esc50").frame
    assert server.sent == [len(esc50)]
    assert left("esc50") == ["files"]
    assert load_table("esc50").frame.equals(first)
    assert len(server.asked) == 1


def test_a_broken_connection_is_continued(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    content = lookalikes.esc50(padding=1_000_000)
    publish(server, monkeypatch, "esc50", content)
    server.manner = "break"
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)
    (_, first), (_, second) = server.asked
    assert first == ""
    start = int(second.removeprefix("bytes=").removesuffix("-"))
    assert len(content) // 2 - _catalog_download._BLOCK <= start <= len(content) // 2
    assert server.sent == [len(content) // 2, len(content) - start]


def test_a_server_that_always_breaks_at_one_place_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, monkeypatch, "esc50", lookalikes.esc50(padding=1_000_000))
    server.manner = "always break"
    with pytest.raises(SecondhandError, match="Connection broken") as error:
        load_table("esc50")
    assert len(server.asked) == 2
    kept = (place("esc50") / "ESC-50.zip.part").stat().st_size
    assert kept > 0
    assert f"{kept} bytes are kept" in str(error.value)


def test_a_killed_download_is_continued_by_the_next_run(esc50: bytes, server: Server) -> None:
    place("esc50").mkdir(parents=True)
    (place("esc50") / "ESC-50.zip.part").write_bytes(esc50[:1000])
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)
    assert [wanted for _, wanted in server.asked] == ["bytes=1000-"]
    assert server.sent == [len(esc50) - 1000]


def test_a_server_that_ignores_range_starts_again(esc50: bytes, server: Server) -> None:
    server.manner = "no range"
    place("esc50").mkdir(parents=True)
    (place("esc50") / "ESC-50.zip.part").write_bytes(b"x" * 1000)
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)
    assert [wanted for _, wanted in server.asked] == ["bytes=1000-"]
    assert server.sent == [len(esc50)]


@pytest.mark.parametrize("more", [0, 7])
def test_a_part_that_is_whole_or_too_long(esc50: bytes, server: Server, more: int) -> None:
    """Whole: no byte is fetched. Too long: it is of another file, and dropped."""
    place("esc50").mkdir(parents=True)
    (place("esc50") / "ESC-50.zip.part").write_bytes(esc50 + b"x" * more)
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)
    assert server.sent == ([len(esc50)] if more else [])


def test_a_tampered_file_is_not_used(esc50: bytes, server: Server) -> None:
    (path,) = server.files
    server.files[path] = esc50[:-1] + bytes([esc50[-1] ^ 1])
    with pytest.raises(SecondhandError) as error:
        load_table("esc50")
    for content in (esc50, server.files[path]):
        assert hashlib.md5(content).hexdigest() in str(error.value)
    assert left("esc50") == []
    server.files[path] = esc50
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)


def test_any_of_several_hashes_will_do(
    esc50: bytes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = catalog.SETS["esc50"]
    file = replace(public.files[0], hashes=("md5:" + "0" * 32, *public.files[0].hashes))
    monkeypatch.setitem(catalog.SETS, "esc50", replace(public, files=(file,)))
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)


def test_the_log_tells_the_hash_of_a_file_without_one(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content = lookalikes.esc50()
    publish(server, monkeypatch, "esc50", content, pin=False)
    with caplog.at_level(logging.WARNING):
        load_table("esc50")
    assert f"no hash of it is published, so it is taken as it came: sha256:{hashlib.sha256(content).hexdigest()}" in caplog.text  # fmt: skip


def test_a_published_size_is_checked(
    esc50: bytes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = catalog.SETS["esc50"]
    file = replace(public.files[0], hashes=(), size=len(esc50) + 1)
    monkeypatch.setitem(catalog.SETS, "esc50", replace(public, files=(file,)))
    with pytest.raises(
        SecondhandError, match=f"{len(esc50)} bytes, {len(esc50) + 1} are published"
    ):
        load_table("esc50")
    assert left("esc50") == []


def test_more_than_is_reasonable_is_refused(
    esc50: bytes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = catalog.SETS["esc50"]
    file = replace(public.files[0], largest=1000)
    monkeypatch.setitem(catalog.SETS, "esc50", replace(public, files=(file,)))
    with pytest.raises(SecondhandError, match="more than 1000 bytes"):
        load_table("esc50")
    assert left("esc50") == []


def test_without_a_network_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("SECONDHAND_MIRROR", base)
        with pytest.raises(SecondhandError) as error:
            load_table("urbansound8k")
    said = str(error.value)
    assert f"cannot fetch {base}/zenodo.org/records/1203745/files/UrbanSound8K.tar.gz" in said
    assert str(tmp_path / "sets" / "urbansound8k" / "UrbanSound8K.tar.gz") in said
    assert "SECONDHAND_MIRROR=BASE takes BASE/zenodo.org/records/1203745/files/" in said


def test_what_the_server_does_not_have(server: Server) -> None:
    with pytest.raises(SecondhandError, match="404"):
        load_table("esc50")
    assert len(server.asked) == 1
    assert left("esc50") == []


def test_without_a_mirror_the_publisher_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    file = catalog.SETS["urbansound8k"].files[0]
    monkeypatch.delenv("SECONDHAND_MIRROR", raising=False)
    assert file.source == file.url
    monkeypatch.setenv("SECONDHAND_MIRROR", "https://mirror.example/data/")
    assert file.source == (
        "https://mirror.example/data/zenodo.org/records/1203745/files/UrbanSound8K.tar.gz"
    )


def test_a_file_placed_by_hand_is_taken_and_kept(esc50: bytes, server: Server) -> None:
    place("esc50").mkdir(parents=True)
    (place("esc50") / "ESC-50.zip").write_bytes(esc50)
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)
    assert not server.asked
    assert left("esc50") == ["ESC-50.zip", "files"]


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_set_unpacked_by_hand_is_taken(esc50: bytes, server: Server, wrapped: bool) -> None:
    """With the folder that the archive wraps everything in, or without."""
    folder = place("esc50") / "files"
    with zipfile.ZipFile(io.BytesIO(esc50)) as archive:
        archive.extractall(folder)
    if not wrapped:
        (root,) = folder.iterdir()
        for path in root.iterdir():
            path.rename(folder / path.name)
        root.rmdir()
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)
    assert not server.asked


def test_a_wrong_file_placed_by_hand_is_not_used(esc50: bytes, server: Server) -> None:
    place("esc50").mkdir(parents=True)
    (place("esc50") / "ESC-50.zip").write_bytes(b"something else")
    with pytest.raises(SecondhandError, match=hashlib.md5(b"something else").hexdigest()):
        load_table("esc50")
    assert left("esc50") == ["ESC-50.zip"]  # the user's own file is not ours to delete


def test_a_disk_that_is_too_full_is_told_before(
    esc50: bytes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(free=_catalog_download.ROOM + len(esc50) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(SecondhandError, match=r"ESC-50\.zip needs .* GB left"):
        load_table("esc50")
    assert left("esc50") == []


# What is inside


def test_a_broken_archive_leaves_nothing_and_is_fetched_again(
    esc50: bytes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, monkeypatch, "esc50", esc50[: len(esc50) // 2])
    with pytest.raises(BadFile, match="broken archive"):
        load_table("esc50")
    assert left("esc50") == []
    publish(server, monkeypatch, "esc50", esc50)
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)


def test_a_truncated_tar(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lookalikes.urbansound8k()
    publish(server, monkeypatch, "urbansound8k", whole[: len(whole) * 2 // 3])
    with pytest.raises(BadFile, match="broken archive"):
        load_table("urbansound8k")
    assert left("urbansound8k") == []


@pytest.mark.parametrize(
    "name",
    ["../../evil.txt", "/tmp/evil.txt", "a/../../../evil.txt", "C:/evil.txt", "..\\evil.txt"],
)
def test_a_name_that_leads_out_of_the_folder(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    members = {"ESC-50/meta/esc50.csv": b"", name: b"evil"}
    for public, archive in (("esc50", zipped(members)), ("urbansound8k", tarred(members))):
        publish(server, monkeypatch, public, archive)
        with pytest.raises(BadFile, match="leads out of the folder"):
            load_table(public)
        assert left(public) == []
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_a_tar_with_a_link_or_a_device(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    odd = tarfile.TarInfo("UrbanSound8K/link")
    odd.type, odd.linkname = kind, "/etc/passwd"
    publish(server, monkeypatch, "urbansound8k", tarred({"UrbanSound8K/a": b"a"}, odd))
    with pytest.raises(BadFile, match="link is a link or a device"):
        load_table("urbansound8k")
    assert left("urbansound8k") == []


def test_a_zip_with_a_link(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        link = zipfile.ZipInfo("ESC-50/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    publish(server, monkeypatch, "esc50", out.getvalue())
    with pytest.raises(BadFile, match="link is a link or a device"):
        load_table("esc50")


@pytest.mark.parametrize(("limit", "value"), [("MAX_MEMBERS", 3), ("MAX_BYTES", 2000)])
def test_archives_have_limits(
    server: Server, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(_catalog_unpack, limit, value)
    publish(server, monkeypatch, "esc50", lookalikes.esc50())
    publish(server, monkeypatch, "urbansound8k", lookalikes.urbansound8k())
    for name in ("esc50", "urbansound8k"):
        with pytest.raises(BadFile, match=f"more than {value}"):
            load_table(name)
        assert left(name) == []


def test_a_set_without_its_list_says_what_is_missing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, monkeypatch, "esc50", zipped({"ESC-50/meta/esc50.csv": b"filename,fold\n"}))
    with pytest.raises(BadFile, match="no column category, src_file"):
        load_table("esc50")
    publish(server, monkeypatch, "urbansound8k", tarred({"UrbanSound8K/README": b""}))
    with pytest.raises(BadFile, match=r"0 of \*/metadata/UrbanSound8K.csv"):
        load_table("urbansound8k")
