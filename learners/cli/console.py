"""What the commands share: logging, and errors a user can act on instead of tracebacks."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from datasets.core import progress
from datasets.core.address import hidden
from datasets.core.errors import Rejected, SecondhandError, printable
from datasets.core.limits import check_open_files
from datasets.core.program import (
    MODULES,
    extra,
    installed_commands,
    typed_words,
    use_utf8_output,
)
from datasets.core.scanning import skipped_line
from datasets.core.store import cache_root
from learners.cli import live
from learners.cli.upstream import deliver_late_interrupts
from learners.machine.acceleration import keep_memory_on_cpu, let_waiting_threads_sleep
from learners.machine.hardware import disable_telemetry

#: Set by ``--quiet`` and ``--verbose``, for the processes that a command starts too.
QUIET, VERBOSE = "SECONDHAND_QUIET", "SECONDHAND_VERBOSE"
#: Packages whose DEBUG messages go to log.txt, and to the terminal with ``--verbose``.
OURS = ("app", "datasets", "fields", "learners")
_RED, _YELLOW = "31;1", "33;1"
#: Errors of a disk, and of a path that cannot be: below a file, too long, of signs that the disk does not take.
_OF_MACHINE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
_OF_PATH = (
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ,
)  # fmt: skip


def run(main: Callable[[], int]) -> None:
    """Run a command's ``main`` and exit with its status.

    The status is 2 for a wrong call, a path that cannot be or unusable input, 1 for errors of the machine (disk
    full), 130 after Ctrl-C and 143 after SIGTERM. Both signals end the process in order and leave no incomplete files.
    """
    reopen_closed_streams()
    let_waiting_threads_sleep()
    disable_telemetry()
    use_utf8_output()
    deliver_late_interrupts()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        check_current_folder()
        status = main()
        sys.stdout.flush()
    except SecondhandError as error:
        _print_error(installed_commands(str(error)))
        status = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "app", "fields", "learners", "datasets"):
            raise
        _print_error(not_installed(missing, Path(__file__).parents[2] / ".venv"))
        status = 2
    except BrokenPipeError:
        # The reader of a pipe has closed it, as `| head` does. This is not an error.
        sys.stderr.close()
        status = 0
    except (OSError, RuntimeError) as error:
        try:
            check_open_files(error)
        except SecondhandError as sentence:
            print(coloured("error:", _RED), sentence, file=sys.stderr)
            sys.exit(1)
        if isinstance(error, RuntimeError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        # A folder that is there, but takes no file, as /proc does.
        written = Path(error.filename or "/")
        takes_none = error.errno == errno.ENOENT and written.is_relative_to("/proc")
        if not full and not takes_none and error.errno not in (*_OF_MACHINE, *_OF_PATH):
            raise
        name = error.filename or "the output"
        remedy = "Free some space or choose another --out" if full else "Choose another --out"
        if Path(name).is_relative_to(cache_root()):  # what the user has not named
            remedy = "Free some space, or choose another cache folder with $SECONDHAND_CACHE"
        _print_error(f"{name}: {error.strerror or os.strerror(error.errno or 0)}. {remedy}")
        status = 2 if takes_none or error.errno in _OF_PATH else 1
    sys.exit(status)


def check_current_folder() -> None:
    """Raise SecondhandError if the folder in which a command was called has been removed: no path is relative to it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise SecondhandError(
            "the current folder is not there any more: somebody removed or replaced it. Go to one that is there: cd ~"
        ) from None


def _print_error(message: str) -> None:
    live.print_line(f"{coloured('error:', _RED)} {indented(printable(message))}")


def indented(message: str) -> str:
    """A message whose further lines cannot be taken for messages of their own: text in it may be a stranger's."""
    return message.replace("\n", "\n  ")


def reopen_closed_streams() -> None:
    """Open the standard streams that the caller has closed, as ``>&-`` does, to nowhere.

    Otherwise messages to a closed standard error would go to standard output, and the first file that is opened
    would get the number of a closed one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def require_output() -> None:
    """Raise SecondhandError if results are to go to a standard output that the caller has closed."""
    if getattr(sys.stdout, "name", "") == os.devnull:  # of `reopen_closed_streams`
        raise SecondhandError("standard output is closed. Name a file with --out")


def not_installed(package: str, environment: Path) -> str:
    """What to do about a missing package: run the checkout's own ``environment`` if that has it, else install it."""
    found = [*environment.glob(f"lib/*/site-packages/{package}*")]
    found += environment.glob(f"Lib/site-packages/{package}*")  # on Windows
    if found and environment.resolve() != Path(sys.prefix).resolve():
        python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        return f"{package} is not installed in {sys.executable}. You are not running {python}, which has it"
    return f"{package} is not installed. Install everything: {extra('all')}"


def _terminated(number: int, frame: object) -> None:
    # Like Ctrl-C, but at once, because SIGKILL usually follows soon.
    print("terminated", file=sys.stderr)
    sys.exit(128 + number)


def command_line(command: str, *words: object) -> str:
    """A command that can be pasted in any folder: it names this interpreter if its environment is not active."""
    own = installed_commands(f"-m learners.{command}") if command in MODULES else ""
    called = (own or f"-m secondhand {command}").split()
    active = shutil.which("python") == sys.executable
    python = "python" if active or not sys.executable else sys.executable
    return shlex.join([python, *called, *map(str, words)])


def as_typed(command: str, argv: Sequence[object] | None) -> str:
    """A command as a user types it; without ``argv`` the one that is running."""
    words = sys.argv[1:] if argv is None else argv
    typed = [hidden(str(word)) for word in words]
    return shlex.join([*typed_words(command), *typed])


def tell_left_out(rejected: Sequence[Rejected], files: int, skipped: Counter[str]) -> int:
    """Print the bad files of ``files`` files, and the number of skipped other files in folders.

    Returns the exit status: 0, or 3 if some files were bad.
    """
    for item in rejected:
        print(item, file=sys.stderr)
    if skipped:
        print(skipped_line(skipped), file=sys.stderr)
    if rejected:
        print(f"{len(rejected)} of {files} files could not be used", file=sys.stderr)
    return 3 if rejected else 0


def coloured(text: str, code: str, stream: TextIO | None = None) -> str:
    """The text in an ANSI style, if the stream (default: standard error) is a terminal with colours and
    NO_COLOR is not set."""
    stream = sys.stderr if stream is None else stream
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


def be_quiet() -> None:
    """Show only warnings, errors and results from now on; log.txt of a run has all messages."""
    os.environ[QUIET] = "1"
    os.environ.pop(VERBOSE, None)


def be_verbose() -> None:
    """Also show on the terminal the messages that otherwise go to log.txt only."""
    os.environ[VERBOSE] = "1"
    os.environ.pop(QUIET, None)


def watched() -> bool:
    """Whether live progress is shown: standard error is a terminal, and ``--quiet`` is not given."""
    dumb = os.environ.get("TERM") == "dumb"
    return sys.stderr.isatty() and not dumb and not os.environ.get(QUIET)


class _Terminal(logging.Handler):
    """Prints messages to standard error, above the live line of progress, and marks warnings."""

    def filter(self, record: logging.LogRecord) -> bool:
        level = logging.INFO
        if os.environ.get(QUIET):
            level = logging.WARNING
        elif os.environ.get(VERBOSE):
            level = logging.DEBUG
        return record.levelno >= level

    def format(self, record: logging.LogRecord) -> str:
        text = printable(super().format(record))
        if record.levelno <= logging.INFO:
            return text
        name = "error" if record.levelno > logging.WARNING else "warning"
        return f"{coloured(f'{name}:', _YELLOW)} {indented(text)}"

    def emit(self, record: logging.LogRecord) -> None:
        try:
            live.print_line(self.format(record))
        except Exception:  # as logging's own handlers do
            self.handleError(record)


def start(settings: Any) -> None:
    """Begin a command with the flags ``--engine`` and ``--device``: log to the terminal, keep memory on a CPU."""
    log_to_terminal()
    keep_memory_on_cpu("cpu" if settings.engine == "onnx" else settings.device)


def log_to_terminal(file: Path | None = None) -> None:
    """Send messages and progress of this program to standard error, and all messages with their time to
    ``file``."""
    # These warnings are for the developers of libraries.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for name in (
        "botocore", "httpx", "httpx2", "huggingface_hub", "timm", "matplotlib", "fontTools",
    ):  # fmt: skip
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in root.handlers:
        handler.close()
    root.handlers = [_Terminal()]
    for name in OURS:
        logging.getLogger(name).setLevel(logging.DEBUG)
    progress.show_with(live.show if watched() else live.log_step)
    if file is not None:
        written = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
        written.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        root.addHandler(written)
