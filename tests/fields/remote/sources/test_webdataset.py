"""Shards of WebDataset, which tarfile writes."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from datasets.core.address import local
from datasets.sources.base import ReadOptions, read_source
from datasets.steps.reading import load_table
from tests.datasets.files import picture


def shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return path


def samples(tmp_path: Path, numbers: range, ending: str = "cls") -> dict[str, bytes]:
    members = {}
    for n in numbers:
        label = ("fox", "deer")[n % 2]
        text = (
            json.dumps({"species": label, "site": f"s{n}", "boxes": []})
            if ending == "json"
            else f"{label}\n"
        )
        members |= {
            f"a/{n:03}.png": picture(tmp_path / "x.png").read_bytes(),
            f"a/{n:03}.{ending}": text.encode(),
        }
    return members


@pytest.mark.parametrize("ending", ["cls", "json"])
@pytest.mark.parametrize("suffix", ["tar", "tgz"])
def test_samples_of_a_shard(tmp_path: Path, ending: str, suffix: str) -> None:
    members = samples(tmp_path, range(4), ending) | {
        "a/004.png": b"x",
        f"a/005.{ending}": b'{"species": "fox"}',
    }
    path = shard(tmp_path / f"t.{suffix}", members)
    table = load_table(path)
    assert table.frame["label"].tolist() == ["fox", "deer"] * 2
    assert table.frame["path"].tolist() == [f"tar://a/{n:03}.png::{path}" for n in range(4)]
    for address in table.frame["path"]:
        name = address.removeprefix("tar://").partition("::")[0]
        assert Path(local(address)).read_bytes() == members[name]
    assert {one.path for one in table.rejected} == {f"tar://a/004.png::{path}", f"{path}, row 7"}


def test_a_label_that_is_no_json_is_listed(tmp_path: Path) -> None:
    members = samples(tmp_path, range(4), "json") | {"a/001.json": b"{"}
    path = shard(tmp_path / "t.tar", members)
    table = load_table(path, learned=False)
    assert len(table.frame) == 3
    assert [one.path for one in table.rejected] == [
        f"tar://a/001.{end}::{path}" for end in ("json", "png")
    ]


@pytest.mark.parametrize("named", ["shards", "shards/t-{000..001}.tar"])
def test_shards_of_a_folder_or_a_pattern(tmp_path: Path, named: str) -> None:
    for n in range(2):
        shard(tmp_path / f"shards/t-{n:03}.tar", samples(tmp_path, range(4 * n, 4 * n + 4)))
    assert len(load_table(tmp_path / named).frame) == 8
    more = load_table(tmp_path / "shards/t-{000..002}.tar")
    assert len(more.frame) == 8
    assert [Path(one.path).name for one in more.rejected] == ["t-002.tar"]


def test_names_with_points_are_samples_of_their_own(tmp_path: Path) -> None:
    png = picture(tmp_path / "x.png").read_bytes()
    members = {}
    for n in range(4):
        members |= {f"site.{n}.png": png, f"site.{n}.cls": (b"fox", b"deer")[n % 2]}
    members |= {"9.left.png": png, "9.cls": b"fox"}
    table = read_source(str(shard(tmp_path / "all.tar", members)), ReadOptions())
    found = [
        (path.split("::")[0], label) for path, label in table.frame[["path", "label"]].to_numpy()
    ]
    names = [(f"tar://site.{n}.png", ("fox", "deer")[n % 2]) for n in range(4)]
    assert found == [*names, ("tar://9.left.png", "fox")]
