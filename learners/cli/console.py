"""What the commands share: logging, and errors a user can act on instead of tracebacks."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets.core.errors import Rejected, SecondhandError
from datasets.core.program import WHEEL, installed_commands, use_utf8_output
from datasets.core.scanning import skipped_line
from learners import distributed
from learners.acceleration import let_waiting_threads_sleep
from learners.machine import disable_telemetry

#: Set by ``--quiet``, for the processes that a command starts too.
QUIET = "SECONDHAND_QUIET"


def run(main: Callable[[], int]) -> None:
    """Run a command's ``main`` and leave with its exit status.

    2 for a wrong call or input that ends the run, 1 where the machine is at fault (disk full), 130
    after Ctrl-C, 143 after SIGTERM: both end it in order, and leave nothing half written.
    """
    let_waiting_threads_sleep()
    disable_telemetry()
    use_utf8_output()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        status = main()
        sys.stdout.flush()
    except SecondhandError as error:
        print(f"error: {installed_commands(str(error))}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "app", "learners", "datasets"):
            raise
        remedy = "pip install secondhand" if WHEEL else "pip install -c constraints.txt -e ."
        print(
            f"error: {missing} is not installed, which this needs and a machine that only answers does "
            f"not: {remedy}",
            file=sys.stderr,
        )
        status = 2
    except BrokenPipeError:
        # The reader of a pipe has enough, as with `| head`: nothing is wrong.
        sys.stderr.close()
        status = 0
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not full and error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO):
            raise
        name = error.filename or "the run folder"
        remedy = "free some room or choose another --out" if full else "choose another --out"
        print(f"error: {name}: {os.strerror(error.errno or 0)}; {remedy}", file=sys.stderr)
        status = 1
    sys.exit(status)


def _terminated(number: int, frame: object) -> None:
    # As Ctrl-C does, but at once: whoever sends it soon sends the signal that nobody survives.
    print("terminated", file=sys.stderr)
    sys.exit(128 + number)


def command_line(module: str, *words: object) -> str:
    """A command that works as it is pasted, in another folder too: by this interpreter, whose folder
    may not be activated."""
    called = installed_commands(f"-m {module}").split()
    return shlex.join([sys.executable or "python", *called, *map(str, words)])


def as_typed(module: str, argv: Sequence[str] | None) -> str:
    """The command that is running, as a report and a model's provenance tell it."""
    words = sys.argv[1:] if argv is None else argv
    return shlex.join([*installed_commands(f"python -m {module}").split(), *words])


def tell_left_out(rejected: Sequence[Rejected], files: int, skipped: Counter[str]) -> int:
    """List the bad ones of so many ``files``, and count what folders held besides; the exit status, 3
    where some were bad."""
    for item in rejected:
        print(f"{item.path}: {item.reason}", file=sys.stderr)
    if skipped:
        print(skipped_line(skipped), file=sys.stderr)
    if rejected:
        print(f"{len(rejected)} of {files} files were bad", file=sys.stderr)
    return 3 if rejected else 0


def print_figures(metrics: Mapping[str, Any]) -> None:
    """The numbers among them, a line each."""
    for name, value in metrics.items():
        if isinstance(value, float):
            print(f"{name.replace('_', ' '):34} {value:.3f}")


def be_quiet() -> None:
    """From now on nothing but warnings, errors and what was asked for; a run's log.txt has all."""
    os.environ[QUIET] = "1"


def watched() -> bool:
    """Whether bars are shown: standard error is a terminal, and nobody said ``--quiet``."""
    return sys.stderr.isatty() and not os.environ.get(QUIET)


@contextmanager
def bar(count: Callable[[], int]) -> Iterator[Callable[[int, int], None]]:
    """Files done, their rate and the time left, where they are `watched`.

    What is yielded is told how many are done, and how many of them were before. ``count`` says how
    many there will be; it is asked aside, as the work goes on.
    """
    if not watched():
        yield lambda done, before: None
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    with tqdm(unit=" files", file=sys.stderr) as shown:

        def to(done: int, before: int) -> None:
            shown.initial = before
            shown.update(done - shown.n)

        def find_total() -> None:
            shown.total = count()

        threading.Thread(target=find_total, daemon=True).start()
        yield to


def log_to_terminal(file: Path | None = None) -> None:
    """Messages of this program to standard error, and to a file with the time before each."""
    # Notes that libraries write for their own developers.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for name in ("httpx", "httpx2", "huggingface_hub", "timm", "matplotlib", "fontTools"):
        logging.getLogger(name).setLevel(logging.WARNING)
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(logging.Formatter("%(message)s"))
    terminal.addFilter(lambda record: record.levelno > logging.INFO or not os.environ.get(QUIET))
    for handler in root.handlers:
        handler.close()
    root.handlers = [terminal]
    if not distributed.is_first():
        # The first of several processes speaks for all; a file that is left out is each one's own.
        root.setLevel(logging.ERROR)
        logging.getLogger("datasets.loaders.seeded").setLevel(logging.WARNING)
        return
    if file is not None:
        written = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
        written.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        root.addHandler(written)
