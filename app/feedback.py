""" "This is wrong, it is ...": files with the right label, as a table that fine-tuning reads.

python -m app runs/photos/model --feedback corrected
python -m learners.finetune --from runs/photos/model --data corrected/feedback.csv
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from datasets.core.cells import read_dicts, write_rows
from datasets.core.errors import SecondhandError, quoted
from datasets.core.files import file_beside, write_beside
from datasets.core.scanning import SUFFIXES
from datasets.items import clean_label, label_error

COLUMNS = ("path", "label", "gps", "answered", "probability", "model", "time")
#: A folder that strangers can write to is full at some point.
MAX_BYTES = 2 << 30


class Feedback:
    """A folder with ``feedback.csv`` and the files that it names.

    Parameters
    ----------
    folder : made if it is not there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.table = self.folder / "feedback.csv"
        self._corrections = Corrections(self.table)
        (self.folder / "files").mkdir(parents=True, exist_ok=True)
        self._bytes = sum(f.stat().st_size for f in (self.folder / "files").iterdir())

    def save(
        self,
        file: str,
        label: str,
        *,
        kind: str,
        gps: float | None = None,
        answered: str = "",
        probability: float = float("nan"),
        model: str = "",
    ) -> Path:
        """Keep a file under its true label. Its name is made of its content, not of its own name.

        Of two corrections of one content (of strain: at one moment) the later counts: two labels
        would contradict each other, and training would leave the file out.

        Raises
        ------
        SecondhandError : the label is none, the file has gone, the folder is full, or the table
            there is none of corrections.
        """
        label = check_label(label)
        source = Path(file)
        if not source.is_file():
            raise SecondhandError("The file is no longer here: upload it again.")
        size = source.stat().st_size
        with self._corrections.alone():
            if self._bytes + size > MAX_BYTES:
                raise SecondhandError("The folder for corrections is full: tell whoever runs this.")
            with open(source, "rb") as opened:
                name = hashlib.file_digest(opened, "sha256").hexdigest()[:24]
            kept = self.folder / "files" / f"{name}{_suffix(source.name, kind)}"
            self._corrections.rows()  # it is one of corrections, before anything is kept
            if not kept.exists():
                with file_beside(kept) as beside:
                    shutil.copyfile(source, beside)
                self._bytes += size
            row = {
                "path": kept.relative_to(self.folder).as_posix(),
                "label": label,
                "gps": "" if gps is None else repr(gps),
                "answered": answered,
                "probability": "" if probability != probability else f"{probability:.4f}",
                "model": model,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            self._corrections.write(row)
        return kept


class Corrections:
    """A table of labels that people gave: of two for one item the later counts.

    Parameters
    ----------
    file : CSV with path and label; its folder is there.
    columns : of a new one; they are added to one that lacks them.
    """

    def __init__(self, file: Path, columns: Sequence[str] = COLUMNS) -> None:
        self.file, self.columns = file, columns
        self._lock = threading.Lock()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One writer at a time, also of several pages that share a folder."""
        with self._lock, ExitStack() as held:
            # Windows has no such locks, and opens no folder: one page a folder there.
            if sys.platform != "win32":
                import fcntl

                descriptor = os.open(self.file.parent, os.O_RDONLY)
                held.callback(os.close, descriptor)
                with suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def write(self, row: dict[str, str], *, drop: bool = False) -> None:
        """Put a row at the end, in place of others about its item; or ``drop`` these. Within `alone`."""
        fields, rows = self.rows()
        out = io.StringIO()
        kept = [other for other in rows if item_of(other) != item_of(row)]
        left = kept if drop else [*kept, row]
        write_rows(out, [fields, *([other.get(name, "") for name in fields] for other in left)])
        write_beside(self.file, out.getvalue().encode())

    def rows(self) -> tuple[list[str], list[dict[str, str]]]:
        """Columns and rows of the table; columns that somebody added are kept."""
        if not self.file.exists():
            return list(self.columns), []
        try:
            with open(self.file, newline="", encoding="utf-8-sig") as opened:
                fields, read = read_dicts(opened, restval="", strict=True)
                rows = list(read)
        except (csv.Error, UnicodeDecodeError) as error:
            raise SecondhandError(f"{self.file.name}: not CSV ({error}); move it away") from None
        if not {"path", "label"} <= set(fields) or any(None in row for row in rows):
            raise SecondhandError(
                f"{self.file.name}: not a table of corrections (path, label, …); move it away"
            )
        return [*fields, *(name for name in self.columns if name not in fields)], rows


def item_of(row: dict[str, str]) -> tuple[str, ...]:
    """What a row is about: a content, whatever ending it was uploaded with, and a span or moment."""
    path = row["path"]
    name = path.partition(".")[0] if path.startswith("files/") else path
    return name, *(row.get(key, "") for key in ("start", "end", "gps"))


def check_label(label: object) -> str:
    """The label that is meant, by the rule of training.

    Raises
    ------
    SecondhandError : training would refuse it.
    """
    plain = clean_label(str(label or ""))
    if not plain:
        raise SecondhandError("Say what it is: choose a class, or write one.")
    if fault := label_error(plain):
        raise SecondhandError(f"The label {quoted(plain)} {fault}: write another.")
    return plain


def _suffix(name: str, kind: str) -> str:
    """The ending of a name where it is one of its kind's, else that kind's first one."""
    ends = sorted(SUFFIXES[kind], key=len, reverse=True)
    return next((end for end in ends if name.lower().endswith(end)), SUFFIXES[kind][0])
