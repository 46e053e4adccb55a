"""Each field can be deleted: without it everything else works, and what needs it names it."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import fields
from datasets.core.shipped import SHIPPED
from learners.model.bundle import save_bundle
from tests.app.sites import bursts, colours, strain, tone, tones
from tests.forks import ROOT, run
from tests.learners.rules import untrained
from tests.pictures import write_pictures

FIELDS = [one.name for one in pkgutil.iter_modules(fields.__path__) if one.ispkg]
COMMANDS = ("finetune", "predict", "evaluate", "adjust", "app", "render")
KINDS = {"picture": colours, "sound": tones, "strain": bursts}
SMALL = (
    "--backbone",
    "test_resnet",
    "--weights",
    "none",
    "--size",
    "32",
    "--epochs",
    "0",
    "--cross-fit",
    "0",
)

#: Prints what can be said in a call, with all fields and then without each of those that are named.
SAID = f"""
import contextlib, io, json, os, re, sys
import learners.cli.flags, learners.outputs.base, secondhand.__main__

def of_help(command):
    sys.argv, out = ["secondhand", command, "--help-all"], io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        secondhand.__main__.main()
    text = out.getvalue()
    flags = {{one.removeprefix("--no-") for one in re.findall(r"^  (?:-\\w, )?--([\\w-]+)", text, re.MULTILINE)}}
    return sorted(f"{{command}} --{{flag}}" for flag in flags), text

def said(field):
    sys.modules["fields." + field] = None
    helps = [of_help(command) for command in {COMMANDS!r}]
    words = [word for found, _ in helps for word in found]
    words += [f"predict --format {{name}}" for name in learners.outputs.base.OUTPUTS.ours()]
    words += [*secondhand.commands.COMMANDS.ours(), *secondhand._names_of_fields()]
    return words, "".join(text for _, text in helps)

for field in ["", *sys.argv[1:]]:
    if not os.fork():
        print(json.dumps(said(field)), flush=True)
        os._exit(0)
    os.wait()
"""


class Said(NamedTuple):
    """The words of calls, and all help."""

    words: set[str]
    help: str


@pytest.fixture(scope="module")
def said() -> dict[str, Said]:
    """What can be said with all fields, under "", and without each."""
    done = subprocess.run(
        [sys.executable, "-c", SAID, *FIELDS], cwd=ROOT, capture_output=True, text=True, check=True, timeout=200
    )  # fmt: skip
    lines = map(json.loads, done.stdout.splitlines())
    return {
        field: Said({*words}, help)
        for field, (words, help) in zip(["", *FIELDS], lines, strict=True)
    }


@pytest.mark.parametrize("field", FIELDS)
def test_its_words_are_gone_and_all_others_stay(field: str, said: dict[str, Said]) -> None:
    gone = said[""].words - said[field].words
    assert {" ".join(words[words[0] in COMMANDS :]) for words in map(str.split, gone)} == {
        *SHIPPED[field].words
    }
    assert said[field].words <= said[""].words


@pytest.mark.parametrize("field", FIELDS)
def test_no_help_speaks_of_it(field: str, said: dict[str, Said]) -> None:
    kept = {words.split()[-1] for words in said[field].words}
    flags = {word for word in SHIPPED[field].words if word.startswith("--")} - kept
    assert flags & {word.strip(".,;:()") for word in said[field].help.split()} == set()


#: Of each field, calls that need it, and the exit status: 2 if nothing could be done, 3 if a file could not be used.
NEEDING = {
    "cameras": [
        (2, "finetune --data boxes.json --out OUT/none --overwrite"),
        (2, "finetune --data package --out OUT/none --overwrite"),
        (2, "finetune --data picture --group-by deployment --out OUT/none --overwrite"),
        (2, "finetune --data picture --split-by time --out OUT/none --overwrite"),
        (2, "finetune --data picture --config split.yaml --out OUT/none --overwrite"),
        (2, "evaluate picture-model --data boxes.json"),
        (3, "predict picture-model boxes.json"),
        (2, "predict picture-model picture --events"),
        (2, "predict picture-model picture --format camtrap-dp --out package"),
        (2, "predict boxes-model picture"),
    ],
    "cluster": [(2, "predict picture-model picture --cluster local")],
    "detectors": [
        (2, "finetune --data triggers.csv --strain strain --out OUT/none --overwrite"),
        (2, "finetune --data gwosc:GW150914 --out OUT/none --overwrite"),
        (2, "evaluate strain-model --data triggers.csv --strain strain"),
        (2, "predict strain-model --triggers triggers.csv --strain strain"),
        (2, "predict strain-model strain --windows"),
    ],
    "embeddings": [(2, "finetune --data features.npz --out OUT/none --overwrite")],
    "loop": [(2, "audit picture-model --data picture"), (2, "search picture-model picture")],
    "recordings": [
        (2, "finetune --data track.txt --out OUT/none --overwrite"),
        (2, "finetune --data a.TextGrid --out OUT/none --overwrite"),
        (2, "evaluate sound-model --data sound --events"),
        (2, "predict sound-model sound --events"),
        (2, "predict sound-model sound --format raven"),
    ],
    "remote": [
        (2, "finetune --data photos.zip --out OUT/none --overwrite"),
        (2, "predict picture-model s3://bucket/photos"),
        (2, "predict hf:USER/NAME picture"),
    ],
}
#: Calls that work without any.
WORKING = [
    *(f"predict {kind}-model {kind}" for kind in KINDS),
    *(f"evaluate {kind}-model --data {kind} --out OUT/{kind}" for kind in KINDS),
    f"finetune --data picture --out OUT/run {' '.join(SMALL)} --out OUT/none --overwrite",
    "adjust picture-model --threshold 0.5 --out OUT/adjusted",
    f"page {' '.join(f'{kind}-model' for kind in KINDS)}",
]  # fmt: skip


def write_files(folder: Path) -> None:
    """Write a model and files of each kind, and what needs a field."""
    for kind, model in KINDS.items():
        save_bundle(model(), folder / f"{kind}-model")
    save_bundle(
        untrained(["red", "blue"], provenance={"boxes": 2, "items": 2}), folder / "boxes-model"
    )
    write_pictures(folder / "picture", per_class=8, classes=2)
    for name in ("high", "low"):
        (folder / "sound" / name).mkdir(parents=True)
        for n in range(2):
            tone(folder / "sound" / name / f"{n}.wav", name, level=0.3 + n / 10)
    for name, frequency in {"burst": 200.0, "line": 60.0}.items():
        (folder / "strain" / name).mkdir(parents=True)
        strain(folder / "strain" / name / "a.hdf5", frequency)
    box = {"category": "1", "conf": 0.9, "bbox": [0.1, 0.2, 0.3, 0.4]}
    photo = {"file": "picture/red/red_000.jpg", "detections": [box]}
    detections = {"detection_categories": {"1": "animal"}, "images": [photo]}
    package = {"profile": "camtrap-dp-profile.json", "resources": []}
    (folder / "package").mkdir()
    for file, content in {
        "boxes.json": json.dumps(detections), "package/datapackage.json": json.dumps(package), "split.yaml": "split_by: time\n",
        "triggers.csv": "GPStime,ifo,label\n1126259462.4,H1,Blip\n", "track.txt": "0\t1\twren\n",
        "a.TextGrid": 'File type = "ooTextFile"\n',
    }.items():  # fmt: skip
        (folder / file).write_text(content)
    np.savez(folder / "features.npz", embedding=np.ones((2, 3)), label=["a", "b"])
    shutil.make_archive(str(folder / "photos"), "zip", folder / "picture")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[int, str]]]:
    """Exit status and output of each call, without each field."""
    folder = tmp_path_factory.mktemp("without")
    write_files(folder)
    calls = {
        field: [text.replace("OUT", field) for text in (*WORKING, *(text for _, text in NEEDING.get(field, ())))]
        for field in FIELDS
    }  # fmt: skip
    (folder / "calls.json").write_text(
        json.dumps({field: [text.split() for text in each] for field, each in calls.items()})
    )
    words = ("-m", "tests.fields.without", "calls.json", "found.json")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON_CPU_COUNT": "1"}
    done = run(*words, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "found.json").read_text())
    return {
        field: dict(zip(each, map(tuple, found[field]), strict=True))
        for field, each in calls.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_the_rest_works(field: str, outcomes: dict[str, dict[str, tuple[int, str]]]) -> None:
    failed = {
        text: outcome
        for text, outcome in outcomes[field].items()
        if text in {one.replace("OUT", field) for one in WORKING} and outcome[0]
    }
    assert failed == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "status", "text"),
    [(field, *each) for field in FIELDS for each in NEEDING.get(field, ())],
)
def test_what_needs_it_names_it(
    field: str, status: int, text: str, outcomes: dict[str, dict[str, tuple[int, str]]]
) -> None:
    found, output = outcomes[field][text.replace("OUT", field)]
    assert found == status, output
    assert f"fields/{field}" in output
    assert "Traceback" not in output
