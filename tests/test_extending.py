"""The package of docs/extending.md does what the page says."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from tests.documented import ROOT
from tests.forks import run
from tests.pictures import write_pictures
from tests.test_what_is_in_it import registries

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
TRAIN = (
    "--score", "means", "--backbone", "test_resnet", "--weights", "none", "--size", "32",
    "--epochs", "0", "--workers", "0", "--threshold", "0.5",
)  # fmt: skip


def install(site: Path) -> None:
    """Write what ``pip install`` leaves of the package on the page, and of one with nothing behind its names."""
    for name, content in re.findall(r"(?ms)^`(\w+/\w+\.py)` .*?```python\n(.*?)```", PAGE):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    toml = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert toml
    project = tomllib.loads(toml[1])["project"]
    for place in chain.from_iterable(map(dict.values, project["entry-points"].values())):
        module = place.partition(":")[0].replace(".", "/")
        assert (site / f"{module}.py").is_file(), "the page shows each"
    broken = {group: {"broken": "fieldnotes:NOTHING"} for group in project["entry-points"]}
    taken = {"secondhand.commands": {"cache": "fieldnotes:NOTHING"}}
    for name, groups in (("broken", broken | taken), (project["name"], project["entry-points"])):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        (info / "METADATA").write_text(f"{head}Summary: {project['description']}\n")
        lines = [
            line
            for group, points in groups.items()
            for line in (f"[{group}]", *(f"{name} = {at}" for name, at in points.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))


def secondhand(*words: object, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Call ``secondhand``, with the packages of ``site`` installed."""
    return python("-m", "secondhand", *words, site=site)


def python(*words: object, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Call Python, with the packages of ``site`` installed."""
    paths = os.pathsep.join(str(path) for path in (ROOT, site) if path)
    return run(*map(str, words), env=os.environ | {"PYTHONPATH": paths})


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    install(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("data") / "photos", classes=2)


@pytest.fixture(scope="module")
def model(site: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose score is the package's."""
    out = tmp_path_factory.mktemp("runs") / "photos"
    lines(secondhand("finetune", "--data", photos, "--out", out, *TRAIN, site=site))
    return out / "model"


def test_a_model_with_a_score_of_the_package_ranks_by_it(model, site, photos, tmp_path):
    out = tmp_path / "answers.csv"
    lines(secondhand("predict", model, photos, "--score", "means", "--out", out, site=site))
    known = [float(row["known"]) for row in csv.DictReader(out.open())]
    assert len(known) == 40
    assert all(0 < value <= 1.001 for value in known), "it is a cosine"


def test_without_the_package_the_model_names_it(model, photos, tmp_path):
    done = secondhand("predict", model, photos)
    assert done.returncode == 2
    assert "fieldnotes" in done.stderr
    assert "means" in done.stderr
    done = secondhand("finetune", "--data", photos, "--score", "meens", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "--score meens (must be one of combined, knn, msp, rmds" in done.stderr


def test_a_format_of_the_package_is_written_and_a_broken_one_is_left_out(model, site, photos):
    done = secondhand("predict", model, photos, "--format", "tally", site=site)
    assert "fieldnotes:NOTHING" in done.stderr
    tally = lines(done)
    counts = {label: int(number) for number, label in (line.split("\t") for line in tally)}
    assert sum(counts.values()) == 40
    assert counts.keys() <= {"red", "green", "unknown"}
    assert "red" in counts
    wrong = secondhand("predict", model, photos, "--format", "taly", site=site)
    assert wrong.returncode == 2
    assert "--format taly" in wrong.stderr
    assert wrong.stderr.endswith("Did you mean tally?\n")


def test_labels_in_a_format_of_the_package_are_read(model, site, photos, tmp_path):
    """What cannot be used is listed, and exit status 3 says so only of files."""
    files, slips, out = (
        sorted(photos.rglob("*.jpg"))[::5],
        tmp_path / "july.slips",
        tmp_path / "report",
    )
    slips.write_text("".join(f"{file} = {file.parent.name}\n" for file in files) + "rain\n")
    done = secondhand("evaluate", model, "--data", slips, "--out", out, site=site)
    lines(done)
    assert "july.slips, line 9: no name and label" in done.stderr
    truths = {row["truth"] for row in csv.DictReader((out / "predictions.csv").open())}
    assert truths == {"red", "green"}


def test_files_of_a_kind_of_the_package_are_learnt_and_predicted(site, tmp_path):
    """A damaged file is listed, as one of the program's own kinds."""
    data, rng = tmp_path / "arrays", np.random.default_rng(0)
    for label, level in (("dark", 0.2), ("bright", 0.8)):
        (data / label).mkdir(parents=True)
        for n in range(20):
            np.save(data / label / f"{n}.npy", rng.normal(level, 0.1, (40, 40)))
    (data / "dark" / "damaged.npy").write_bytes(b"no array")
    out, report = tmp_path / "run", tmp_path / "report"
    command = ("finetune", "--data", data, "--out", out, *TRAIN)
    done = secondhand(*command, site=site)
    lines(done)
    assert "damaged.npy: cannot be read" in done.stderr
    predicted = secondhand("predict", out / "model", data, site=site)
    assert predicted.returncode == 3, predicted.stderr
    rows = {row["path"]: row for row in csv.DictReader(predicted.stdout.splitlines())}
    assert len(rows) == 41
    assert rows.pop(str(data / "dark" / "damaged.npy"))["reason"].startswith("bad file")
    right = sum(row["best"] == Path(path).parent.name for path, row in rows.items())
    assert right >= 36
    evaluated = secondhand("evaluate", out / "model", "--data", data, "--out", report, site=site)
    assert evaluated.returncode == 3, evaluated.stderr
    assert (report / "index.html").is_file()
    without = secondhand("predict", out / "model", data)
    assert without.returncode == 2
    assert "kind='array'" in without.stderr


def test_a_step_of_the_package_keeps_nights_together(site, photos, tmp_path):
    for number, photo in enumerate(sorted(photos.glob("*/*.jpg"))):
        night = (
            tmp_path / "nights" / photo.parent.name / f"2024-06-{1 + number % 10:02}_{number}.jpg"
        )
        night.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, night)
    out = tmp_path / "run"
    lines(secondhand("finetune", "--data", tmp_path / "nights", "--out", out, *TRAIN, site=site))
    rows = [*csv.DictReader((out / "items.csv").open())]
    assert {row["group"] for row in rows} == {f"2024-06-{n:02}" for n in range(1, 11)}
    held_out = {(row["group"], row["split"] == "train") for row in rows}
    assert len(held_out) == 10


SHOWN = """
import sys
from app.page import above_table
from app.rules import rule_at
from secondhand import load_predictor

predictor = load_predictor(sys.argv[1])
answers = [*predictor.predict(sys.argv[2:])]
print(above_table(answers, rule_at(predictor, None), predictor))
"""


def test_a_part_of_the_page_of_the_package_is_shown(model, site, photos):
    files = sorted(photos.rglob("*.jpg"))[::4]
    shown = "".join(lines(python("-c", SHOWN, model, *files, site=site)))
    counts = {label: int(number) for label, number in re.findall("<p>(\\w+): (\\d+)</p>", shown)}
    assert sum(counts.values()) == len(files) == 10
    assert counts.keys() <= {"red", "green", "unknown"}


def test_each_group_of_a_registry_is_named_on_the_page() -> None:
    groups = {one.group for one in registries()}
    assert groups <= {
        *re.findall(r"`secondhand\.(\w+)`", PAGE),
        *re.findall(r"`(\w+)\.py`", PAGE),
    } | {*re.findall(r'"secondhand\.(\w+)"', PAGE)}


def test_a_command_of_the_package_is_listed_and_run(model, site, photos):
    assert "  disagree  Arrays, tallies, class means and comparisons" in lines(
        secondhand("--help", site=site)
    )
    assert lines(secondhand("disagree", model, model, photos, site=site)) == []
    wrong = secondhand("disagree", model, photos / "none", photos, site=site)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: ")
    assert "Traceback" not in wrong.stderr
    near = secondhand("disagre", site=site)
    assert (near.returncode, "disagree?" in near.stderr) == (2, True)
    assert secondhand("disagree").returncode == 2
    broken = secondhand("broken", site=site)
    assert broken.returncode == 2
    assert "broken" in broken.stderr
    assert "Traceback" not in broken.stderr
    assert lines(secondhand("cache", "--help", site=site))[0].startswith("usage: secondhand cache")
