"""Tables of programs of the field: each as the program writes it, and what its rows are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.facts import Origin
from datasets.steps.reading import load_table
from tests.datasets.files import picture, write

#: Name of a table; its text; the files that exist; its items as (file, label, start, end); and what is left out, with
#: a word of the reason.
TIMELAPSE = (
    "TimelapseData.csv",
    "RootFolder,File,RelativePath,DateTime,DeleteFlag,Species,Count\n"
    "survey,IMG_1.JPG,north\\2020,2020-05-01 10:00:00,false,fox,1\n"
    "survey,IMG_1.JPG,south,2020-05-02 10:00:00,false,deer,2\n"
    "survey,IMG_2.JPG,,2020-05-03 10:00:00,false,fox,1\n"
    "survey,IMG_3.JPG,south,2020-05-03 10:00:00,false,,1\n"
    "survey,IMG_9.JPG,south,2020-05-03 10:00:00,false,deer,1\n",
    ["north/2020/IMG_1.JPG", "south/IMG_1.JPG", "IMG_2.JPG", "south/IMG_3.JPG"],
    [("north/2020/IMG_1.JPG", "fox"), ("south/IMG_1.JPG", "deer"), ("IMG_2.JPG", "fox"), ("south/IMG_9.JPG", "deer")],
    {"south/IMG_3.JPG": "no label (row 5 of TimelapseData.csv)"},
)  # fmt: skip
CAMTRAPR = (
    "record_table.csv",
    '"Station","Species","DateTimeOriginal","Date","Time","delta.time.secs","Directory","FileName"\n'
    '"A","PBE","2009-04-21 00:40:00","2009-04-21","00:40:00","0","C:/Users/x/renamed/A/PBE","A__1.JPG"\n'
    '"B","PBE","2009-04-22 20:19:00","2009-04-22","20:19:00","0","C:/Users/x/renamed/B/PBE","A__1.JPG"\n'
    '"B","TRA","2009-04-22 20:19:00","2009-04-22","20:19:00","0","C:/Users/x/renamed/B/TRA","B__2.JPG"\n'
    '"B","TRA","2009-04-22 20:21:00","2009-04-22","20:21:00","0","C:/Users/x/renamed/B/TRA","B__3.JPG"\n'
    '"B","PBE","2009-04-22 20:21:00","2009-04-22","20:21:00","0","C:/Users/x/renamed/B/TRA","B__3.JPG"\n',
    ["A/PBE/A__1.JPG", "B/PBE/A__1.JPG", "B/TRA/B__2.JPG", "B/TRA/B__3.JPG"],
    [("A/PBE/A__1.JPG", "PBE"), ("B/PBE/A__1.JPG", "PBE"), ("B/TRA/B__2.JPG", "TRA")],
    {"B/TRA/B__3.JPG": "several labels, PBE and TRA, but one is needed"},
)
KALEIDOSCOPE = (
    "cluster.csv",
    "INDIR,FOLDER,IN FILE,CHANNEL,OFFSET,DURATION,Fmin,TOP1MATCH*,TOP1DIST*,MANUAL ID\n"
    "D:\\rec,night,a_20200501.wav,0,1.5,0.5,2000,c.01,0.3,wren\n"
    "D:\\rec,night,a_20200501.wav,0,3,0.25,2000,c.02,0.3,robin\n"
    "D:\\rec,,b.wav,0,0,2,2000,c.02,0.3,robin\n"
    "D:\\rec,,b.wav,0,x,2,2000,c.02,0.3,robin\n"
    "D:\\rec,,b.wav,0,2,2,2000,c.02,0.3,\n"
    "D:\\rec,,b.wav,0,2,2,2000,c.02,0.3,NoID\n",
    ["data/night/a_20200501.wav", "data/b.wav"],
    [("data/night/a_20200501.wav", "wren", 1.5, 2), ("data/night/a_20200501.wav", "robin", 3, 3.25), ("data/b.wav", "robin", 0, 2)],
    {"row 5 of cluster.csv": "start 'x' and duration '2' are no span", "row 6 of cluster.csv": "no label", "row 7 of cluster.csv": "no label"},
)  # fmt: skip
BIRDNET = (
    "BirdNET_CombinedTable.csv",
    "Start (s),End (s),Scientific name,Common name,Confidence,File\n"
    "0,3,Turdus merula,Blackbird,0.91,/home/x/night/a.wav\n"
    "3,6,Erithacus rubecula,Robin,0.2,/home/x/night/a.wav\n"
    "3,6,nocall,nocall,0.2,/home/x/b.wav\n"
    "6.0,9.0,Turdus merula,Blackbird,0.5,/home/x/b.wav\n",
    ["night/a.wav", "b.wav"],
    [("night/a.wav", "Blackbird", 0, 3, 0.91), ("night/a.wav", "Robin", 3, 6, 0.2), ("b.wav", "Blackbird", 6, 9, 0.5)],
    {"b.wav": "nocall"},
)  # fmt: skip
BIRDNET_R = (
    "r.csv",
    "filepath,start,end,scientific_name,common_name,confidence,lat,lon,week,overlap,sensitivity,min_conf,species_list,model\n"
    "night/a.wav,0,3,Turdus merula,Blackbird,0.91,,,,,,,,\nb.wav,3,6,Erithacus rubecula,Robin,0.25,,,,,,,,\n",
    ["night/a.wav", "b.wav"],
    [("night/a.wav", "Blackbird", 0, 3, 0.91), ("b.wav", "Robin", 3, 6, 0.25)],
    {},
)
ARBIMON = (
    "pattern-matching.csv",
    "recording,site,year,month,day,hour,min,species,songtype,x1,x2,y1,y2,validated,score\n"
    "S1-2020.flac,S1,2020,5,1,4,0,Turdus merula,Simple Song,1.25,2.5,500,4000,1,0.4\n"
    "S1-2020.flac,S1,2020,5,1,4,0,Turdus merula,Simple Song,7.25,8.5,500,4000,0,0.3\n"
    "S2-2020.flac,S2,2020,5,1,4,0,Parus major,Call,0,1,1500,9000,,0.4\n",
    ["audio/S1-2020.flac", "audio/S2-2020.flac"],
    [("audio/S1-2020.flac", "Turdus merula", 1.25, 2.5), ("audio/S2-2020.flac", "Parus major", 0, 1)],
    {"row 3 of pattern-matching.csv": "validated is '0'"},
)  # fmt: skip
#: Tables of which only the columns are named otherwise.
OPENSOUNDSCAPE = (
    "one_hot.csv",
    "file,start_time,end_time,wren,robin,owl\na.wav,0,3,1,0,0\na.wav,3,6,0,1,0\nsub/b.wav,0,3,0,0,1\n",
    ["a.wav", "sub/b.wav"],
    [("a.wav", "wren", 0, 3), ("a.wav", "robin", 3, 6), ("sub/b.wav", "owl", 0, 3)],
    {},
)
DCASE = (
    "strong.tsv",
    "filename\tonset\toffset\tevent_label\nYa_30_40.wav\t0.5\t1.25\tSpeech\nYa_30_40.wav\t1\t2\tDog\nYb_0_10.wav\t0\t10\tDog\n",
    ["audio/Ya_30_40.wav", "audio/Yb_0_10.wav"],
    [("audio/Ya_30_40.wav", "Speech", 0.5, 1.25), ("audio/Ya_30_40.wav", "Dog", 1, 2), ("audio/Yb_0_10.wav", "Dog", 0, 10)],
    {},
)  # fmt: skip
AUDIOSET = (
    "audioset_eval_strong.tsv",
    "segment_id\tstart_time_seconds\tend_time_seconds\tlabel\ns9d-2nhuJCQ_30000\t2.627\t7.237\t/m/053hz1\n"
    "b0RFKhbpFJA_30000\t0.000\t10.000\t/m/03m9d0z\n",
    ["wav/s9d-2nhuJCQ_30000.wav", "wav/b0RFKhbpFJA_30000.wav"],
    [("wav/s9d-2nhuJCQ_30000.wav", "/m/053hz1", 2.627, 7.237), ("wav/b0RFKhbpFJA_30000.wav", "/m/03m9d0z", 0, 10)],
    {},
)  # fmt: skip
AUDIOSET_SEGMENTS = (
    "eval_segments.csv",
    "# Segments csv created Sun Mar  5 10:54:25 2017\n# num_ytids=20371, num_segs=20371\n"
    '# YTID, start_seconds, end_seconds, positive_labels\n--4gqARaEJE, 0.000, 10.000, "/m/068hy"\n'
    '-0DdlOuIFUI, 50.000, 60.000, "/m/04rlf"\n-gone, 50.000, 60.000, ""\n',
    ["wav/--4gqARaEJE.wav", "wav/-0DdlOuIFUI.wav"],
    [("wav/--4gqARaEJE.wav", "/m/068hy"), ("wav/-0DdlOuIFUI.wav", "/m/04rlf")],
    {"-gone": "no label (row 6 of eval_segments.csv)"},
)
BIRDCLEF = (
    "train_metadata.csv",
    "primary_label,secondary_labels,type,scientific_name,common_name,rating,filename\n"
    "asbfly,['whiter'],['call'],Muscicapa dauurica,Asian Brown Flycatcher,5.0,asbfly/XC1.ogg\n"
    "whiter,[],[''],Himantopus leucocephalus,White-headed Stilt,4.0,whiter/XC2.ogg\n",
    ["train_audio/asbfly/XC1.ogg", "train_audio/whiter/XC2.ogg"],
    [("train_audio/asbfly/XC1.ogg", "asbfly"), ("train_audio/whiter/XC2.ogg", "whiter")],
    {},
)
RFCX = (
    "train_tp.csv",
    "recording_id,species_id,songtype_id,t_min,f_min,t_max,f_max\n003bec244,14,1,44.544,2531.25,45.1307,5531.25\n"
    "006ab765f,23,1,39.9615,7235.15,46.0452,11283.39\n",
    ["train/003bec244.flac", "train/006ab765f.flac"],
    [("train/003bec244.flac", "14", 44.544, 45.1307), ("train/006ab765f.flac", "23", 39.9615, 46.0452)],
    {},
)  # fmt: skip
WILDLIFE_INSIGHTS = (
    "images_2000001.csv",
    "project_id,deployment_id,image_id,filename,location,is_blank,identified_by,wi_taxon_id,class,order,family,genus,species,"
    "common_name,uncertainty,timestamp,number_of_objects\n"
    "1,d1,i1,IMG_1.JPG,gs://b/deployment/1/aa.JPG,0,x,t,Mammalia,Carnivora,Canidae,Vulpes,vulpes,Red Fox,,2019-05-01 10:00:00,1\n"
    "1,d2,i2,IMG_1.JPG,gs://b/deployment/2/bb.JPG,0,x,t,Mammalia,Carnivora,Canidae,Vulpes,,Vulpes Species,,2019-05-01 10:00:00,1\n"
    "1,d2,i3,IMG_2.JPG,gs://b/deployment/2/cc.JPG,1,x,t,,,,,,Blank,,2019-05-02 10:00:00,1\n"
    "1,d2,i4,IMG_3.JPG,gs://b/deployment/2/dd.JPG,0,x,t,Aves,,,,,Bird,,2019-05-02 10:00:00,1\n"
    "1,d2,i5,IMG_4.JPG,gs://b/deployment/2/ee.JPG,0,x,t,,,,,,Vehicle,,2019-05-02 10:00:00,1\n"
    "1,d2,i6,IMG_5.JPG,gs://b/deployment/2/ff.JPG,0,x,t,No CV Result,No CV Result,,,,No CV Result,,2019-05-02 10:00:00,1\n"
    "1,d1,i7,IMG_7.JPG,gs://b/deployment/1/gg.JPG,0,x,t,Aves,,,,,Bird,,2019-05-01 10:00:00,1\n"
    "1,d1,i7,IMG_7.JPG,gs://b/deployment/1/gg.JPG,0,x,t,Mammalia,,,,,Mammal,,2019-05-01 10:00:00,1\n"
    "1,d3,i8,IMG_1.JPG,gs://b/deployment/3/hh.JPG,0,x,t,Aves,,,,,Bird,,2019-05-01 10:00:00,1\n",
    ["all/d1/IMG_1.JPG", "all/d2/IMG_1.JPG", "IMG_2.JPG", "all/dd.JPG", "all/d2/IMG_4.JPG", "all/d2/IMG_5.JPG", "all/d1/IMG_7.JPG"],
    [("all/d1/IMG_1.JPG", "Vulpes vulpes"), ("all/d2/IMG_1.JPG", "Vulpes"), ("IMG_2.JPG", "blank"), ("all/dd.JPG", "Aves"),
     ("all/d2/IMG_4.JPG", "Vehicle"), ("d3/IMG_1.JPG", "Aves")],
    {"IMG_5.JPG": "no label (row 7 of images_2000001.csv)", "IMG_7.JPG": "several labels, Aves and Mammalia"},
)  # fmt: skip
URBANSOUND8K = (
    "metadata/UrbanSound8K.csv",
    "slice_file_name,fsID,start,end,salience,fold,classID,class\n100032-3-0-0.wav,100032,0.0,0.317551,1,5,3,dog_bark\n"
    "100263-2-0-117.wav,100263,58.5,62.5,1,5,2,children_playing\n",
    ["audio/fold5/100032-3-0-0.wav", "audio/fold5/100263-2-0-117.wav"],
    [("audio/fold5/100032-3-0-0.wav", "dog_bark"), ("audio/fold5/100263-2-0-117.wav", "children_playing")],
    {},
)  # fmt: skip
ESC50 = (
    "meta/esc50.csv",
    "filename,fold,target,category,esc10,src_file,take\n1-100032-A-0.wav,1,0,dog,True,100032,A\n1-100038-A-14.wav,1,14,birds,False,1,A\n",
    ["audio/1-100032-A-0.wav", "audio/1-100038-A-14.wav"],
    [("audio/1-100032-A-0.wav", "dog"), ("audio/1-100038-A-14.wav", "birds")],
    {},
)  # fmt: skip
DOG_BREEDS = (
    "labels.csv",
    "id,breed\n000bec,boston_bull\n001513,dingo\n",
    ["train/000bec.JPG", "train/001513.JPG", "test/0aa.JPG"],
    [("train/000bec.JPG", "boston_bull"), ("train/001513.JPG", "dingo")],
    {},
)
#: Paths of other machines; of a file that is gone, one of the name elsewhere is another.
ELSEWHERE = (
    "train.csv",
    "image,label\n/home/x/train/Coat/1.JPG,coat\nC:\\Users\\x\\train\\Hat\\1.JPG,hat\nD:\\3.JPG,tie\n/home/x/train/Tie/2.JPG,tie\n",
    ["train/Coat/1.JPG", "train/Hat/1.JPG", "train/Hat/2.JPG", "3.JPG"],
    [("train/Coat/1.JPG", "coat"), ("train/Hat/1.JPG", "hat"), ("3.JPG", "tie"), ("/home/x/train/Tie/2.JPG", "tie")],
    {},
)  # fmt: skip
TABLES = (TIMELAPSE, CAMTRAPR, KALEIDOSCOPE, BIRDNET, BIRDNET_R, ARBIMON, OPENSOUNDSCAPE, DCASE, AUDIOSET, AUDIOSET_SEGMENTS, BIRDCLEF, RFCX, WILDLIFE_INSIGHTS, URBANSOUND8K, ESC50, DOG_BREEDS, ELSEWHERE)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.items.labels.FEWEST", 1)
    return tmp_path


def files(place: Path, names: list[str]) -> None:
    for name in names:
        picture(place / name) if name.endswith("JPG") else write_empty(place / name)


def write_empty(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")


@pytest.mark.parametrize("case", TABLES, ids=[table[0] for table in TABLES])
def test_rows_of_a_programs_table(place: Path, case: tuple) -> None:
    name, text, existing, expected, rejected = case
    files(place, existing)
    table = place / name
    table.parent.mkdir(exist_ok=True)
    read = load_table(write(table, text), check=False)
    times = [
        name
        for name in ("start", "end", "confidence")
        if len(expected[0]) > 2 and name in read.frame
    ]
    rows = read.frame[["path", "label", *times]].to_numpy().tolist()
    assert rows == [[str(place / file), *more] for file, *more in expected]
    found = {str(one) for one in read.rejected}
    assert len(found) == len(rejected)
    for where, why in rejected.items():
        assert any(where in one and why in one for one in found), found


def test_columns_of_the_place_and_the_time_are_carried_along(place: Path) -> None:
    name, text, existing, *_ = CAMTRAPR
    files(place, existing)
    frame = load_table(write(place / name, text), check=False).frame
    assert frame["group"].tolist() == frame["deployment"].tolist() == ["A", "B", "B"]
    assert frame["time"].tolist()[0] == "2009-04-21 00:40:00"


@pytest.mark.parametrize("folders", [("A",), ("A", "B")])
def test_two_names_are_never_one_file(place: Path, folders: Sequence[str]) -> None:
    """Of a photo that is gone, another deployment may have the name."""
    rows = "".join(f"{one},s{one},2009-04-21 00:40:00,D:/all/{one},IMG_1.JPG\n" for one in "AB")
    path = write(place / "t.csv", f"Station,Species,DateTimeOriginal,Directory,FileName\n{rows}")
    files(place, [f"{one}/IMG_1.JPG" for one in folders])
    table = load_table(path, learned=False)
    assert table.frame["path"].tolist() == [str(place / one / "IMG_1.JPG") for one in folders]
    assert table.frame["label"].tolist() == [f"s{one}" for one in folders]
    assert [Path(one.path).parent.name for one in table.rejected] == ["B"][len(folders) - 1 :]


def test_several_labels_of_one_file_are_joined_where_an_item_may_have_them(place: Path) -> None:
    name, text, existing, *_ = CAMTRAPR
    files(place, existing)
    frame = load_table(write(place / name, text), check=False, labels="multi").frame
    assert frame["label"].tolist() == ["PBE", "PBE", "TRA", "PBE|TRA"]


def test_a_recording_is_found_where_the_table_says(place: Path) -> None:
    """Although one of its name lies beside the table."""
    for folder in ("recordings", "results"):
        write_empty(place / folder / "a.wav")
    row = f"0,3,x,Robin,0.5,{place}/recordings/a.wav\n"
    table = write(place / "results/t.csv", BIRDNET[1].splitlines()[0] + "\n" + row)
    frame = load_table(table, check=False, learned=False).frame
    assert frame["path"].tolist() == [str(place / "recordings/a.wav")]


def test_a_folder_of_tables_that_birdnet_named_after_their_recordings(place: Path) -> None:
    header = "Start (s),End (s),Scientific name,Common name,Confidence\n"
    for number, bird in enumerate(("Robin", "Wren")):
        write_empty(place / f"in/{bird}.WAV")
        row = f"{number},{number + 3},x,{bird},0.{number + 5}\n"
        write(place / f"{bird}.BirdNET.results.csv", header + row)
    write(place / "gone.BirdNET.results.csv", header + "0,3,x,Robin,0.5\n")
    table = load_table(place, check=False)
    columns = ["path", "label", "start", "confidence"]
    assert table.frame[columns].to_numpy().tolist() == [
        [str(place / "in/Robin.WAV"), "Robin", 0, 0.5],
        [str(place / "in/Wren.WAV"), "Wren", 1, 0.6],
    ]
    assert ["gone.BirdNET" in str(one) for one in table.rejected] == [True]
    assert "made by BirdNET" in table.fact(Origin).note


def test_a_label_column_of_another_name(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    files(place, TIMELAPSE[2])
    text = TIMELAPSE[1].replace("Species", "Animal")
    path = write(place / "t.csv", text)
    with pytest.raises(SecondhandError, match=r"t\.csv: no column 'species' .*--label-column"):
        load_table(path, check=False)
    assert load_table(path, check=False, label_column="Animal").classes == ["deer", "fox"]
    with caplog.at_level(logging.INFO):
        path = write(place / "t.csv", text.replace("Animal", "category"))
        assert load_table(path, check=False).classes == ["deer", "fox"]


def test_the_table_of_a_spreadsheet_abroad(place: Path) -> None:
    """Semicolons, decimal commas, and an encoding of Windows."""
    files(place, KALEIDOSCOPE[2])
    text = KALEIDOSCOPE[1].replace(",", ";").replace(".5;", ",5;").replace(".25", ",25")
    path = place / "t.csv"
    path.write_bytes(text.replace("wren", "Zaunkönig").encode("cp1252"))
    frame = load_table(path, check=False).frame
    assert frame["label"].tolist() == ["Zaunkönig", "robin", "robin"]
    assert frame[["start", "end"]].to_numpy().tolist() == [[1.5, 2], [3, 3.25], [0, 2]]
    assert isinstance(frame, pd.DataFrame)
