"""Archives of class folders, which shutil packs, are what the folder is."""

from __future__ import annotations

import gzip
import shutil
import struct
import sys
import unicodedata
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from datasets.core.address import local, member, read_ahead
from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS
from datasets.kinds.finding import find_files
from datasets.render import main as render
from datasets.sources.base import ReadOptions, read_source
from datasets.steps.reading import load_table
from fields.remote import address, members
from tests.datasets.files import picture, root, sound, write
from tests.fields.remote.sources.test_hub_parquet import table

__all__ = ["root"]  # a fixture


@pytest.mark.parametrize("form", ["zip", "tar", "gztar", "bztar", "xztar"])
@pytest.mark.parametrize("above", [False, True])
def test_an_archive_is_what_its_folder_is(
    root: Path, tmp_path: Path, form: str, above: bool
) -> None:
    """With the folder itself in it, or without; a bad file is listed, and nothing is unpacked beside the archive."""
    (root / "cat" / "bad.jpg").write_bytes(b"no picture")
    expected = load_table(root)
    packed = shutil.make_archive(
        str(tmp_path / "out" / "all"),
        form,
        root.parent if above else root,
        root.name if above else None,
    )
    read = load_table(packed)
    assert read.frame["label"].tolist() == expected.frame["label"].tolist()
    scheme = form[-3:]
    for name, file in zip(read.frame["path"], expected.frame["path"], strict=True):
        inside = Path(file).relative_to(root.parent if above else root).as_posix()
        assert name.removeprefix(f"{scheme}://").removeprefix("./") == f"{inside}::{packed}"
        assert Path(local(name)).read_bytes() == Path(file).read_bytes()
    assert [one.reason for one in read.rejected] == [one.reason for one in expected.rejected]
    assert [one.name for one in (tmp_path / "out").iterdir()] == [Path(packed).name]


def test_the_labels_may_be_those_of_a_table_in_the_archive(root: Path, tmp_path: Path) -> None:
    rows = "".join(f"{name}/{n}.jpg,{name}s\n" for name in ("cat", "dog") for n in range(3))
    write(root / "metadata.csv", f"file_name,label\n{rows}")
    packed = shutil.make_archive(str(tmp_path / "all"), "zip", root)
    assert load_table(packed).classes == ["cats", "dogs"]


def test_a_prediction_finds_the_files_of_archives_and_tables(root: Path, tmp_path: Path) -> None:
    """An archive that cannot be read is one bad file."""
    packed = shutil.make_archive(str(tmp_path / "all"), "tar", root)
    contents = [(root / f"cat/{n}.jpg").read_bytes() for n in range(3)]
    parquet = table(tmp_path / "t.parquet", "image", contents, [None] * 3)
    bad = str(write(tmp_path / "bad.zip", "PK"))
    found = [*find_files([packed, str(parquet), bad], KINDS["picture"], Counter())]
    assert found == [
        *(f"tar://{label}/{n}.jpg::{packed}" for label in ("cat", "dog") for n in range(3)),
        *(f"parquet://image/{n}.jpg::{parquet}" for n in range(3)),
        f"zip://::{bad}",
    ]


def test_a_packed_archive_is_unpacked_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again if it has changed; what is larger than the store may be is a bad file."""
    packed = Path(shutil.make_archive(str(tmp_path / "all"), "gztar", root))
    opened = Counter[str]()

    def open_counted(file: str) -> gzip.GzipFile:
        opened[file] += 1
        return gzip.open(file)

    monkeypatch.setitem(members._PACKED, b"\x1f\x8b", open_counted)
    for _ in range(2):
        address._archive.cache_clear()
        assert load_table(packed).classes == ["cat", "dog"]
    assert opened[str(packed)] == 1
    (root / "cat").rename(root / "cow")
    shutil.make_archive(str(tmp_path / "all"), "gztar", root)
    address._archive.cache_clear()
    assert load_table(packed).classes == ["cow", "dog"]
    monkeypatch.setattr(members, "MOST_OF_LARGE", 1000)
    other = shutil.make_archive(str(tmp_path / "other"), "gztar", root)
    with pytest.raises(SecondhandError, match=r"other\.tar\.gz"):
        load_table(other)


@pytest.mark.parametrize("name", ["t.zip", "t.tar", "t.tgz", "t.txz", "t.parquet"])
@pytest.mark.parametrize("cut", [0.0, 0.5])
def test_a_damaged_archive_is_one_error_that_names_it(
    root: Path, tmp_path: Path, name: str, cut: float
) -> None:
    if name.endswith("parquet"):
        file = table(tmp_path / name, "image", [(root / "cat/0.jpg").read_bytes()] * 9, [None] * 9)
    else:
        form = {"zip": "zip", "tar": "tar", "tgz": "gztar", "txz": "xztar"}[name[2:]]
        file = tmp_path / name
        Path(shutil.make_archive(str(tmp_path / "x"), form, root)).rename(file)
    content = file.read_bytes()
    file.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(SecondhandError, match=name.replace(".", r"\.")):
        load_table(file)


def test_a_damaged_member_is_listed(root: Path, tmp_path: Path) -> None:
    packed = Path(shutil.make_archive(str(tmp_path / "all"), "zip", root))
    content = bytearray(packed.read_bytes())
    middle = content.find(b"dog/1.jpg") + 400
    content[middle : middle + 4] = bytes(byte ^ 255 for byte in content[middle : middle + 4])
    packed.write_bytes(content)
    table = load_table(packed)
    assert len(table.frame) == 5
    assert [one.path for one in table.rejected] == [f"zip://dog/1.jpg::{packed}"]


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_threads_find_all_members(tmp_path: Path, form: str) -> None:
    """While the table of contents is being made for one of them, too."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(200):
        write(folder / f"{number}.jpg", str(number))
    packed = shutil.make_archive(str(tmp_path / "all"), form, folder)
    names = [f"{form}://{number}.jpg::{packed}" for number in range(200)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for name in read_ahead(names, str):
            inside = name.partition("://")[2].partition("::")[0]
            assert Path(local(name)).read_bytes() == (folder / inside).read_bytes()
    finally:
        sys.setswitchinterval(before)


def test_a_zip_as_windows_writes_it(root: Path, tmp_path: Path) -> None:
    """Backslashes between folders, and a file with a password, which is listed."""
    file = tmp_path / "all.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for name in sorted(root.rglob("*.jpg")):
            info = zipfile.ZipInfo("x")
            info.filename = f"photos\\{name.parent.name}\\{name.name}"
            archive.writestr(info, name.read_bytes())
    content = bytearray(file.read_bytes())
    content[content.find(b"PK\1\2") + 8] |= 1  # as the table of contents says that it has one
    file.write_bytes(content)
    table = load_table(file)
    assert table.frame["label"].tolist() == ["cat", "cat", "dog", "dog", "dog"]
    assert "encrypted" in table.rejected[0].reason


def test_links_in_a_tar_are_the_files_that_they_lead_to(root: Path, tmp_path: Path) -> None:
    for number in range(3):
        picture(root / "elk" / f"{number}.jpg")
    (root / "elk/0.jpg").rename(root / "0.jpg")
    (root / "elk/0.jpg").symlink_to("../0.jpg")
    (root / "elk/3.jpg").hardlink_to(root / "elk/1.jpg")
    table = load_table(shutil.make_archive(str(tmp_path / "all"), "tar", root))
    names = [Path(member(name)).name for name in table.frame["path"][6:]]
    assert names == ["0.jpg", "1.jpg", "2.jpg"]
    assert "copy" in "".join(one.reason for one in table.rejected)


def test_an_empty_archive_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(SecondhandError, match=r"all\.zip"):
        load_table(shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path / "none"))


def test_a_member_of_a_zip_is_read_to_the_size_that_it_states(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bomb states a few bytes: no more are unpacked, and it is listed."""
    file = tmp_path / "all.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(root.rglob("*.jpg")):
            archive.writestr(f"{name.parent.name}/{name.name}", name.read_bytes())
        archive.writestr("cat/bomb.jpg", bytes(5_000_000))
    file.write_bytes(
        file.read_bytes().replace(struct.pack("<I", 5_000_000), struct.pack("<I", 999))
    )
    read, whole = [0], zipfile.ZipExtFile.read

    def counted(self: zipfile.ZipExtFile, *args: int) -> bytes:
        block = whole(self, *args)
        read[0] += len(block) * (self.name == "cat/bomb.jpg")
        return block

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    table = load_table(file)
    assert len(table.frame) == 6
    assert [member(one.path) for one in table.rejected] == ["zip://cat/bomb.jpg"]
    assert read[0] <= 999


class _OfMacOs(zipfile.ZipInfo):
    """A member whose name is UTF-8 in its decomposed form, though nothing says so."""

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:
        return unicodedata.normalize("NFD", self.filename).encode(), self.flag_bits & ~0x800


@pytest.mark.parametrize("member", [_OfMacOs, zipfile.ZipInfo])
def test_names_in_a_zip_are_utf_8_if_all_can_be(tmp_path: Path, member: type) -> None:
    classes = {"Füchse", "лиса", "キツネ"}
    content = picture(tmp_path / "x.png").read_bytes()
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in classes:
            archive.writestr(member(f"photos/{name}/0.png"), content)
            archive.writestr(member(f"__MACOSX/photos/{name}/._0.png"), b"\0\5\x16\7")
    frame = read_source(str(tmp_path / "all.zip"), ReadOptions()).frame
    assert {*frame["label"]} == classes
    assert {Path(local(path)).read_bytes() for path in frame["path"]} == {content}


def test_names_of_code_page_437_stay(tmp_path: Path) -> None:
    class Old(zipfile.ZipInfo):
        def _encodeFilenameFlags(self) -> tuple[bytes, int]:
            return self.filename.encode("cp437"), self.flag_bits & ~0x800

    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("Füchse", "Bär"):
            archive.writestr(Old(f"{name}/0.png"), picture(tmp_path / "x.png").read_bytes())
    frame = read_source(str(tmp_path / "all.zip"), ReadOptions()).frame
    assert {*frame["label"]} == {"Füchse", "Bär"}


def test_an_archive_of_sounds_is_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    file = sound(tmp_path / "in" / "a.wav")
    shutil.make_archive(str(tmp_path / "all"), "zip", file.parent)
    options = ["--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "c"), "--workers", "1"]
    assert render([str(tmp_path / "all.zip"), *options]) == 0
    assert capsys.readouterr().out == f"zip://a.wav::{tmp_path}/all.zip\t{tmp_path}/out/a.png\n"
