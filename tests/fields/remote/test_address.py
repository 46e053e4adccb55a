"""Files in a bucket, and in archives, are what they are on a disk. The server is moto's, which is not ours."""

from __future__ import annotations

import sys
import tarfile
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from datasets.core import store
from datasets.core.address import as_path, is_address, local, member, read_ahead, without_secrets
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.file_state import FileState, is_same
from datasets.core.scanning import walk
from datasets.core.store import COPY, Store
from datasets.steps.reading import load_table
from fields.remote import address
from tests.datasets.files import picture, write
from tests.fields.remote.buckets import Bucket

pytestmark = pytest.mark.forks  # workers read what has an address

CHAIN = "zip://photos/a.jpg::s3://bucket/all.zip"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders, with what is not the user's."""
    root = tmp_path / "set"
    for label in ("fox", "hare", ".hidden"):
        for number in range(4):
            picture(root / label / f"{number}.png")
    picture(root / "hare" / "night" / "a b+ä.png")
    write(root / "hare" / "notes.pdf", "")
    return root


def new_run() -> None:
    """Let this process ask again, as the next one would."""
    time.sleep(0.02)
    address.work_for(str(time.time()))
    time.sleep(0.02)


@pytest.mark.parametrize(
    ("text", "name", "parent", "joined"),
    [
        ("s3://bucket/x/a.jpg", "a.jpg", "s3://bucket/x", "s3://bucket/x/a.jpg/b"),
        ("s3://bucket", "bucket", "s3://bucket", "s3://bucket/b"),
        ("hf://datasets/USER/NAME", "NAME", "hf://datasets/USER", "hf://datasets/USER/NAME/b"),
        (CHAIN, "a.jpg", "zip://photos::s3://bucket/all.zip", "zip://photos/a.jpg/b::s3://bucket/all.zip"),
        ("zip://::/data/all.zip", "all.zip", "zip://::/data/all.zip", "zip://b::/data/all.zip"),
    ],
)  # fmt: skip
def test_an_address_is_a_path(text: str, name: str, parent: str, joined: str) -> None:
    path = as_path(text)
    assert (str(path), path.name, str(path.parent), str(path / "b")) == (text, name, parent, joined)
    assert as_path(str(path)) == path == path.absolute()
    assert as_path(path) is path


@pytest.mark.parametrize(
    "name", ["C:/a.jpg", "demo:digits", "hf:USER/NAME", "a::b.jpg", "file:///a.jpg"]
)
def test_other_names_are_no_addresses(name: str) -> None:
    assert not is_address(name)
    assert (
        without_secrets(name) == member(name) == str(as_path(name)) == str(Path(name))
        or "//" in name
    )
    assert local(name) is name


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://USER:WORD@host:80/a.jpg", "https://host:80/a.jpg"),
        ("https://host/a.jpg?X-Amz-Signature=WORD&x=1#top", "https://host/a.jpg"),
        ("s3://KEY:WORD@bucket/what?.jpg", "s3://bucket/what?.jpg"),
        ("abfs://container@account.dfs/a.jpg", "abfs://container@account.dfs/a.jpg"),
        ("zip://a.jpg::https://USER:WORD@other/all.zip?sig=WORD", "zip://a.jpg::https://other/all.zip"),
    ],
)  # fmt: skip
def test_secrets_are_in_requests_alone(text: str, clean: str) -> None:
    assert without_secrets(text) == clean == without_secrets(clean)


def test_queries_that_name_files_are_refused() -> None:
    without_secrets("https://host/get?id=1")
    with pytest.raises(SecondhandError, match="https://host/get: "):
        without_secrets("https://host/get?id=2")


def test_a_bucket_is_read_as_a_disk_is(bucket: Bucket, folder: Path) -> None:
    """The same files in the same order; each is fetched once, and what a listing has named is not asked for."""
    root = bucket.fill(folder, "same")
    left: list[list[object]] = [[], []]
    here, there = [*walk(folder, left[0])], [*walk(root, left[1])]  # type: ignore[arg-type]
    assert [f.removeprefix(root) for f in there] == [f.removeprefix(str(folder)) for f in here]
    assert [str(f).removeprefix(root) for f in left[1]] == [
        str(f).removeprefix(str(folder)) for f in left[0]
    ]
    lists = bucket.proxy.counts["GET list"]
    assert [*read_ahead(there, str)] == there
    for file, copy in zip(here, map(local, there), strict=True):
        assert Path(copy).read_bytes() == Path(file).read_bytes()
    assert bucket.proxy.counts == {"GET list": lists, "GET file": len(here)}


def test_what_changed_is_fetched_and_what_did_not_is_not(bucket: Bucket) -> None:
    name = bucket.put("change/a.txt", b"one")
    first = FileState.read(name)
    assert Path(local(name)).read_bytes() == b"one"
    new_run()
    assert is_same(first, name)
    assert Path(local(name)).read_bytes() == b"one"
    assert bucket.proxy.counts == {"HEAD file": 2, "GET file": 1}
    bucket.put("change/a.txt", b"two")
    new_run()
    assert not is_same(first, name)
    assert Path(local(name)).read_bytes() == b"two"


def test_of_many_requests_one_in_twenty_fails_and_no_file_is_lost(bucket: Bucket) -> None:
    for number in range(100):
        bucket.put(f"many/{number}", b"%d" % number)
    bucket.proxy.every = 20
    names = [*read_ahead(walk("s3://photos/many", []), str)]
    assert sorted(int(Path(local(name)).read_bytes()) for name in names) == [*range(100)]
    assert bucket.proxy.counts["GET file"] > 100  # those that were dropped came again


def test_a_file_that_is_not_there_is_asked_for_once(bucket: Bucket) -> None:
    names = ["s3://photos/none/1", "s3://photos/none/2"]
    assert [*read_ahead(names, str)] == names
    asked = Counter(bucket.proxy.counts)
    for name in names:
        with pytest.raises(BadFile, match=name):
            local(name)
    assert bucket.proxy.counts == asked


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(SecondhandError, match=r"gs://bucket/a\.jpg.*pip install gcsfs"):
        as_path("gs://bucket/a.jpg").exists()
    with pytest.raises(SecondhandError, match="floppy://"):
        as_path("floppy://a/a.jpg").exists()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives_are_read_as_folders(
    bucket: Bucket, folder: Path, tmp_path: Path, kind: str
) -> None:
    """On a disk, and in a bucket, where the archive is fetched once."""
    archive = tmp_path / f"all.{kind}"
    files = sorted((folder / "hare").rglob("*.png"))
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as stream:
            for file in files:
                stream.write(file, file.relative_to(tmp_path))
    else:
        with tarfile.open(archive, "w") as packed:
            packed.add(folder / "hare", "set/hare")
    for place in (str(archive), bucket.put(f"archives/{archive.name}", archive.read_bytes())):
        members = [*read_ahead(walk(f"{kind}://set/hare::{place}", []), str)]
        pictures = [name for name in members if member(name).endswith(".png")]
        assert [Path(local(name)).read_bytes() for name in pictures] == [
            f.read_bytes() for f in files
        ]
    assert bucket.proxy.counts["GET file"] == 1


def test_class_folders_and_tables_in_a_bucket_give_the_items_of_a_disk(
    bucket: Bucket, folder: Path
) -> None:
    write(
        folder / "items.csv",
        "path,label\nfox/0.png,fox\nfox/1.png,fox\nhare/0.png,hare\nhare/1.png,hare\n",
    )
    root = bucket.fill(folder, "data")
    for name in ("", "/items.csv"):
        here, there = load_table(f"{folder}{name}"), load_table(f"{root}{name}")
        assert there.kind == here.kind == "picture"
        paths = [path.replace(str(folder), root) for path in here.frame["path"]]
        assert there.frame["path"].tolist() == paths
        assert there.frame.drop(columns="path").equals(here.frame.drop(columns="path"))
        assert [(i.path, i.reason) for i in there.rejected] == [
            (i.path.replace(str(folder), root), i.reason.replace(str(folder), root))
            for i in here.rejected
        ]


def test_copies_that_nobody_reads_make_room(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [bucket.put(f"room/{n}", bytes(100)) for n in range(4)]
    monkeypatch.setattr(store, "MAX_BYTES", 250)
    monkeypatch.setattr(address, "LOOK", 0)
    monkeypatch.setattr(store, "IN_USE", 0.0)
    for name in names:
        local(name)
        time.sleep(0.01)
    assert sum(Store().sizes(COPY)) == 300  # two that fit, and the one that was fetched last
