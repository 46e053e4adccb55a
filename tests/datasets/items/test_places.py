"""Labelled spans that are shorter than the window: where pictures show them, and what else is in these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.items.places import PLACES, Spans, rest_of_recordings, vary_places
from datasets.items.settings import SignalSettings
from datasets.sources.base import SOURCES
from datasets.steps.reading import read_items, render_items
from tests.asked import asked

RATE, LENGTH = 8000, 20.0
SETTINGS = MelSettings(rate=RATE, window=3.0, size=(32, 32), n_mels=16)
NAN = float("nan")
#: Tables of labels beside recordings, where their field is here.
TRACKS = [name for name in ("raven", "audacity") if name in SOURCES]


@pytest.fixture
def path(tmp_path: Path) -> str:
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, round(LENGTH * RATE))
    soundfile.write(tmp_path / "a.wav", noise, RATE)
    return str(tmp_path / "a.wav")


def table(path: str, *rows: tuple[str, float, float], split: str = "train") -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["label", "start", "end"])
    return frame.assign(path=path, split=split, gps=NAN, item=range(len(rows)))


def test_a_span_is_shown_in_the_middle_of_the_recording_and_inside_of_it(path: str) -> None:
    for start, end, shown in (
        (10.0, 10.5, (8.75, 11.75)),
        (0.1, 0.4, (0, 3)),
        (19.8, 20.0, (17, 20)),
        (19.8, 21.0, (17, 20)),  # a label beyond the end
        (19.8, 25.0, (17, 20)),
        (18.0, 21.0, (17, 20)),
        (19.5, None, (17, 20)),
        (2.0, 5.0, (2, 5)),
        (2.0, 8.0, (2, 5)),  # the first of its windows
    ):
        window = SETTINGS.spans(Part(path, start=start, end=end))[0]
        assert SETTINGS.shown(window)[1:3] == pytest.approx(shown), start
    assert SETTINGS.shown(Part(path, at=19.9))[1:3] == pytest.approx((17, 20))


@pytest.mark.parametrize("level", ["clip", "pcen"])
def test_the_picture_of_a_span_is_that_of_its_window(path: str, level: str) -> None:
    settings = MelSettings(rate=11_025, window=3.0, size=(32, 32), n_mels=16, level=level)
    picture = settings.picture(Part(path, start=10.0, end=10.5))
    assert np.array_equal(picture, settings.picture(Part(path, start=8.75, end=11.75)))
    assert np.array_equal(picture, settings.picture(Part(path, at=10.25)))
    for begin in (0.0, 1.234567, 1 / 3, 17.0):  # rounding moves no window by a sample
        span = Part(path, begin, begin + 3.0)
        assert settings.shown(span) == span


@pytest.mark.parametrize(
    ("start", "end"), [(10.0, 10.5), (0.2, 0.9), (18.0, 19.9), (10.0, 12.9), (5.0, 8.0)]
)
def test_training_shows_a_span_at_other_places(path: str, start: float, end: float) -> None:
    rows = table(path, ("a", start, end))
    varied = vary_places(rows, Spans(rows), SETTINGS, overlap=0.25, exclusive=True, seed=3)
    assert varied.rows["place"].tolist() == [0] * PLACES
    assert varied.rows[["start", "end"]].to_numpy().tolist()[0] == [start, end]
    begins = varied.rows["start"].to_numpy()[1:]
    assert len({*begins}) == PLACES - 1
    for begin, until in varied.rows[["start", "end"]].to_numpy()[1:]:
        assert until - begin == pytest.approx(3.0)
        assert begin >= 0
        assert until <= LENGTH + 1e-9
        inside = min(until, end) - max(begin, start)
        whole = end - start < 3.0
        assert inside >= (end - start) * (1 if whole else 0.5) - 1e-9
    again = vary_places(rows, Spans(rows), SETTINGS, overlap=0.25, exclusive=True, seed=3)
    assert again.rows.equals(varied.rows)
    other = vary_places(rows, Spans(rows), SETTINGS, overlap=0.25, exclusive=True, seed=4)
    assert not other.rows.equals(varied.rows)


@pytest.mark.parametrize(
    ("start", "end", "only"),
    [(0.0, 0.3, 0.0), (19.7, 20.0, 17.0), (19.7, 20.4, 17.0), (0.0, 2.9, 0.0)],
)
def test_at_the_ends_of_a_file_all_of_a_span_is_shown(
    path: str, start: float, end: float, only: float
) -> None:
    rows = table(path, ("a", start, end))
    varied = vary_places(rows, Spans(rows), SETTINGS, overlap=0.25, exclusive=True, seed=3)
    assert varied.rows["start"].to_numpy()[1:] == pytest.approx([only] * (PLACES - 1))


def test_what_is_not_trained_on_and_what_is_not_a_span_stays(tmp_path: Path, path: str) -> None:
    rows = pd.concat([
        table(path, ("a", 10.0, 10.5), split="valid"),
        table(path, ("a", NAN, NAN)),
    ])  # fmt: skip
    varied = vary_places(
        rows.reset_index(drop=True), Spans(rows), SETTINGS, overlap=0.25, exclusive=True, seed=0
    )
    windows = [window[1:3] for window in SETTINGS.spans(path, overlap=0.25)]
    assert varied.rows["place"].tolist() == [0, 1]
    begin, until = varied.rows[["start", "end"]].to_numpy()[0]
    assert (
        begin,
        until,
    ) in windows  # that of a prediction, in which the span is nearest to the middle
    assert abs((begin + until) / 2 - 10.25) == min(abs(sum(w) / 2 - 10.25) for w in windows)
    assert varied.rows.loc[1, ["start", "end"]].isna().all()
    short = tmp_path / "short.wav"
    soundfile.write(short, np.zeros(RATE), RATE)
    rows = table(str(short), ("a", 0.2, 0.5))
    varied = vary_places(rows, Spans(rows), SETTINGS, overlap=0.25, exclusive=True, seed=0)
    assert len(varied.rows) == 1  # all windows are the whole file


def test_no_training_window_holds_another_class(path: str) -> None:
    rows = table(
        path,
        ("a", 5.0, 5.5), ("b", 6.0, 7.0),  # beside each other: each can be shown without the other
        ("a", 11.0, 12.0), ("b", 11.7, 12.7),  # only by halves
        ("a", 15.5, 16.0), ("b", 15.0, 16.8),  # never without
        ("a", 15.2, 15.4),  # of the same class
    )  # fmt: skip
    varied = vary_places(rows, Spans(rows), SETTINGS, overlap=0.25, exclusive=True, seed=0)
    spans = rows[["label", "start", "end"]].to_numpy().tolist()
    for row in varied.rows.itertuples():
        _, begin, until, *_ = SETTINGS.shown(Part(path, row.start, row.end))
        inside = {label for label, start, end in spans if start < until and begin < end}
        assert inside == {row.label}
    assert [*zip(varied.crowded["label"], varied.crowded["start"], strict=True)] == [
        ("a", 15.5), ("b", 15.0), ("a", 15.2),
    ]  # fmt: skip
    assert varied.moved == 4
    assert {*varied.rows["place"]} == {0, 1, 2, 3}


def test_a_multi_label_window_has_all_labels_in_it(path: str) -> None:
    rows = table(path, ("a", 5.0, 5.5), ("b|?c", 6.0, 6.4), ("d", 6.6, 8.6), ("e", 15.0, 16.0))
    varied = vary_places(rows, Spans(rows), SETTINGS, overlap=0.25, exclusive=False, seed=0)
    assert varied.crowded.empty
    labels = [
        label
        for label, place in zip(varied.rows["label"], varied.rows["place"], strict=True)
        if place == 0
    ]
    assert labels[0] == "a|b|?d"  # 3.75 to 6.75: of d there is less than half
    for row in varied.rows.itertuples():
        _, begin, until, *_ = SETTINGS.shown(Part(path, row.start, row.end))
        for name, start, end in (
            ("a", 5.0, 5.5),
            ("b", 6.0, 6.4),
            ("d", 6.6, 8.6),
            ("e", 15.0, 16.0),
        ):
            share = (min(until, end) - max(begin, start)) / (end - start)
            expected = name if share >= 0.5 else f"?{name}" if share > 0 else ""
            named = [part for part in row.label.split("|") if part.lstrip("?") == name]
            assert named == [expected] * bool(expected), (row, name)


def test_a_moment_of_a_recording_is_no_span_of_it(path: str) -> None:
    spans = Spans(table(path, ("a", 5.0, 5.5)))
    rows = table(path, ("b", NAN, NAN), ("b", 4.9, 5.6)).assign(gps=5.2)
    assert spans.labels_of(rows, SETTINGS, ["a", "b"]) == ["b", "a|b"]


def test_the_rest_of_a_recording_has_no_call(path: str) -> None:
    rows = table(path, ("a", 4.0, 4.5), ("b", 12.0, 14.0), ("unknown", 17.0, 17.5))
    spans = Spans(rows)
    frame = rows.loc[rows["label"].ne("unknown")].assign(group="g")
    rest = rest_of_recordings(frame, spans, SETTINGS, overlap=0.25, most={"train": 99}, seed=0)
    free = [
        window for _, *window, _, _ in SETTINGS.spans(path, overlap=0.25)
        if all(window[1] <= start or end <= window[0] for start, end in zip(rows["start"], rows["end"], strict=True))
    ]  # fmt: skip
    assert 0 < len(free) < len(SETTINGS.spans(path, overlap=0.25))
    assert rest[["start", "end"]].to_numpy().tolist() == free
    assert {*rest["label"]} == {"unknown"}
    assert {*rest["group"]} == {"g"}
    few = rest_of_recordings(frame, spans, SETTINGS, overlap=0.25, most={"train": 2}, seed=0)
    assert len(few) == 2
    drawn = [
        tuple(
            rest_of_recordings(frame, spans, SETTINGS, overlap=0.25, most={"train": 2}, seed=seed)[
                "start"
            ]
        )
        for seed in (*range(5), 0)
    ]
    assert drawn[-1] == drawn[0]
    assert len({*drawn}) > 1
    none = rest_of_recordings(frame, spans, SETTINGS, overlap=0.25, most={"valid": 2}, seed=0)
    assert none.empty


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """A table of eight recordings of 9 s with three calls each, of two classes in turn; half are said to be complete."""
    rng, lines = np.random.default_rng(0), ["path,label,start,end,complete"]
    for number in range(8):
        soundfile.write(tmp_path / f"{number}.wav", rng.uniform(-0.3, 0.3, 9 * RATE), RATE)
        for call in range(3):
            label, start = "ab"[(number + call) % 2], 3 * call + 1.1
            lines.append(
                f"{number}.wav,{label},{start},{start + 0.4},{'yes' if number % 2 else ''}"
            )
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    return tmp_path / "labels.csv"


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("labels", [None, "multi"])
def test_complete_recordings_give_windows_without_a_call(
    recordings: Path, tmp_path: Path, flag: bool, labels: str | None
) -> None:
    text = recordings.read_text()
    recordings.write_text(text.replace("yes", "") if flag else text)
    signal = SignalSettings(spectrogram="{window: 1.5}", cache_dir=tmp_path / "cache")
    data = asked(signal, data=str(recordings), labelled_completely=flag, labels=labels)
    loaded = render_items(read_items(data), data)
    table, rows = loaded.table, loaded.rows
    name = "" if labels else "unknown"
    rest = rows.loc[rows["label"].eq(name)]
    listed = table.frame.loc[table.frame["label"].eq("")] if labels else table.background
    assert "train" in {*rest["split"]}
    splits = table.frame.groupby("path")["split"].first()
    for row in pd.concat([rest, listed]).itertuples():
        assert row.split == splits[row.path]
        assert flag or int(Path(row.path).stem) % 2
        for start in (1.1, 4.1, 7.1):
            assert row.end <= start or start + 0.4 <= row.start
    assert rest["place"].is_unique
    assert not {*rest["place"]} & {*rows.loc[rows["label"].ne(name), "place"]}
    assert loaded.labels == (["a", "b"] if labels else ["a", "b", "unknown"])


def test_without_the_word_of_the_user_nothing_is_background(
    recordings: Path, tmp_path: Path
) -> None:
    recordings.write_text(recordings.read_text().replace("yes", ""))
    signal = SignalSettings(cache_dir=tmp_path / "cache")
    data = asked(signal, data=str(recordings))
    loaded = render_items(read_items(data), data)
    assert loaded.table.background.empty
    assert loaded.labels == ["a", "b"]
    rows = "".join(f"{number}.wav,{'ab'[number % 2]}\n" for number in range(8))
    recordings.write_text(f"path,label\n{rows}")
    whole = asked(signal, data=str(recordings), labelled_completely=True)
    with pytest.raises(SecondhandError, match="--labelled-completely"):
        render_items(read_items(whole), whole)


@pytest.mark.parametrize("format", ["csv", *TRACKS])
def test_a_span_of_two_labels_is_listed_and_in_no_window(
    recordings: Path, tmp_path: Path, format: str
) -> None:
    labels = pd.read_csv(recordings)
    both = [(f"{n}.wav", name, 2.7, 2.8) for n in range(8) for name in "ab"]
    labels = pd.concat([labels, pd.DataFrame(both, columns=labels.columns[:4])])
    names = {"start": "Begin Time (s)", "end": "End Time (s)", "label": "Annotation"}
    for path, of_it in labels.groupby("path"):
        track = of_it[[*names]].rename(columns=names)
        options = {"sep": "\t", "index": False, "header": format == "raven"}
        if format != "csv":
            track.to_csv((tmp_path / str(path)).with_suffix(".txt"), **options)
    recordings.unlink()
    if format == "csv":
        labels.to_csv(recordings, index=False)
    signal = SignalSettings(spectrogram="{window: 1.5}", cache_dir=tmp_path / "cache")
    source = recordings if format == "csv" else tmp_path
    data = asked(signal, data=str(source), labelled_completely=True)
    loaded = render_items(read_items(data), data)
    listed = [one.path for one in loaded.table.rejected if "2.7 to 2.8 s" in one.reason]
    assert {*listed} == {str(tmp_path / f"{n}.wav") for n in range(8)}
    rows = loaded.rows.loc[loaded.rows["split"].eq("train") | loaded.rows["label"].eq("unknown")]
    assert {*rows["label"]} == {"a", "b", "unknown"}
    assert not rows["start"].isna().any()
    short = rows["end"] - rows["start"] < 1.5  # shown in the middle of its window
    start = rows["start"].where(~short, (rows["start"] + rows["end"]) / 2 - 0.75)
    assert not (start.lt(2.8) & (start + 1.5).gt(2.7)).any()


@pytest.mark.parametrize("format", TRACKS)
def test_a_window_has_the_labels_of_all_calls_in_it(
    recordings: Path, tmp_path: Path, format: str
) -> None:
    """Of two calls in one span, and of one beside another in the same window."""
    recordings.unlink()
    calls = [("a", 1.1, 1.5), ("b", 1.1, 1.5), ("a", 4.1, 4.5), ("b", 4.6, 4.9), ("b", 7.1, 7.5)]
    header = "Begin Time (s)\tEnd Time (s)\tAnnotation\n" if format == "raven" else ""
    lines = "".join(f"{start}\t{end}\t{name}\n" for name, start, end in calls)
    for number in range(8):
        (tmp_path / f"{number}.txt").write_text(header + lines)
    signal = SignalSettings(spectrogram="{window: 1.5}", cache_dir=tmp_path / "cache")
    data = asked(signal, data=str(tmp_path), labels="multi", labelled_completely=True)
    loaded = render_items(read_items(data), data)
    table = loaded.table
    assert [one for one in table.rejected if one.path.endswith(".wav")] == []
    spans = table.frame.loc[table.frame["label"].ne("")]
    # The two calls of one span are one item.
    assert spans.groupby("path")["start"].apply(sorted).tolist() == [[1.1, 4.1, 4.6, 7.1]] * 8
    assert spans.loc[spans["start"].eq(1.1), "label"].eq("a|b").all()
    seen = set()
    for row in loaded.rows.itertuples():
        start = row.start if row.end - row.start > 1.4 else (row.start + row.end) / 2 - 0.75
        shown = {name: 0.0 for name, *_ in calls}
        for name, first, last in calls:
            inside = (min(start + 1.5, last) - max(start, first)) / (last - first)
            shown[name] = max(shown[name], inside)
        expected = [name for name in "ab" if shown[name] > 0.501]
        doubtful = {f"?{name}" for name in "ab" if 0 < shown[name] < 0.499}
        if any(abs(share - 0.5) <= 0.001 for share in shown.values()):
            continue
        names = row.label.split("|") if row.label else []
        assert names == [*expected, *sorted(doubtful)], (start, names)
        seen.add("|".join(expected))
    assert seen == {"", "a", "b", "a|b"}
