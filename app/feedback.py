"""Corrections by visitors: files with their right labels, as a table that fine-tuning reads.

python -m app runs/photos/model --feedback corrected
python -m learners.finetune --from runs/photos/model --data corrected/feedback.csv
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import shutil
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.core.cells import csv_bytes, read_csv, write_rows
from datasets.core.errors import BadFile, SecondhandError, quoted
from datasets.core.files import file_beside, write_beside
from datasets.items.labels import clean_label, label_error, spelling_key
from datasets.kinds.base import KINDS
from learners.files.lock import acquire_lock

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction

COLUMNS = ("path", "label", "gps", "predicted", "best", "probability", "model", "time")
#: Limit of a folder that visitors write to.
MAX_BYTES = 2 << 30
#: Bytes of a file's name without its suffix; file systems take 255, and a temporary name is longer.
MAX_NAME = 180


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
        files = (self.folder / "files").rglob("*")
        self._bytes = sum(f.stat().st_size for f in files if f.is_file())

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
        shown: Prediction | None = None,
        model: str = "",
        classes: Sequence[str] = (),
    ) -> Path:
        """Save a file with its right label, under its own name in a folder named by its content.

        The name is kept because ``--group-by`` finds recordings, sites or speakers in names; of two names of
        one content the first. The later of two corrections of the same content (of strain: at the same
        moment) counts, because training leaves out files with contradictory labels.

        Parameters
        ----------
        shown : the prediction that the label corrects, under the rule that was in use.
        classes : those of the model, in whose spelling the label is saved.

        Raises
        ------
        SecondhandError : the label is not valid, the file is gone, the folder is full, or its table is not
            one of corrections.
        """
        label = self.check(label, classes)
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
                content = hashlib.file_digest(stream, "sha256").hexdigest()[:24]
            folder = self.folder / "files" / content
            # An unfinished copy has a name with a dot.
            copies = [f for f in folder.glob("*") if not f.name.startswith(".")]
            copy = copies[0] if copies else folder / _file_name(source.name, kind)
            self._corrections.rows()  # an error if it is another table
            if not copies:
                with file_beside(copy) as beside:
                    shutil.copyfile(source, beside)
                self._bytes += size
            row = {
                "path": copy.relative_to(self.folder).as_posix(),
                "label": label,
                "gps": "" if gps is None else repr(gps),
                **({} if shown is None else _prediction_cells(shown)),
                "model": model,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            self._corrections.write(row)
        return copy

    def check(self, label: str, classes: Sequence[str]) -> str:
        """`check_label` among the classes of a model and the labels in the table."""
        return check_label(label, [*classes, *(row["label"] for row in self.rows())])

    def rows(self) -> list[dict[str, str]]:
        """The corrections, oldest first. SecondhandError if the table is another one."""
        return self._corrections.rows()[1]

    def key(self, row: dict[str, str]) -> str:
        """What tells a correction from the others, as one text."""
        return "\n".join(self._corrections.key(row))

    def change(self, key: str, label: str, classes: Sequence[str]) -> str:
        """Give a correction another label, which is returned as it is spelt in the table.

        Raises
        ------
        SecondhandError : the correction was removed in the meantime, the label is not valid, or the table cannot be
            written.
        """
        with self._corrections.alone():
            row = self._row(key)
            others = [other["label"] for other in self.rows() if other != row]
            row["label"] = check_label(label, [*classes, *others])
            row["time"] = datetime.now(UTC).isoformat(timespec="seconds")
            self._corrections.write(row)
        return row["label"]

    def remove(self, key: str) -> None:
        """Remove a correction, and its file if no other one is about it. Raises SecondhandError as `change`."""
        with self._corrections.alone():
            row = self._row(key)
            self._corrections.write(row, drop=True)
            file = (self.folder / row["path"]).resolve()
            inside = file.is_relative_to((self.folder / "files").resolve())
            if inside and all(other["path"] != row["path"] for other in self.rows()):
                with suppress(FileNotFoundError):
                    self._bytes -= file.stat().st_size
                    file.unlink()

    def _row(self, key: str) -> dict[str, str]:
        row = next((row for row in self.rows() if self.key(row) == key), None)
        if row is None:
            raise SecondhandError("This correction was removed in the meantime.")
        return row


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
        """Lock for one writer at a time, also across pages that share a folder.

        Raises
        ------
        SecondhandError : the disk is full, or what is written in the context cannot be written.
        """
        try:
            with self._lock, ExitStack() as stack:
                # Windows and some network file systems have no such locks: one page for each folder there.
                with suppress(OSError):
                    descriptor = os.open(self.file.parent, os.O_RDONLY)
                    stack.callback(os.close, descriptor)
                    acquire_lock(descriptor, inherited=True, wait=True)
                yield
        except OSError as error:
            raise SecondhandError(
                f"It could not be saved in {self.file.name}: {error.strerror or error}. Tell the owner of this page."
            ) from None

    def write(self, row: dict[str, str], *, drop: bool = False) -> None:
        """Append a row and remove others of its item; with ``drop`` only remove them. Within `alone`."""
        fields, rows = self.rows()
        others = [other for other in rows if self.key(other) != self.key(row)]
        self.replace(fields, others if drop else [*others, row])

    def replace(self, fields: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
        """Write the whole table. Within `alone`."""
        out = io.StringIO()
        write_rows(out, [fields, *([other.get(name, "") for name in fields] for other in rows)])
        write_beside(self.file, csv_bytes(out.getvalue()))

    def key(self, row: dict[str, str]) -> tuple[str, ...]:
        """The item of a row: its file, and the span or moment."""
        return tuple(row.get(key, "") for key in ("path", "start", "end", "gps"))

    def rows(self) -> tuple[list[str], list[dict[str, str]]]:
        """Columns and rows of the table, with columns added by others."""
        if not self.file.exists():
            return list(self.columns), []
        try:
            cells = read_csv(self.file)
        except BadFile as error:
            raise SecondhandError(f"{self.file.name}: {error.reason}; move it elsewhere") from None
        fields = [*map(str, cells)]
        if not {"path", "label"} <= set(fields):
            raise SecondhandError(
                f"{self.file.name}: not a table of corrections with path and label; move it elsewhere"
            )
        return [*fields, *(name for name in self.columns if name not in fields)], [
            {str(name): cell for name, cell in row.items()} for row in cells.to_dict("records")
        ]


def _prediction_cells(shown: Prediction) -> dict[str, str]:
    probability = shown.probability
    return {
        "predicted": shown.label,
        "best": shown.best,
        "probability": "" if math.isnan(probability) else f"{probability:.4f}",
    }


def check_label(label: object, known: Iterable[str] = ()) -> str:
    """A label, cleaned as training cleans it, and spelt as the first of the ``known`` ones that differs in case or
    spaces only: training refuses a table with both.

    Raises
    ------
    SecondhandError : training would refuse it.
    """
    plain = clean_label(str(label or ""))
    if not plain:
        raise SecondhandError("The label is empty. Choose a class, or write one.")
    if fault := label_error(plain):
        raise SecondhandError(f"The label {quoted(plain)} {fault}. Write another one.")
    key = spelling_key(plain)
    return next((name for name in known if spelling_key(name) == key), plain)


def _file_name(name: str, kind: str) -> str:
    """A visitor's name of a file with letters, digits and harmless signs only, and a suffix of the kind."""
    ends = sorted(KINDS[kind].suffixes, key=len, reverse=True)
    suffix = next((end for end in ends if name.lower().endswith(end)), "")
    bare = unicodedata.normalize("NFC", name[: len(name) - len(suffix)])
    plain = re.sub(r"[^\w .,()+-]", "_", bare)
    stem = plain.encode()[:MAX_NAME].decode(errors="ignore").strip(". ")
    return f"{stem or 'file'}{suffix or KINDS[kind].suffixes[0]}"
