"""The report: one self-contained file, figures as computed directly, and everything escaped."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import wavfile
from sklearn.metrics import f1_score, roc_auc_score

from datasets.audio.settings import MelSettings
from datasets.core.errors import Rejected
from datasets.core.part import PART_COLUMNS, Part
from datasets.items.facts import Origin
from learners.cli.result import answers_at
from learners.evaluation.figures import CHOSE, all_figures, score_items
from learners.evaluation.held_out import Evaluation
from learners.evaluation.rules import operating_points
from learners.files.jsonable import jsonable
from learners.inference.gradcam import NO_MAP
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle
from learners.report import plots
from learners.report.galleries import Pictures
from learners.report.report import write_report
from learners.report.sections import class_sections
from learners.report.templates import percent
from learners.report.verdict import verdict
from tests.chromium import chromium
from tests.learners.evaluations import make_bundle, make_evaluation, make_table

pytestmark = pytest.mark.slow

VOID = {"meta", "img", "br", "input", "link", "hr"}


class Page(HTMLParser):
    """The content of a page; fails if tags are not closed."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    paths = [folder / f"<b>&{n:03d}.jpg" for n in range(150)]
    for path in paths:
        small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
        small.resize((60, 50), Image.Resampling.BICUBIC).save(path)
    return paths


def written(
    tmp_path: Path, bundle: Bundle, evaluation: Evaluation, **options: object
) -> tuple[Page, dict]:
    table = options.pop("table", None) or make_table(evaluation)
    scored, tables = score_items(evaluation, bundle.classes, bundle.rule), options.pop("tables", {})
    figures = all_figures(evaluation, bundle.classes, scored)
    evaluation = replace(evaluation, scored=scored, figures=figures, tables=tables)
    sections = partial(
        class_sections, evaluation=evaluation, duplicates=options.pop("duplicates", None)
    )
    page = write_report(tmp_path / "report", Predictor(bundle), table, sections, **options)
    assert sorted(path.name for path in page.parent.iterdir()) == ["index.html", "report.json"]
    return Page(page), json.loads((page.parent / "report.json").read_text(encoding="utf-8"))


def check_self_contained(page: Page, file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(\s*['\"]?(?!#|data:)", text)
    assert page.all("script") in ([], [{}])  # the slider's, without a file
    for tag, attributes in page.found:
        assert tag not in ("link", "iframe", "object")
        for name in ("src", "href", "xlink:href"):
            if attributes.get(name) is not None:
                assert re.match(r"data:image/|#", str(attributes[name]))
        assert not any(name.startswith("on") for name in attributes)
    assert all(image.get("alt") for image in page.all("img"))
    assert all(svg.get("aria-label") for svg in page.all("svg") if svg.get("role"))
    anchors = {attributes["id"] for attributes in page.all("section")}
    assert {str(link["href"])[1:] for link in page.all("a")} == anchors


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("run") / "history.csv"
    file.write_text(
        "phase,epoch,train_loss,valid_loss,accuracy,lr,seconds\n"
        "frozen,1,1.5,1.2,0.5,0.01,3\nunfrozen,1,0.9,0.8,0.8,0.01,4\nunfrozen,2,0.5,0.7,0.85,0,4\n"
    )
    return file


def test_a_run_from_end_to_end(tmp_path, photos, history, drawn):
    classes = ["<script>alert(1)</script>", "b & 'c'", 'x$^2$ "q"']
    bundle = make_bundle(classes, size=64)
    evaluation = make_evaluation(bundle, paths=photos)
    table = make_table(evaluation, source="<i>data")
    table = table.leaving_out([Rejected("<u>bad.jpg", "damaged <em>badly</em>")])
    duplicates = pd.DataFrame(
        {"row": [2], "train_path": [str(photos[5])], "train_label": [classes[0]],
         "similarity": [0.99], "correlation": [0.97],
         **{f"train_{name}": [np.nan] for name in PART_COLUMNS}}
    )  # fmt: skip
    page, figures = written(
        tmp_path, bundle, evaluation, table=table, history=history, duplicates=duplicates,
        checks=["The threshold guaranteed 99 %, here it gives <96> %."],
        tables={"Backbones": pd.DataFrame({"backbone": ["<of> figures"], "figure": [0.7512]})},
    )  # fmt: skip
    check_self_contained(page, tmp_path / "report/index.html")
    # Names that look like markup are text.
    assert "<script>alert(1)</script>" in page.text
    for text in ("<b>&002.jpg", "<u>bad.jpg", "damaged <em>badly</em>", "<i>data",
                  "here it gives <96> %", "<of> figures", "x$^2$", "0.751"):  # fmt: skip
        assert text in page.text, text
    # The figures are those of scikit-learn.
    known = evaluation.predictions[evaluation.predictions.split.ne("unknown")]
    f1 = f1_score(known.truth, known.best, labels=classes, average=None, zero_division=0)
    assert [row["f1"] for row in figures["classes"]] == pytest.approx(f1.tolist())
    scored = score_items(evaluation, bundle.classes, bundle.rule)
    split = evaluation.predictions.split.to_numpy()[scored.rows]
    part = np.isin(split, ["valid", "unknown"])
    expected = roc_auc_score(split[part] == "valid", scored.known[part])
    assert figures["unknown_classes"]["auroc"]["value"] == pytest.approx(expected)
    assert f"{expected:.3f}" in page.text
    valid = known[known.split.eq("valid")]
    assert f"{100 * (valid.best == valid.truth).mean():.1f} %" in page.text
    assert figures["metrics"]["valid_accuracy"] == (valid.best == valid.truth).mean()
    assert len(figures["history"]) == 3
    # First three files of each class, and where each file lies among the others.
    assert [image["alt"] for image in page.all("img")[:9]] == sorted(classes * 3, key=classes.index)
    maps = [svg["aria-label"] for svg in page.all("svg") if svg.get("role")]
    assert str(maps[0]).startswith(f"Map of {len(scored.rows)} files")
    assert figures["near_duplicates"][0]["path"] == photos[2].name
    assert figures["data"]["items"][-1]["all"] == 150
    assert figures["left_out"] == [{"path": "<u>bad.jpg", "reason": "damaged <em>badly</em>"}]
    # Mistakes have heat maps; silent files are listed but have none.
    assert sum("where the network looked" in str(i["alt"]) for i in page.all("img")) > 5
    wrong = known[known.best.ne(known.truth) & known.best.ne("")]
    assert f"Mistakes ({len(wrong)} of {len(known)} files)" in page.text
    assert "Not predicted (9)" in page.text


def test_the_verdict_and_the_sections_state_the_figures(tmp_path, photos):
    bundle = make_bundle()
    page, figures = written(tmp_path, bundle, make_evaluation(bundle, paths=photos))
    split, unknown = figures["splits"]["calibration"], figures["unknown_classes"]

    def count(share: dict, n: int) -> int:
        return round(share["value"] * n)

    answered = count(split["coverage"], split["items"])
    named_right = count(split["accuracy"], split["items"])
    assert figures["verdict"]["message"] == (
        f"The model names {named_right} of {split['items']} calibration files right "
        f"({percent(split['accuracy']['value'])}). It answers {answered} of {split['items']} calibration files; "
        f"{count(split['accuracy_of_accepted'], answered)} of {answered} answered files are right. "
        'It says "unknown" for the others '
        f"and for {unknown['items'] - count(unknown['accepted'], unknown['items'])} of {unknown['items']} files of "
        "unknown classes."
    )
    (box,) = [p for p in page.all("p") if "verdict" in str(p.get("class"))]
    assert box["class"] == f"verdict {figures['verdict']['colour']}"
    assert " ".join(figures["verdict"]["message"].split()) in page.text
    assert CHOSE.format(figure="accuracy") in page.text
    refused = unknown["items"] - count(unknown["accepted"], unknown["items"])
    assert f"and {refused} of {unknown['items']} files of unknown classes." in page.text
    assert figures["weakest_class"] is None
    lowest = min(figures["classes"], key=lambda row: row["right"] / row["items"])
    assert "No class is clearly worse than the others" in page.text
    assert f"The lowest is {lowest['class']} , {lowest['right']} of" in page.text
    surest = sum(row["refused_right"] for row in figures["classes"])
    assert f"Refused although the guess is right ({surest})" in page.text
    assert surest > 0, "else nothing is shown"


def test_the_slider_and_the_verdict_on_each_class(tmp_path, photos, drawn):
    classes = ["<script>alert(1)</script>", "b & 'c'", "c"]
    bundle = make_bundle(classes)
    evaluation = make_evaluation(bundle, paths=photos)
    table = operating_points(evaluation, score_items(evaluation, bundle.classes, bundle.rule))
    frame = evaluation.predictions
    files = frame["truth"].eq(classes[0])
    page, figures = written(tmp_path, bundle, replace(
        evaluation, metrics={"operating_points": jsonable(table)},
        predictions=frame.assign(label=frame["label"].mask(files, "unknown")),
    ))  # fmt: skip
    check_self_contained(page, tmp_path / "report/index.html")
    (slider,) = [each for each in page.all("input") if each["type"] == "range"]
    assert (slider["value"], slider["max"]) == (str(table.default), str(len(table.points) - 1))
    sentences = [row["data-sentence"] for row in page.all("tr") if "data-sentence" in row]
    assert sentences == [f"It answers {answers_at(table, point)}" for point in table.points]
    assert figures["operating_points"]["points"][0]["answered"] == table.points[0].answered
    n = files.sum()
    assert figures["weakest_class"] == classes[0]
    assert (
        f"20 more labelled files of {classes[0]} would help most: of its {n}, 0 are answered right, 0 wrong, and {n} "
        "refused."
    ) in page.text

    with chromium() as browser:
        opened = browser.new_page()
        opened.goto((tmp_path / "report/index.html").as_uri())
        range_input = opened.get_by_role("slider", name="Refuse more or answer more")
        dial = opened.locator(".dial")
        assert "(this model)" in dial.inner_text()
        assert sentences[table.default] in dial.inner_text()
        range_input.press("ArrowRight")
        looser = table.points[table.default + 1]
        assert sentences[table.default + 1] in dial.inner_text()
        assert f"MODEL {looser.rule} --out" in dial.inner_text()
        assert range_input.get_attribute("aria-valuetext") == looser.rule


def check_rows(accuracy: float, expected: float, n: int = 100) -> list[dict]:
    """Return rows of a calibration check whose ``accuracy`` has limits of 5 points."""
    limits = {"low": accuracy - 0.05, "high": accuracy + 0.05}
    share = {"here": 0.5, "low": 0.45, "high": 0.55, "items": 200}
    return [
        {"what": "accuracy of accepted", "guaranteed": expected, "here": accuracy, **limits, "items": n},
        {"what": "accepted", "guaranteed": 0.5, **share, "differs": ""},
        {"what": "refused as out of distribution", "guaranteed": 0.05, "here": 0.05, "low": 0.02,
         "high": 0.1, "items": 200, "differs": ""},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "problems", "colour"),
    [
        (check_rows(0.93, 0.95), [], "green"),
        (check_rows(0.93, 0.95), ["copies"], "amber"),
        (check_rows(0.80, 0.95), [], "red"),
        (check_rows(0.93, 0.95, n=0), [], "red"),
        ([*check_rows(0.93, 0.95)[:2],
          {"what": "refused as out of distribution", "guaranteed": 0.05, "here": 0.3, "low": 0.2,
           "high": 0.4, "items": 200, "differs": "higher"}], [], "amber"),
        ([*check_rows(0.93, 0.95)[::2],
          {**check_rows(0.93, 0.95)[1], "guaranteed": 0.6, "differs": "lower"}], [], "amber"),
        ([{**check_rows(0.99, 0.95)[0], "low": 0.025}, *check_rows(0.99, 0.95)[1:]], [], "amber"),
    ],
    ids=["as expected", "with a notice", "fewer right", "no answers", "many outliers", "fewer answers",
         "one group"],
)  # fmt: skip
def test_the_colour_of_an_evaluation_follows_its_checks(rows, problems, colour):
    result = verdict({"evaluated_split": "test"}, rows, problems)
    assert result.colour == colour
    assert ("see the notices below" in result.message) == bool(problems)
    if rows[0]["items"]:
        assert f"{100 * rows[0]['here']:.0f} of 100 answered files are right" in result.message


@pytest.mark.parametrize(("share", "colour"), [(0.2, "green"), (0.3, "amber")])
def test_a_run_that_answers_many_files_of_unknown_classes_is_amber(share, colour):
    limits = {"value": 1.0, "low": 0.9, "high": 1.0}
    split = {"accuracy": limits, "coverage": limits, "accuracy_of_accepted": limits}
    found = verdict({
        "evaluated_split": "valid", "headline": {"split": "test"}, "splits": {"test": {"items": 50, **split}},
        "metrics": {"test_items": 50, **{f"test_{name}": 1.0 for name in split}},
        "unknown_classes": {"items": 100, "accepted": {"value": share}},
    }, [], [])  # fmt: skip
    assert found.colour == colour
    assert f"and for {100 - 100 * share:.0f} of 100 files of unknown classes" in found.message


@pytest.mark.parametrize(("low", "colour"), [(0.9, "green"), (0.5, "amber")])
def test_a_run_is_not_green_where_so_few_files_cannot_tell(low, colour):
    accuracy = {"value": 0.95, "low": low, "high": 0.99}
    split = {"items": 100, "accuracy": accuracy, "coverage": {"value": 0.8},
             "accuracy_of_accepted": {"value": 1.0}}  # fmt: skip
    metrics = {"calibration_items": 100, "calibration_accuracy": 0.95, "calibration_coverage": 0.8}
    figures = {"evaluated_split": "valid", "headline": {"split": "calibration"}, "metrics": metrics,
               "splits": {"calibration": split}, "unknown_classes": None}  # fmt: skip
    result = verdict(figures, [], [])
    assert result.colour == colour
    assert ("50 to 99 %" in result.message) == (colour == "amber")


@pytest.mark.parametrize(("phase", "position"), [("frozen", 1), ("unfrozen", 3), (None, None)])
def test_the_kept_weights_are_marked_on_the_curves(history, drawn, phase, position):
    epochs = pd.read_csv(history)
    metrics = {"valid_loss": 0.6, "accuracy": 0.9}
    best = {"phase": phase, "epoch": 1 if phase == "frozen" else 2, "reached": metrics}
    step, figures = plots._kept_step(epochs, best if phase else None)
    assert (step, figures) == (position, metrics if phase else {})
    plotted = plots.curves(epochs, best if phase else None)
    assert [">kept<" in str(plot) for plot in plotted] == [bool(phase)] * 2
    assert all(str(plot).count(">head<") == 1 for plot in plots.curves(epochs.iloc[:1]))


def test_the_range_test_is_drawn_with_both_suggestions(tmp_path, photos, drawn):
    bundle, run = make_bundle(), tmp_path / "run"
    (run / "checkpoint").mkdir(parents=True)
    history = run / "history.csv"
    history.write_text(
        "phase,epoch,train_loss,valid_loss,accuracy,lr,seconds\nunfrozen,1,1,1,1,0,1\n"
    )
    lrs = np.geomspace(1e-7, 10, 100)
    losses = 2.5 - 2 * np.exp(-(np.log10(lrs / 0.01) ** 2)) + (lrs > 1) * 1e6
    test = {"slide": 0.0025, "valley": 0.0012, "lrs": lrs.tolist(), "losses": losses.tolist()}
    (run / "checkpoint/lr_find.json").write_text(json.dumps(test))
    page, _ = written(tmp_path, bundle, make_evaluation(bundle, paths=photos), history=history)
    assert "Learning rate finder" in page.text
    plot = str(plots.range_test(test))
    assert "slide 0.0025<" in plot
    assert "valley 0.0012 (taken)<" in plot
    assert ">0.001<" in plot
    assert "math" not in plot
    assert ">1e6<" not in plot  # the end, where the loss explodes, does not set the scale
    plots.range_test({**test, "losses": [float("nan")] * 100})
    again, _ = written(tmp_path, bundle, make_evaluation(bundle, paths=photos))
    assert "Learning rate finder" not in again.text


def test_names_that_begin_alike_stay_apart_beside_a_plot() -> None:
    adults = [f"Northern_White-cheeked_Gibbon_{one}" for one in ("female", "juvenile")]
    names = plots.shortened([*adults, "Low_Frequency_Burst", "Roe deer", "Hippopotamus_amphibius"])
    assert names == [
        "Northern_Wh…n_female", "Northern_Wh…juvenile", "Low_Frequency_Burst", "Roe deer", "Hippopotamus_amphib…",
    ]  # fmt: skip
    assert max(map(len, names)) <= plots.LONGEST


def test_other_libraries_do_not_change_the_plots(drawn):
    """gwpy sets such values when it is imported."""
    confusion = np.eye(2, 3, dtype=np.int64)
    plot = plots.confusion(confusion, ["a", "b"], "counts")
    others = {"axes.formatter.use_mathtext": True, "axes.grid": True, "font.size": 20}
    with matplotlib.rc_context(others):
        assert plots.confusion(confusion, ["a", "b"], "counts") == plot


def test_no_path_outside_the_data_is_in_the_report(tmp_path, photos, monkeypatch, drawn):
    """Neither in the text nor in the pictures; files are named relative to the data's root."""
    home = tmp_path / "Jane Doe"
    root, unknown = home / "my photos", home / "else/where"
    paths = [root / f"{n % 3}/{n}.jpg" for n in range(120)]
    paths += [unknown / f"{n}.jpg" for n in range(30)]
    for n, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.open(photos[n]).save(path, comment=f"{home}/original.jpg".encode())
    monkeypatch.setenv("HOME", str(home))
    command = f"python -m learners.finetune --data '{root}' --out='{home}/my run' --lr 1e-3"
    bundle = make_bundle(size=64)
    bundle.provenance = {"data": str(root), "command": command, "note": f"noise of {home}/x/a.hdf5"}
    evaluation = make_evaluation(bundle, paths=paths)
    evaluation.features[0] = bundle.rule.distance.reference[7] * 5
    silent = evaluation.predictions.index[evaluation.predictions["best"].eq("")][0]
    evaluation.predictions.loc[silent, "reason"] = f"bad file: {paths[silent]}: cut short"
    table = make_table(evaluation, source=str(root))
    table = table.knowing(Origin(f"the folder {root} that is here"))
    table = table.leaving_out(
        [
            Rejected(str(root / "0/copy.jpg"), f"a copy of {paths[0]}, which is in train"),
            Rejected(f"{home}/items.csv, row 5", "no path"),
            Rejected(str(unknown / "b.jpg"), f"[Errno 2] No such file: '{home}/deep/er/c.jpg'"),
        ]
    )
    wrong = evaluation.predictions["best"].ne(evaluation.predictions["truth"])
    paths[evaluation.predictions.index[wrong][0]].unlink()
    duplicates = pd.DataFrame(
        {"row": [2], "train_path": [str(paths[5])], "train_label": ["a"], "similarity": [0.99],
         "correlation": [0.97], **{f"train_{name}": [np.nan] for name in PART_COLUMNS}}
    )  # fmt: skip
    page, figures = written(
        tmp_path, bundle, evaluation, table=table, duplicates=duplicates,
        command=f"python -m learners.evaluate '{home}/model' --data '{root}'",
    )  # fmt: skip
    written_text = "".join(file.read_text() for file in (tmp_path / "report").iterdir())
    pictures = re.findall(r"data:image/jpeg;base64,([^\"]+)", written_text)
    assert pictures
    for content in [written_text.encode(), *map(base64.b64decode, pictures)]:
        for word in (b"Jane", str(tmp_path).encode(), b"/else", b"/home"):
            assert word not in content
    assert figures["title"].startswith("Evaluated on my photos (backbone ")
    assert figures["near_duplicates"][0]["path"] == "2/2.jpg"
    assert figures["near_duplicates"][0]["train_path"] == "2/5.jpg"
    assert figures["copies_of_training_items"] == ["0/0.jpg"]
    assert [tuple(row.values()) for row in figures["left_out"]] == [
        ("0/copy.jpg", "a copy of 0/0.jpg, which is in train"),
        ("items.csv, row 5", "no path"),
        ("b.jpg", "[Errno 2] No such file: 'deep/er/c.jpg'"),
    ]
    assert figures["provenance"] == {
        "data": "my photos",
        "command": "python -m learners.finetune --data 'my photos' '--out=my run' --lr 1e-3",
        "note": "noise of x/a.hdf5",
    }
    assert figures["evaluated"]["command"] == "python -m learners.evaluate model --data 'my photos'"
    assert "the folder my photos that is here" in page.text
    assert f"{silent % 3}/{silent}.jpg: cut short" in page.text


def test_an_evaluation_has_its_command_and_no_curves(tmp_path, photos, drawn):
    bundle = make_bundle()
    evaluation = make_evaluation(bundle, calibration=0, paths=photos)
    evaluation.predictions["split"] = evaluation.predictions["split"].replace("valid", "test")
    page, figures = written(tmp_path, bundle, evaluation, command="python -m learners.evaluate m")
    assert page.all("h1")
    assert figures["title"] == f"Evaluated on made-up (backbone {bundle.spec.backbone})"
    assert figures["title"] in page.text
    assert "python -m learners.evaluate m" in page.text
    assert "python -m learners.finetune --data made-up" in page.text
    assert not any("Cross-entropy" in str(plot.get("aria-label")) for plot in page.all("svg"))
    assert figures["evaluated_split"] == "test"
    assert figures["evaluated"]["versions"]["torch"]
    assert figures["near_duplicates"] is None


def test_a_copy_of_a_training_file_is_a_notice(tmp_path, photos):
    bundle = make_bundle()
    evaluation = make_evaluation(bundle, paths=photos)
    evaluation.features[7] = bundle.rule.distance.reference[11]
    page, figures = written(tmp_path, bundle, evaluation)
    assert figures["copies_of_training_items"] == [photos[7].name]
    assert "1 of 141 files are copies of training files" in figures["notices"][-1]
    assert figures["notices"][-1] in page.text


@pytest.mark.parametrize(
    "counts",
    [
        {"ood": 0},
        {"valid": 0, "calibration": 0},
        {"valid": 6, "calibration": 6, "ood": 6, "silent": 6},
        {"valid": 1, "calibration": 0, "ood": 0, "silent": 0},
        {"valid": 0, "calibration": 0, "ood": 1, "silent": 0},
    ],
    ids=["no unknown", "all unknown", "nothing judged", "one item", "one unknown"],
)
@pytest.mark.parametrize("classes", [["a", "b"], [f"class {n}" for n in range(60)]], ids=len)
def test_reports_with_a_part_missing(tmp_path, photos, counts, classes):
    bundle = make_bundle(classes)
    page, _ = written(tmp_path, bundle, make_evaluation(bundle, **counts, paths=photos))
    check_self_contained(page, tmp_path / "report/index.html")


def test_reports_without_mistakes_and_with_mistakes_alone(tmp_path, photos):
    bundle = make_bundle()
    evaluation = make_evaluation(bundle, silent=0, paths=photos)
    known = evaluation.predictions["split"].ne("unknown")
    evaluation.predictions.loc[known, "truth"] = evaluation.predictions.loc[known, "best"]
    page, figures = written(tmp_path / "right", bundle, evaluation)
    assert "Mistakes (0 of 120 files)" in page.text
    assert "Of 120 calibration and validation files 0 are answered wrong" in page.text
    assert "by its most probable class, 0 of the 120 are wrong." in page.text
    assert figures["risk_coverage"]["aurc"] == 0
    after = {"a": "b", "b": "c", "c": "a"}
    wrong = evaluation.predictions.loc[known, "best"].map(after)
    evaluation.predictions.loc[known, "truth"] = wrong
    page, figures = written(tmp_path / "wrong", bundle, evaluation)
    assert "Mistakes (120 of 120 files)" in page.text
    assert figures["splits"]["valid"]["accuracy"]["value"] == 0


def test_pictures_that_are_gone_are_named(tmp_path):
    bundle = make_bundle()
    page, _ = written(tmp_path, bundle, make_evaluation(bundle))
    assert not page.all("img")
    assert re.search(r"valid/\d+\.jpg|\d+\.jpg: ", page.text)


def test_a_backbone_without_a_map_shows_the_plain_picture(tmp_path, photos, monkeypatch):
    from datasets.core.errors import SecondhandError

    def no_map(*args: object, **options: object) -> None:
        raise SecondhandError(NO_MAP)

    monkeypatch.setattr("learners.report.galleries.heatmap", no_map)
    bundle = make_bundle()
    page, _ = written(tmp_path, bundle, make_evaluation(bundle, paths=photos))
    assert NO_MAP in page.text
    assert page.all("img")
    assert not any("looked" in str(image["alt"]) for image in page.all("img"))


def test_heat_maps_are_few(tmp_path, photos, monkeypatch):
    calls = []

    def counted(
        network: object, pixels: np.ndarray, *args: object, **options: object
    ) -> np.ndarray:
        calls.append(1)
        return np.zeros(pixels.shape[1:], np.float32)

    monkeypatch.setattr("learners.report.galleries.heatmap", counted)
    bundle = make_bundle()
    evaluation = make_evaluation(bundle, silent=0, paths=photos)
    known = evaluation.predictions["split"].ne("unknown")
    wrong = evaluation.predictions["best"].map({"a": "b", "b": "c", "c": "a"})
    evaluation.predictions["truth"] = wrong.where(known, "unknown")
    written(tmp_path, bundle, evaluation)
    assert len(calls) == 12


def test_the_window_with_the_highest_logit_of_a_long_recording_is_shown(tmp_path):
    """The caption has the time of the window, one of three with tones."""
    rate = 8000
    time = np.arange(rate) / rate
    tones = [np.sin(2 * np.pi * f * time) for f in (300, 1200, 3000)]
    wavfile.write(tmp_path / "long.wav", rate, (np.concatenate(tones) * 20000).astype(np.int16))
    bundle = make_bundle()
    bundle.spectrogram = MelSettings(rate=rate, window=1.0).to_dict()
    bundle.overlap = 0.0
    pictures = Pictures(Predictor(bundle))
    path = str(tmp_path / "long.wav")
    windows = [Part(path, float(n), float(n + 1)) for n in range(3)]
    pixels = np.stack([pictures.predictor.open(window) for window in windows])
    logits, _ = pictures.predictor.forward(pixels)
    for c in range(3):
        expected = windows[int(logits[:, c].argmax())]
        assert pictures.moment(Part(path), c) == expected
        figure = pictures.figure(Part(path), {}, c)
        assert f"{expected.start:.1f}–{expected.end:.1f} s" in figure.under  # noqa: RUF001
