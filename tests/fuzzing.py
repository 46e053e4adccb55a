"""Open mutants with the program's readers, each in a process that may die or hang.

A right answer is allowed, and so is one SecondhandError that names the file. Everything else is a
fault: another exception, a crash, more than `DEADLINE` seconds or `MEGABYTES` of memory, a file
changed outside the output folder, a new process or a connection.
"""

from __future__ import annotations

import contextlib
import copyreg
import hashlib
import io
import json
import math
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from tests import forks, mutants

DEADLINE = 10.0  # seconds
#: Seconds after which a worker is killed; whatever exceeds `DEADLINE` is already a fault.
HANGS = 30.0
MEGABYTES = 1000
#: Larger than `MEGABYTES`, so that excessive use is measured before allocation fails.
ADDRESS_SPACE = 3 << 30
METHOD = "forkserver"
#: tblib: the fork server has imported dask, which pickles errors with it.
OURS = (
    "builtins",
    "collections",
    "concurrent",
    "datasets",
    "learners",
    "numpy",
    "pathlib",
    "tblib",
)
SUFFIX = {"png": ".png", "jpeg": ".jpg", "wav": ".wav", "flac": ".flac", "hdf5": ".hdf5",
          "csv": ".csv", "config": "", "safetensors": "", "yaml": ".yaml",
          "heic": ".heic", "avif": ".avif", "m4a": ".m4a"}  # fmt: skip


class Outcome(NamedTuple):
    """The result for one mutant; ``fault`` is empty if it is allowed."""

    kind: str
    number: int
    verdict: str  # "answer", "refused", or "fault"
    detail: str
    seconds: float
    megabytes: float


def fuzz(
    count: int,
    seed: int,
    *,
    kinds: Sequence[str] = mutants.KINDS,
    workers: int = 2,
    only: int | None = None,
    tell: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Open `count` mutants, spread evenly over `kinds`, or number `only` of each kind."""
    numbers = range((count + len(kinds) - 1) // len(kinds))
    tasks = [(kind, n) for n in (numbers if only is None else [only]) for kind in kinds]
    tasks = tasks[:count] if only is None else tasks
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        root = Path(name)
        (root / "elsewhere").mkdir()
        mutants.write_models(root / "models")
        outcomes = hand_out(tasks, seed, root, workers, tell)
        strays = sorted(str(p.relative_to(root)) for p in (root / "elsewhere").rglob("*"))
        if strays:
            outcomes.append(Outcome("all", -1, "fault", f"left behind: {strays[:5]}", 0.0, 0.0))
    return outcomes


class Worker:
    """A process that opens mutants, with its current task."""

    def __init__(self, seed: int, root: Path, number: int) -> None:
        # Forked from a server, because this process may have threads and open files.
        context: Any = (
            forks.context() if METHOD == "forkserver" else multiprocessing.get_context(METHOD)
        )
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, seed, root, number))
        self.process.start()
        theirs.close()
        self.task: tuple[str, int] | None = None
        self.started = 0.0

    def take(self, task: tuple[str, int]) -> None:
        """Send a task once the models are loaded, which is not part of the task's time."""
        if not self.started and self.pipe.poll(20 * DEADLINE):
            self.pipe.recv()
        self.task, self.started = task, time.monotonic()
        self.pipe.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def hand_out(
    tasks: list[tuple[str, int]],
    seed: int,
    root: Path,
    count: int,
    tell: Callable[[Outcome], None],
) -> list[Outcome]:
    pending, outcomes = tasks[::-1], []
    crew = [Worker(seed, root, number) for number in range(min(count, len(tasks)))]
    try:
        while pending or any(worker.task for worker in crew):
            for worker in crew:
                if worker.task is None and pending:
                    worker.take(pending.pop())
            ready = wait([worker.pipe for worker in crew if worker.task], timeout=1.0)
            for n, worker in enumerate(crew):
                if worker.task is None:
                    continue
                waited = time.monotonic() - worker.started
                outcome = None
                if worker.pipe in ready:
                    try:
                        outcome = worker.pipe.recv()
                    except (EOFError, ConnectionError):
                        worker.process.join()
                        message = f"the process died with {worker.process.exitcode}"
                        outcome = Outcome(*worker.task, "fault", message, waited, 0.0)
                elif waited > HANGS:
                    outcome = Outcome(*worker.task, "fault", "hangs", waited, 0.0)
                if outcome:
                    outcomes.append(outcome)
                    tell(outcome)
                    worker.task = None
                    if outcome.detail == "hangs" or not worker.process.is_alive():
                        worker.end()
                        crew[n] = Worker(seed, root, n)
    finally:
        for worker in crew:
            worker.end()
    return outcomes


# --- how files are opened and answers checked -----------------------------------------------------


class Openings:
    """The program's readers, and models to ask about files."""

    def __init__(self, models: Path, out: Path) -> None:
        from learners.loading.predictor import load_predictor

        self.models = models
        self.predictors = {
            kind: load_predictor(models / kind, workers=1) for kind in ("picture", "sound")
        }
        # The table's pictures; one of its rows names a missing file.
        for label in ("cat", "dog"):
            for n in range(4):
                noise = np.random.default_rng([n, len(label), ord(label[0])]).integers(
                    0, 255, (9, 9, 3)
                )
                Image.fromarray(noise.astype(np.uint8)).save(out / f"{label}{n}.jpg")

    def originals(self) -> dict[str, list[bytes]]:
        """Return valid files from a model folder."""
        models = [self.models / kind for kind in ("picture", "sound", "strain")]
        return {
            "config": [(folder / "config.json").read_bytes() for folder in models],
            "safetensors": [
                (folder / f"{name}.safetensors").read_bytes()
                for folder in models
                for name in ("model", "reference")
            ],
        }

    def prepare(self, kind: str, path: Path, data: bytes, rng: Any) -> Callable[[], None]:
        """Write the file where its reader looks, and return a function that opens it."""
        if kind in ("config", "safetensors"):
            return self._model(kind, path, data, rng)
        path.write_bytes(data)
        choice = int(rng.integers(3))
        if kind in ("png", "jpeg", "heic", "avif"):
            return lambda: (
                self.predicted("picture", path) if choice == 0 else self.picture(path, choice)
            )
        if kind in ("wav", "flac", "m4a"):
            return lambda: (
                self.predicted("sound", path) if choice == 0 else self.sound(path, choice)
            )
        if kind == "hdf5":
            return lambda: self.strain(path, choice)
        if kind == "csv":
            return lambda: self.table(path, choice)
        return lambda: self.settings(path)

    def _model(self, kind: str, path: Path, data: bytes, rng: Any) -> Callable[[], None]:
        shutil.copytree(self.models / ("picture" if rng.random() < 0.5 else "sound"), path)
        if kind == "config":
            (path / "config.json").write_bytes(data)
        else:
            name = ("model.safetensors", "reference.safetensors")[int(rng.integers(2))]
            (path / name).write_bytes(data)
            config = json.loads((path / "config.json").read_text())
            # An attacker can also change the hash.
            config["hashes"][name] = hashlib.sha256(data).hexdigest()
            (path / "config.json").write_text(json.dumps(config))
        return lambda: self.model(path)

    def picture(self, path: Path, choice: int) -> None:
        from datasets.images.opening import open_picture, pixels

        opened = open_picture(path, at_least=64 if choice == 1 else 0)
        assert opened.mode == "RGB"
        assert min(opened.size) >= 1
        assert pixels(opened.resize((8, 8))).shape == (3, 8, 8)

    def sound(self, path: Path, choice: int) -> None:
        from datasets.audio import decode

        info = decode.probe(path)
        signal, rate = decode.read_audio(path, longest=60, rate=8000 if choice == 1 else None)
        assert rate == (8000 if choice == 1 else info.rate)
        assert signal.dtype == np.float32
        assert len(signal) >= 1
        assert np.isfinite(signal).all()
        assert np.abs(signal).max() <= 1

    def strain(self, path: Path, choice: int) -> None:
        from datasets.strain.files import read_strain
        from datasets.strain.settings import QScanSettings

        if choice == 1:
            read = read_strain(path, at=1126259458.0, context=16.0)
            assert read.values.dtype == np.float64
            assert len(read.values) == round(16 * read.rate)
            assert np.isfinite(read.values).all()
            return
        spectrogram = QScanSettings(context=16.0, fmax=100.0)
        image = spectrogram.image(spectrogram.read(path))
        assert image.size[0] >= 1

    def table(self, path: Path, choice: int) -> None:
        from datasets.sources.table import read_rows
        from datasets.steps.reading import load_table

        if choice == 0:
            frame = read_rows(path).frame
            assert {"path", "label"} <= set(frame)
            return
        table = load_table(path)
        assert len(table.frame) >= 2
        assert all(Path(file).is_file() for file in table.frame["path"])
        assert all(isinstance(label, str) and label for label in table.classes)

    def settings(self, path: Path) -> None:
        from learners.cli.flags import parse

        settings = parse(["--config", str(path)])
        assert type(settings.train.epochs) is int

    def predicted(self, kind: str, path: Path) -> None:
        (answer,) = self.predictors[kind].predict([path])
        assert answer.path == str(path)
        if answer.label == "unknown" and answer.reason.startswith("bad file: "):
            raise SecondhandError(f"{path}: {answer.reason}")
        self._check(answer, self.predictors[kind].classes)

    def model(self, path: Path) -> None:
        """Load the model; if that works, ask it about a fitting input."""
        from learners.inference.predictor import Predictor

        predictor = Predictor(path)
        size = predictor.bundle.preprocessing.size
        batch = np.zeros((2, 3, size, size), np.uint8)
        logits, features = predictor.forward(batch)
        assert np.isfinite(logits).all()
        for answer in predictor.decide([Part("a"), Part("b")], logits, features):
            self._check(answer, predictor.classes)

    def _check(self, answer: Any, classes: list[str]) -> None:
        if answer.reason == "no signal":
            return
        assert answer.label in (*classes, "unknown")
        assert answer.best in classes
        assert 0 <= answer.probability <= 1 or math.isnan(answer.probability)


# --- in the worker --------------------------------------------------------------------------------


def _serve(pipe: Connection, seed: int, root: Path, number: int) -> None:
    out = root / f"out{number}"
    out.mkdir(exist_ok=True)
    home = str(root / "elsewhere")
    os.chdir(home)
    os.environ |= {"HOME": home, "TMPDIR": home, "SECONDHAND_CACHE": str(out / "cache")}
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reader = Openings(root / "models", out)
    actions = watch(out)
    sources = mutants.originals() | reader.originals()
    limit = _status("VmSize") * 1024 + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    pipe.send("ready")
    while True:
        try:
            kind, n = pipe.recv()
        except EOFError:
            return
        rng = np.random.default_rng([seed, mutants.KINDS.index(kind), n])
        data = mutants.mutate(kind, sources[kind], rng)
        path = out / f"{kind}-{n}{SUFFIX[kind]}"
        open_file = reader.prepare(kind, path, data, rng)
        pipe.send(Outcome(kind, n, *judge(open_file, path, actions)))
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


class Judged(NamedTuple):
    """The last four fields of an `Outcome`."""

    verdict: str
    detail: str
    seconds: float
    megabytes: float


def judge(open_file: Callable[[], object], path: Path, actions: list[str]) -> Judged:
    """Return the result of opening a file; ``actions`` is what `watch` records."""
    before = _forget_peak()
    actions.clear()
    verdict, detail, start = "answer", "", time.monotonic()
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            open_file()
        except SecondhandError as error:
            verdict, detail = "refused", str(error)
            if wrong := message_fault(detail, path):
                verdict, detail = "fault", f"{wrong}: {detail[:300]}"
            elif "MemoryError" in (causes := _causes(error)):
                verdict, detail = "fault", f"asked for too much memory: {causes} {detail[:300]}"
        except BaseException as error:
            last = "".join(traceback.format_tb(error.__traceback__)[-3:])
            verdict = "fault"
            detail = f"{type(error).__name__}: {str(error)[:300]}\n{last}{output.getvalue()[-300:]}"
    seconds, megabytes = time.monotonic() - start, (_status("VmHWM") - before) / 1024
    if seconds > DEADLINE:
        verdict, detail = "fault", f"took {seconds:.1f} s: {detail}"
    elif megabytes > MEGABYTES:
        verdict, detail = "fault", f"took {megabytes:.0f} MB: {detail}"
    elif actions:
        verdict, detail = "fault", f"did {actions[:3]}: {detail}"
    return Judged(verdict, detail, seconds, megabytes)


def message_fault(message: str, path: Path) -> str:
    """Return what is wrong with an error message, or ""."""
    if str(path) not in message:
        return "does not name the file"
    if len(message) > 4000:
        return f"a message of {len(message)} characters"
    if not message.isprintable():
        unprintable = re.sub(r"[ -~]", "", message)[:10]
        return f"an unprintable message ({unprintable!r})"
    return ""


def _causes(error: BaseException | None) -> str:
    names = []
    while error is not None:
        names.append(type(error).__name__)
        error = error.__cause__ or error.__context__
    return " ".join(names)


def watch(out: Path, may_read: Callable[[str], bool] | None = None) -> list[str]:
    """Record what this process changes outside `out`, starts or connects to from now on.

    If ``may_read`` is given, it says which names may be opened and listed; all other reading,
    unpickling and loading is recorded too.
    """
    actions: list[str] = []
    # The fork server has imported dask, which registers a pickler for errors and their causes.
    for kind in [
        k for k, reducer in copyreg.dispatch_table.items() if "tblib" in reducer.__module__
    ]:
        del copyreg.dispatch_table[kind]
    changing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    writes = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink",
              "os.truncate", "os.chmod", "os.chown", "shutil.rmtree"}  # fmt: skip
    reads = {"open", "os.listdir", "os.scandir"}
    forbidden = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.forkpty",
             "socket.connect", "socket.bind", "socket.getaddrinfo"}  # fmt: skip

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        # Decoders run in forked processes, and their answers are unpickled here.
        foreign = event == "pickle.find_class" and arguments[0].split(".")[0] not in OURS
        unexpected = may_read is not None and (
            event.startswith(("pickle", "ctypes.dlopen", "webbrowser"))
            or (event in reads and not may_read(str(arguments[0])))
        )
        if event in forbidden or foreign or unexpected:
            actions.append(f"{event} {str(arguments)[:200]}")
        elif event in writes or (event == "open" and (arguments[2] or 0) & changing):
            name = arguments[0]
            if isinstance(name, int) or str(name) == os.devnull:
                return
            if not Path(os.path.abspath(os.fsdecode(name))).is_relative_to(out):
                actions.append(f"{event} {name}")

    sys.addaudithook(record)
    return actions


def _forget_peak() -> int:
    """Reset the peak memory and return the current memory in kB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match
    return int(match[1])
