"""Time from starting a command to a model on disk that is as accurate as a peer's finished one.

    python benchmarks/bench_time_to_accuracy.py --train photos/known --test photos/elsewhere --size 160
    python benchmarks/bench_time_to_accuracy.py --train esc-10/items.csv --fold 1
    python benchmarks/bench_time_to_accuracy.py --train demo:glitches --size 96

Accuracy is that of all test files, which nobody trains on: those of `--test`, of `--fold` of the table's column
fold, or a fifth of the groups of a demo. Each side is one program, and they run in turns:

ours      `python -m learners.finetune --data TRAIN`; the model that it writes behind the fitted head counts as well
fastai    `ImageDataLoaders` with `aug_transforms`, `vision_learner`, and one of `benchmarks/peers/fastai_recipes.py`
          (`--recipe`) for `--epochs` epochs
timm      `create_loader` with its transforms, `create_optimizer_v2` (AdamW, 1e-3), cosine rate, `--epochs` epochs
logistic  scikit-learn's `LogisticRegressionCV` on the features of the same frozen network

Programs that need an environment of their own are in `benchmarks/peers`, which says what to install. For each, name
the Python of that environment:

    … --programs autogluon_multimodal=ag/bin/python ultralytics_classify=ultra/bin/python

All but BirdNET-Analyzer, which has a network of its own for sounds, have the same pretrained weights (`embedded`, timm's `tf_efficientnet_lite0`) and input size. The peers read
sounds and strain as PNGs, rendered by `secondhand render` beforehand at no charge: what that took is printed. A side's
clock starts before Python and stops as a model has been written; testing it is not counted. Processor time includes
worker processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
import psutil

from benchmarks._shared import parse, software_and_hardware
from benchmarks.peers import lite0
from benchmarks.peers.fastai_recipes import RECIPES

#: A line of a side's output: a model is on disk. Testing it is subtracted from the times of the later ones.
READY = "model on disk"


def tables(settings: argparse.Namespace) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test files: path, label, group."""
    from datasets.steps.reading import load_table

    frame = load_table(settings.train).frame
    if settings.test:
        test = load_table(settings.test).frame
        return frame, test[test["label"].isin(frame["label"])]
    if settings.fold:
        held_out = frame["fold"].eq(settings.fold)
    else:
        groups = frame["group"].where(frame["group"].ne(""), frame["path"])
        held_out = pd.factorize(groups)[0] % 5 == 0
    return frame[~held_out], frame[held_out]


def rendered(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The table with PNGs in place of signals."""
    from datasets.kinds.base import kind_of

    if kind_of(frame["path"].iloc[0]) == "picture":
        return frame
    links = folder / "signals"
    names = {}
    for number, path in enumerate(frame["path"]):
        link = links / f"{number:05}" / Path(path).name
        link.parent.mkdir(parents=True)
        link.symlink_to(Path(path).resolve())
        names[path] = number
    words = [sys.executable, "-m", "secondhand", "render", str(links), "--out", str(folder / "png")]
    words += ["--cache-dir", str(folder / "cache")]
    clock, before = time.perf_counter(), _time_of_children()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    clock, work = time.perf_counter() - clock, _time_of_children() - before
    print(f"rendering {len(frame)} files: {clock:.1f} s by the clock, {work:.1f} s of processor")
    files = {int(png.parent.name): str(png) for png in (folder / "png").rglob("*.png")}
    return frame.assign(path=[files.get(names[path]) for path in frame["path"]]).dropna(
        subset=["path"]
    )


def _time_of_children() -> float:
    """Processor seconds of the processes that this one started and that have ended."""
    times = psutil.Process().cpu_times()
    return times.children_user + times.children_system


def transform(size: int) -> Callable[[Any], Any]:
    from timm.data import create_transform

    return create_transform((3, size, size), mean=(0.5,) * 3, std=(0.5,) * 3, crop_pct=0.875)


def open_all(paths: list[str], size: int) -> Any:
    import torch
    from PIL import Image

    prepare = transform(size)
    return torch.stack([prepare(Image.open(path).convert("RGB")) for path in paths])


def told(accuracy_of: Callable[[], float]) -> None:
    """Say that a model is on disk, then test it."""
    print(READY, flush=True)
    print(json.dumps({"accuracy": accuracy_of()}), flush=True)


def fastai(train: pd.DataFrame, test: pd.DataFrame, settings: argparse.Namespace) -> None:
    from fastai.callback.core import Callback
    from fastai.callback.schedule import LRFinder
    from fastai.torch_core import params, set_seed
    from fastai.vision.all import (
        ImageDataLoaders,
        Resize,
        aug_transforms,
        vision_learner,
    )
    from fastai.vision.learner import model_meta

    from learners.backbones.building import NetworkSpec, build

    set_seed(settings.seed)
    network, _, pre = build(
        NetworkSpec("embedded", train["label"].nunique(), settings.size, "linear")
    )
    dls = ImageDataLoaders.from_df(
        train, path="/", fn_col="path", label_col="label", item_tfms=Resize(460 if settings.size > 200 else 2 * settings.size),
        batch_tfms=aug_transforms(size=settings.size), num_workers=settings.workers, bs=min(64, len(train) // 4),
    )  # fmt: skip

    def arch(pretrained: bool = True) -> Any:
        return network[0]

    model_meta[arch] = {
        "cut": lambda body: body,
        "split": lambda model: [params(model[0]), params(model[1])],
        "stats": ([*pre.mean], [*pre.std]),
    }
    learn = vision_learner(dls, arch)

    class Saved(Callback):
        order = 99

        def after_epoch(self) -> None:
            if any(isinstance(cb, LRFinder) for cb in self.learn.cbs):
                return  # the search for a rate is no training
            self.learn.save(str(settings.work / "fastai"))
            told(lambda: accuracy(self.learn))

    def accuracy(learn: Any) -> float:
        was = learn.model.training
        loader = learn.dls.test_dl(test["path"].tolist(), num_workers=0)
        import torch

        right, first = 0, 0
        names = [*learn.dls.vocab]
        learn.model.eval()
        with torch.no_grad():
            for (x,) in loader:
                best = learn.model(x).argmax(1).tolist()
                truth = test["label"].iloc[first : first + len(best)]
                right += sum(names[b] == t for b, t in zip(best, truth, strict=True))
                first += len(best)
        learn.model.train(was)
        return right / len(test)

    learn.add_cb(Saved())
    with learn.no_bar(), learn.no_logging():
        RECIPES[settings.recipe](learn, settings.epochs)


def timm(train: pd.DataFrame, test: pd.DataFrame, settings: argparse.Namespace) -> None:
    import torch
    from timm.data import create_loader
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    torch.manual_seed(settings.seed)
    names = sorted(train["label"].unique())
    model = lite0.network(len(names)).to(memory_format=torch.channels_last)

    class Files(torch.utils.data.Dataset):  # type: ignore[type-arg]
        transform: Any = None

        def __len__(self) -> int:
            return len(train)

        def __getitem__(self, number: int) -> tuple[Any, int]:
            from PIL import Image

            row = train.iloc[number]
            return self.transform(Image.open(row["path"]).convert("RGB")), names.index(row["label"])

    loader = create_loader(
        Files(), (3, settings.size, settings.size), 32, is_training=True, use_prefetcher=False,
        mean=(0.5,) * 3, std=(0.5,) * 3, num_workers=settings.workers, device=torch.device("cpu"),
    )  # fmt: skip
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    schedule = CosineLRScheduler(
        optimizer, t_initial=settings.epochs, warmup_t=1, warmup_lr_init=1e-4
    )
    loss_of = torch.nn.CrossEntropyLoss()

    def accuracy() -> float:
        model.eval()
        right = 0
        for first in range(0, len(test), 32):
            part = test.iloc[first : first + 32]
            with torch.no_grad():
                best = model(open_all(part["path"].tolist(), settings.size)).argmax(1).tolist()
            right += sum(names[b] == t for b, t in zip(best, part["label"], strict=True))
        return right / len(test)

    for epoch in range(settings.epochs):
        schedule.step(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model(x.contiguous(memory_format=torch.channels_last)), y).backward()
            optimizer.step()
        torch.save(model.state_dict(), settings.work / "timm.pth")
        told(accuracy)


def logistic(train: pd.DataFrame, test: pd.DataFrame, settings: argparse.Namespace) -> None:
    import pickle

    import numpy as np
    import torch
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = lite0.network(0).eval()

    def features(frame: pd.DataFrame) -> Any:
        parts = []
        for first in range(0, len(frame), 32):
            paths = frame["path"].iloc[first : first + 32].tolist()
            with torch.no_grad():
                parts.append(model(open_all(paths, settings.size)).numpy())
        return np.concatenate(parts)

    fitted = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=5, cv=3, max_iter=300))
    fitted.fit(features(train), train["label"])
    (settings.work / "logistic.pkl").write_bytes(pickle.dumps(fitted))
    told(lambda: float(fitted.score(features(test), test["label"])))


PEERS = {"fastai": fastai, "timm": timm, "logistic": logistic}


class Clock:
    """Seconds by the clock and of processor time since a process began, its children included; can be paused."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self.began, self.pause = process, time.monotonic(), (0.0, 0.0)

    def read(self) -> tuple[float, float]:
        work = 0.0
        for one in (self.process, *self.process.children(recursive=True)):
            try:
                work += sum(one.cpu_times()[:4])
            except psutil.Error:
                continue
        clock = time.monotonic() - self.began
        return clock - self.pause[0], work - self.pause[1]


def measure_peer(name: str, words: list[str], log: Path) -> list[tuple[float, float, float]]:
    """Clock, processor time and accuracy of each model that a peer's command writes."""
    # A program in an environment of its own must not find our `datasets` there.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with open(log, "w") as errors:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    assert process.stdout
    clock, models = Clock(psutil.Process(process.pid)), []
    for line in process.stdout:
        if line.startswith(READY):
            ready = clock.read()
        elif line.startswith('{"accuracy"'):
            models.append((*ready, json.loads(line)["accuracy"]))
            now = clock.read()
            clock.pause = tuple(p + n - r for p, n, r in zip(clock.pause, now, ready, strict=True))  # type: ignore[assignment]
    if process.wait():
        raise SystemExit(f"{log.read_text()}\n{name} ended with status {process.returncode}")
    return models


def measure_ours(
    train: pd.DataFrame, test: pd.DataFrame, settings: argparse.Namespace
) -> list[tuple[float, float, float]]:
    """The same of the command; its models are copied as they appear and tested at the end."""
    from learners.inference.predictor import Predictor

    table, out = settings.work / "ours.csv", settings.work / "run"
    columns = [c for c in ("path", "label", "group") if train[c].ne("").any()]
    train[columns].to_csv(table, index=False)
    words = [
        "--data",
        str(table),
        "--size",
        str(settings.size),
        "--seed",
        str(settings.seed),
        *settings.flags,
    ]
    words += ["--out", str(out), "--overwrite", "--cache-dir", str(settings.work / "cache")]
    with open(settings.work / "ours.log", "w") as log:
        process = subprocess.Popen([sys.executable, "-m", "learners.finetune", *words], stdout=log)
    clock, config = Clock(psutil.Process(process.pid)), out / "model/config.json"
    written: list[tuple[float, float, Path]] = []
    newest, last = 0, clock.read()
    while process.poll() is None:
        time.sleep(0.1)
        last = max(last, clock.read())
        if config.is_file() and config.stat().st_mtime_ns != newest:
            newest = config.stat().st_mtime_ns
            copy = settings.work / f"model-{len(written)}"
            shutil.copytree(out / "model", copy)
            written.append((*last, copy))
    if process.returncode:
        raise SystemExit((settings.work / "ours.log").read_text())
    models = []
    for *when, folder in written:
        found = [p.best for p in Predictor(folder).predict(test["path"].tolist())]
        right = sum(a == b for a, b in zip(found, test["label"], strict=True)) / len(test)
        models.append((*when, right))
    return models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--train", default="demo:digits", help="folder, table or demo")
    parser.add_argument("--test", help="folder or table of other files of the same classes")
    parser.add_argument("--fold", help="test on this value of the table's column fold")
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--epochs", type=int, default=10, help="of the peers' loops")
    parser.add_argument("--recipe", choices=list(RECIPES), default="one_cycle", help="of fastai")
    parser.add_argument("--workers", type=int, default=1, help="of the peers' loaders")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sides", nargs="+", choices=["ours", *PEERS], default=["ours", *PEERS])
    parser.add_argument(
        "--programs", nargs="+", metavar="NAME=PYTHON", default=[],
        help="of benchmarks/peers, each with the Python that runs it",
    )  # fmt: skip
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of our command")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=list(PEERS), help=argparse.SUPPRESS)
    settings = parse(parser, size=32, epochs=1, workers=0, sides=["ours", "logistic"])
    if settings.side:
        train, test = (pd.read_pickle(settings.work / f"{n}.pkl") for n in ("train", "test"))
        PEERS[settings.side](train, test, settings)
        return
    with tempfile.TemporaryDirectory() as passing:
        settings.work = Path(passing)
        train, test = tables(settings)
        if settings.small:
            train, test = (frame.groupby("label").head(12) for frame in (train, test))
        for name, frame in (("train", train), ("test", test)):
            drawn = rendered(frame.assign(signal=frame["path"]), settings.work / name)
            drawn.to_pickle(settings.work / f"{name}.pkl")
            drawn[["path", "label", "signal"]].to_csv(settings.work / f"{name}.csv", index=False)
        print(f"{len(train)} files to train on, {len(test)} to test on")
        words = [w for key in ("size", "epochs", "workers", "seed", "work", "recipe")
                 for w in (f"--{key}", str(getattr(settings, key)))]  # fmt: skip
        folder = Path(__file__).parent
        commands = {
            side: [sys.executable, __file__, *words, "--side", side] for side in settings.sides
        }
        files = [str(settings.work / f"{name}.csv") for name in ("train", "test")]
        for program in settings.programs:
            side, _, python = program.partition("=")
            commands[side] = [python, str(folder / f"peers/{side}.py"), *files, *words[:-2]]
        results = {}
        for side, command in commands.items():
            results[side] = (
                measure_ours(train, test, settings)
                if side == "ours"
                else measure_peer(side, command, settings.work / f"{side}.log")
            )
            for clock, work, right in results[side]:
                print(
                    f"{side:20} {clock:6.1f} s by the clock, {work:6.1f} s of processor: {right:.3f}",
                    flush=True,
                )
        for side, models in results.items():
            if side == "ours" or "ours" not in results:
                continue
            *_, (clock, work, right) = models
            first = next((m for m in results["ours"] if m[2] >= right), None)
            what = f"ours reaches the {right:.3f} of {side}'s finished model"
            if first is None:
                print(f"{what} not at all")
            else:
                print(
                    f"{what} in {first[0] / clock:.2f} of its time by the clock, {first[1] / work:.2f} of its processor time"
                )
    print(software_and_hardware("timm", "fastai", "scikit-learn"))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    main()
