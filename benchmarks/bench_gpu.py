"""What a GPU does with its time: an epoch, a first model, the head, predictions, beside timm's loops, in one call.

    python benchmarks/bench_gpu.py --out gpu.jsonl

`--small --device cpu` is a rehearsal.

Each step is a process of its own with a limit of its own, and its result is appended to `--out` as it comes, so that a
call that is cut off leaves what it has measured. Ours runs by its commands, with their defaults but for the precision:

epoch     pictures/s of the last epoch of `learners.finetune` from JPEG files, all layers (`--freeze-epochs 0`); timm's
          `create_loader`, autocast, channels-last memory and AdamW over the same files
first     seconds from PyTorch's import to the first usable model, and to the end, of 350 photos
head      seconds of the logistic regression on 5 600 x 1 792 features
predict   files/s of a loaded model, behind a first call; timm's loader and a forward pass
agree     largest difference of probabilities between the device in fp32 and the CPU, and labels that differ
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware
from benchmarks.bench_epoch import CLASSES

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


def finetune(settings: argparse.Namespace, data: Path, out: Path, *words: str) -> None:
    command = [sys.executable, "-m", "learners.finetune", "--data", str(data), "--out", str(out)]
    command += ["--device", settings.device, "--size", str(settings.size), "--overwrite", *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")


def our_epoch(settings: argparse.Namespace, folder: Path) -> float:
    """Pictures/s of the last epoch."""
    import pandas as pd

    out = folder / "run"
    finetune(
        settings, folder / "photos", out, "--backbone", settings.network, "--weights", "none",
        "--freeze-epochs", "0", "--lr-mult", "1", "--epochs", "2", "--bs", str(settings.bs), "--ema",
        "--precision", settings.precision, "--near-duplicates", "ignore", "--threshold", "0.8",
    )  # fmt: skip
    last = pd.read_csv(out / "history.csv").iloc[-1]
    trained = pd.read_csv(out / "items.csv")["split"].eq("train").sum()
    return trained / last["seconds"]


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


def autocast(settings: argparse.Namespace) -> Any:
    import torch

    kind = torch.device(settings.device).type
    return torch.autocast(kind, torch.bfloat16, enabled=settings.precision == "bf16")


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
    ours, peer = our_epoch(settings, folder), timm_epoch(settings, folder)
    rates = {"ours_per_s": round(ours), "timm_per_s": round(peer), "ratio": round(ours / peer, 2)}
    return {"network": settings.network, **rates}


def first(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """From the lines of `log.txt`, whose times are of the clock."""
    from datetime import datetime

    out = folder / "first"
    finetune(settings, folder / "few", out, "--threshold", "0.8")
    at = {}
    for line in (out / "log.txt").read_text().splitlines():
        for name, words in (
            ("import", "Loading PyTorch"), ("first", "Usable now"), ("whole", "Done: ")
        ):  # fmt: skip
            if words in line:
                at.setdefault(name, datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f"))
    return {
        f"{name}_s": (at[name] - at["import"]).total_seconds() for name in at if name != "import"
    }


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
    predictor = load_predictor(str(model_of(settings, folder)), device=settings.device)
    [*predictor.predict(files[:32])]
    began = time.perf_counter()
    [*predictor.predict(files)]
    ours = len(files) / (time.perf_counter() - began)
    settings.network = "embedded"
    model = timm_network(settings).eval().to(settings.device, memory_format=torch.channels_last)
    loader = timm_loader(settings, folder, training=False)
    rates = []
    with torch.inference_mode():
        for _ in range(2):
            began = time.perf_counter()
            for x, _ in loader:
                with autocast(settings):
                    model(x.to(memory_format=torch.channels_last)).float().cpu()
            rates.append(len(files) / (time.perf_counter() - began))
    return {
        "ours_per_s": round(ours),
        "timm_per_s": round(rates[1]),
        "ratio": round(ours / rates[1], 2),
    }


def agree(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from secondhand import load_predictor

    files, model = files_of(folder)[:200], str(model_of(settings, folder))
    one, other = (
        [*load_predictor(model, device=device).predict(files)]
        for device in (settings.device, "cpu")
    )
    pairs = [*zip(one, other, strict=True)]
    return {
        "difference": max(abs(a.probability - b.probability) for a, b in pairs),
        "labels": sum(a.label != b.label for a, b in pairs),
        "of": len(files),
    }


def model_of(settings: argparse.Namespace, folder: Path) -> Path:
    """The model of `first`."""
    model = folder / "first" / "model"
    if not model.is_dir():
        first(settings, folder)
    return model


STEPS = {"epoch": epoch, "first": first, "head": head, "predict": predict, "agree": agree}
#: Seconds that a step may take.
LIMITS = {"epoch": 60, "first": 60, "head": 30, "predict": 45, "agree": 30}


def steps(settings: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Names of the steps, and the flags of each."""
    for name in settings.steps:
        for network in settings.networks if name == "epoch" else [None]:
            yield name, ["--network", network] if network else []


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
    parser.add_argument("--limit", type=float, default=1.0, help="times the limit of each step")
    parser.add_argument("--out", type=Path, help="file to append results to")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--network", help=argparse.SUPPRESS)
    settings = parse(
        parser, networks=["test_resnet"], photos=64, few=64, rows=200, width=64, size=32, bs=8,
        workers=0, precision="fp32", limit=10.0,
    )  # fmt: skip
    if settings.step:
        print(json.dumps(STEPS[settings.step](settings, settings.folder)))
        return
    with tempfile.TemporaryDirectory() as passing:
        make_photos(Path(passing) / "photos", settings.photos)
        make_photos(Path(passing) / "few", settings.few)
        for name, words in steps(settings):
            command = [sys.executable, __file__, *sys.argv[1:], "--folder", passing, "--step", name]
            try:
                done = subprocess.run(
                    [*command, *words], stdout=subprocess.PIPE, text=True, check=True,
                    timeout=LIMITS[name] * settings.limit,
                )  # fmt: skip
                found = json.loads(done.stdout.splitlines()[-1])
            except subprocess.SubprocessError as error:
                found = {"failed": str(error).rpartition("] ")[2]}
            line = json.dumps({"step": name, **found})
            print(line, flush=True)
            if settings.out:
                with settings.out.open("a") as out:
                    print(line, file=out)
    print(software_and_hardware("timm", "fastai"))


if __name__ == "__main__":
    main()
