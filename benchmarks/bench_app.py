"""Web page: start-up time, load, and overload, compared with the predictor alone.

``start``  from launching ``secondhand app MODEL`` to the first answer over HTTP, against importing
           torch and timm and one forward pass of the same network. Target: <= 1.5 times.
``load``   8 clients send 400 requests on loopback. Target: none lost, none wrong (each as
           ``learners.predict`` within 1e-5), 95th percentile under 3 medians, under 50 MB of growth,
           >= 0.8 of the predictor's own rate at batches of 8.
``busy``   twice the queue's limit at once: a clear "busy" reply, and accepted requests are answered.

    python benchmarks/bench_app.py runs/photos/model photos --what start load busy
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import learners.cli.console  # noqa: E402, F401  (as the command does: waiting threads sleep)
from benchmarks._shared import demo_files, demo_run, parse, software_and_hardware  # noqa: E402

BARE = """
import json, sys, torch, timm
spec = json.load(open(sys.argv[1] + "/config.json"))["network"]
name = "tf_efficientnet_lite0" if spec["backbone"] == "embedded" else spec["backbone"]
network = timm.create_model(name, num_classes=spec["n_classes"]).eval()
with torch.inference_mode():
    network(torch.zeros(1, 3, spec["size"], spec["size"]))
"""


class Page:
    """The command in a process of its own."""

    def __init__(self, model: str, *flags: str) -> None:
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", model, "--port", "0", *flags],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout
        found = re.search(r"http://\S+?:\d+", self.process.stdout.readline())
        if not found:
            raise SystemExit("the page did not start")
        self.url = found[0]

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        return _cpu(self.process.pid)

    def memory(self) -> float:
        """Resident, in MB."""
        import psutil

        return psutil.Process(self.process.pid).memory_info().rss / 1e6

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Asker:
    """One client over HTTP, with the connection that a program would keep open.

    By urllib3: it runs on the page's cores, and httpx takes several ms of them for a request.
    """

    def __init__(self, url: str) -> None:
        import urllib3

        self.http = urllib3.connection_from_url(url, timeout=120)

    def ask(self, file: str) -> tuple[int, dict[str, Any]]:
        """The status of the answer, and what it says."""
        fields = {"file": (Path(file).name, Path(file).read_bytes())}
        answer = self.http.request("POST", "/predict", fields=fields)
        return answer.status, answer.json()


def start(model: str, files: list[str], rounds: int) -> None:
    ours, bare, work = [], [], []
    for _ in range(rounds):
        began, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, "-c", BARE, model], cwd=ROOT, check=True)
        bare.append(time.perf_counter() - began)
        after = os.times()
        least = after.children_user + after.children_system
        least -= before.children_user + before.children_system
        page = Page(model)
        status, replies = Asker(page.url).ask(files[0])
        ours.append(time.perf_counter() - page.began)
        work.append(page.cpu() / least)
        page.close()
        assert status == 200, replies
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    print(
        f"start   page {statistics.median(ours):.1f} s, torch + timm + forward "
        f"{statistics.median(bare):.1f} s, ratio {statistics.median(ratios):.2f} "
        f"[{min(ratios):.2f} to {max(ratios):.2f}]; of processor time "
        f"{statistics.median(work):.2f}"
    )


def load(model: str, files: list[str], count: int, clients: int) -> None:
    from learners.loading.predictor import load_predictor

    requests = list(islice(cycle(files), count))
    predictor = load_predictor(model, top=5, bs=8)
    expected = {p.path: p for p in predictor.predict(files)}
    page = Page(model)
    times: list[float] = []
    wrong: list[str] = []
    lock = threading.Lock()

    def one(number: int) -> None:
        asker = Asker(page.url)
        for file in requests[number::clients]:
            began = time.perf_counter()
            status, answer = asker.ask(file)
            took = time.perf_counter() - began
            right = expected[file]
            ok = status == 200 and answer["label"] == right.label
            ok = ok and abs((answer["probability"] or 0) - right.probability) < 1e-5
            with lock:
                times.append(took)
                if not ok:
                    wrong.append(f"{file}: {str(answer)[:200]}")

    def round_of(total: int) -> float:
        times.clear()
        requests[:] = list(islice(cycle(files), total))
        began = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(one, range(clients)))
        return total / (time.perf_counter() - began)

    round_of(min(count, 10 * clients))  # warm-up
    before = page.memory()
    began, cpu = time.perf_counter(), _cpu(os.getpid())
    alone = min(count, 4000)  # enough for a rate
    list(predictor.predict(islice(cycle(files), alone)))
    own = alone / (time.perf_counter() - began)
    own_cpu = (_cpu(os.getpid()) - cpu) / alone
    cpu = page.cpu()
    rate = round_of(count)
    cpu = (page.cpu() - cpu) / count
    after = page.memory()
    ordered = sorted(times)
    middle, late = statistics.median(ordered), ordered[int(0.95 * len(ordered))]
    print(
        f"load    {len(times)} of {count} answered, {len(wrong)} wrong; median {1000 * middle:.0f} ms, "
        f"95th percentile {1000 * late:.0f} ms ({late / middle:.2f} medians); memory "
        f"{after - before:+.0f} MB; {rate:.1f}/s of the predictor's {own:.1f}/s: {rate / own:.2f}; processor time of an answer "
        f"{1000 * cpu:.0f} ms, of the predictor {1000 * own_cpu:.0f} ms: "
        f"{own_cpu / cpu:.2f}"
    )
    print("\n".join(wrong[:5]), end="")
    page.close()


def busy(model: str, files: list[str], limit: int) -> None:
    page = Page(model, "--queue", str(limit), "--bs", "1")
    Asker(page.url).ask(files[0])
    many = list(islice(cycle(files), 2 * limit + 8))
    with ThreadPoolExecutor(len(many)) as pool:
        replies = list(pool.map(lambda file: Asker(page.url).ask(file), many))
    page.close()
    answered = sum(status == 200 for status, _ in replies)
    refused = [answer["error"] for status, answer in replies if status == 503]
    print(
        f"busy    {len(replies)} at once for a queue of {limit}: {answered} answered, {len(refused)} told "
        f"to come again, {len(replies) - answered - len(refused)} lost; {refused[0] if refused else ''}"
    )


def _cpu(pid: int) -> float:
    """Seconds of processor time of a process and of those that it started to decode files."""
    import psutil

    one = psutil.Process(pid)
    times = [process.cpu_times() for process in (one, *one.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def main() -> None:
    from datasets.kinds.finding import find_files

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="one of digits if not given")
    parser.add_argument("folder", nargs="?", help="of files; demo:digits if not given")
    parser.add_argument("--what", nargs="+", default=["start", "load", "busy"])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    settings = parse(parser, what=["load"], count=4, clients=2, rounds=1)
    model = settings.model or demo_run(settings.small) / "model"
    files = [*islice(find_files([settings.folder]), 40)] if settings.folder else demo_files(40)
    model = str(Path(model).resolve())
    if "start" in settings.what:
        start(model, files, settings.rounds)
    if "load" in settings.what:
        load(model, files, settings.count, settings.clients)
    if "busy" in settings.what:
        busy(model, files, 16)
    print(software_and_hardware("timm", "gradio"))


if __name__ == "__main__":
    main()
