"""What can be said of a file: one class, several, `unknown`, or that nothing is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from app.corrected import correct
from app.feedback import Feedback
from app.labels import Choices
from app.panels import shown_window
from app.serving import Served, Site
from app.settings import PageSettings
from app.training import Training
from app.views import span
from datasets.core.errors import SecondhandError
from datasets.steps.base import Asked
from datasets.steps.reading import load_table, read_items
from learners.cli.flags import parse
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle, save_bundle
from learners.rule.fitting import uncalibrated
from tests.app.sites import colours, tone, tones
from tests.learners.rules import plain_rule
from tests.left_out import of_field
from tests.pictures import write_pictures

CLASSES = ["blue", "green", "a; b"]
ONE, EMPTIES, SEVERAL = (
    Choices(CLASSES),
    Choices(CLASSES, empties=True),
    Choices(CLASSES, several=True, empties=True),
)


@pytest.mark.parametrize(
    ("choices", "said", "saved"),
    [(ONE, "blue", "blue"), (ONE, " BLUE ", "blue"), (ONE, "teal", "teal"), (ONE, "None", "None"),
     (ONE, "a; b", "a; b"), (ONE, "Teal ", "teal"), (EMPTIES, "None", "none"), (EMPTIES, "Unknown", "unknown"),
     (SEVERAL, ["green", "blue"], "blue|green"), (SEVERAL, "green; Blue; green", "blue|green"),
     (SEVERAL, ["green|blue"], "blue|green"), (SEVERAL, "none", "none"), (SEVERAL, ["NONE"], "none"),
     (SEVERAL, ["a; b", "teal"], "a; b|teal"), (SEVERAL, ["unknown"], "unknown")],
)  # fmt: skip
def test_what_is_said_is_saved_as_training_reads_it(
    choices: Choices, said: object, saved: str
) -> None:
    assert choices.check(said, ["teal"]) == saved


@pytest.mark.parametrize(
    ("choices", "said", "words"),
    [(ONE, "", "empty"), (ONE, None, "empty"), (ONE, "blue; green", "are several labels"),
     (ONE, "blue|green", "contains |"), (EMPTIES, "none; blue", "are several labels"),
     (SEVERAL, [], "no label"), (SEVERAL, None, "no label"), (SEVERAL, " ; ", "no label"),
     (SEVERAL, ["none", "blue"], "cannot be none and"), (SEVERAL, "blue; unknown", "cannot be unknown and"),
     (SEVERAL, ["a\nb"], "unprintable")],
)  # fmt: skip
def test_what_contradicts_itself_is_said(choices: Choices, said: object, words: str) -> None:
    with pytest.raises(SecondhandError) as caught:
        choices.check(said)
    assert words in str(caught.value)


def with_background() -> Bundle:
    rule = plain_rule(3, threshold=0.8)
    calibrator = replace(rule.calibrator, background=True)
    return replace(colours(), rule=replace(rule, calibrator=calibrator))


def of_several() -> Bundle:
    return replace(colours(), rule=uncalibrated(3, multi_label=True))


def run_of(folder: Path, bundle: Bundle, labels: list[str]) -> Path:
    """A run folder around a model, whose items are the pictures of three classes, in this order."""
    pictures = write_pictures(folder / "data", per_class=8)
    files = sorted(pictures.glob("*/*.jpg"))
    splits = (["train"] * 4 + ["valid"] * 2 + ["calibration"] * 2) * 3
    rows = pd.DataFrame({"path": list(map(str, files)), "label": labels, "split": splits})
    rows.to_csv(folder / "items.csv", index=False)
    (folder / "config.yaml").write_text(f"data: {pictures}\nout: {folder}\n")
    save_bundle(bundle, folder / "model")
    return folder / "model"


def labels_of(frame: pd.DataFrame, left_out: str) -> dict[str, str]:
    """The labels of files by their names, without those of a folder."""
    pairs = zip(frame["path"], frame["label"], strict=True)
    return {Path(path).stem: label for path, label in pairs if left_out not in path}


@pytest.mark.parametrize("several", [False, True])
def test_labels_and_corrections_of_nothing_and_of_several_are_trained_on(
    tmp_path: Path,
    several: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pool_of, suggest = of_field("fields.loop.pool"), of_field("fields.loop.suggest").main
    monkeypatch.chdir(tmp_path)
    plain = ["blue"] * 8 + ["green"] * 8 + ["red"] * 8
    joined = ["blue"] * 4 + ["blue|green"] * 4 + ["green"] * 4 + [""] * 4 + ["red"] * 8
    bundle = of_several() if several else with_background()
    model = run_of(tmp_path / "run", bundle, joined if several else plain)
    pool = write_pictures(tmp_path / "new", per_class=2, unknown=6, size=44)
    empties = sorted(map(str, (pool / "unknown").glob("*.jpg")))
    background = pd.DataFrame(
        {"path": empties[:5], "label": "unknown", "split": ["train"] * 3 + ["valid", "calibration"]}
    )
    background.to_csv(tmp_path / "run" / "background.csv", index=False)

    served = Served("run", Predictor(model), model)
    labelling = pool_of.Labelling(served, pool, tmp_path)
    try:
        labelling.begin()
        assert labelling.ready.wait(60)
        numbers = {Path(s.part.path).stem: n for n, s in enumerate(labelling.order)}
        labelling.save(numbers["unknown_005"], ["none"] if several else "none")
        labelling.save(numbers["red_000"], ["red", "blue"] if several else "red")
        with pytest.raises(SecondhandError, match="none and have" if several else "several labels"):
            labelling.save(numbers["red_001"], "none; blue")
        with pytest.raises(SecondhandError, match="no label" if several else "empty"):
            labelling.save(numbers["red_001"], [] if several else "")
        assert labelling.labelled == 2
        command = labelling.next_command(str)
    finally:
        labelling.close()

    feedback = Feedback(tmp_path / "kept")
    site = Site({"run": served}, str(tmp_path), PageSettings(), feedback)
    (shown,) = served.predictor.predict([str(pool / "green/green_000.jpg")])
    given, words = correct(site, "run", shown, ["green", "blue"] if several else "none")
    assert given == ("blue|green" if several else "none")
    assert "A new class" not in words
    served.close()

    tables = [labelling.table.file, feedback.table.file]
    asked = Training(tmp_path / "runs").words(tables, "usual", model, several=several)
    expected = ["--config", "--labels"] if several else ["--from"]
    assert all(flag in command and flag in asked for flag in expected)
    settings = parse(asked)
    if not several:
        settings = settings.but(background=str(tmp_path / "run" / "background.csv"))
    table = read_items(Asked.by(*settings.sections.values()))
    of_new = labels_of(table.frame, "/run/data/")
    if several:
        assert of_new == {"unknown_005": "", "red_000": "blue|red", "green_000": "blue|green"}
    else:
        assert of_new == {"red_000": "red"}
        names = {Path(path).stem for path in table.background["path"]}
        assert names == {f"unknown_{n:03d}" for n in range(6)} | {"green_000"}
    assert table.classes == ["blue", "green", "red"]

    capsys.readouterr()
    assert suggest([str(model), str(pool), "--n", "3", "--out", "next.csv"]) == 0
    lines = capsys.readouterr().out
    assert all(flag in lines for flag in expected)
    sheet = pd.read_csv("next.csv", dtype=str, keep_default_na=False)
    sheet["label"] = ["red; blue" if several else "red", "none", ""]
    sheet.to_csv("next.csv", index=False)
    filled = load_table(
        [str(tmp_path / "run/items.csv"), "next.csv"], labels="multi" if several else None,
        settings={"background": "there"},
    )  # fmt: skip
    assert sorted(labels_of(filled.frame, "/run/data/").values()) == (
        ["", "blue|red"] if several else ["red"]
    )
    assert [bad.reason for bad in filled.rejected] == ["not labelled yet (row 4 of next.csv)"]
    assert len(filled.background) == (0 if several else 1)


def test_one_table_has_corrections_of_one_label_or_of_several(tmp_path: Path) -> None:
    models = {
        "one": Served("one", Predictor(colours())), "several": Served("several", Predictor(of_several()))
    }  # fmt: skip
    try:
        Site(models, str(tmp_path), PageSettings()).check_one_table()
        with pytest.raises(SecondhandError, match="several gives files several labels and one one"):
            Site(
                models, str(tmp_path), PageSettings(), Feedback(tmp_path / "kept")
            ).check_one_table()
    finally:
        for served in models.values():
            served.close()


def test_a_model_of_several_labels_outside_its_run_names_what_is_needed(tmp_path: Path) -> None:
    save_bundle(of_several(), tmp_path / "copied")
    with pytest.raises(
        SecondhandError, match=r"not in the folder of its run.*--data DATA t\.csv --labels multi"
    ):
        Training(tmp_path / "runs").words(
            [Path("t.csv")], "usual", tmp_path / "copied", several=True
        )


def test_a_window_of_a_recording_is_corrected_by_itself(tmp_path: Path) -> None:
    """One window without a call does not make the whole recording background."""
    served = Served("tones", Predictor(tones()))
    try:
        file = str(tone(tmp_path / "a.wav", "low", "high", "low"))
        (answer,) = served.predictor.predict([file])
        site = Site({"tones": served}, str(tmp_path), PageSettings(), Feedback(tmp_path / "kept"))
        window = shown_window(answer, span(answer.windows[1]))
        correct(site, "tones", window, "none")
        correct(site, "tones", answer, "high")
        correct(site, "tones", window, "low")
        assert site.feedback is not None
        rows = [(row["label"], row["start"], row["end"]) for row in site.feedback.table.rows()]
        start, end = window.part.start, window.part.end
        assert rows == [("high", "", ""), ("low", repr(start), repr(end))]
        assert start is not None
        assert start > 0
        table = load_table(str(site.feedback.table.file), check=False, learned=False).frame
        assert [*table["start"].dropna()] == [start]
    finally:
        served.close()
