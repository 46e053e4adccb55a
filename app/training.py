"""A training that the page starts: ``python -m learners.finetune`` in a process of its own, and what is read of it.

The page reads the run folder, its log and its history; it imports no training. The process outlives the page, which
finds it again by the files in ``RUNS/.training``.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from datasets.core.checked import read_file
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import write_beside
from datasets.core.program import installed_commands
from learners.cli.live import duration
from learners.files.lock import acquire_lock
from learners.runs.folder import has_progress, is_finished

#: The choices of the page, what they stand for, and the flags of the command.
CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "quick": ("128 pixels, 2 epochs: a first answer in minutes", ("--preset", "quick")),
    "usual": ("224 pixels for pictures, 5 epochs: the command's own settings", ()),
    "best": ("15 epochs with averaged weights: three times as long as usual", ("--preset", "best")),
}
State = Literal["none", "running", "stopping", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class Started:
    """A process that was started: the run folder, the words of its command, and whether it was asked to stop."""

    folder: str
    words: list[str]
    stopping: bool = False


@dataclass(frozen=True)
class Status:
    """What is known of the last training of a page.

    Attributes
    ----------
    state : "stopped" if it ended before it was complete and can be resumed; "failed" if nothing is left of it.
    folder : its run folder. command : that started it.
    step : its last message, or why it ended.
    history : rows of ``history.csv``. epochs : epochs to train all weights; 0 until that is known.
    left : time left for the epochs, in words; "" if it cannot be told yet.
    model : the model folder, once the process has ended and there is one.
    result : what the command printed of the model.
    """

    state: State = "none"
    folder: Path = Path()
    command: str = ""
    step: str = ""
    history: tuple[dict[str, str], ...] = ()
    epochs: int = 0
    left: str = ""
    model: Path | None = None
    result: str = ""

    @property
    def runs(self) -> bool:
        return self.state in ("running", "stopping")

    @property
    def done(self) -> int:
        """Number of epochs that are complete."""
        return sum(row["phase"] == "unfrozen" for row in self.history)


@dataclass
class Training:
    """One training at a time, in a folder of runs.

    The process holds a lock on a file, which it inherits and which ends with it. So each page of this folder sees
    whether it runs, also one that was started later.

    Parameters
    ----------
    root : folder of the runs; created if missing.
    device : device to train on and to predict with.
    """

    root: Path
    device: str = "auto"
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _alone: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        if sys.platform == "win32":
            raise SecondhandError(
                "--train works on Linux and macOS. Use python -m learners.finetune"
            )
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell ignores Ctrl-C for a program in the background, whose processes would inherit that.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.root = self.root.absolute()
        self._own = self.root / ".training"
        self._state, self._lock, self._output, self._result = (
            self._own / name for name in ("state.json", "lock", "output.txt", "result.txt")
        )
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._lock.touch()
        except OSError as error:
            raise SecondhandError(
                f"--train {self.root}: {error.strerror}. Name a folder that can be written"
            ) from None

    def words(self, data: Sequence[Path], choice: str, start_from: Path | None = None) -> list[str]:
        """Words of the command for a folder, or for tables of corrections; its run gets an unused name."""
        name = data[0].name or "run"
        name = name if start_from is None else f"{start_from.parent.name}-corrected"
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        out = next(folder for other in names if not (folder := self.root / other).exists())
        origin = [] if start_from is None else ["--from", str(start_from)]
        device = [] if self.device == "auto" else ["--device", self.device]
        sources = [str(path) for path in data]
        return [*origin, "--data", *sources, *CHOICES[choice][1], *device, "--out", str(out)]

    def start(self, words: Sequence[str], folder: Path | None = None) -> None:
        """Start ``python -m learners.finetune WORDS``.

        Parameters
        ----------
        folder : the run folder; default: the last word.

        Raises
        ------
        SecondhandError : a training runs already, or the folder cannot be written; nothing is started then.
        """
        run = Path(words[-1]) if folder is None else folder
        with self._alone, open(self._lock, "r+b", buffering=0) as lock:
            try:
                acquire_lock(lock, inherited=True)
            except OSError as error:
                raise SecondhandError(
                    "One training runs already. Wait until it has ended, or stop it."
                    if isinstance(error, BlockingIOError)
                    else f"--train {self.root}: no locks on this disk ({error.strerror}). Name a folder on another"
                ) from None
            command = [sys.executable, *installed_commands("-m learners.finetune").split(), *words]
            try:
                self._write(Started(str(run), [*words]))
                with open(self._output, "wb") as log, open(self._result, "wb") as result:
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=result,
                        stderr=log,
                        pass_fds=[lock.fileno()],
                        start_new_session=True,  # Ctrl-C at the page's terminal is not for it
                    )
                lock.truncate(0)
                lock.write(str(self._process.pid).encode())
            except OSError as error:
                raise SecondhandError(
                    f"The training could not be started ({error.filename}: {error.strerror}). Free some space, or "
                    "choose another folder: --train FOLDER"
                ) from None

    def resume(self) -> None:
        """Resume the last training. Raises SecondhandError as `start`, and if there is none to resume."""
        status = self.status()
        if status.state != "stopped":
            raise SecondhandError("There is no training to resume.")
        self.start(["--resume", str(status.folder)], status.folder)

    def cancel(self) -> None:
        """Send Ctrl-C to the process once, which then completes the best model so far."""
        with self._alone:
            started, pid = self._started(), self._lock.read_bytes()
            if started and not started.stopping and self._is_running() and pid.isdigit():
                # On a full disk only the page's words stay those of a training that runs on.
                with suppress(OSError):
                    self._write(replace(started, stopping=True))
                os.kill(int(pid), signal.SIGINT)

    def status(self) -> Status:
        """What the files tell of the last training."""
        if self._process is not None:
            self._process.poll()  # takes the ended process from the system's table
        with self._alone:
            runs = self._is_running()
            started = self._started()
        if started is None:
            return Status()
        folder = Path(started.folder)
        known: dict[str, Any] = {
            "folder": folder,
            "command": shown_command(started.words),
            "history": tuple(_rows(folder / "history.csv")),
            "epochs": _epochs(folder / "config.yaml"),
            "result": _text(self._result),
        }
        model = folder / "model"
        if runs:
            step = _last_message(folder / "log.txt") or "Starting …"
            if started.stopping:
                return Status("stopping", step=step, **known)
            between = step.startswith("Epoch")  # before and after them the time is not theirs
            left = _time_left(folder / "history.csv", known["history"], known["epochs"])
            return Status("running", step=step, left=left if between else "", **known)
        known["model"] = model if (model / "config.json").is_file() else None
        if is_finished(folder):
            return Status("finished", **known)
        error = "" if started.stopping else _error(_text(self._output))
        return Status("stopped" if has_progress(folder) else "failed", step=error, **known)

    def _started(self) -> Started | None:
        try:
            return read_file(Started, self._state)
        except (BadFile, OSError):
            return None

    def _write(self, started: Started) -> None:
        write_beside(self._state, json.dumps(asdict(started)).encode())

    def _is_running(self) -> bool:
        with open(self._lock, "rb") as lock:
            try:
                acquire_lock(lock, inherited=True, shared=True)
            except OSError:
                return True
        return False


def shown_command(words: Sequence[str]) -> str:
    """The command that does the same, to be copied."""
    return installed_commands(f"python -m learners.finetune {shlex.join(words)}")


def _text(file: Path) -> str:
    """A file of a run; "" if it does not exist yet, or no longer."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def _rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(file).splitlines()))


def _epochs(config: Path) -> int:
    """``epochs`` of the resolved settings of a run."""
    lines = (line.partition(": ") for line in _text(config).splitlines())
    return next((int(value) for name, _, value in lines if name == "epochs" and value.isdigit()), 0)


def _last_message(log: Path) -> str:
    """The last line of a log for users, without time, level and the lines of tables."""
    for line in reversed(_text(log).splitlines()):
        _, is_shown, message = line.partition(" INFO ")
        if is_shown and not message.startswith(" "):
            return message
    return ""


def _time_left(file: Path, history: Sequence[dict[str, str]], epochs: int) -> str:
    """Time left for the epochs, from those that are complete."""
    seconds = [float(row["seconds"]) for row in history if row["phase"] == "unfrozen"]
    if not seconds or len(seconds) >= epochs:
        return ""
    with suppress(OSError):
        passed = time.time() - file.stat().st_mtime
        each = sum(seconds) / len(seconds)
        return duration(max(each * (epochs - len(seconds)) - passed, 1.0))
    return ""


def _error(output: str) -> str:
    """Why a command ended, from what it wrote to standard error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if errors:
        return errors[-1]
    last = f" Its last line: {lines[-1]}" if lines else ""
    return f"The process ended without a message; perhaps the memory was too small.{last}"
