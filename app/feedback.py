""" "This is wrong, it is ...": files with the right label, as a table that fine-tuning reads.

python -m app runs/photos/model --feedback corrected
python -m learners.finetune --data corrected/feedback.csv
"""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

from datasets.errors import SecondhandError
from datasets.kinds import SUFFIXES

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
        self._lock = threading.Lock()
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

        Raises
        ------
        SecondhandError : the label is none, the file has gone, or the folder is full.
        """
        label = check_label(label)
        source = Path(file)
        if not source.is_file():
            raise SecondhandError("The file is no longer here: upload it again.")
        size = source.stat().st_size
        with self._lock:
            if self._bytes + size > MAX_BYTES:
                raise SecondhandError("The folder for corrections is full: tell whoever runs this.")
            with open(source, "rb") as opened:
                name = hashlib.file_digest(opened, "sha256").hexdigest()[:24]
            kept = self.folder / "files" / f"{name}{_suffix(source.name, kind)}"
            if not kept.exists():
                shutil.copyfile(source, kept)
                kept.chmod(0o644)
                self._bytes += size
            new = not self.table.exists()
            with open(self.table, "a", newline="", encoding="utf-8") as opened:
                writer = csv.writer(opened, lineterminator="\n")
                if new:
                    writer.writerow(COLUMNS)
                writer.writerow(
                    (
                        kept.relative_to(self.folder).as_posix(),
                        label,
                        "" if gps is None else repr(gps),
                        answered,
                        "" if probability != probability else f"{probability:.4f}",
                        model,
                        datetime.now(UTC).isoformat(timespec="seconds"),
                    )
                )
        return kept


def check_label(label: object) -> str:
    """A label that a table and a spreadsheet can hold.

    Raises
    ------
    SecondhandError : empty, longer than 100 characters, with control characters, or beginning with
        a sign that a spreadsheet would take for a formula.
    """
    plain = str(label or "").strip()
    if not plain:
        raise SecondhandError("Say what it is: choose a class, or write one.")
    if len(plain) > 100:
        raise SecondhandError(f"A label has at most 100 characters, this one has {len(plain):,}.")
    if not plain.isprintable() or plain[0] in "=+-@" or "/" in plain or "\\" in plain:
        raise SecondhandError(
            "A label begins with a letter or a digit, and has no slashes or line breaks."
        )
    return plain


def _suffix(name: str, kind: str) -> str:
    """The ending of a name where it is one of its kind's, else that kind's first one."""
    ends = sorted(SUFFIXES[kind], key=len, reverse=True)
    return next((end for end in ends if name.lower().endswith(end)), SUFFIXES[kind][0])
