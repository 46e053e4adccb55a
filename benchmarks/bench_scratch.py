"""The hand-written ResNet-18 against torchvision's: what it reaches, and what a run costs.

The peer is `--backbone torchvision/resnet18`, through the same command, with the same file of
weights, data and settings; each over the same seeds. Figures: accuracy on valid and calibration
together, its difference of means beside the spread over seeds, and the seconds of a run.

Without `--weights` both start from one file of weights that torchvision's network gets by training
on the even digits of `demo:digits` here (no download); the task is then all ten digits.

    python benchmarks/bench_scratch.py --seeds 4
    python benchmarks/bench_scratch.py --data photos --size 160 --weights resnet18-f37072fd.pth
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import learners.console  # noqa: F401  (as the command does: waiting threads sleep)
from benchmarks._record import parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="demo:digits")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--items", type=int, default=600, help="of the table, to keep it short")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--weights", type=Path)
    settings = parse(parser, items=40, epochs=1, seeds=1)
    with tempfile.TemporaryDirectory() as folder:
        compare(settings, Path(folder))


def compare(settings: argparse.Namespace, folder: Path) -> None:
    table = write_table(settings.data, settings.items, folder / "items.csv", "")
    weights = settings.weights or pretrain(settings, folder)
    accuracy: dict[str, list[float]] = {"scratch": [], "torchvision": []}
    seconds: dict[str, list[float]] = {"scratch": [], "torchvision": []}
    for seed in range(settings.seeds):
        for library in accuracy:
            out = folder / f"{library}-{seed}"
            began = time.perf_counter()
            finetune(settings, table, out, f"{library}/resnet18", seed, "--weights", str(weights))
            seconds[library].append(time.perf_counter() - began)
            accuracy[library].append(held_out_accuracy(out))
            print(
                f"seed {seed} {library:12} {accuracy[library][-1]:.4f}  {seconds[library][-1]:.0f} s"
            )
    for library, values in accuracy.items():
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(
            f"{library:12} mean {statistics.mean(values):.4f}, over seeds +- {spread:.4f}, "
            f"median {statistics.median(seconds[library]):.0f} s a run"
        )
    apart = [a - b for a, b in zip(*accuracy.values(), strict=True)]
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    print(
        f"difference   mean {statistics.mean(apart):+.4f}; ratio of seconds "
        f"{statistics.median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}]"
    )


def write_table(data: str, items: int, file: Path, only: str) -> Path:
    from datasets.tables.table import load_table

    frame = load_table(data).frame[["path", "label"]]
    if only:
        frame = frame[frame["label"].astype(str).str.contains(only)]
    frame.sample(min(items, len(frame)), random_state=0).to_csv(file, index=False)
    return file


def pretrain(settings: argparse.Namespace, folder: Path) -> Path:
    """A torchvision file of weights, trained from nothing on a part of the classes."""
    import torch
    import torchvision
    from safetensors.torch import load_file, save_file

    table = write_table(settings.data, settings.items, folder / "first.csv", "[02468]$")
    finetune(settings, table, folder / "first", "torchvision/resnet18", 0, "--no-pretrained")
    torch.manual_seed(0)
    state = torchvision.models.resnet18().state_dict()
    trained = load_file(folder / "first" / "model" / "model.safetensors")
    state |= {name[2:]: value for name, value in trained.items() if name[2:] in state}
    save_file(state, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def finetune(
    settings: argparse.Namespace, table: Path, out: Path, backbone: str, seed: int, *flags: str
) -> None:
    from learners.finetune import main as command

    words = [
        "--data", str(table), "--out", str(out), "--backbone", backbone,
        "--size", str(settings.size), "--epochs", str(settings.epochs), "--lr", str(settings.lr),
        "--no-flip", "--min-scale", "0.7", "--bs", "32", "--seed", str(seed), "--workers", "0",
        *flags,
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if command(words):
            raise SystemExit(f"{shlex.join(words)}: did not end well")


def held_out_accuracy(run: Path) -> float:
    import pandas as pd

    answers = pd.read_csv(run / "predictions.csv")
    return float((answers["best"].astype(str) == answers["truth"].astype(str)).mean())


if __name__ == "__main__":
    main()
