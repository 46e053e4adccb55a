"""Annotations of ELAN as pympi writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pympi.Elan import Eaf

from datasets.core.errors import SecondhandError
from datasets.steps.reading import load_table
from tests.datasets.files import reasons, sound, write
from tests.fields.recordings.test_textgrid import CALLS, spans


def annotated(file: Path, *, name: str = "", offset: int = 0, **tiers: list[tuple]) -> Path:  # type: ignore[type-arg]
    """Write the spans of tiers, and a recording of this name."""
    made = Eaf(author="")
    made.remove_tier("default")
    recording = sound(file.parent / (name or f"{file.stem}.wav"))
    made.add_linked_file("/media/camera.mp4", "./camera.mp4", "video/mp4")
    made.add_linked_file(
        f"file:///C:/field/{recording.name.replace(' ', '%20')}", mimetype="audio/x-wav", time_origin=offset
    )  # fmt: skip
    for tier, entries in tiers.items():
        made.add_tier(tier)
        for start, end, label in entries:
            made.add_annotation(tier, round(1000 * start), round(1000 * end), label)
    made.to_file(str(file))
    return file


@pytest.mark.parametrize("name", ["a.wav", "other name.wav"])
def test_annotations_are_spans_of_the_recording_that_is_linked(tmp_path: Path, name: str) -> None:
    file = annotated(tmp_path / "a.eaf", name=name, calls=CALLS)
    for source in (file, tmp_path):
        table = load_table(source)
        assert spans(table) == CALLS
        assert {*table.frame["path"]} == {str(tmp_path / name)}
        assert not table.rejected


def test_time_zero_may_be_later_in_the_recording(tmp_path: Path) -> None:
    """ELAN plays a file at its time and TIME_ORIGIN."""
    file = annotated(tmp_path / "a.eaf", offset=10, calls=[(s - 0.01, e - 0.01, n) for s, e, n in CALLS])  # fmt: skip
    assert spans(load_table(file)) == [pytest.approx(call) for call in CALLS]


def test_one_of_several_tiers_is_named_and_may_refer_to_another(tmp_path: Path) -> None:
    file = annotated(tmp_path / "a.eaf", calls=[(*times, "call") for *times, _ in CALLS])
    made = Eaf(str(file))
    made.add_linguistic_type("of", constraints="Symbolic_Association")
    made.add_tier("species", ling="of", parent="calls")
    for start, end, name in CALLS:
        made.add_ref_annotation("species", "calls", round(500 * (start + end)), name)
    made.to_file(str(file))
    with pytest.raises(SecondhandError, match=r"a\.eaf: .*'calls', 'species'.*--tier"):
        load_table(tmp_path)
    assert spans(load_table(tmp_path, settings={"tier": "species"})) == CALLS
    with pytest.raises(SecondhandError, match=r"a\.eaf: .*'noise'.*'calls', 'species'"):
        load_table(tmp_path, settings={"tier": "noise"})


BOMB = '<!DOCTYPE a [<!ENTITY x "aaaaaaaaaa"><!ENTITY y "&x;&x;&x;">]>\n<ANNOTATION_DOCUMENT>&y;</ANNOTATION_DOCUMENT>'
BAD = {
    "empty": "",
    "cut": "<ANNOTATION_DOCUMENT><HEADER",
    "entities": BOMB,
    "other": "<annotation/>",
    "encoding": '<?xml version="1.0" encoding="klingon"?><ANNOTATION_DOCUMENT/>',
    "none": "<ANNOTATION_DOCUMENT/>",
    "deep": "<ANNOTATION_DOCUMENT>" + "<a>" * 100_000,
}


def test_bad_annotations_and_files_are_listed_and_the_rest_goes_on(tmp_path: Path) -> None:
    file = annotated(tmp_path / "a.eaf", calls=[*CALLS, (0.04, 0.05, " "), (0.07, 0.08, "wren")])
    text = file.read_text("utf-8")
    last = text.rindex('TIME_VALUE="80"')
    write(file, text[:last] + f'TIME_VALUE="{"9" * 400}"' + text[last + len('TIME_VALUE="80"') :])
    annotated(tmp_path / "b.eaf", calls=CALLS)
    circle = '<ANNOTATION><REF_ANNOTATION ANNOTATION_ID="a{}" ANNOTATION_REF="a{}"><ANNOTATION_VALUE>x</ANNOTATION_VALUE></REF_ANNOTATION></ANNOTATION>'
    others = BAD | {
        "circle": '<ANNOTATION_DOCUMENT>\n<TIER TIER_ID="t">\n'
        f"{circle.format(1, 2)}\n{circle.format(2, 1)}\n</TIER></ANNOTATION_DOCUMENT>"
    }
    for name, content in others.items():
        sound(tmp_path / f"{name}.wav")
        write(tmp_path / f"{name}.eaf", content)
    table = load_table(tmp_path)
    assert spans(table) == sorted([*CALLS, *CALLS])
    listed = reasons(table)
    assert {f"{name}.eaf" for name in BAD} <= listed.keys()
    assert "'x'" in listed["entities.eaf"]
    assert {"circle.eaf, line 3", "circle.eaf, line 4"} <= listed.keys()
    lines = text.split("\n")
    first = next(n for n, line in enumerate(lines, 1) if "<ANNOTATION_VALUE> </" in line) - 1
    assert "no label" in listed[f"a.eaf, line {first}"]
    assert any("numbers of seconds" in why for name, why in listed.items() if name[:5] == "a.eaf")
