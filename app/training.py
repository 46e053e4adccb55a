"""A training that the page starts: ``python -m learners.finetune`` in a process of its own, and what is read of it.

The page reads ``status.json`` and ``history.csv`` of the run folder; it imports no training. The process outlives the
page, which finds it again by the files in ``RUNS/.training``.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, TypeVar

from datasets.core.checked import read_file
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import write_beside
from datasets.core.program import installed_commands
from learners.cli.again import train_again
from learners.files.lock import acquire_lock
from learners.runs.folder import has_progress, is_finished
from learners.runs.status import STATUS, RunStatus

#: The choices of the page, what they stand for, and the flags of the command.
CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "quick": ("128 pixels, 2 epochs: a first answer in minutes", ("--preset", "quick")),
    "usual": ("224 pixels for pictures, 5 epochs: the command's own settings", ()),
    "best": (
        "15 epochs with averaged weights, measured on every file: twelve times as long as usual",
        ("--preset", "best"),
    ),
}
T = TypeVar("T")
State = Literal["none", "running", "stopping", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class Started:
    """A process that was started: the words of its command, of which the last is the run folder, and whether it was
    asked to stop."""

    words: list[str]
    stopping: bool = False


@dataclass(frozen=True)
class Status:
    """What is known of the last training of a page.

    Attributes
    ----------
    state : "stopped" if it ended before it was complete and can be resumed; "failed" if nothing is left of it.
    folder : its run folder. command : that started it.
    run : what the run tells of itself; None until it does.
    error : why it ended, if nobody stopped it.
    history : text of ``history.csv``, of the network in training.
    model : the model folder, once the process has ended and there is one.
    """

    state: State = "none"
    folder: Path = Path()
    command: str = ""
    run: RunStatus | None = None
    error: str = ""
    history: str = ""
    model: Path | None = None

    @property
    def runs(self) -> bool:
        return self.state in ("running", "stopping")

    @property
    def epochs(self) -> list[dict[str, str]]:
        """The rows of the history."""
        return [*csv.DictReader(self.history.splitlines())]

    @property
    def report(self) -> Path | None:
        """The report of a training that is finished."""
        file = self.folder / "report" / "index.html"
        return file if self.state == "finished" and file.is_file() else None


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
        self._state, self._lock, self._output = (
            self._own / name for name in ("state.json", "lock", "output.txt")
        )
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._lock.touch()
        except OSError as error:
            raise SecondhandError(
                f"--train {self.root}: {error.strerror}. Name a folder that can be written"
            ) from None

    def words(
        self,
        data: Sequence[Path],
        choice: str,
        start_from: Path | None = None,
        *,
        several: bool = False,
    ) -> list[str]:
        """Words of the command for a folder, or for tables of corrections; its run gets an unused name.

        Parameters
        ----------
        start_from : model to train again; ``several`` : it gives a file several labels.

        Raises
        ------
        SecondhandError : a model of several labels is not in its run, which has its items.
        """
        name = (data[0].stem if data[0].is_file() else data[0].name) or "run"
        name = name if start_from is None else f"{start_from.parent.name}-corrected"
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        out = next(folder for other in names if not (folder := self.root / other).exists())
        device = [] if self.device == "auto" else ["--device", self.device]
        if start_from is None:
            asked = ["--data", *map(str, data), *CHOICES[choice][1]]
        else:
            asked = train_again(start_from, data, several=several)
            if "--config" in asked:
                asked = asked[: asked.index("--out")]
            elif several:
                raise SecondhandError(
                    f"{start_from} is not in the folder of its run, which names the files that it was trained on. Train "
                    f"anew with all of them: python -m learners.finetune {shlex.join(asked)}"
                )
        return [*asked, *device, "--out", str(out)]

    def start(self, words: Sequence[str]) -> None:
        """Start ``python -m learners.finetune WORDS``, of which the last is the run folder.

        Raises
        ------
        SecondhandError : a training runs already, or the folder cannot be written; nothing is started then.
        """
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
                self._write(Started([*words]))
                with open(self._output, "wb") as output:
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
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
        self.start(["--resume", str(status.folder)])

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
        folder = Path(started.words[-1])
        known: dict[str, Any] = {
            "folder": folder,
            "command": shown_command(started.words),
            "run": _read(RunStatus, folder / STATUS),
            "history": _history(folder),
        }
        model = folder / "model"
        if runs:
            return Status("stopping" if started.stopping else "running", **known)
        known["model"] = model if (model / "config.json").is_file() else None
        if is_finished(folder):
            return Status("finished", **known)
        error = "" if started.stopping else _error(_text(self._output))
        return Status("stopped" if has_progress(folder) else "failed", error=error, **known)

    def _started(self) -> Started | None:
        return _read(Started, self._state)

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


def _history(folder: Path) -> str:
    """The history of the network in training: that of the model, or before it those that are cross-fitted, the last."""
    bodies = sorted(folder.glob("checkpoint/body-*"), key=lambda body: (len(body.name), body.name))
    texts = (_text(part / "history.csv") for part in (folder, *reversed(bodies)))
    return next(filter(None, texts), "")


def _text(file: Path) -> str:
    """A file of a run; "" if it does not exist yet, or no longer."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def _read(cls: type[T], file: Path) -> T | None:
    """The object in a JSON file; None if there is none."""
    with suppress(BadFile, OSError):
        return read_file(cls, file)
    return None


def _error(output: str) -> str:
    """Why a command ended, from what it printed."""
    _, is_told, error = output.rpartition("error: ")
    if is_told:
        return error.strip()
    last = f" Its last line: {output.strip().splitlines()[-1]}" if output.strip() else ""
    return f"The process ended without a message; perhaps the memory was too small.{last}"
