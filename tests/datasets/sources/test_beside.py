"""One way to find the file that a table names, and every source that goes it."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from datasets.sources.base import ReadOptions, read_source
from datasets.sources.beside import Below
from tests.datasets.files import picture, sound, write
from tests.left_out import needs

FILES = (
    "a.jpg", "north/cam 1/b.jpg", "south/cam 1/b.jpg", "north/c.jpg", "south/only.jpg", "images/7-x.jpg", "Füchse/d.jpg",
    "deep/er/e.jpg", "up/F.JPG", "low/f.jpg", "images/g.jpg", "x%20y.jpg", "one/g h.jpg", "cats/1.jpg", "dogs/2.jpg",
)  # fmt: skip
#: What is written, and the file; None where there is none of its own, several where it is unclear.
CASES: dict[str, str | tuple[str, ...] | None] = {
    "a.jpg": "a.jpg",
    " ./a.jpg ": "a.jpg",
    "{folder}/north/c.jpg": "north/c.jpg",
    "north\\cam 1\\b.jpg": "north/cam 1/b.jpg",
    "north/cam%201/b.jpg": "north/cam 1/b.jpg",
    "x%20y.jpg": "x%20y.jpg",
    "g%20h.jpg": "one/g h.jpg",
    "file:///D:/all/south/cam%201/b.jpg": "south/cam 1/b.jpg",
    "D:\\cam\\a.jpg": "a.jpg",
    "D:\\all\\south\\cam 1\\b.jpg": "south/cam 1/b.jpg",
    "\\\\server\\share\\north\\cam 1\\b.jpg": "north/cam 1/b.jpg",
    "/home/x/only.jpg": "south/only.jpg",
    "..\\..\\media\\only.jpg": "south/only.jpg",
    "data/local/only.jpg": "south/only.jpg",
    "images\\1/7-x.jpg": "images/7-x.jpg",
    "deep/e.jpg": "deep/er/e.jpg",
    "IMAGES/G.JPG": "images/g.jpg",
    "C:/f.jpg": "low/f.jpg",
    "C:/F.JPG": "up/F.JPG",
    "C:/Up/f.jpg": "up/F.JPG",
    unicodedata.normalize("NFD", "Füchse/d.jpg"): "Füchse/d.jpg",
    "E:\\" + unicodedata.normalize("NFD", "FÜCHSE\\d.jpg"): "Füchse/d.jpg",
    "abcdef01-a.jpg": "a.jpg",
    "c": "north/c.jpg",
    "b.jpg": ("north/cam 1/b.jpg", "south/cam 1/b.jpg"),
    "D:\\cam 1\\b.jpg": ("north/cam 1/b.jpg", "south/cam 1/b.jpg"),
    "gone.jpg": None,
    "a.wav": None,
    "dogs/1.jpg": None,  # the folder is there, and has no such file
    "D:\\all\\dogs\\1.jpg": None,
    "https://host/a.png": "https://host/a.png",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, "x")
    return tmp_path


@pytest.mark.parametrize(
    "written",
    [pytest.param(one, marks=needs("remote")) if "://" in one else one for one in CASES],
)
def test_the_file_that_is_meant(folder: Path, written: str) -> None:
    (found,) = Below(folder).locate([written.format(folder=folder)]).values()
    expected = CASES[written]
    if isinstance(expected, str):
        assert found.reason == ""
        assert found.path in (expected, str(folder / expected))
    else:
        assert {*found.files} == {str(folder / name) for name in expected or ()}
        assert all(file in found.reason for file in found.files)
        assert found.reason


def test_two_names_are_never_one_file(folder: Path) -> None:
    below = Below(folder)
    rivals = ["D:\\one\\a.jpg", "E:\\two\\a.jpg"]
    for found in below.locate(rivals).values():
        assert found.unclear
        assert str(folder / "a.jpg") in found.reason
    stronger = below.locate(["x/one/only.jpg", "x/south/only.jpg"])
    assert [one.files for one in stronger.values()] == [(), (str(folder / "south/only.jpg"),)]
    same = below.locate(["D:\\cam\\a.jpg", "D:/cam/a.jpg", "a.jpg"])
    assert [one.reason == "" for one in same.values()] == [False, False, True]


def test_of_equal_names_that_near_the_table_is_meant(folder: Path) -> None:
    below = Below(folder)
    for site in ("north", "south"):
        near = below.locate(["D:\\rec\\b.jpg"], folder / site / "cam 1")
        assert [one.path for one in near.values()] == [str(folder / site / "cam 1/b.jpg")]
        above = below.locate(["b.jpg"], folder / site / "tables")
        assert [one.path for one in above.values()] == [str(folder / site / "cam 1/b.jpg")]


def test_many_equal_names_are_told_apart_by_an_index(tmp_path: Path) -> None:
    """Cameras number their photos alike: 400 folders of 10 names, all written as on another machine."""
    files = [f"{tmp_path}/c{c}/IMG_{n:04}.JPG" for c in range(400) for n in range(10)]
    began = time.process_time()
    names = [f"D:\\all\\c{c}\\IMG_{n:04}.JPG" for c in range(400) for n in range(10)]
    renamed = [f"D:\\all\\cam{c}\\IMG_{n:04}.JPG" for c in range(400) for n in range(10)]
    below = Below(tmp_path, files=files)
    found = below.locate(names + renamed)
    assert [found[name].path for name in names] == files
    assert all(found[name].unclear for name in renamed)
    assert time.process_time() - began < 20


def _coco(folder: Path, names: list[str]) -> Path:
    images = [{"id": float(n), "file_name": name} for n, name in enumerate(names)]
    labels = [{"image_id": n, "category_id": n % 2} for n in range(len(names))]
    categories = [{"id": 0.0, "name": "fox"}, {"id": 1, "name": "deer"}]
    content = {"images": images, "annotations": labels, "categories": categories}
    return write(folder / "t.json", json.dumps(content))


def _megadetector(folder: Path, names: list[str]) -> Path:
    box = {
        "category": "1",
        "conf": 0.9,
        "bbox": [0.1, 0.1, 0.5, 0.5],
        "classifications": [["0", 1]],
    }
    images = [{"file": name, "detections": [box]} for name in names]
    content = {"images": images, "classification_categories": {"0": "fox"}}
    return write(folder / "t.json", json.dumps(content))


def _label_studio(folder: Path, names: list[str]) -> Path:
    value = {"from_name": "x", "to_name": "image", "value": {"choices": ["fox"]}}
    tasks = [{"data": {"image": n}, "annotations": [{"result": [value]}]} for n in names]
    return write(folder / "t.json", json.dumps(tasks))


def _camtrap(folder: Path, names: list[str]) -> Path:
    media = "".join(f"m{n},d,,{name}\n" for n, name in enumerate(names))
    seen = "".join(f"d,m{n},,,animal,fox\n" for n in range(len(names)))
    write(folder / "media.csv", f"mediaID,deploymentID,timestamp,filePath\n{media}")
    head = "deploymentID,mediaID,eventStart,eventEnd,observationType,scientificName\n"
    write(folder / "observations.csv", head + seen)
    tables = [{"name": one, "path": f"{one}.csv"} for one in ("media", "observations")]
    return write(folder / "datapackage.json", json.dumps({"resources": tables}))


def _table(header: str, row: str, name: str = "t.csv") -> Callable[[Path, list[str]], Path]:
    def make(folder: Path, names: list[str]) -> Path:
        rows = "".join(row.replace("NAME", one) + "\n" for one in names)
        return write(folder / name, f"{header}\n{rows}")

    return make


def _voc(folder: Path, names: list[str]) -> Path:
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    (folder / "annotations").mkdir()
    for n, name in enumerate(names):
        text = (
            f"<annotation><filename>{name}</filename><size><width>64</width><height>48</height></size>"
            f"<object><name>fox</name>{box}</object></annotation>"
        )
        write(folder / f"annotations/{n}.xml", text)
    return folder


def _elan(folder: Path, names: list[str]) -> Path:
    for n, name in enumerate(names):
        text = (
            f'<ANNOTATION_DOCUMENT><HEADER><MEDIA_DESCRIPTOR MEDIA_URL="{name}"/></HEADER><TIME_ORDER>'
            '<TIME_SLOT TIME_SLOT_ID="a" TIME_VALUE="0"/><TIME_SLOT TIME_SLOT_ID="b" TIME_VALUE="20"/></TIME_ORDER>'
            '<TIER TIER_ID="x"><ANNOTATION><ALIGNABLE_ANNOTATION TIME_SLOT_REF1="a" TIME_SLOT_REF2="b">'
            "<ANNOTATION_VALUE>wren</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION></TIER></ANNOTATION_DOCUMENT>"
        )
        write(folder / f"t{n}.eaf", text)
    return folder


RAVEN = "Selection\tBegin Time (s)\tEnd Time (s)\tBegin Path\tFile Offset (s)\tAnnotation"
#: What writes a table of pictures, or of recordings.
OF_PICTURES: dict[str, Callable[[Path, list[str]], Path]] = {
    "COCO": _coco,
    "MegaDetector": _megadetector,
    "Label Studio": _label_studio,
    "Camtrap DP": _camtrap,
    "Pascal VOC": _voc,
    "CSV": _table("path,label", "NAME,fox"),
    "JSON lines": lambda folder, names: write(
        folder / "t.jsonl", "".join(json.dumps({"file": n, "label": "fox"}) + "\n" for n in names)
    ),
    "Timelapse": _table("RelativePath,File,DateTime,Species", ",NAME,2020-01-01 00:00:00,fox"),
    "camtrapR": _table("Station,Species,DateTimeOriginal,Directory,FileName", "A,fox,,,NAME"),
    "Wildlife Insights": _table(
        "deployment_id,filename,class,order,family,genus,species", ",NAME,,,,Vulpes,vulpes"
    ),
}
OF_RECORDINGS: dict[str, Callable[[Path, list[str]], Path]] = {
    "Raven": _table(RAVEN, "\t0\t0.02\tNAME\t0\twren", "t.selections.txt"),
    "Raven as CSV": _table(RAVEN.replace("\t", ","), ",0,0.02,NAME,0,wren"),
    "ELAN": _elan,
    "BirdNET": _table("Start (s),End (s),Scientific name,Common name,Confidence,File", "0,3,x,Wren,0.5,NAME"),
    "Kaleidoscope": _table("INDIR,FOLDER,IN FILE,OFFSET,DURATION,MANUAL ID", ",,NAME,0,0.02,wren"),
    "Arbimon": _table("recording,species,x1,x2,y1,y2", "NAME,wren,0,0.02,0,4000"),
    "DCASE": _table("filename,scene_label", "NAME,park"),
}  # fmt: skip


#: Those that are read by a field.
OF_FIELDS = {
    "Camtrap DP": "cameras", "MegaDetector": "cameras", "ELAN": "recordings", "Raven": "recordings",
}  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(one, marks=needs(OF_FIELDS[one])) if one in OF_FIELDS else one
        for one in (*OF_PICTURES, *OF_RECORDINGS)
    ],
)
def test_every_source_finds_files_that_were_moved(tmp_path: Path, source: str) -> None:
    of_pictures, make = source in OF_PICTURES, (OF_PICTURES | OF_RECORDINGS)[source]
    ending = "png" if of_pictures else "wav"
    names = [f"north/a.{ending}", f"south/a.{ending}", f"south/b c.{ending}"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (picture if of_pictures else sound)(tmp_path / name)
    written = [f"D:\\rec\\north\\a.{ending}", f"D:\\rec\\SOUTH\\a.{ending}", f"b%20c.{ending}"]
    if source in ("Pascal VOC",):  # whose annotations lie apart, and name no folder
        written = [f"D:\\rec\\north\\a.{ending}", f"SOUTH/a.{ending}", f"b%20c.{ending}"]
    data = make(tmp_path, written)
    frame = read_source(str(data), ReadOptions(learned=False)).frame
    assert {*frame["path"]} == {str(tmp_path / name) for name in names}
