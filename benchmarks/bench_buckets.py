"""Files in a bucket beside the same files on a disk: rates of prediction and of training, and memory over many keys.

moto's S3 server holds the pictures, in a process of its own whose time does not count. ``python -m learners.predict`` answers
for those on the disk, then for those in the bucket with an empty cache, and then with what the first time has left there;
``python -m learners.finetune`` trains on both. Each line has seconds by the clock and of processor time, of the command and
its workers, and both as rates of the disk's. In a training the first epoch begins with the command, which reads and checks
all files. ``--backbone`` and ``--size`` are those of both networks; the smaller, the more a file costs beside them.

With ``--keys`` as many small pictures are predicted from one folder of the bucket. The table ``OUT.csv`` and the plot
``OUT.png`` show the memory (proportional set size, MB) of the command's process and of its largest worker over time, and
how many files are done.

    python benchmarks/bench_buckets.py --count 10000 --train 2000
    python benchmarks/bench_buckets.py --count 0 --train 0 --keys 100000 --backbone test_resnet --size 32
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd
import psutil
from PIL import Image

from benchmarks._shared import parse, software_and_hardware
from learners.outputs.journal import journal_file

CLASSES = 4
#: Fills a bucket with the files of a folder, and serves it until its standard input ends.
SERVER = """
import sys
from pathlib import Path
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
held = s3_backends["123456789012"]["aws"]
held.create_bucket("photos", "us-east-1")
for file in Path(sys.argv[1]).rglob("*.jpg"):
    held.put_object("photos", str(file.relative_to(sys.argv[1])), file.read_bytes())
ThreadedMotoServer("127.0.0.1", int(sys.argv[2]), verbose=False).start()
sys.stdin.read()
"""
ACCESS = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
}  # fmt: skip
#: What a training takes for itself and not for its files.
TRAINING = ["--epochs", "2"]


def write_pictures(folder: Path, count: int, side: int) -> None:
    """Write pictures of their class's colours, in a folder for each class; with a side of 230 they have some 20 kB."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 256, (CLASSES, 4, 4, 3))
    grain = rng.normal(0, 18, (16, side, side, 3))
    for number in range(count):
        colours = 0.6 * shared[number % CLASSES] + 0.4 * rng.integers(0, 256, (4, 4, 3))
        smooth = Image.fromarray(colours.astype("uint8")).resize((side, side))
        pixels = np.asarray(smooth) + grain[rng.integers(16)]
        file = folder / "abcd"[number % CLASSES] / f"{number:07d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(file, quality=85)


def write_many(folder: Path, count: int) -> None:
    """Write small pictures in one folder, that differ in a comment."""
    write_pictures(folder / "of", 100, 64)
    contents = [file.read_bytes() for file in folder.rglob("*.jpg")]
    (folder / "many").mkdir()
    for number in range(count):
        one, comment = contents[number % len(contents)], f"{number:08d}".encode()
        marked = b"%b\xff\xfe\x00\x0a%b%b" % (one[:2], comment, one[2:])
        (folder / "many" / f"{number:07d}.jpg").write_bytes(marked)


@contextmanager
def bucket(folder: Path) -> Iterator[None]:
    """Serve a folder as the bucket ``photos``, which programs find by the environment."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-c", SERVER, str(folder), str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as server:
        try:
            while server.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            os.environ.update(ACCESS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
            yield
        finally:
            server.kill()


class Command:
    """A command that runs, with a cache of its own.

    Parameters
    ----------
    words : module and arguments.
    cache : its cache folder.
    """

    def __init__(self, words: list[str], cache: Path) -> None:
        self.began, self._log = time.perf_counter(), cache.with_suffix(".log")
        self._work = 0.0
        environment = {**os.environ, "SECONDHAND_CACHE": str(cache)}
        with open(self._log, "w") as log:
            words = [sys.executable, "-m", *words]
            self.process = psutil.Popen(words, stderr=log, stdout=log, env=environment)

    def running(self) -> bool:
        """Whether it runs; ends this program if it has failed."""
        status = self.process.poll()
        if status:
            raise SystemExit(self._log.read_text())
        return status is None

    def spent(self) -> np.ndarray:
        """Seconds by the clock, and of processor time of all its processes, until now."""
        with suppress(psutil.Error):
            times = [self.process.cpu_times()[:4]]
            times += [one.cpu_times()[:2] for one in self.process.children(recursive=True)]
            self._work = max(self._work, sum(map(sum, times)))
        return np.array([time.perf_counter() - self.began, self._work])

    def wait(self, pause: float = 0.05) -> np.ndarray:
        """Wait for its end; returns what it has spent."""
        while self.running():
            spent = self.spent()
            time.sleep(pause)
        return spent

    def epochs(self, log: Path) -> list[np.ndarray]:
        """Wait for its end; returns what was spent until each epoch ended."""
        ends: list[np.ndarray] = []
        while self.running():
            spent = self.spent()
            lines = log.read_text("utf-8") if log.exists() else ""
            ends += [spent] * (len(re.findall(r" INFO Epoch .*: training loss", lines)) - len(ends))
            time.sleep(0.05)
        return [ends[0], ends[1] - ends[0]]

    def memory(self) -> tuple[float, float]:
        """Proportional set sizes of its process and of its largest worker, in MB."""
        sizes = [0.0]
        with suppress(psutil.Error):
            own = self.process.memory_full_info().pss
            for one in self.process.children(recursive=True):
                sizes.append(one.memory_full_info().pss / 1e6)
            return own / 1e6, max(sizes)
        return float("nan"), max(sizes)


def show(name: str, spent: np.ndarray, of_disk: np.ndarray, count: int) -> None:
    clock, work = of_disk / spent
    print(
        f"{name:28} {spent[0]:7.1f} s, {spent[1]:7.1f} s of processor time ({1000 * spent[1] / count:.2f} ms a "
        f"file); rate of the disk's: {clock:.2f} by the clock, {work:.2f} by processor time",
        flush=True,
    )


def predict(model: Path, paths: list[str], out: Path, cache: Path) -> Command:
    words = ["learners.predict", str(model), *paths, "--workers", "2"]
    return Command([*words, "--out", str(out), "--overwrite"], cache)


def compare_predictions(model: Path, folder: Path, work: Path, count: int, number: int) -> None:
    cache, tables = work / f"predict-{number}", []
    sides = (
        ("disk", str(folder), "-d"),
        ("bucket", "s3://photos", "-b"),
        ("again", "s3://photos", "-b"),
    )
    for side, path, end in sides:
        out = work / f"{side}.csv"
        spent = predict(model, [path], out, Path(f"{cache}{end}")).wait()
        if side == "disk":
            of_disk = spent
        show(f"predict, {side}", spent, of_disk, count)
        tables.append(pd.read_csv(out).drop(columns="path"))
    if not (
        tables[0].equals(tables[1]) and len(tables[0]) == count and tables[1].equals(tables[2])
    ):
        raise SystemExit("OTHER answers from the bucket")


def compare_trainings(
    network: list[str], folder: Path, work: Path, count: int, number: int
) -> None:
    for side, path in (("disk", str(folder)), ("bucket", "s3://photos")):
        run = work / f"run-{side}-{number}"
        words = ["learners.finetune", "--data", path, *network, *TRAINING, "--out", str(run)]
        epochs = Command([*words, "--workers", "2"], work / f"train-{side}-{number}").epochs(
            run / "log.txt"
        )
        if side == "disk":
            of_disk = epochs
        for name, spent, disk in zip(("first", "second"), epochs, of_disk, strict=True):
            show(f"train, {side}, {name} epoch", spent, disk, count)


def watch(model: Path, work: Path, count: int, out: Path) -> None:
    """Predict many keys; writes the memory over time, and shows by how much it grows."""
    table = work / "many.csv"
    command = predict(model, ["s3://photos/many"], table, work / "many")
    journal, rows, done, at = journal_file(table), [], 0, 0
    while command.running():
        if journal.exists():
            with open(journal, "rb") as file:
                file.seek(at)
                new = file.read()
            done, at = done + new.count(b".jpg"), at + len(new)
        rows.append([time.perf_counter() - command.began, done, *command.memory()])
        time.sleep(max(0.2, count / 100_000))
    curve = pd.DataFrame(rows, columns=["seconds", "files", "process_mb", "largest_worker_mb"])
    curve = curve.dropna().round(1)
    curve.to_csv(out.with_suffix(".csv"), index=False)
    plot(curve, out.with_suffix(".png"))
    for at_least in (0.1, 0.5, 0.98):
        part = curve[curve["files"] >= at_least * done].iloc[0]
        print(
            f"{part['files']:7.0f} keys after {part['seconds']:5.0f} s: {part['process_mb']:5.0f} MB, largest worker "
            f"{part['largest_worker_mb']:5.0f} MB"
        )
    answered = len(pd.read_csv(table))
    print(
        f"{answered} of {count} keys answered; {out.with_suffix('.csv')}, {out.with_suffix('.png')}"
    )
    if answered != count:
        raise SystemExit(1)


def plot(curve: pd.DataFrame, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve["files"], curve["process_mb"], label="the command's process")
    axes.plot(curve["files"], curve["largest_worker_mb"], label="largest worker")
    axes.set(xlabel="keys predicted", ylabel="memory (PSS), MB", ylim=(0, None), xlim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=10_000, help="pictures to predict, of 20 kB")
    parser.add_argument("--train", type=int, default=2000, help="pictures to train on")
    parser.add_argument("--keys", type=int, default=0, help="small pictures in one folder")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--size", default="224")
    parser.add_argument("--out", type=Path, default=Path("memory"), help="of --keys")
    small = {"count": 40, "train": 60, "keys": 200, "size": "32", "backbone": "test_resnet"}
    settings = parse(parser, **small)
    network = ["--backbone", settings.backbone, "--size", settings.size]
    network += ["--weights", "none"] * settings.backbone.startswith("test_")
    with tempfile.TemporaryDirectory() as passing:
        work = Path(passing)
        few, model = work / "few", work / "model-run" / "model"
        write_pictures(few, 80, 230)
        words = ["learners.finetune", "--data", str(few), *network, "--epochs", "0"]
        Command([*words, "--out", str(model.parent)], work / "few-cache").wait()
        for count, compare in ((settings.count, "predict"), (settings.train, "train")):
            folder = work / compare
            if count:
                write_pictures(folder, count, 230)
                kilobytes = (
                    sum(file.stat().st_size for file in folder.rglob("*.jpg")) / count / 1000
                )
                print(f"{count} pictures of {kilobytes:.1f} kB, {' '.join(network)}", flush=True)
                with bucket(folder):
                    for number in range(settings.rounds):
                        if compare == "predict":
                            compare_predictions(model, folder, work, count, number)
                        else:
                            compare_trainings(network, folder, work, count, number)
        if settings.keys:
            write_many(work / "keys", settings.keys)
            with bucket(work / "keys"):
                watch(model, work, settings.keys, settings.out)
    print(software_and_hardware("botocore", "moto"))


if __name__ == "__main__":
    main()
