"""What a GPU does with its time: an epoch, a first model, the head, predictions, beside timm's loops, in one call.

    python benchmarks/bench_gpu.py --out gpu.jsonl

`--small` is a rehearsal, on the CPU.

Each step is a process of its own with a limit of its own, no step begins or lasts beyond `--budget` seconds, and each result is
appended to `--out` as it comes, so that a call that is cut off leaves what it has measured. Ours runs by its commands, with
their defaults but for the precision. `reached` says of each figure of `WANTED` whether it is:

first     seconds from PyTorch's import to the first usable model, and to the end, of 350 photos
head      seconds of the logistic regression on 5 600 x 1 792 features
predict   files/s of a loaded model, behind a first call, in fp32; timm's loader and a forward pass, in fp32 and bf16
agree     largest difference of probabilities between the device in fp32 and the CPU, and labels that differ
epoch     pictures/s of the last epoch of `learners.finetune` from JPEG files, all layers (`--freeze-epochs 0`); timm's
          `create_loader`, autocast, channels-last memory and AdamW over the same files; for each network
waits     of a training step and of a batch of predictions: operations that wait for the GPU (`set_sync_debug_mode`)

`busy` is the share of the time in which the GPU computes, by `nvidia-smi`; null without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware
from benchmarks.bench_epoch import CLASSES

#: What is wanted of a step: a figure, and the least or the most of it.
WANTED = {
    "first": {"first_s": ("at most", 15.0), "whole_s": ("at most", 30.0)},
    "head": {"s": ("at most", 2.0)},
    "predict": {"ratio": ("at least", 1.0)},
    "agree": {"difference": ("at most", 1e-4), "labels": ("at most", 0.0)},
    "epoch": {"ratio": ("at least", 1.0)},
}
NETWORKS = ("resnet50", "convnext_tiny", "vit_small_patch16_224", "embedded")


def make_photos(folder: Path, count: int) -> None:
    """JPEGs of 500 x 400: shapes of a colour of their class over noise, a folder for each class."""
    import numpy as np
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(0)
    for number in range(count):
        of_class = number % len(CLASSES)
        path = folder / CLASSES[of_class] / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        picture = Image.fromarray(noise).resize((500, 400))
        colour = [90, 90, 90]
        colour[of_class % 3] += 30 + 20 * (of_class // 3)
        x, y = rng.integers(0, 300, 2)
        ImageDraw.Draw(picture).ellipse((x, y, x + 190, y + 90 + 20 * of_class), tuple(colour))
        picture.save(path, quality=90)


class Busy:
    """Samples of the share of the time in which the GPU computes, with the time of each, while the block lasts."""

    def __init__(self, device: str) -> None:
        self._samples: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        self._on_gpu = device.startswith("cuda")

    def __enter__(self) -> Busy:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError):
            if self._on_gpu:
                self._process = subprocess.Popen(
                    [*command, "--id=0", "--loop-ms=100"], stdout=subprocess.PIPE, text=True
                )
                threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        assert self._process
        assert self._process.stdout
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # "[N/A]"
                self._samples.append((time.time(), float(line) / 100))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def share(self, began: float, ended: float) -> float | None:
        """Mean between two times of the clock; None without a sample."""
        found = [share for at, share in self._samples if began <= at <= ended]
        return round(statistics.mean(found), 2) if found else None


def time_of(line: str) -> float:
    """Time of the clock of a line of ``log.txt``, in seconds."""
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


def finetune(settings: argparse.Namespace, data: Path, out: Path, *words: str) -> None:
    command = [sys.executable, "-m", "learners.finetune", "--data", str(data), "--out", str(out)]
    command += ["--device", settings.device, "--size", str(settings.size), "--overwrite", *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")


def our_epoch(settings: argparse.Namespace, folder: Path) -> tuple[float, float | None]:
    """Pictures/s of the last epoch, and how busy the GPU was in it. Few are left for the validation, which counts as time."""
    import pandas as pd

    out = folder / "run"
    with Busy(settings.device) as busy:
        finetune(
            settings, folder / "photos", out, "--backbone", settings.network, "--weights", "none",
            "--freeze-epochs", "0", "--lr-mult", "1", "--epochs", "2", "--bs", str(settings.bs), "--ema",
            "--precision", settings.precision, "--near-duplicates", "ignore", "--threshold", "0.8",
            "--valid", str(settings.valid), "--calibration", str(settings.valid),
        )  # fmt: skip
    last = pd.read_csv(out / "history.csv").iloc[-1]
    trained = pd.read_csv(out / "items.csv")["split"].eq("train").sum()
    ended = max(
        time_of(line)
        for line in (out / "log.txt").read_text().splitlines()
        if "Epoch 2 of 2: " in line
    )
    return trained / last["seconds"], busy.share(ended - last["seconds"], ended)


def timm_network(settings: argparse.Namespace) -> Any:
    import timm

    name = "tf_efficientnet_lite0" if settings.network == "embedded" else settings.network
    return timm.create_model(name, num_classes=len(CLASSES))


def timm_loader(settings: argparse.Namespace, folder: Path, training: bool) -> Any:
    import torch
    from timm.data import create_dataset, create_loader

    return create_loader(
        create_dataset("", root=str(folder / "photos")), (3, settings.size, settings.size), settings.bs,
        is_training=training, num_workers=settings.workers, persistent_workers=settings.workers > 0,
        use_prefetcher=settings.device != "cpu", device=torch.device(settings.device),
    )  # fmt: skip


def autocast(settings: argparse.Namespace, precision: str = "") -> Any:
    import torch

    kind, types = (
        torch.device(settings.device).type,
        {"bf16": torch.bfloat16, "fp16": torch.float16},
    )
    stored = types.get(precision or settings.precision)
    return torch.autocast(kind, stored, enabled=stored is not None)


def timm_epoch(settings: argparse.Namespace, folder: Path) -> float:
    """Pictures/s of the second epoch."""
    import torch
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    model = timm_network(settings).train().to(settings.device, memory_format=torch.channels_last)
    loader = timm_loader(settings, folder, training=True)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    ema, loss_of = ModelEmaV3(model, decay=0.99), torch.nn.CrossEntropyLoss()
    rate = 0.0
    for _ in range(2):
        began, seen = time.perf_counter(), 0
        for x, y in loader:
            with autocast(settings):
                loss = loss_of(model(x.to(memory_format=torch.channels_last)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
            seen += len(x)
        wait_for(settings.device)
        rate = seen / (time.perf_counter() - began)
    return rate


def wait_for(device: str) -> None:
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def epoch(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    (ours, busy), peer = our_epoch(settings, folder), timm_epoch(settings, folder)
    rates = {"ours_per_s": round(ours), "timm_per_s": round(peer), "ratio": round(ours / peer, 2)}
    return {"network": settings.network, **rates, "busy": busy}


def first(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """From the lines of `log.txt`, whose times are of the clock."""
    out = folder / "first"
    finetune(settings, folder / "few", out, "--threshold", "0.8")
    at = {}
    for line in (out / "log.txt").read_text().splitlines():
        for name, words in (
            ("import", "Loading PyTorch"), ("first", "Usable now"), ("whole", "Done: ")
        ):  # fmt: skip
            if words in line:
                at.setdefault(name, time_of(line))
    return {f"{name}_s": round(at[name] - at["import"], 1) for name in at if name != "import"}


def head(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch

    from learners.training.probe import fit_probe

    torch.manual_seed(0)
    labels = torch.arange(settings.rows) % 16
    means, mix = torch.randn(16, settings.width), torch.randn(settings.width, settings.width)
    noise = torch.randn(settings.rows, settings.width) * torch.logspace(0, -1.5, settings.width)
    features = (noise @ mix / settings.width**0.5 + 0.1 * means[labels]).relu()
    device = torch.device(settings.device)
    features[:1].to(device) @ features[:1].to(device).T  # a run has computed the features on it
    wait_for(settings.device)
    began = time.perf_counter()
    probe = fit_probe(features, labels, 16, device=device)
    seconds = time.perf_counter() - began
    return {
        "rows": settings.rows,
        "width": settings.width,
        "s": round(seconds, 2),
        "loss": probe.loss,
    }


def files_of(folder: Path) -> list[str]:
    return sorted(map(str, (folder / "photos").rglob("*.jpg")))


def predict(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch

    from secondhand import load_predictor

    files = files_of(folder)
    predictor = load_predictor(
        str(model_of(settings, folder)), device=settings.device, bs=settings.bs
    )
    [*predictor.predict(files[: 2 * settings.bs])]
    with Busy(settings.device) as busy:
        began = time.time()
        [*predictor.predict(files)]
        ended = time.time()
    predictor.close()
    settings.network = "embedded"
    model = timm_network(settings).eval().to(settings.device, memory_format=torch.channels_last)
    loader = timm_loader(settings, folder, training=False)
    rates = {}
    with torch.inference_mode():
        for precision in ("fp32", "fp32", "bf16"):  # the first starts the workers
            start = time.perf_counter()
            for x, _ in loader:
                with autocast(settings, precision):
                    model(x.to(memory_format=torch.channels_last)).float().cpu()
            rates[precision] = len(files) / (time.perf_counter() - start)
    ours = len(files) / (ended - began)
    return {
        "ours_per_s": round(ours),
        **{f"timm_{precision}_per_s": round(rate) for precision, rate in rates.items()},
        "ratio": round(ours / rates["fp32"], 2),
        "ratio_bf16": round(ours / rates["bf16"], 2),
        "busy": busy.share(began, ended),
    }


def agree(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Of the probabilities of all classes."""
    from secondhand import load_predictor

    files, model = files_of(folder)[:200], str(model_of(settings, folder))
    one, other = (
        [*load_predictor(model, device=device, engine="torch", top=len(CLASSES)).predict(files)]
        for device in (settings.device, "cpu")
    )
    pairs = [*zip(one, other, strict=True)]
    return {
        "difference": max(abs(dict(a.top)[name] - p) for a, b in pairs for name, p in b.top),
        "labels": sum(a.label != b.label for a, b in pairs),
        "of": len(files),
    }


@contextlib.contextmanager
def counted_waits(device: str) -> Iterator[list[str]]:
    """The places of the operations that wait for the GPU while the block lasts. PyTorch does not tell of all."""
    import torch

    found: list[str] = []
    if not device.startswith("cuda"):
        yield found
        return

    def note(message: Warning | str, category: Any, filename: str, lineno: int, *_: Any) -> None:
        if "synchroniz" in str(message):
            found.append(f"{Path(filename).name}:{lineno}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def waits(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Those of a step are what a run of three epochs has more than one of one epoch; the validation's are among them."""
    import pandas as pd

    from learners.finetune import main as tune
    from secondhand import load_predictor

    counts, steps, out = [], 0, folder / "waits"
    for epochs in (1, 3):
        words = [
            "--data",
            str(folder / "few"),
            "--out",
            str(out),
            "--overwrite",
            "--device",
            settings.device,
        ]
        words += [
            "--size",
            str(settings.size),
            "--backbone",
            settings.networks[0],
            "--weights",
            "none",
        ]
        words += ["--freeze-epochs", "0", "--epochs", str(epochs), "--threshold", "0.8"]
        with counted_waits(settings.device) as found, contextlib.redirect_stdout(sys.stderr):
            assert tune([*words, "--precision", settings.precision]) == 0
        counts.append(len(found))
        trained = pd.read_csv(out / "items.csv")["split"].eq("train").sum()
        steps = max(1, trained // 16)  # the default batch
    predictor = load_predictor(str(out / "model"), device=settings.device, bs=settings.bs)
    files = files_of(folder)[: 8 * settings.bs]
    [*predictor.predict(files)]
    with counted_waits(settings.device) as found:
        [*predictor.predict(files)]
    return {
        "of_a_step": round((counts[1] - counts[0]) / (2 * steps), 2),
        "of_a_batch": round(len(found) / max(1, len(files) // settings.bs), 2),
        "steps": int(steps),
    }


def model_of(settings: argparse.Namespace, folder: Path) -> Path:
    """The model of `first`."""
    model = folder / "first" / "model"
    if not model.is_dir():
        first(settings, folder)
    return model


STEPS = {
    "first": first, "head": head, "predict": predict, "agree": agree, "epoch": epoch, "waits": waits,
}  # fmt: skip
#: Seconds that a step may take.
LIMITS = {"first": 60, "head": 30, "predict": 60, "agree": 30, "epoch": 60, "waits": 45}


def reached(step: str, found: dict[str, Any]) -> dict[str, bool]:
    """Whether the figures of a step are as `WANTED`."""
    return {
        name: found[name] <= limit if how == "at most" else found[name] >= limit
        for name, (how, limit) in WANTED.get(step, {}).items()
        if name in found
    }


def steps(settings: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Names of the steps, and the flags of each."""
    for name in settings.steps:
        for network in settings.networks if name == "epoch" else [None]:
            yield name, ["--network", network] if network else []


def output_of(command: list[str], limit: float) -> str:
    """What a command prints; beyond ``limit`` seconds it is killed, with the processes that it has started."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            output, messages = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            raise
    if process.returncode:
        print(messages[-2000:], file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "fp16", "bf16"])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--photos", type=int, default=8000)
    parser.add_argument("--few", type=int, default=350, help="photos of the first model")
    parser.add_argument("--rows", type=int, default=5600, help="of the head")
    parser.add_argument("--width", type=int, default=1792, help="features of the head")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--bs", type=int, default=64)
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="of timm's loaders"
    )
    parser.add_argument("--valid", type=float, default=0.03, help="share of the photos to validate")
    parser.add_argument("--budget", type=float, default=295.0, help="seconds of the whole call")
    parser.add_argument("--limit", type=float, default=1.0, help="times the limit of each step")
    parser.add_argument("--out", type=Path, help="file to append results to")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--network", help=argparse.SUPPRESS)
    settings = parse(
        parser, networks=["test_resnet"], photos=64, few=64, rows=200, width=64, size=32, bs=8,
        workers=0, device="cpu", precision="fp32", valid=0.15, limit=10.0, budget=3000.0,
    )  # fmt: skip
    if settings.step:
        print(json.dumps(STEPS[settings.step](settings, settings.folder)))
        return
    until = time.monotonic() + settings.budget
    with tempfile.TemporaryDirectory() as passing:
        make_photos(Path(passing) / "photos", settings.photos)
        make_photos(Path(passing) / "few", settings.few)
        for name, words in steps(settings):
            command = [sys.executable, __file__, *sys.argv[1:], "--folder", passing, "--step", name]
            left = min(LIMITS[name] * settings.limit, until - time.monotonic())
            try:
                found = json.loads(output_of([*command, *words], max(0.0, left)).splitlines()[-1])
                found["reached"] = reached(name, found)
            except (subprocess.SubprocessError, LookupError) as error:
                found = {"failed": str(error).rpartition("] ")[2]}
            line = json.dumps({"step": name, **found})
            print(line, flush=True)
            if settings.out:
                with settings.out.open("a") as out:
                    print(line, file=out)
    print(software_and_hardware("timm", "fastai"))


if __name__ == "__main__":
    main()
