"""Item tables of any source: kinds, copies, parts and labels; what is left out has a reason."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from datasets.audio.settings import MelSettings
from datasets.core.errors import Rejected, SecondhandError
from datasets.core.file_state import FileState
from datasets.items.describe import summary
from datasets.items.facts import Looks, Origin
from datasets.spectrograms.pictures import PictureCache
from datasets.spectrograms.windows import render_rows
from datasets.steps.reading import load_table
from tests.datasets.files import picture, reasons, root, sound, write
from tests.phones import avif, heic, m4a

__all__ = ["root"]  # a fixture


def test_the_opening_of_a_picture_shows_its_size_and_state(tmp_path: Path) -> None:
    for label in "ab":
        for number, ending in enumerate(("jpg", "png", "tif", "webp", "gif")):
            picture(tmp_path / label / f"{number}.{ending}")
    table = load_table(tmp_path)
    assert len(table.fact(Looks).of) == 10
    for path, info in table.fact(Looks).of.items():
        assert info.state == FileState.read(path)
        assert info.size == (64, 48)


def test_a_table_of_too_few_files_names_what_was_left_out(root: Path) -> None:
    rows = "cat/0.jpg,a\ndog/0.jpg,b\ncat/no.jpg,a\n"
    table = write(root / "one.csv", f"path,label\n{rows}")
    with pytest.raises(SecondhandError) as error:
        load_table(table)
    assert "one for validation, but 'a' has 1, 'b' has 1. Name further" in str(error.value)
    assert str(error.value).endswith(
        f"1 item left out, the first: {root}/cat/no.jpg: there is no such file"
    )


def test_the_most_common_kind_wins_and_the_others_are_listed(root: Path) -> None:
    write(root / "cat" / "purr.wav", "a sound")
    table = load_table(root)
    assert table.kind == "picture"
    assert reasons(table) == {"purr.wav": "not a picture by its ending"}


def test_the_summary_counts_and_names_the_first() -> None:
    rejected = [Rejected(f"{i}.jpg", "empty file") for i in range(12)]
    lines = summary(rejected)
    assert lines[0] == "12 items left out:"
    assert lines[1] == "  0.jpg: empty file"
    assert lines[-1] == "  … and 2 more, all in rejected.csv"
    assert len(lines) == 12
    assert summary(rejected[:10]) == ["10 items left out:", *lines[1:11]]
    assert summary([]) == []


@pytest.mark.slow
def test_demo_digits_are_scikit_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path))
    table = load_table("demo:digits", check=False)
    target = load_digits().target
    assert table.classes == list("01234567")
    assert len(table.frame) + len(table.unknown_items) == 1797
    assert len(table.unknown_items) == (target >= 8).sum()
    for label, count in table.frame["label"].value_counts().items():
        assert count == (target == int(str(label))).sum()
    assert "scikit-learn" in table.fact(Origin).note
    # Dark on white at eight times the size: block means restore scikit-learn's picture.
    picture = np.asarray(Image.open(table.frame["path"][0]).convert("L"), float)
    assert picture.shape == (64, 64)
    small = picture.reshape(8, 8, 8, 8).mean(axis=(1, 3))
    assert np.corrcoef(small.ravel(), -load_digits().images[0].ravel())[0, 1] > 0.97
    written = Path(table.frame["path"][0]).stat().st_mtime_ns
    load_table("demo:digits", check=False)
    assert Path(table.frame["path"][0]).stat().st_mtime_ns == written, "written twice"
    assert [entry.name for entry in (tmp_path / "demos").iterdir()] == ["digits-1"]


def test_a_label_is_the_same_however_it_is_encoded_and_unknown_however_it_is_cased(
    tmp_path: Path,
) -> None:
    rows = ["path,label"]
    for label in [
        "Caf\u00e9",
        "Cafe\u0301",
        " Caf\u00e9 ",
        "tea",
        "tea ",
        "Unknown",
        "UNKNOWN",
        "unknown",
    ]:
        path = picture(tmp_path / "data" / label / "0.png")
        rows.append(f"{path},{label}")
    listed = write(tmp_path / "items.csv", "\n".join(rows))
    for source in (tmp_path / "data", listed):
        table = load_table(source)
        assert table.frame["label"].value_counts().to_dict() == {"Caf\u00e9": 3, "tea": 2}
        assert table.unknown_items["label"].tolist() == ["unknown"] * 3


def test_times_of_a_picture_table_are_none(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two places do not make two items: a photo listed twice is one photo."""
    (root / "cat/copy.jpg").write_bytes((root / "cat/0.jpg").read_bytes())
    rows = ["path,label,gps,start,end"]
    for index, file in enumerate(sorted(root.rglob("*.jpg"))):
        rows.append(f'{file},{file.parent.name},"52.{index},4.3",{index},')
    with caplog.at_level("INFO"):
        table = load_table(write(root / "items.csv", "\n".join(rows)))
    assert (
        f"{root / 'items.csv'}: columns that are not used for picture files: start, gps"
        in caplog.text
    )
    assert reasons(table) == {"copy.jpg": f"a copy of {root / 'cat/0.jpg'}"}
    assert table.frame[["start", "end", "gps"]].isna().all(axis=None)


def test_a_sound_has_a_place_too_and_no_gps_time(tmp_path: Path) -> None:
    rows = [f'{sound(tmp_path / f"{i}.wav")},{"ab"[i % 2]},0,0.05,"52.1,4.3"' for i in range(4)]
    frame = load_table(
        write(tmp_path / "items.csv", "path,label,start,end,gps\n" + "\n".join(rows))
    ).frame
    assert frame["end"].tolist() == [0.05] * 4
    assert frame["gps"].isna().all()


def test_sounds_are_probed_and_copies_found(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for index in range(3):
            sound(tmp_path / label / f"{index}.wav")
    (tmp_path / "cat" / "copy.wav").write_bytes((tmp_path / "cat" / "0.wav").read_bytes())
    (tmp_path / "cat" / "empty.wav").write_bytes(b"")
    (tmp_path / "dog" / "broken.flac").write_bytes(b"fLaC" + bytes(100))
    soundfile.write(tmp_path / "dog" / "silent.wav", np.zeros(0), 8000)
    write(tmp_path / "dog" / "notes.docx", "no sound")
    table = load_table(tmp_path)
    assert (table.kind, table.classes, len(table.frame)) == ("sound", ["cat", "dog"], 6)
    rejected = reasons(table)
    assert rejected.keys() == {"copy.wav", "empty.wav", "broken.flac", "silent.wav", "notes.docx"}
    assert rejected["copy.wav"].startswith("a copy of ")
    assert rejected["empty.wav"] == "empty file"
    assert "cannot be decoded" in rejected["broken.flac"]
    assert rejected["notes.docx"] == "not a sound by its ending"


def test_a_span_may_have_several_classes_where_nothing_is_learnt(tmp_path: Path) -> None:
    one, other = sound(tmp_path / "one.wav"), sound(tmp_path / "other.wav")
    (tmp_path / "copy.wav").write_bytes(other.read_bytes())
    rows = [
        f"{one},cat,0,0.05", f"{one},dog,0,0.05", f"{one},dog,0,0.05", f"{one},dog,0.05,0.1",
        f"{other},cat,0,0.05", f"{tmp_path / 'copy.wav'},dog,0,0.05",
    ]  # fmt: skip
    source = write(tmp_path / "t.csv", "\n".join(["path,label,start,end", *rows]))
    table = load_table(source, learned=False)
    assert table.frame[["label", "start"]].to_numpy().tolist() == [
        ["cat", 0.0], ["dog", 0.0], ["dog", 0.05],
    ]  # fmt: skip
    assert sorted(item.reason.split(" (")[0] for item in table.rejected) == [
        *["0 to 0.05 s is labelled 'cat' and 'dog'"] * 2,
        "listed twice",
    ]


def test_strain_is_there_and_not_empty_and_triggers_are_items(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.hdf5", f"left to the renderer {name}")
    write(tmp_path / "empty.gwf", "")
    text = "path,label,gps\na.hdf5,x,1000.5\na.hdf5,y,1003\nb.hdf5,x,1000.5\nb.hdf5,y,1003\n"
    text += "b.hdf5,x,1000.5\nempty.gwf,x,\nmissing.txt.gz,y,\n"
    table = load_table(write(tmp_path / "items.csv", text))
    assert table.kind == "strain"
    assert table.frame["gps"].tolist() == [1000.5, 1003.0, 1000.5, 1003.0]
    rejected = reasons(table)
    assert rejected["empty.gwf"] == "empty file"
    assert rejected["missing.txt.gz"] == "there is no such file"
    assert rejected["b.hdf5"] == "listed twice"


def test_a_span_too_short_to_be_heard_is_listed_with_its_row(tmp_path):
    for name in "ab":
        soundfile.write(tmp_path / f"{name}.wav", np.full(8000, 0.1), 8000)
    (tmp_path / "t.csv").write_text(
        "path,label,start,end\n"
        "a.wav,x,0,0.1\na.wav,x,0.2,0.200082\nb.wav,y,0.1,0.102\nb.wav,y,0.3,0.5\na.wav,x,0.9,0.901\n"
    )
    table = load_table(tmp_path / "t.csv")
    assert len(table.frame) == 4
    assert [*table.rejected] == [
        (
            str(tmp_path / "a.wav"),
            "0.200000 to 0.200082 s: a span of 82 µs is too short (at least 1 ms) (row 3 of t.csv)",
        )
    ]


def test_spans_of_a_recording_that_was_cut_off_are_used_as_far_as_it_goes(tmp_path, caplog):
    rng = np.random.default_rng(0)
    for name in "abc":
        soundfile.write(tmp_path / f"{name}.wav", rng.uniform(-0.1, 0.1, 16_000), 8000)
    for name in "ab":
        content = (tmp_path / f"{name}.wav").read_bytes()
        (tmp_path / f"{name}.wav").write_bytes(content[: len(content) // 2])
    (tmp_path / "t.csv").write_text(
        "path,label,start,end\na.wav,x,0,0.4\na.wav,y,0.5,0.9\na.wav,y,1.2,1.6\n"
        "b.wav,x,,\nc.wav,x,0.1,0.5\nc.wav,y,1,1.4\n"
    )
    table = load_table(tmp_path / "t.csv", learned=False)
    assert sorted(Path(path).stem for path in table.frame["path"]) == [*"aaacc"]
    assert "the last 1 of 2 s are missing" in reasons(table)["b.wav"]
    rows, bad = render_rows(
        table.frame,
        MelSettings(rate=8000, window=0.4, size=(32, 32)),
        PictureCache(tmp_path / "cache"),
    )
    assert len(rows) == 4
    assert ["1.2 s is outside" in reason for _, reason in bad] == [True]


def test_what_phones_save(tmp_path: Path) -> None:
    photos = {".heic": heic, ".HEIF": heic, ".avif": avif}
    for n, (label, ending) in enumerate(product(("a", "b"), photos)):
        source = picture(tmp_path / "source" / f"{n}.png")
        file = tmp_path / "photos" / label / f"{n}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(photos[ending](Image.open(source)))
    (tmp_path / "photos" / "a" / "cut.heic").write_bytes(file.read_bytes()[:200])
    table = load_table(tmp_path / "photos")
    assert (table.kind, len(table.frame)) == ("picture", 6)
    assert [*reasons(table)] == ["cut.heic"]
    rng = np.random.default_rng(0)
    for n, label in enumerate(("a", "a", "b", "b")):
        file = tmp_path / "calls" / label / f"{n}.m4a"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(m4a(rng.uniform(-0.5, 0.5, 8000), 8000))
    file.write_bytes(file.read_bytes()[:500])
    table = load_table(tmp_path / "calls", learned=False)
    assert (table.kind, len(table.frame)) == ("sound", 3)
    assert "truncated" in reasons(table)["3.m4a"]
    cache = PictureCache(tmp_path / "cache")
    spectrogram = MelSettings.infer(table.frame["path"], size=(32, 32))
    assert (spectrogram.rate, spectrogram.window) == (8000, 1.0)
    pictures, bad = cache.render_all(table.frame["path"], spectrogram, workers=1)
    assert bad == []
    image = spectrogram.picture(table.frame["path"][0])
    assert np.array_equal(np.asarray(Image.open(pictures[0]).convert("RGB")), image)


def test_pictures_and_sounds_in_one_folder_are_named(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(root / "cat/0.wav", "a sound")
    assert load_table(root).kind == "picture"
    assert f"files of several kinds (6 picture; 1 sound: {Path('cat/0.wav')})" in caplog.text
    assert "--kind" in caplog.text


def test_a_note_beside_many_pictures_is_only_left_out(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes_file = write(root / "cat/notes.txt", "of the cats")
    load_table(root)
    assert f"(6 picture; 1 strain: {Path('cat/notes.txt')})" in caplog.text
    caplog.clear()
    for number in range(13):
        picture(root / f"dog/more {number}.png")
    assert [item.path for item in load_table(root).rejected] == [str(notes_file)]
    assert caplog.text == ""
