"""Public sets from a server on this machine, and all that can go wrong on the way."""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
import socket
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from datasets import catalog
from datasets.core.errors import BadFile, SecondhandError
from datasets.sources.download import ROOM
from datasets.steps.reading import load_table
from tests.datasets import lookalikes
from tests.datasets.lookalikes import (
    Server,
    esc50,
    left,
    place,
    publish,
    server,
    tarred,
    zipped,
)

__all__ = ["esc50", "server"]  # fixtures


# The download


def test_what_is_fetched_once_is_not_fetched_again(esc50: bytes, server: Server) -> None:
    first = load_table("esc50").frame
    assert left("esc50") == ["files"]
    assert load_table("esc50").frame.equals(first)
    assert len(server.requests) == 1


def test_a_broken_connection_leaves_nothing_and_the_next_run_fetches_anew(
    esc50: bytes, server: Server
) -> None:
    server.breaks = True
    with pytest.raises(SecondhandError, match="cannot download"):
        load_table("esc50")
    assert left("esc50") == []
    server.breaks = False
    (path,) = server.files
    server.files = {}
    with pytest.raises(SecondhandError, match="404"):
        load_table("esc50")
    server.files = {path: esc50}
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)


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


@pytest.mark.parametrize("more", [0, 1])
def test_any_of_several_hashes_will_do_but_the_size_must_be_right(
    esc50: bytes, server: Server, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    public = catalog.SETS["esc50"]
    hashes, size = ("md5:" + "0" * 32, *public.files[0].hashes), len(esc50) + more
    file = replace(public.files[0], hashes=hashes, size=size)
    monkeypatch.setitem(catalog.SETS, "esc50", replace(public, files=(file,)))
    if not more:
        assert len(load_table("esc50").frame) == len(lookalikes.ESC50)
        return
    with pytest.raises(
        SecondhandError, match=f"{len(esc50)} bytes instead of the published {size}"
    ):
        load_table("esc50")
    assert left("esc50") == []


def test_the_log_tells_the_hash_of_a_file_without_one(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content = lookalikes.esc50_zip()
    publish(server, monkeypatch, "esc50", content, pin=False)
    with caplog.at_level(logging.WARNING):
        load_table("esc50")
    assert f"no hash is published. It has sha256:{hashlib.sha256(content).hexdigest()}" in caplog.text  # fmt: skip


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
    message = str(error.value)
    assert f"cannot download {base}/zenodo.org/records/1203745/files/UrbanSound8K.tar.gz" in message
    assert str(tmp_path / "sets" / "urbansound8k" / "UrbanSound8K.tar.gz") in message
    assert (
        "SECONDHAND_MIRROR=BASE it is downloaded from BASE/zenodo.org/records/1203745/files/"
        in message
    )


def test_a_file_placed_by_hand_is_checked_taken_and_kept(esc50: bytes, server: Server) -> None:
    place("esc50").mkdir(parents=True)
    (place("esc50") / "ESC-50.zip").write_bytes(b"something else")
    with pytest.raises(SecondhandError, match=hashlib.md5(b"something else").hexdigest()):
        load_table("esc50")
    assert left("esc50") == ["ESC-50.zip"]  # the user's own file is not deleted
    (place("esc50") / "ESC-50.zip").write_bytes(esc50)
    assert len(load_table("esc50").frame) == len(lookalikes.ESC50)
    assert not server.requests
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
    assert not server.requests


def test_a_disk_that_is_too_full_is_told_before(
    esc50: bytes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=ROOM))
    with pytest.raises(SecondhandError, match=r"esc50 needs .* GB left"):
        load_table("esc50")
    assert left("esc50") == []


# The contents


@pytest.mark.parametrize("name", ["esc50", "urbansound8k"])
def test_a_broken_archive_leaves_nothing_and_is_fetched_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    archive = lookalikes.esc50_zip() if name == "esc50" else lookalikes.urbansound8k()
    publish(server, monkeypatch, name, archive[: len(archive) * 2 // 3])
    with pytest.raises(BadFile, match="damaged archive"):
        load_table(name)
    assert left(name) == []
    publish(server, monkeypatch, name, archive)
    assert len(load_table(name).frame) > 3


@pytest.mark.parametrize("name", ["../../evil.txt", "a/../../../evil.txt"])
def test_a_name_that_leads_out_of_the_folder(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """A tar file is refused; in a zip the member is left out."""
    members = {"ESC-50/meta/esc50.csv": b"", name: b"evil"}
    for public, archive in (("esc50", zipped(members)), ("urbansound8k", tarred(members))):
        publish(server, monkeypatch, public, archive)
        with pytest.raises(SecondhandError):
            load_table(public)
    assert left("urbansound8k") == []
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_tar_with_a_link_or_a_device(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    link = tarfile.TarInfo("UrbanSound8K/link")
    link.type, link.linkname = kind, "/etc/passwd"
    publish(server, monkeypatch, "urbansound8k", tarred({"UrbanSound8K/a": b"a"}, link))
    with pytest.raises(BadFile, match=r"damaged archive .*link"):
        load_table("urbansound8k")
    assert left("urbansound8k") == []
