"""Public sets from a server on this machine: their tables and names."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from datasets import catalog
from datasets.core.errors import BadFile, SecondhandError
from datasets.items.facts import Origin
from datasets.items.splits import assign_splits
from datasets.sources.base import ReadOptions, read_source
from datasets.steps.reading import load_table
from tests.datasets import lookalikes
from tests.datasets.lookalikes import Server, esc50, left, place, publish, server, tarred, zipped

__all__ = ["esc50", "server"]  # fixtures


# The tables


def test_esc50_has_its_folds_and_recordings(esc50: bytes) -> None:
    table = load_table("esc50")
    assert table.kind == "sound"
    assert not table.rejected
    rows_by_name = {Path(r.path).name: (r.label, r.fold, r.group) for r in table.frame.itertuples()}
    assert rows_by_name == {row[0]: (row[3], str(row[1]), str(row[5])) for row in lookalikes.ESC50}
    assert set(table.frame["split"]) == {""}
    assert "CC BY-NC" in table.fact(Origin).note
    assert "Piczak" in table.fact(Origin).note
    frame, moved = assign_splits(table.frame, fold="1")
    assert not moved
    assert set(frame.loc[frame["split"].ne("train"), "fold"]) == {"1"}


def test_urbansound8k_keeps_a_recording_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, monkeypatch, "urbansound8k", lookalikes.urbansound8k())
    frame = load_table("urbansound8k").frame
    rows_by_name = {Path(r.path).name: (r.label, r.fold, r.group) for r in frame.itertuples()}
    assert rows_by_name == {row[0]: (row[7], str(row[5]), str(row[1])) for row in lookalikes.URBAN}
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


def test_mnist_has_its_pictures_labels_and_parts(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, monkeypatch, "mnist", *lookalikes.mnist())
    rows = read_source("mnist", ReadOptions())
    assert "LeCun" in rows.note
    found: dict[str, list[tuple[str, np.ndarray]]] = {"train": [], "test": []}
    for row in rows.frame.sort_values("path", key=lambda paths: paths.str[-10:]).itertuples():
        found[row.split].append((row.label, np.asarray(Image.open(row.path))))
    for test, part in enumerate(("train", "test")):
        assert [label for label, _ in found[part]] == [str(n) for n in lookalikes.DIGITS[test]]
        assert np.array_equal([p for _, p in found[part]], lookalikes.digits(bool(test)))
    assert left("mnist") == ["files"]
    assert len(server.requests) == 4


@pytest.mark.slow
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
    published = read_source(name, ReadOptions()).frame
    published.index = published["path"].map(lambda path: Path(path).stem)
    words = {"train": "train", "validation": "valid", "test": "test"}
    for index, (glitch, label, split) in enumerate(lookalikes.GLITCHES):
        assert (rows.at[glitch, "label"], rows.at[glitch, "split"]) == (label, words[split])
        gps = float(published.at[glitch, "gps"] or "nan")
        assert gps == 1132401286.5 + index if timed else np.isnan(gps)
        assert np.isnan(rows.at[glitch, "gps"]), "a picture has no times"
        views = lookalikes.glitch_views(index)
        picture = np.asarray(Image.open(rows.at[glitch, "path"]))
        assert picture.shape == (140, 170, 3)
        for channel, view in enumerate(("0.5.png", "2.0.png", "4.0.png")):
            assert np.abs(picture[:, :, channel] / 255 - views[view][0]).max() <= 0.5 / 255 + 1e-6
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
    with pytest.raises(BadFile, match=r"Blip/train/zhs0kbBnyE/2\.0\.png is of type ExternalLink"):
        load_table("gravityspy")
    assert left("gravityspy") == []


def test_a_set_without_its_list_says_what_is_missing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, monkeypatch, "esc50", zipped({"ESC-50/meta/esc50.csv": b"filename,fold\n"}))
    with pytest.raises(SecondhandError, match=r"esc50.csv: .*no column 'label'"):
        load_table("esc50")
    publish(server, monkeypatch, "urbansound8k", tarred({"UrbanSound8K/README": b""}))
    with pytest.raises(BadFile, match=r"0 matches of \*/metadata/UrbanSound8K.csv"):
        load_table("urbansound8k")


# Names


def test_an_unknown_name_lists_what_there_is(server: Server) -> None:
    for call in (lambda: load_table("esc500"), lambda: catalog.fetch_named("esc500")):
        with pytest.raises(SecondhandError, match="esc500") as error:
            call()
        for name in catalog.SETS:
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
    assert "the local folder pets" in table.fact(Origin).note
    assert not server.requests


def test_the_command_lists_fetches_and_refuses(
    esc50: bytes, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalog.main([]) == 0
    listed, next_step = capsys.readouterr()
    assert next_step.rstrip().endswith("finetune --data NAME")
    assert " 0.0 GB" not in listed
    assert all(re.search(rf"^{re.escape(name)} .*GB", listed, re.M) for name in catalog.SETS)
    assert re.search(r"^gravityspy +3\.3 GB +no hash", listed, re.M)
    assert not server.requests
    assert catalog.main(["esc50"]) == 0
    assert capsys.readouterr().out.strip() == str(place("esc50") / "files")
    assert catalog.main(["nothing"]) == 2
    assert "esc50" in capsys.readouterr().err


def test_the_published_hashes() -> None:
    """Hashes that torchvision also knows agree with its own; all have the form of a hash."""
    spec = importlib.util.find_spec("torchvision")  # importing it takes seconds
    assert spec is not None
    assert spec.origin is not None
    text = "".join(
        Path(spec.origin).with_name("datasets").joinpath(name).read_text()
        for name in ("oxford_iiit_pet.py", "imagenette.py")
    )
    known = dict(re.findall(r'"(https://[^"]+)", "([0-9a-f]{32})"', text))
    mnist = Path(spec.origin).with_name("datasets").joinpath("mnist.py").read_text()
    mnist = mnist.partition("class MNIST")[2].partition("class FashionMNIST")[0]
    mirror = re.findall(r'"(https://[^"]+/)"', mnist)[0]
    for name, digest in re.findall(r'"([\w-]+\.gz)", "([0-9a-f]{32})"', mnist):
        known[mirror + name] = digest
    files = [file for public in catalog.SETS.values() for file in public.files]
    compared = [file for file in files if file.url in known]
    assert len(compared) == 8
    for file in compared:
        assert file.hashes == (f"md5:{known[file.url]}",)
    for file in files:
        assert file.url.startswith("https://")
        assert all(re.fullmatch(r"md5:[0-9a-f]{32}", known) for known in file.hashes)
