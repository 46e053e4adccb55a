"""Rate of prediction from files compared with the bare forward pass on tensors. Target: >= 0.9.

"bare" is the network in eager torch, with all threads on one batch, channels-last; "ours" is prediction by
each engine, including opening files and deciding. All use float32, the same network and batch size, in
alternating rounds. Then the time of the command for one file, by each engine.

With ``--tokens`` text, too: `learners.scratch.gpt.GPT` of random weights continues a prompt of 8 tokens, in turns with the cache
of keys and values and without. Both give the same tokens. ``--count 0`` leaves the files out.

    python benchmarks/bench_predict.py runs/photos/model photos --count 1000 --rounds 5
    python benchmarks/bench_predict.py --count 0 --tokens 16 64 256 --width 256 --depth 4
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import learners.cli.console  # noqa: F401  (as the command does: waiting threads sleep)
from benchmarks._shared import demo_files, demo_run, parse, software_and_hardware, spread

#: Tokens that generation continues.
PROMPT = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="one of digits if not given")
    parser.add_argument("folder", nargs="?", help="of files; demo:digits if not given")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="of the command, with one file")
    parser.add_argument("--engines", nargs="+", default=["torch", "onnx"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[], help="to generate")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    settings = parse(
        parser, count=8, bs=4, rounds=1, starts=0, engines=["torch"], tokens=[16], width=32, depth=2
    )
    if settings.count:
        predict(settings)
    if settings.tokens:
        generate(settings)


def predict(settings: argparse.Namespace) -> None:
    """Compare the rates of prediction of files with that of the bare forward pass."""
    import numpy as np
    import torch

    from datasets.kinds.finding import find_files
    from learners.inference.predictor import Predictor
    from learners.loading.predictor import load_predictor

    model = settings.model or str(demo_run(settings.small) / "model")
    predictors = {
        name: load_predictor(model, engine=name, tta=False, bs=settings.bs)
        for name in settings.engines
    }
    first = next(iter(predictors.values()))
    network = load_predictor(model, engine="torch").network
    demo_or_folder_files = (
        list(find_files([settings.folder])) if settings.folder else demo_files(400)
    )
    files = list(islice(cycle(demo_or_folder_files), settings.count))
    ready = np.stack([first.open(file) for file in files[: settings.bs]])
    mean, std = first.bundle.preprocessing.mean, first.bundle.preprocessing.std
    x = torch.from_numpy(ready).float().div_(255)
    x = x.sub_(torch.tensor(mean).view(1, 3, 1, 1)).div_(torch.tensor(std).view(1, 3, 1, 1))
    x = x.contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def bare() -> None:
        for start in range(0, settings.count, settings.bs):
            network(x[: settings.count - start])

    def ours(predictor: Predictor) -> None:
        assert len(list(predictor.predict(files))) == settings.count

    ways: dict[str, Callable[[], None]] = {"bare": bare}
    ways |= {f"ours, {name}": partial(ours, one) for name, one in predictors.items()}
    times = alternate(ways, settings.rounds + 1)
    spec = first.bundle.spec
    print(f"{spec.backbone}, {spec.size} px, {settings.count} files in batches of {settings.bs}")
    for name, (_, *seconds) in times.items():  # the first round warms up
        rate = settings.count / statistics.median(seconds)
        ratio = spread(times["bare"][1:], seconds)
        print(f"{name:12} {rate:6.0f} files/s, of the bare rate {ratio}")
    if settings.starts:
        words = [sys.executable, "-m", "learners.predict", model, files[0], "--engine"]
        commands = {
            name: partial(subprocess.run, [*words, name], check=True, capture_output=True)
            for name in settings.engines
        }
        for name, seconds in alternate(commands, settings.starts).items():
            print(f"the command, one file, {name}: {statistics.median(seconds):.2f} s")
    print(software_and_hardware("timm", "onnxruntime"))


def generate(settings: argparse.Namespace) -> None:
    """Compare generation with the cache and without for each number of tokens."""
    import torch

    from learners.scratch.gpt import GPT, GPTConfig

    print(software_and_hardware())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPTConfig(
        vocabulary=1000, context=PROMPT + max(settings.tokens), width=settings.width, depth=settings.depth, heads=4
    )  # fmt: skip
    network, prompt = GPT(config), torch.randint(1000, (1, PROMPT))
    for tokens in settings.tokens:
        texts = []

        def write(tokens: int, texts: list[torch.Tensor], cached: bool) -> None:
            texts.append(network.generate(prompt, tokens, temperature=0, cached=cached))

        ways = {
            name: partial(write, tokens, texts, name == "cached") for name in ("cached", "uncached")
        }
        times = alternate(ways, settings.rounds + 1)
        assert all(torch.equal(text, texts[0]) for text in texts), "the cache changes the tokens"
        cached, uncached = (seconds[1:] for seconds in times.values())  # the first is a warm-up
        print(
            f"{tokens} tokens: cached {1000 * statistics.median(cached):.0f} ms, uncached "
            f"{1000 * statistics.median(uncached):.0f} ms, cached / uncached {spread(cached, uncached)}"
        )


def alternate(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main()
