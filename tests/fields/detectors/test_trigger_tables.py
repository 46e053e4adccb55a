"""Trigger tables in the field's formats are matched with strain; missing strain is listed."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from datasets.core.errors import Rejected, SecondhandError
from datasets.steps.reading import load_table
from datasets.strain.frames import Stream, read_frames
from fields.detectors.trigger_tables import (
    check_table,
    find_strain_files,
    read_triggers,
    write_table,
)
from tests.datasets.files import write
from tests.datasets.sources.strain import CSV, START, frame


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    for start in (START, START + 64):
        frame(folder / "H1", "H1", start)
    frame(folder / "L1", "L1")
    write(folder / "strain.hdf5", "whose?")
    write(folder / "readme.md", "x")
    return folder


def name_of(found: Stream | Rejected) -> str:
    """Name of the only file of a stream."""
    assert isinstance(found, Stream)
    (file,) = found.files
    return Path(file.path).name


def test_a_file_is_found_by_the_times_in_its_name(frames: Path) -> None:
    strain_files = read_frames(str(frames))
    assert {name: len(files) for name, files in strain_files.files.items()} == {"H1": 2, "L1": 1}
    assert [Path(path).name for path, _ in strain_files.rejected] == ["strain.hdf5"]
    for gps, start in ((START, START), (START + 63.9, START), (START + 64, START + 64)):
        assert name_of(strain_files.find("H1", gps)) == f"H-H1_SIM-{start}-64.hdf5"
    missing = {
        ("H1", START + 128.0): f"no strain of H1 at GPS {START + 128}.000",
        ("L1", START - 1.0): f"no strain of L1 at GPS {START - 1}.000",
        ("V1", START): "no strain of the detector 'V1'; there is strain of H1, L1",
        ("", START): "the detector is not named; there is strain of H1, L1",
    }
    for (detector, gps), reason in missing.items():
        assert strain_files.find(detector, gps) == Rejected("", reason)


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("GPS Time,Detector", f"{START}.5,h1", (START + 0.5, "H1", "")),
        ("event_time,channel_name", f"{START}.5,h1:x-aux_dq", (START + 0.5, "H1", "h1:x-aux_dq")),
        ("gps,Interferometer,Channel Name", f"{START},H1,X-AUX", (START, "H1", "H1:X-AUX")),
        ("gps,gps_ns,ifo", f"{START},500000000,H1", (START + 0.5, "H1", "")),
        ("gps,gps_ns,ifo", f"{START}.5,500000000,H1", (START + 0.5, "H1", "")),
        ("Peak Time,Peak Time_ns,ifo", f"{START},500000000,V1", (START + 0.5, "V1", "")),
    ],
)
def test_columns_are_found_however_they_are_written(
    tmp_path: Path, header: str, row: str, expected: tuple[float, str, str]
) -> None:
    found = read_triggers(write(tmp_path / "t.csv", f"{header}\n{row}\n"))
    assert (found.gps[0], found.detector[0], found.channel[0]) == expected


@pytest.mark.parametrize("cell", ["", "nan", "half"])
def test_nanoseconds_that_are_missing_are_named(frames: Path, tmp_path: Path, cell: str) -> None:
    lines = [f"{START + 9},500000000,h1,A", f"{START + 9},{cell},h1,A"]
    text = "\n".join(["peak_time,peak_time_ns,ifo,label", *lines])
    triggers = read_triggers(write(tmp_path / "t.csv", text))
    found, missing = find_strain_files(triggers, read_frames(str(frames)))
    assert isinstance(found, str)
    assert isinstance(missing, Rejected)
    assert f"peak_time_ns {cell!r}" in missing.reason


def test_of_files_that_overlap_the_one_with_most_around_it(tmp_path: Path) -> None:
    for name in ("H-H1_A-100-64.gwf", "H-H1_B-140-400.gwf", "H-R-150-20.gwf", "H-H1_A-164-64.gwf"):
        write(tmp_path / name, "")
    strain_files = read_frames(str(tmp_path))
    at = {130: "H-H1_A-100-64.gwf", 165: "H-H1_B-140-400.gwf", 161: "H-H1_B-140-400.gwf"}
    assert {gps: name_of(strain_files.find("H1", gps)) for gps in at} == at
    assert name_of(strain_files.find("H2", 160)) == "H-R-150-20.gwf"  # both of the site


def test_a_lal_cache_names_files(frames: Path, tmp_path: Path) -> None:
    file = frames / f"H1/H-H1_SIM-{START}-64.hdf5"
    lines = [
        f"H H1_SIM {START} 64 file://localhost{file}",
        f"{frames}/L1/L-L1_SIM-{START}-64.hdf5 {START} 64 0 0",  # the format that Virgo writes
        f"H H1_SIM {START + 64} 64 gsiftp://far/H-H1_SIM-{START + 64}-64.hdf5",
    ]
    strain_files = read_frames(str(write(tmp_path / "frames.lcf", "\n".join(lines))))
    assert name_of(strain_files.find("H1", START + 1)) == file.name
    assert {*strain_files.files} == {"H1", "L1"}
    assert [*strain_files.rejected] == [
        Rejected(f"{tmp_path}/frames.lcf, line 3", "gsiftp: addresses cannot be opened")
    ]
    with pytest.raises(
        SecondhandError, match="no strain file with detector, GPS time and duration in its name"
    ):
        read_frames(str(tmp_path))


def times(path: Path) -> list[tuple[str, float]]:
    triggers = read_triggers(path)
    return list(zip(triggers.detector, triggers.gps, strict=True))


def test_triggers_are_read_as_a_spreadsheet_saves_them(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(f"event_time;ifo\r\n{START},25;H1\r\n{START + 1};L1\r\n".encode("utf-16"))
    assert times(file) == [("H1", START + 0.25), ("L1", START + 1)]


def test_omicrons_hdf5_is_read_of_one_data_set_or_of_many(tmp_path: Path) -> None:
    values = {"time": [START + 1.5, START + 2.25], "frequency": [100.0, 50.0], "snr": [8.0, 9.0]}
    table = np.rec.fromarrays([*values.values()], names=[*values])
    one, many = (tmp_path / f"H1-SIM_OMICRON-{START}-{n}.h5" for n in (64, 65))
    with h5py.File(one, "w") as file:
        file["triggers"] = table
    with h5py.File(many, "w") as file:
        for name, column in values.items():
            file[f"triggers/{name}"] = column
    assert times(one) == times(many) == [("H1", START + 1.5), ("H1", START + 2.25)]
    assert [*read_triggers(many).cells] == sorted(values)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["triggers"] = h5py.ExternalLink("other.h5", "a")
    with pytest.raises(SecondhandError, match="ExternalLink, which is not followed"):
        read_triggers(tmp_path / "x.h5")


LIGO_LW = """<?xml version='1.0' encoding='utf-8'?>
<!DOCTYPE LIGO_LW SYSTEM "http://ldas-sw.ligo.caltech.edu/doc/ligolwAPI/html/ligolw_dtd.txt">
<LIGO_LW><Table Name="sngl_burst:table">
<Column Name="sngl_burst:ifo" Type="lstring"/><Column Name="sngl_burst:peak_time" Type="int_4s"/>
<Column Name="sngl_burst:peak_time_ns" Type="int_4s"/><Column Name="sngl_burst:snr" Type="real_4"/>
<Stream Name="sngl_burst:table" Type="Local" Delimiter=",">"L1",{0},250000000,8.5,"H1",{0},5,9.5</Stream>
</Table></LIGO_LW>"""


def test_ligo_lw_is_read(tmp_path: Path) -> None:
    pytest.importorskip("igwn_ligolw")
    file = write(tmp_path / "a.xml", LIGO_LW.format(START))
    assert times(file) == [("L1", START + 0.25), ("H1", START + 5e-9)]
    grouped = LIGO_LW.format(START).replace("sngl_burst:", "sngl_burstgroup:sngl_burst:")
    assert times(write(tmp_path / "c.xml", grouped)) == times(file)
    with pytest.raises(SecondhandError, match="cannot be read as a table"):
        read_triggers(write(tmp_path / "b.xml", "<LIGO_LW><Table>"))


OLD_LIGO_LW = """<?xml version='1.0' encoding='utf-8'?>
<!DOCTYPE LIGO_LW SYSTEM "http://ldas-sw.ligo.caltech.edu/doc/ligolwAPI/html/ligolw_dtd.txt">
<LIGO_LW><Table Name="process:table">
<Column Type="lstring" Name="process:comment"/><Column Type="ilwd:char" Name="process:process_id"/>
<Stream Delimiter="," Type="Local" Name="process:table">,"process:process_id:0"</Stream>
</Table><Table Name="sngl_burst:table">
<Column Type="lstring" Name="sngl_burst:ifo"/><Column Type="int_4s" Name="sngl_burst:peak_time"/>
<Column Type="int_4s" Name="sngl_burst:peak_time_ns"/><Column Type="real_4" Name="sngl_burst:snr"/>
<Column Type="ilwd:char" Name="sngl_burst:event_id"/>
<Stream Delimiter="," Type="Local" Name="sngl_burst:table">
"L1",{0},250000000,8.5,"sngl_burst:event_id:4696",
"H1",{0},5,9.5,"sngl_burst:event_id:4697"
</Stream></Table></LIGO_LW>"""


def test_ligo_lw_with_ids_of_text_is_read(tmp_path: Path) -> None:
    """Files from before 2020 are read as by gwpy, even if igwn_ligolw's stricter class is
    imported."""
    gwpy = pytest.importorskip("gwpy.table")
    pytest.importorskip("igwn_ligolw.lsctables")
    file = write(tmp_path / "a.xml", OLD_LIGO_LW.format(START))
    assert times(file) == [("L1", START + 0.25), ("H1", START + 5e-9)]
    by_gwpy = gwpy.EventTable.read(file, format="ligolw", tablename="sngl_burst")
    ours = read_triggers(file).cells
    for name in ("ifo", "peak_time", "peak_time_ns", "snr"):
        assert [*ours[name]] == [*by_gwpy[name]], name
    assert ours["event_id"].tolist() == [f"sngl_burst:event_id:{n}" for n in by_gwpy["event_id"]]


@pytest.mark.filterwarnings("ignore")  # astropy warns of the name and of what it leaves out
def test_what_gwpy_writes_by_default_is_read(tmp_path: Path) -> None:
    """It writes a data set ``__astropy_table__`` and the columns' meaning beside it."""
    gwpy = pytest.importorskip("gwpy.table")
    columns = {"event_time": [START + 1.5, START + 2.25], "ifo": ["H1", "L1"], "snr": [8.5, 9.5]}
    table = gwpy.EventTable(columns)
    table["snr"].description = "signal-to-noise ratio"
    for serialized in (False, True):
        file = tmp_path / f"{serialized}.h5"
        table.write(file, serialize_meta=serialized)
        assert times(file) == [("H1", START + 1.5), ("L1", START + 2.25)]
        assert read_triggers(file).cells["snr"].tolist() == columns["snr"]
    with h5py.File(tmp_path / "True.h5") as written:
        assert {*written} == {"__astropy_table__", "__astropy_table__.__table_column_meta__"}


def test_labelled_triggers_are_items(frames: Path, tmp_path: Path) -> None:
    rows = [
        f"{START + 70}.5,H1,8,a1,Blip,0.9",
        f"{START + 20},H1,8,a2,Blip,0.8",
        f"{START + 30},L1,8,a3,Tomte,0.7",
        f"{START + 30},L1,8,a3,Tomte,0.7",  # a repeated row
        f"{START + 40},L1,8,a4,Tomte,0.7",
        f"{START + 900},H1,8,a5,Blip,0.9",
        f'"{START + 20},125 s",H1,8,a6,Blip,0.9',
        f"{START + 20},V1,8,a7,Blip,0.9",
        f"{START + 20},L1,8,a8,,0.9",
    ]
    table = load_table(
        write(tmp_path / "t.csv", CSV + "\n".join(rows)), settings={"strain": str(frames)}
    )
    assert table.kind == "strain"
    items = zip(table.frame["path"], table.frame["label"], table.frame["gps"], strict=True)
    assert [(Path(path).name[2:4], *rest) for path, *rest in items] == [
        ("H1", "Blip", START + 20), ("H1", "Blip", START + 70.5),
        ("L1", "Tomte", START + 30), ("L1", "Tomte", START + 40),
    ]  # fmt: skip
    listed = {Path(item.path).name: item.reason for item in table.rejected}
    assert listed.pop("strain.hdf5").startswith("its name has no GPS time and duration")
    assert listed == {
        "t.csv, row 5": "the same trigger as an earlier row",
        "t.csv, row 7": f"no strain of H1 at GPS {START + 900}.000",
        "t.csv, row 8": f"event_time '{START + 20},125 s' is not a GPS time",
        "t.csv, row 9": "no strain of the detector 'V1'; there is strain of H1, L1",
        "t.csv, row 10": "no label",
    }


def test_of_predicted_triggers_the_labels_changed_by_hand_are_taken(
    frames: Path, tmp_path: Path
) -> None:
    head = "event_time,ifo,ml_label,ml_confidence,label,reason\n"
    predictions = [
        f"{START + 20},H1,Blip,0.9,Blip,",
        f"{START + 30},H1,Blip,0.4,unknown,ambiguous",
        f"{START + 900},H1,,,unknown,no strain of H1",
    ]
    changed = [
        f"{START + 40},H1,Blip,0.9,Tomte,",
        f"{START + 70},H1,Blip,0.4,Blip,ambiguous",
        f"{START + 20},L1,Tomte,0.9,unknown,",
        f"{START + 30},L1,Tomte,0.9,Blip,",
        f"{START + 40},L1,Blip,0.9,Tomte,",
    ]
    answers = write(tmp_path / "all.csv", head + "\n".join(predictions + changed))
    table = load_table(answers, settings={"strain": str(frames)})
    rows = zip(table.frame["label"], table.frame["gps"], strict=True)
    assert sorted(rows) == [
        ("Blip", START + 30), ("Blip", START + 70), ("Tomte", START + 40), ("Tomte", START + 40)
    ]  # fmt: skip
    assert table.unknown_items["gps"].tolist() == [START + 20]
    with pytest.raises(SecondhandError, match=r"predictions\.csv: .*no label was corrected"):
        load_table(
            write(tmp_path / "predictions.csv", head + "\n".join(predictions)),
            settings={"strain": str(frames)},
        )


def test_a_call_that_names_no_triggers_is_said(frames: Path, tmp_path: Path) -> None:
    bad = write(tmp_path / "t.csv", "time_of_day;ifo\n1.5;H1\n")
    with pytest.raises(SecondhandError, match=r"no column of GPS times .*It has time_of_day, ifo"):
        load_table(bad, settings={"strain": str(frames)})
    good = write(tmp_path / "g.csv", f"gps,ifo,kind\n{START + 20},H1,Blip\n")
    with pytest.raises(
        SecondhandError, match=r"no column label or ml_label\. It has gps, ifo, kind"
    ):
        load_table(good, settings={"strain": str(frames)})
    file = write(tmp_path / "t.txt", good.read_text())
    with pytest.raises(SecondhandError, match=rf"^{file}: not a table of triggers"):
        read_triggers(file)
    with pytest.raises(SecondhandError, match="a table of triggers, add --strain"):
        load_table(good)
    with pytest.raises(SecondhandError, match="is neither a table of triggers"):
        load_table(frames, settings={"strain": str(frames)})


TABLE = pd.DataFrame({
    "event_time": ["1126259462.391012345", "1126259463.5"], "ifo": ["H1", "L1"],
    "snr": ["8.5", ""], "rank": ["1", "-2"], "gravityspy_id": ["007", "12"],
    "note": ["é", ""], "nothing": ["", ""], "ml_confidence": [0.5, np.nan],
})  # fmt: skip


@pytest.mark.slow  # gwpy's import takes seconds
@pytest.mark.parametrize("ending", ["csv", "hdf5", "ecsv"])
def test_a_table_is_read_back_by_gwpy_and_by_us(tmp_path: Path, ending: str) -> None:
    table = pytest.importorskip("gwpy.table")
    out = tmp_path / f"a.{ending}"
    check_table(out)
    write_table(TABLE, out)
    formats = {"csv": "ascii.csv", "hdf5": "hdf5", "ecsv": "ascii.ecsv"}[ending]
    read = table.EventTable.read(out, format=formats)
    assert read.colnames == [*TABLE]
    np.testing.assert_array_equal(read["event_time"], [1126259462.391012345, 1126259463.5])
    assert [*read["rank"]] == [1, -2]
    ours = read_triggers(out)
    assert ours.detector == ["H1", "L1"]
    np.testing.assert_array_equal(ours.gps, [1126259462.391012345, 1126259463.5])
    assert [*ours.cells["gravityspy_id"]] == ["007", "12"]
    assert [*ours.cells["note"]] == ["é", ""]
    with pytest.raises(SecondhandError, match=r"exists already|is a folder"):
        check_table(out)
    with pytest.raises(SecondhandError, match="unknown format"):
        check_table(out.with_suffix(".xlsx"))


def test_a_table_of_inspirals_is_read(tmp_path: Path) -> None:
    """igwn_ligolw writes it, and its reader is the reference."""
    ligolw = pytest.importorskip("igwn_ligolw.ligolw")
    from igwn_ligolw import lsctables, utils

    columns = ("end_time", "end_time_ns", "ifo", "snr", "event_id")
    table = lsctables.SnglInspiralTable.new(columns=columns)
    for n, (detector, end) in enumerate((("L1", START + 0.25), ("H1", START + 5.5))):
        row = table.RowType()
        row.ifo, row.snr, row.event_id = detector, 8.5 + n, n
        row.end = lsctables.LIGOTimeGPS(end)
        table.append(row)
    document = ligolw.Document()
    document.appendChild(ligolw.LIGO_LW()).appendChild(table)
    utils.write_filename(document, str(tmp_path / "a.xml.gz"), compress="gz")
    triggers = read_triggers(tmp_path / "a.xml.gz")
    assert triggers.time_column == "end_time"
    assert triggers.gps.tolist() == [float(row.end) for row in table]
    assert triggers.detector == ["L1", "H1"]
    assert triggers.cells["snr"].tolist() == [8.5, 9.5]
    both = document.childNodes[0]
    both.appendChild(lsctables.SnglBurstTable.new(columns=("ifo", "peak_time", "peak_time_ns")))
    utils.write_filename(document, str(tmp_path / "b.xml"))
    with pytest.raises(SecondhandError, match=r"2 tables sngl_burst or sngl_inspiral"):
        read_triggers(tmp_path / "b.xml")
