"""Corrections by visitors: files with their right labels, as a table that fine-tuning reads.

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
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from datasets.core.cells import read_dicts, write_rows
from datasets.core.errors import SecondhandError, quoted
from datasets.core.files import file_beside, write_beside
from datasets.core.scanning import SUFFIXES
from datasets.items import clean_label, label_error

COLUMNS = ("path", "label", "gps", "predicted", "probability", "model", "time")
#: Limit of a folder that visitors write to.
MAX_BYTES = 2 << 30


class Feedback:
    """A folder with ``feedback.csv`` and the files that it names.

    Parameters
    ----------
    folder : created if missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.table = self.folder / "feedback.csv"
        self._corrections = Corrections(self.table)
        (self.folder / "files").mkdir(parents=True, exist_ok=True)
        self._bytes = sum(f.stat().st_size for f in (self.folder / "files").iterdir())

    def counts(self) -> Counter[str]:
        """Number of corrections by the model that was corrected. Empty if the table is not one of corrections."""
        with suppress(SecondhandError):
            return Counter(row.get("model", "") for row in self._corrections.rows()[1])
        return Counter()

    def save(
        self,
        file: str,
        label: str,
        *,
        kind: str,
        gps: float | None = None,
        predicted: str = "",
        probability: float = float("nan"),
        model: str = "",
    ) -> Path:
        """Save a file, named by its content, with its right label.

        The later of two corrections of the same content (of strain: at the same moment) counts, because
        training leaves out files with contradictory labels.

        Raises
        ------
        SecondhandError : the label is not valid, the file is gone, the folder is full, or its table is not
            one of corrections.
        """
        label = check_label(label)
        source = Path(file)
        if not source.is_file():
            raise SecondhandError(
                f"{source.name} was deleted in the meantime. Please upload it again."
            )
        size = source.stat().st_size
        with self._corrections.alone():
            if self._bytes + size > MAX_BYTES:
                raise SecondhandError(
                    "The folder for corrections is full. Tell the owner of this page."
                )
            with open(source, "rb") as stream:
                name = hashlib.file_digest(stream, "sha256").hexdigest()[:24]
            copy = self.folder / "files" / f"{name}{_suffix(source.name, kind)}"
            self._corrections.rows()  # an error if it is another table
            if not copy.exists():
                with file_beside(copy) as beside:
                    shutil.copyfile(source, beside)
                self._bytes += size
            row = {
                "path": copy.relative_to(self.folder).as_posix(),
                "label": label,
                "gps": "" if gps is None else repr(gps),
                "predicted": predicted,
                "probability": "" if probability != probability else f"{probability:.4f}",
                "model": model,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            self._corrections.write(row)
        return copy


class Corrections:
    """A table of labels by people; the later of two labels of an item counts.

    Parameters
    ----------
    file : CSV with path and label, in an existing folder.
    columns : of a new table; missing ones are added to an existing table.
    """

    def __init__(self, file: Path, columns: Sequence[str] = COLUMNS) -> None:
        self.file, self.columns = file, columns
        self._lock = threading.Lock()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock for one writer at a time, also across pages that share a folder."""
        with self._lock, ExitStack() as stack:
            # Windows has no such locks: one page for each folder there.
            if sys.platform != "win32":
                import fcntl

                descriptor = os.open(self.file.parent, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                with suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def write(self, row: dict[str, str], *, drop: bool = False) -> None:
        """Append a row and remove others of its item; with ``drop`` only remove them. Within `alone`."""
        fields, rows = self.rows()
        others = [other for other in rows if self.key(other) != self.key(row)]
        self.replace(fields, others if drop else [*others, row])

    def replace(self, fields: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
        """Write the whole table. Within `alone`."""
        out = io.StringIO()
        write_rows(out, [fields, *([other.get(name, "") for name in fields] for other in rows)])
        write_beside(self.file, out.getvalue().encode())

    def key(self, row: dict[str, str]) -> tuple[str, ...]:
        """The item of a row: the content without the file's ending, and the span or moment."""
        path = row["path"]
        name = path.partition(".")[0] if path.startswith("files/") else path
        return name, *(row.get(key, "") for key in ("start", "end", "gps"))

    def rows(self) -> tuple[list[str], list[dict[str, str]]]:
        """Columns and rows of the table, with columns added by others."""
        if not self.file.exists():
            return list(self.columns), []
        try:
            with open(self.file, newline="", encoding="utf-8-sig") as stream:
                fields, dicts = read_dicts(stream, restval="", strict=True)
                rows = list(dicts)
        except (csv.Error, UnicodeDecodeError) as error:
            raise SecondhandError(
                f"{self.file.name}: not a CSV file ({error}); move it elsewhere"
            ) from None
        if not {"path", "label"} <= set(fields) or any(None in row for row in rows):
            raise SecondhandError(
                f"{self.file.name}: not a table of corrections with path and label; move it elsewhere"
            )
        return [*fields, *(name for name in self.columns if name not in fields)], rows


def check_label(label: object) -> str:
    """A label, cleaned as training cleans it.

    Raises
    ------
    SecondhandError : training would refuse it.
    """
    plain = clean_label(str(label or ""))
    if not plain:
        raise SecondhandError("The label is empty. Choose a class, or write one.")
    if fault := label_error(plain):
        raise SecondhandError(f"The label {quoted(plain)} {fault}. Write another one.")
    return plain


def _suffix(name: str, kind: str) -> str:
    """Suffix of a name if the kind has it, else the kind's first suffix."""
    ends = sorted(SUFFIXES[kind], key=len, reverse=True)
    return next((end for end in ends if name.lower().endswith(end)), SUFFIXES[kind][0])
