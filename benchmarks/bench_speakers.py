"""Accuracy on spoken digits of an unseen speaker, compared with plain fastai on the essay's pictures.

    python benchmarks/bench_speakers.py --data ../shared/data/sounds/spoken-digits
    python benchmarks/bench_speakers.py --data ../shared/data/sounds/spoken-digits --sides ours -- --epochs 0
    python benchmarks/bench_speakers.py --data notes --sides ours -- --size 96 --spectrogram "{scale: cqt, fmin: 123.5}"

With `--data notes` the classes are the twelve pitch classes, and the speakers two instruments: notes of three octaves,
synthesised (`notes`).

Leave-one-speaker-out: for each speaker one training on all clips of the others, measured on all
clips of that speaker, by the weights of the last epoch. The held-out speaker thus chooses nothing:
no epoch (`--keep last`), no setting, and of its two halves the one called "calibration" sets the
temperature and the threshold alone, neither of which changes which class is best.

Ours is the command: `python -m learners.finetune --data CSV --fold SPEAKER --keep last`, followed by
what stands behind `--`. `--size` and `--epochs` are the peer's.
Peer: the essay's PNGs (`benchmarks/bench_render.py`, matplotlib's default size at 400 dpi, shrunk
once to 256 px to spare the decoding in every epoch), `ImageDataLoaders`, `vision_learner` with its
own head and `Normalize`, and one of `benchmarks/peers/fastai_recipes.py` (`--recipe`): the same
weights, epochs, input size and batches of 16 (with its own default of 64 it has a quarter of the
steps). `--peer-augment yes` adds `aug_transforms()`, which turns, flips and zooms.

Results go to WORK/results.csv; what stands there is not trained again, so a run can be continued.
Targets: a mean of 0.93, each speaker at 0.90, and 0.10 above the peer.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

from benchmarks._shared import parse, software_and_hardware
from benchmarks.peers.fastai_recipes import RECIPES

COLUMNS = ("side", "speaker", "settings", "seed", "accuracy", "seconds", "load")


def pretended(count: int) -> pd.DataFrame:
    """Simulated sounds of two kinds in the place of digits, by two speakers that are none."""
    from datasets.sources.demos import write_demo

    frame = write_demo("sounds")[0]
    frame = frame[frame["label"].isin(sorted(frame["label"].unique())[:2])]
    number = frame.groupby("label").cumcount()
    return frame.assign(fold=["ab"[n % 2] for n in number])[number < count]


#: Amplitudes of the harmonics, and seconds of attack and decay: odd ones that begin slowly and stay, and all of them,
#: plucked.
INSTRUMENTS = {
    "reed": ([(1.0 / k if k % 2 else 0.03) for k in range(1, 14)], 0.08, 4.0),
    "string": ([1.0 / k**1.5 for k in range(1, 16)], 0.004, 0.35),
}
PITCHES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


def notes(folder: Path, count: int = 8) -> pd.DataFrame:
    """Synthesised notes: ``count`` of each pitch class in each of three octaves by each instrument.

    Each is up to a fifth of a semitone out of tune, has a loudness and harmonics of its own, and some noise.
    """
    import numpy as np
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    rate, rows = 22_050, []
    t = np.arange(round(0.8 * rate)) / rate
    for (instrument, (harmonics, attack, decay)), number in itertools.product(
        INSTRUMENTS.items(), range(36 * count)
    ):
        rng = np.random.default_rng([number, len(instrument)])
        pitch = 48 + number % 36 + rng.uniform(-0.2, 0.2)  # of MIDI: C3 is 48
        frequency = 440 * 2 ** ((pitch - 69) / 12)
        vibrato = 0.003 * np.sin(2 * np.pi * rng.uniform(4, 6) * t + rng.uniform(0, 6))
        phase = 2 * np.pi * frequency * np.cumsum(1 + vibrato) / rate
        envelope = np.minimum(t / attack, 1) * np.exp(-t / decay)
        signal = sum(
            level * rng.uniform(0.5, 1.5) * np.sin(k * phase + rng.uniform(0, 6))
            for k, level in enumerate(harmonics, 1)
            if k * frequency < rate / 2
        )
        signal = envelope * signal / np.abs(signal).max() + 0.003 * rng.standard_normal(len(t))
        path = folder / f"{instrument}-{number:03d}.wav"
        soundfile.write(path, signal * rng.uniform(0.1, 0.7), rate)
        rows.append((str(path.resolve()), PITCHES[number % 12], instrument))
    return pd.DataFrame(rows, columns=["path", "label", "fold"])


def clips(data: Path, work: Path) -> pd.DataFrame:
    """All clips `DIGIT/DIGIT_SPEAKER_N.wav`: path, label, fold (the speaker); or `notes`, written to the work folder."""
    if str(data) == "notes":
        return notes(work / "notes")
    files = sorted(data.resolve().glob("*/*_*_*.wav"))
    if not files:
        raise SystemExit(f"{data}: no files DIGIT/DIGIT_SPEAKER_N.wav")
    frame = pd.DataFrame({"path": [str(file) for file in files]})
    frame["label"] = [file.parent.name for file in files]
    frame["fold"] = [file.stem.split("_")[1] for file in files]
    return frame


def ours(frame: pd.DataFrame, speaker: str, settings: argparse.Namespace) -> float:
    """Accuracy of the command's own answers for the speaker's clips."""
    from learners.finetune import main as finetune

    table, out = settings.work / "clips.csv", settings.work / f"run-{speaker}"
    frame.to_csv(table, index=False)
    status = finetune(
        [
            *("--data", str(table), "--fold", speaker, "--keep", "last", *settings.flags),
            *("--seed", str(settings.seed)),
            *("--cache-dir", str(settings.work / "cache"), "--out", str(out), "--overwrite"),
        ]
    )
    if status:
        raise SystemExit(f"the training for {speaker} ended with status {status}")
    items = pd.read_csv(out / "items.csv", dtype=str)
    trained = items["split"].eq("train")
    assert trained.sum() == frame["fold"].ne(speaker).sum(), "clips of the others are missing"
    answers = pd.read_csv(out / "predictions.csv", dtype=str)
    assert len(answers) == frame["fold"].eq(speaker).sum(), "clips of the speaker are missing"
    return float(answers["best"].eq(answers["truth"]).mean())


def essay_pictures(frame: pd.DataFrame, folder: Path) -> pd.Series:
    """The peer's pictures, drawn where they are not there yet."""
    from PIL import Image

    from benchmarks.bench_render import essay

    folder.mkdir(parents=True, exist_ok=True)
    drawn = [folder / f"{Path(path).stem}.png" for path in frame["path"]]
    if not all(file.exists() for file in drawn):
        import matplotlib

        matplotlib.use("Agg")
    for path, file in zip(frame["path"], drawn, strict=True):
        if not file.exists():
            large = folder / "large.png"
            essay(Path(path), large, None)
            with Image.open(large) as picture:
                small = picture.convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
            small.save(file)
    return pd.Series([str(file) for file in drawn], index=frame.index)


def peer(frame: pd.DataFrame, speaker: str, settings: argparse.Namespace) -> float:
    """Accuracy of plain fastai after its last epoch."""
    from fastai.torch_core import params, set_seed
    from fastai.vision.all import (
        ImageDataLoaders,
        Resize,
        accuracy,
        aug_transforms,
        vision_learner,
    )
    from fastai.vision.learner import model_meta

    from learners.backbones.building import NetworkSpec, build

    set_seed(settings.seed, reproducible=True)
    spec = NetworkSpec("embedded", frame["label"].nunique(), settings.size, "linear")
    network, _, preprocessing = build(spec)
    rows = frame.assign(
        path=essay_pictures(frame, settings.work / "essay"), held=frame["fold"].eq(speaker)
    )
    dls = ImageDataLoaders.from_df(
        rows, path="/", fn_col="path", label_col="label", valid_col="held", bs=16, num_workers=1,
        item_tfms=Resize(settings.size, method="squish"),
        batch_tfms=aug_transforms() if settings.peer_augment == "yes" else None,
    )  # fmt: skip

    def arch(pretrained: bool = True):  # type: ignore[no-untyped-def]
        return network[0]

    model_meta[arch] = {
        "cut": lambda body: body,
        "split": lambda model: [params(model[0]), params(model[1])],
        "stats": ([*preprocessing.mean], [*preprocessing.std]),
    }
    learn = vision_learner(dls, arch, metrics=accuracy)
    with learn.no_bar(), learn.no_logging():
        frozen = settings.recipe != "one_cycle"  # which `fine_tune` begins with
        RECIPES[settings.recipe](learn, settings.epochs - frozen)
        return float(learn.validate()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--data", type=Path, help="spoken digits, or notes; two kinds of demo:sounds if not given"
    )
    parser.add_argument("--size", type=int, default=96, help="the peer's")
    parser.add_argument(
        "--epochs", type=int, default=10, help="the peer's, the frozen one included"
    )
    parser.add_argument("--speakers", nargs="+", help="all of them if not given")
    parser.add_argument("--sides", nargs="+", choices=["ours", "peer"], default=["ours", "peer"])
    parser.add_argument("--peer-augment", choices=["yes", "no"], default="no")
    parser.add_argument("--recipe", choices=list(RECIPES), default="one_cycle", help="the peer's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("runs/speakers"))
    parser.add_argument("flags", nargs="*", help="of ours, after --")
    settings = parse(
        parser, size=32, epochs=2, speakers=["a"], flags=["--size", "32", "--epochs", "1"]
    )
    if settings.data is None:
        print(
            "demo:sounds, by speakers that are none: for figures give --data, see the first lines"
        )
    frame = (
        clips(settings.data, settings.work)
        if settings.data
        else pretended(6 if settings.small else 24)
    )
    if settings.small or settings.data is None:
        settings.work = Path(tempfile.mkdtemp(prefix="speakers-"))  # they are no figures to keep
    settings.work.mkdir(parents=True, exist_ok=True)
    file = settings.work / "results.csv"
    if not file.exists():
        file.write_text(",".join(COLUMNS) + "\n")
    speakers = settings.speakers or sorted(frame["fold"].unique())
    for speaker in speakers:
        for side, train in (("ours", ours), ("peer", peer)):
            name = "peer+aug" if side == "peer" and settings.peer_augment == "yes" else side
            run = (name, speaker, *read_run_settings(name, settings), settings.seed)
            if side not in settings.sides or _known(file, run) is not None:
                continue
            began = time.monotonic()
            accuracy = train(frame, speaker, settings)
            seconds, load = time.monotonic() - began, os.getloadavg()[0]
            with open(file, "a", newline="") as out:
                csv.writer(out).writerow([*run, accuracy, f"{seconds:.0f}", f"{load:.1f}"])
    _print(file, speakers, settings)
    print(software_and_hardware("fastai", "librosa", "matplotlib"))


def read_run_settings(side: str, settings: argparse.Namespace) -> tuple[str]:
    """The flags of ours; size and epochs of the peer."""
    return (
        " ".join(settings.flags)
        if side == "ours"
        else f"{settings.size} px, {settings.epochs} epochs, {settings.recipe}",
    )


def _known(file: Path, run: tuple[object, ...]) -> float | None:
    with open(file, newline="") as lines:
        for row in csv.DictReader(lines):
            if tuple(row.values())[: len(run)] == tuple(map(str, run)):
                return float(row["accuracy"])
    return None


def _print(file: Path, speakers: list[str], settings: argparse.Namespace) -> None:
    """The table: a column a speaker, and the mean where none is missing."""
    print(
        f"peer: {settings.size} px, {settings.epochs} epochs, {settings.recipe}; seed {settings.seed}"
    )
    print(f"{'':10}" + "".join(f"{name:>10}" for name in [*speakers, "mean"]))
    means = {}
    for side in ("ours", "peer", "peer+aug"):
        found = [
            _known(file, (side, name, *read_run_settings(side, settings), settings.seed))
            for name in speakers
        ]
        values = [value for value in found if value is not None]
        if len(values) == len(speakers):
            means[side] = sum(values) / len(values)
            print(f"{side:10}" + "".join(f"{v:10.3f}" for v in [*values, means[side]]))
    if "ours" in means:
        for side in means.keys() - {"ours"}:
            print(f"ours is {means['ours'] - means[side]:+.3f} above {side} (target +0.10)")


if __name__ == "__main__":
    main()
