"""Corrections by visitors: files with their right labels, as a table that fine-tuning reads.

secondhand app runs/photos/model --feedback corrected
python -m learners.finetune --from runs/photos/model --data corrected/feedback.csv
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from app.labels import Choices, Labels, Row
from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside
from datasets.kinds.base import Kind

if TYPE_CHECKING:
    from learners.inference.predictions import Prediction

COLUMNS = ("path", "label", "gps", "predicted", "best", "probability", "model", "time")
#: Limit of a folder that visitors write to.
MAX_BYTES = 2 << 30
#: Bytes of a file's name without its suffix; file systems take 255, and a temporary name is longer.
MAX_NAME = 180


class Feedback:
    """A folder with the ``table`` of corrections and the files that it names.

    Parameters
    ----------
    folder : created if missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.table = Labels(self.folder / "feedback.csv", COLUMNS)
        self.files = self.folder / "files"
        self.files.mkdir(parents=True, exist_ok=True)

    def save(
        self,
        file: str,
        label: object,
        *,
        kind: Kind,
        shown: Prediction | None = None,
        model: str = "",
        choices: Choices = Choices(),  # noqa: B008 (it is frozen)
    ) -> str:
        """Save a file with its right label, which is returned as it is spelt in the table.

        The file has its own name in a folder named by its content. The name is kept because ``--group-by`` finds
        recordings, sites or speakers in names; of two names of one content the first. The later of two corrections of
        the same content (of strain: at the same moment) counts, because training leaves out files with contradictory
        labels.

        Parameters
        ----------
        shown : the prediction that the label corrects, under the rule that was in use.
        choices : what can be said for the model.

        Raises
        ------
        SecondhandError : the label is not valid, the file is gone, the folder is full, or its table is not
            one of corrections.
        """
        choices.check(label)
        source = Path(file)
        if not source.is_file():
            raise SecondhandError(
                f"{source.name} was deleted in the meantime. Please upload it again."
            )
        with self.table.alone():
            self.table.rows()  # an error if it is another table
            stored = sum(one.stat().st_size for one in self.files.rglob("*") if one.is_file())
            if stored + source.stat().st_size > MAX_BYTES:
                raise SecondhandError(
                    "The folder for corrections is full. Tell the owner of this page."
                )
            with open(source, "rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()[:24]
            # An unfinished copy has a name with a dot.
            copies = [*(self.files / content).glob("[!.]*")]
            copy = copies[0] if copies else self.files / content / _file_name(source.name, kind)
            if not copies:
                with file_beside(copy) as beside:
                    shutil.copyfile(source, beside)
            row = {
                "path": copy.relative_to(self.folder).as_posix(),
                "gps": "",
                **({} if shown is None else kind.cells(shown.part) | _prediction_cells(shown)),
                "model": model,
            }
            return self.table.save([row], label, choices)

    def change(self, item: str, label: object, choices: Choices) -> str:
        """Give a correction another label, which is returned as it is spelt in the table.

        Raises
        ------
        SecondhandError : the correction was removed in the meantime, the label is not valid, or the table cannot be
            written.
        """
        with self.table.alone():
            return self.table.save([self._row(item)], label, choices)

    def remove(self, item: str) -> None:
        """Remove a correction, and its file if no other one is about it. Raises SecondhandError as `change`."""
        with self.table.alone():
            row = self._row(item)
            self.table.remove([row])
            file = (self.folder / row["path"]).resolve()
            inside = file.is_relative_to(self.files.resolve())
            if inside and all(other["path"] != row["path"] for other in self.table.rows()):
                file.unlink(missing_ok=True)

    def _row(self, item: str) -> Row:
        rows = self.table.rows()
        row = next((row for row in rows if self.table.item(row) == item), None)
        if row is None:
            raise SecondhandError("This correction was removed in the meantime.")
        return row


def _prediction_cells(shown: Prediction) -> dict[str, str]:
    probability = shown.probability
    return {
        "predicted": shown.label,
        "best": shown.best,
        "probability": "" if math.isnan(probability) else f"{probability:.4f}",
    }


def _file_name(name: str, kind: Kind) -> str:
    """A visitor's name of a file with letters, digits and harmless signs only, and a suffix of the kind."""
    ends = sorted(kind.suffixes, key=len, reverse=True)
    suffix = next((end for end in ends if name.lower().endswith(end)), "")
    bare = unicodedata.normalize("NFC", name[: len(name) - len(suffix)])
    plain = re.sub(r"[^\w .,()+-]", "_", bare)
    stem = plain.encode()[:MAX_NAME].decode(errors="ignore").strip(". ")
    return f"{stem or 'file'}{suffix or kind.suffixes[0]}"
