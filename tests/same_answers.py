"""Compare two versions of the code by the answers of small models of every kind.

    python -m tests.same_answers write before/      # in one checkout
    python -m tests.same_answers write after/       # in the other
    python -m tests.same_answers compare before/ after/

Each run trains on one thread with a fixed seed. Its ``predictions.csv``, ``report.json`` and ``config.yaml`` are kept,
the output of ``learners.predict`` as CSV and JSON Lines, and what the commands of `QUESTIONS` print and write.
`compare` requires equal text and numbers equal to 1e-6; its exit status is 1 if something differs.

A version that lacks a flag is compared with one that has it: ``write --without tta`` leaves this flag out, in both
checkouts, and ``compare --ignore tta`` leaves out keys of JSON and YAML and columns of tables.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

TOLERANCE = 1e-6
SMALL = ["--size", "48", "--epochs", "1", "--threads", "1", "--workers", "0", "--seed", "1"]
HEAD = ["--epochs", "0", "--target-accuracy"]
NO_WEIGHTS = ["--weights", "none", "--freeze-epochs", "1"]
#: Flags of each run; ``{dir}`` is the output folder.
RUNS = {
    "digits": ["--data", "demo:digits", *SMALL, "--tta", "2"],
    "sounds": ["--data", "demo:sounds", *SMALL, "--background", "{dir}/noise"],
    "glitches": ["--data", "demo:glitches", *SMALL, "--calibration", "0.2"],
    "scenes": ["--data", "demo:scenes", *SMALL],
    "tree": ["--data", "demo:digits", *SMALL, "--classes-table", "{dir}/tree.csv"],
    "target": ["--data", "demo:digits", *SMALL, *HEAD, "0.9"],
    "scenes-target": ["--data", "demo:scenes", *SMALL, *HEAD, "0.8"],
    "folds": ["--data", "{dir}/few.csv", *SMALL, "--epochs", "0", "--cv", "3"],
    "first": ["--data", "{dir}/few.csv", *SMALL],
    "second": ["--from", "{dir}/runs/first/model", "--data", "{dir}/more.csv", *SMALL],
    "killed": ["--data", "{dir}/few.csv", *SMALL, "--epochs", "3"],
    "vit": ["--data", "{dir}/few.csv", *SMALL, "--backbone", "vit_tiny_patch16_224", *NO_WEIGHTS],
    "convnext": ["--data", "{dir}/few.csv", *SMALL, "--backbone", "convnext_atto", *NO_WEIGHTS],
    "embeddings": ["--data", "{dir}/vectors.npz", "--seed", "1", "--threads", "1"],
    "onnx": ["--data", "{dir}/few.csv", *SMALL, "--epochs", "0"],
}
ASKED = 24  # files of each run that `learners.predict` answers

_PREDICT = ["learners.predict", "{model}"]
_SOUND = [*_PREDICT, "{dir}/recordings"]
_CARD = [*_PREDICT, "{dir}/card", "--out", "{out}", "--format"]
_POOL = ["--out", "{out}.csv"]
#: Commands that are asked of a run's model, by name: the words behind ``python -m``. ``{model}`` is the model folder; ``{out}`` a
#: file or folder, whose text files are kept as well.
QUESTIONS: dict[str, dict[str, list[str]]] = {
    "sounds": {
        "windows": [*_SOUND, "--windows"],
        "events": [*_SOUND, "--events", "--gap", "1", "--min-length", "0.5"],
        "table": [*_SOUND, "--events", "--format", "table"],
        "raven": [*_SOUND, "--events", "--format", "raven", "--out", "{out}"],
        "audacity": [*_SOUND, "--windows", "--format", "audacity", "--out", "{out}"],
        "camtrap": [*_SOUND, "--events", "--format", "camtrap-dp", "--out", "{out}"],
        "evaluate": ["learners.evaluate", "{model}", "--data", "{dir}/spans.csv", "--out", "{out}"],
        "evaluate-events": [
            *("learners.evaluate", "{model}", "--data", "{dir}/spans.csv", "--events"),
            *("--unknown", "{dir}/noise", "--out", "{out}"),
        ],
        "no-labels": [
            *("learners.evaluate", "{model}", "--data", "{dir}/recordings", "--no-labels"),
            *("--out", "{out}"),
        ],
        "suggest": ["secondhand", "suggest", "{model}", "{dir}/recordings", "--n", "6", *_POOL],
    },
    "glitches": {
        "triggers": [*_PREDICT, "--triggers", "{dir}/triggers.csv", "--strain", "{dir}/strain"],
    },
    "digits": {
        "evaluate": [
            *("learners.evaluate", "{model}", "--data", "{dir}/few.csv", "--out", "{out}"),
            *("--unknown", "{dir}/card"),
        ],
        "keep-known": [*_PREDICT, "{dir}/card", "--keep-known", "1", "--threshold", "0.5"],
        "classes": [*_PREDICT, "{dir}/card", "--classes", "1,2,3", "--top", "5"],
        "adjust": ["learners.adjust", "{model}"],
        "adjusted": ["learners.adjust", "{model}", "--keep-known", "0.9", "--out", "{out}"],
        "camtrap": [*_CARD, "camtrap-dp"],
        "camtrap-events": [*_CARD, "csv", "--events", "--gap", "60"],
        "megadetector": [
            *(*_PREDICT, "{dir}/card/boxes.json", "--format", "megadetector"),
            *("--out", "{out}.json"),
        ],
        "boxes": [*_PREDICT, "{dir}/card/boxes.json", "--windows"],
        "audit": ["secondhand", "audit", "{model}", "{dir}/card", "--n", "12", *_POOL],
        "audit-labels": [
            "secondhand",
            "audit",
            "{model}",
            "--labels",
            "{dir}/asked/digits/audit.csv",
        ],
        "suggest": ["secondhand", "suggest", "{model}", "{dir}/card", "--n", "12", *_POOL],
        "discover": ["secondhand", "discover", "{model}", "{dir}/card", *_POOL],
        "search": [
            "secondhand",
            "search",
            "{model}",
            "{dir}/card/0/0.png",
            "{dir}/card",
            "--top",
            "9",
        ],
    },
    "scenes": {"windows": [*_SOUND, "--windows", "--top", "5"]},
    "onnx": {
        "onnx": [*_PREDICT, "{dir}/card", "--engine", "onnx"],
        "torch": [*_PREDICT, "{dir}/card", "--engine", "torch"],
    },
}


def write(folder: Path, names: Collection[str], without: Collection[str]) -> None:
    """Train the runs and write their answers to ``folder/answers``; what stands there is not computed again.

    Parameters
    ----------
    names : names of `RUNS`.
    without : flags, without dashes, that are left out everywhere with their values.
    """
    os.environ |= {"SECONDHAND_CACHE": str(folder / "cache"), "SECONDHAND_ONNX": "0"}
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    _write_data(folder)
    for name, words in RUNS.items():
        run, answers_folder = folder / "runs" / name, folder / "answers" / name
        if name not in names or answers_folder.is_dir():
            continue
        os.environ["SECONDHAND_ONNX"] = str(int(name == "onnx"))
        flags = [word.format(dir=folder) for word in without_flags(words, without)]
        command = ["learners.finetune", *flags, "--out", run, "--quiet"]
        if name == "killed":
            _kill_after_an_epoch([*command, "--overwrite"], run)
            command = ["learners.finetune", "--resume", run, "--quiet"]
        else:
            command.append("--overwrite")
        texts = {"finetune.txt": _command(folder, *command)}
        for pattern in ("**/predictions.csv", "**/report.json", "folds.csv", "config.yaml"):
            texts |= {_flat(file, run): _text(file) for file in sorted(run.glob(pattern))}
        if (run / "model").is_dir():
            texts |= _ask(folder, name, without)
        answers_folder.mkdir(parents=True)
        for file, text in texts.items():
            text = _undated(text.replace(str(folder), "."))
            (answers_folder / file).write_text(text, encoding="utf-8")
        print(name, flush=True)


def _ask(folder: Path, name: str, without: Collection[str]) -> dict[str, str]:
    """What the commands of a run print, and the texts that they write, by name of file."""
    model = folder / "runs" / name / "model"
    files = _sample_files(model.parent)
    if name == "embeddings":  # its items are rows of a file
        files = [str(folder / "vectors.npz")]
    texts = {
        f"answers.{form}": _command(
            folder, "learners.predict", model, *files, "--format", form, "--quiet"
        )
        for form in ("csv", "jsonl")
    }
    for question, words in QUESTIONS.get(name, {}).items():
        out = folder / "asked" / name / question
        out.parent.mkdir(parents=True, exist_ok=True)
        if question == "audit-labels":
            _fill_in(out.with_name("audit.csv"), folder / "labels.csv")
        filled = [word.format(dir=folder, model=model, out=out) for word in words]
        texts[f"{question}.txt"] = _command(folder, *without_flags(filled, without))
        written = [out, *out.parent.glob(f"{question}.*"), *out.rglob("*")]
        for file in sorted({file for file in written if file.is_file()}):
            if file.suffix in _KEPT and not {"model", "README.md"} & {*file.parts[-2:]}:
                texts[f"{question}-{_flat(file, out.parent)}"] = _text(file)
    return texts


def _fill_in(drawn: Path, labels: Path) -> None:
    """Fill in the labels of a table that `secondhand audit` drew."""
    truth = pd.read_csv(labels, dtype=str).set_index("path")["label"]
    table = pd.read_csv(drawn, dtype=str, keep_default_na=False)
    table.assign(label=table["path"].map(truth)).to_csv(drawn, index=False)


#: Endings of files of answers that are compared.
_KEPT = (".csv", ".json", ".jsonl", ".txt", "")


def without_flags(words: Sequence[str], without: Collection[str]) -> list[str]:
    """The words of a command without some flags and their values."""
    kept: list[str] = []
    dropped = False
    for word in words:
        if word.startswith("--"):
            dropped = word[2:] in without
        if not dropped:
            kept.append(word)
    return kept


def compare(before: Path, after: Path, ignored: Collection[str] = ()) -> int:
    """Print each answer file that differs, and return how many do.

    Parameters
    ----------
    ignored : keys of JSON and YAML files, and columns of tables, that are left out on both sides.
    """
    files = sorted(
        {p.relative_to(d) for d in (before, after) for p in (d / "answers").rglob("*.*")}
    )
    different = 0
    for file in files:
        if line := _difference(before / file, after / file, ignored):
            different += 1
            print(f"{file}: {line}")
    print(f"{len(files)} files, {different} different")
    return different


def _difference(before: Path, after: Path, ignored: Collection[str]) -> str:
    """Return the first line in which two files differ, or ""."""
    if not (before.is_file() and after.is_file()):
        return "only in one of the two"
    texts = (
        _CALLED.sub("", _HASH.sub("HASH", _without_keys(path.name, _text(path), ignored)))
        for path in (before, after)
    )
    lines = ([line for line in text.splitlines() if not _OF_ITS_TIME.match(line)] for text in texts)
    if before.suffix == ".yaml":  # the order of settings has no meaning
        lines = map(sorted, lines)
    for number, (old, new) in enumerate(zip_longest(*lines, fillvalue=""), 1):
        if old != new and not _equal_but_for_last_digits(old, new):
            return f"line {number}\n  - {old[:300]}\n  + {new[:300]}"
    return ""


def _without_keys(name: str, text: str, ignored: Collection[str]) -> str:
    if not ignored:
        return text
    if name.endswith(".json"):
        text = json.dumps(_pruned(json.loads(text), ignored), indent=1, ensure_ascii=False)
        return text.replace(",\n", "\n")  # which the last of the keys that are left has not
    if name.endswith(".jsonl"):
        rows = [_pruned(json.loads(line), ignored) for line in text.splitlines()]
        return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    if name.endswith(".yaml"):
        keys = "|".join(map(re.escape, ignored))
        return re.sub(rf"(?m)^\s*({keys}):.*\n", "", text)
    if name.endswith(".csv"):
        rows = [*csv.reader(io.StringIO(text))]
        kept = [n for n, column in enumerate(rows[0] if rows else []) if column not in ignored]
        return "\n".join(",".join(row[n] for n in kept if n < len(row)) for row in rows)
    return text


def _pruned(value: Any, ignored: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {k: _pruned(v, ignored) for k, v in value.items() if k not in ignored}
    return [_pruned(one, ignored) for one in value] if isinstance(value, list) else value


#: Lines that differ from run to run: durations, dates and a hash of paths.
_OF_ITS_TIME = re.compile(r'\s*"?(seconds|trained|evaluated|items_sha256|model_sha256)"?:')
#: Hashes of model folders, whose files name all that a version stores.
_HASH = re.compile(r"\b([0-9a-f]{64}|[0-9a-f]{12})\b")
#: How a version calls a command, in one to copy.
_CALLED = re.compile(r"(?:\S*python -m )?(?:learners\.|secondhand |(?<=python -m )(?=app ))")
_NUMBER = re.compile(r"(-?\d+\.\d+(?:e[-+]?\d+)?)")


def _equal_but_for_last_digits(old: str, new: str) -> bool:
    a, b = _NUMBER.split(old), _NUMBER.split(new)
    return len(a) == len(b) and all(
        x == y if i % 2 == 0 else abs(float(x) - float(y)) <= TOLERANCE
        for i, (x, y) in enumerate(zip(a, b, strict=True))
    )


def _undated(text: str) -> str:
    """The text without times of today and yesterday, such as the time of a prediction: runs may cross midnight."""
    today = {datetime.date.today(), datetime.datetime.now(datetime.UTC).date()}
    days = today | {day - datetime.timedelta(days=1) for day in today}
    for day in days:
        text = re.sub(rf"{day}([T ][\d:.]+(Z|[+-]\d\d:\d\d)?)?", "NOW", text)
    return text


def _flat(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)).replace("/", "-")


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _command(folder: Path, module: str, *words: object) -> str:
    command = [sys.executable, "-m", module, *map(str, words)]
    completed = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    (folder / "log.txt").open("a", encoding="utf-8").write(f"$ {command}\n{completed.stderr}")
    if not completed.returncode:
        return completed.stdout
    if module == "learners.finetune":
        sys.exit(f"{' '.join(command)}\n{completed.stdout[-500:]}{completed.stderr[-2000:]}")
    last_line = completed.stderr.strip().rpartition("\n")[2]
    print(f"{' '.join(command)}: exit status {completed.returncode}: {last_line}", flush=True)
    return f"{completed.stdout}exit status {completed.returncode}\n"


def _kill_after_an_epoch(command: Sequence[object], run: Path) -> None:
    """Start a training, and kill it when it has saved its state after an epoch of all layers."""
    words = [sys.executable, "-m", *map(str, command)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    state = run / "checkpoint" / "state-000002.json"
    while process.poll() is None and not state.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not state.exists():
        sys.exit(f"{' '.join(words)}: ended before it could be killed")


def _sample_files(run: Path) -> list[str]:
    """Return some files of each split of a run, including unknown ones."""
    items = pd.read_csv(run / "items.csv", dtype=str, keep_default_na=False)
    files = items.drop_duplicates("path").groupby("split")["path"]
    return [path for _, paths in files for path in paths.iloc[: ASKED // files.ngroups]]


def _write_data(folder: Path) -> None:
    """Write what the runs and questions read: tables, noise, recordings, a card of photos, triggers, embeddings."""
    if (folder / "vectors.npz").is_file():
        return
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    _write_digits(folder)
    _write_sounds(folder, rng)
    _write_triggers(folder)
    centres = rng.normal(0, 1, (4, 32))
    truth = np.repeat(np.arange(4), 60)
    np.savez(
        folder / "vectors.npz", path=[f"item-{n:03}" for n in range(len(truth))],
        label=[f"class {n}" for n in truth], network="random",
        embedding=(centres[truth] + rng.normal(0, 0.8, (len(truth), 32))).astype(np.float32),
    )  # fmt: skip


def _write_digits(folder: Path) -> None:
    """A tree above the digits, a small table, one with a further class, a card of photos with boxes, and labels."""
    import numpy as np
    from PIL import Image

    from datasets.sources.demos import write_demo

    all_digits = write_demo("digits")[0]
    digits = all_digits.loc[all_digits["label"].ne("unknown")]
    few = digits.loc[digits["label"].isin(["0", "1", "2", "3"])].groupby("label").head(40)
    more = digits.loc[digits["label"].eq("4")].head(30)
    for name, rows in {"few": few, "more": more}.items():
        rows[["path", "label"]].to_csv(folder / f"{name}.csv", index=False)
    rows = [(n, "round" if n in "0689" else "straight") for n in sorted(set(digits["label"]))]
    rows += [("round", ""), ("straight", "")]
    with (folder / "tree.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("label", "parent"), *rows])
    images, labels = [], []
    for number, (path, label) in enumerate(
        all_digits.groupby("label").head(8)[["path", "label"]].to_numpy()
    ):
        photo = folder / "card" / str(number % 2) / f"{number}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as digit:  # no copy, which is left out: a pixel further to the right
            Image.fromarray(np.roll(np.asarray(digit), 1, axis=1)).save(photo)
        os.utime(photo, (1.6e9 + 30 * number, 1.6e9 + 30 * number))  # bursts of 30 s
        box = {"category": "1", "conf": 0.9, "bbox": [0.1, 0.1, 0.8, 0.8]}
        images.append({"file": f"{number % 2}/{number}.png", "detections": [box] * (number % 3)})
        labels.append({"path": str(photo), "label": label})
    boxes = {"images": images, "detection_categories": {"1": "animal"}, "info": {"format_version": "1.4"}}  # fmt: skip
    (folder / "card/boxes.json").write_text(json.dumps(boxes), encoding="utf-8")
    pd.DataFrame(labels).to_csv(folder / "labels.csv", index=False)


def _write_sounds(folder: Path, rng: Any) -> None:
    """Noise, and recordings of noise with the demo's sounds in it and a table of where they are."""
    import numpy as np
    import soundfile

    from datasets.sources.demos import write_demo

    rate = 16000
    (folder / "noise").mkdir()
    for number in range(40):
        noise = rng.normal(0, 0.02 * (1 + number % 4), 2 * rate).clip(-1, 1)
        soundfile.write(folder / "noise" / f"{number:02}.wav", noise.astype(np.float32), rate)
    rate = 22050  # of the demo
    clips = write_demo("sounds")[0]
    clips = clips.loc[clips["label"].ne("unknown")].groupby("label").head(3)
    (folder / "recordings").mkdir()
    spans = []
    for number in range(2):
        path = folder / "recordings" / f"{number}.wav"
        recording = rng.normal(0, 0.01, 60 * rate)
        for place, (clip, label) in enumerate(clips[["path", "label"]].to_numpy()[number::2]):
            sound, sound_rate = soundfile.read(clip)
            sound = sound[: 2 * sound_rate]
            assert sound_rate == rate
            first = (3 + 6 * place) * rate
            if first + len(sound) > len(recording):
                continue
            recording[first : first + len(sound)] += sound
            end = (first + len(sound)) / rate
            spans.append({"path": str(path), "start": first / rate, "end": end, "label": label})
        soundfile.write(path, recording.clip(-1, 1), rate)
    pd.DataFrame(spans).to_csv(folder / "spans.csv", index=False)


def _write_triggers(folder: Path) -> None:
    """Some files of simulated strain under names that state their time, and a table of triggers in them."""
    import shutil

    import h5py

    from datasets.sources.demos import write_demo

    (folder / "strain").mkdir()
    rows = []
    for path, label, gps in write_demo("glitches")[0].head(6)[["path", "label", "gps"]].to_numpy():
        with h5py.File(path) as file:
            start, seconds = (int(file[f"meta/{name}"][()]) for name in ("GPSstart", "Duration"))
        shutil.copyfile(path, folder / f"strain/H-H1_SIMULATED-{start}-{seconds}.hdf5")
        rows += [
            {"event_time": repr(float(gps) + shift), "ifo": "H1", "ml_label": label}
            for shift in (0.0, 0.25)
        ]
    pd.DataFrame(rows).to_csv(folder / "triggers.csv", index=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    writing = actions.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--runs", nargs="+", choices=[*RUNS], default=[*RUNS], metavar="RUN")
    writing.add_argument("--without", nargs="+", default=[], metavar="FLAG")
    comparison = actions.add_parser("compare")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    comparison.add_argument("--ignore", nargs="+", default=[], metavar="KEY")
    arguments = parser.parse_args()
    if arguments.action == "write":
        write(arguments.folder.resolve(), arguments.runs, arguments.without)
        return 0
    return int(compare(arguments.before, arguments.after, arguments.ignore) > 0)


if __name__ == "__main__":
    sys.exit(main())
