"""Journal of a long prediction job, so that a job killed at any moment resumes.

The journal ``OUT.part`` holds JSON lines (`learners.outputs.jsonl`): first what the call was, then a line for each
prediction, with the `FileState` of its file as ``state``. An empty line ends a round
(`learners.inference.decoding.ROUND`), which is on the disk before the next one begins; lines after the last end were
cut off by a kill, and their files are predicted again. A line with only a number revokes the prediction of that
number, whose file has changed. The output at ``OUT`` is written from the journal at the end, so it is complete and does
not depend on interruptions.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from datasets.core.checked import read_as
from datasets.core.errors import SecondhandError, quoted
from datasets.core.file_state import FileState, is_same
from learners.files.lock import acquire_lock
from learners.inference.predictions import FIELDS, Prediction
from learners.outputs.jsonl import read_line, write_line

log = logging.getLogger(__name__)


@dataclass
class Begun:
    """The first line: all settings of the call that affect the predictions, and the fields of a prediction."""

    call: dict[str, Any]
    fields: list[str]


class Journal:
    """The predictions for ``out`` so far; a context manager, deleted by `finish`.

    Parameters
    ----------
    out : output file or folder.
    job_settings : JSON object with all settings that affect the predictions; a journal with others is an error.
    overwrite : delete an existing journal.

    Raises
    ------
    SecondhandError : the journal has other settings, is damaged, or is used by another process.
    """

    def __init__(
        self, out: Path, job_settings: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self.out = out
        self.file = journal_file(out)
        self.before = self.done = 0  # files predicted before this process, and in total
        # States of the files that `pending` has yielded and `add` has not written yet.
        self._file_states = deque[FileState | None]()
        self._changed = set[int]()  # numbers of the predictions whose files have changed
        out.parent.mkdir(parents=True, exist_ok=True)
        # All stay open, because closing one would release the lock.
        self._open: list[IO[bytes]] = []
        self._stream = self._reader("a+b")
        self._lock()
        first = b"" if overwrite else next(self._reader(), b"")
        if first.endswith(b"\n"):
            self._check(first, json.loads(json.dumps(job_settings)))
            self._remove_incomplete_round()
        else:
            self._stream.truncate(0)
            self._append(json.dumps({"call": job_settings, "fields": FIELDS}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._open:
            with suppress(OSError):  # a full disk has already been reported
                file.close()

    def pending(self, files: Iterable[str]) -> Iterator[str]:
        """Yield the files without a prediction, and those that have changed since.

        A file named twice is predicted twice. Files usually come in the order of the predictions, so
        little is kept in memory; names are kept only where files have been added or removed.
        """
        recorded = self._numbered()
        seen: dict[str, deque[tuple[int, FileState | None]]] = {}
        changed = 0
        for path in files:
            if path not in seen:
                for number, prediction, state in recorded:
                    seen.setdefault(prediction.path, deque()).append((number, state))
                    if prediction.path == path:
                        break
            if path in seen:
                number, state = seen[path].popleft()
                if not seen[path]:
                    del seen[path]
                if is_same(state, path):
                    self.before += 1
                    self.done += 1
                    continue
                self._append(str(number))
                self._changed.add(number)
                changed += 1
            # Before the file is read, because it may change meanwhile.
            self._file_states.append(FileState.read(path))
            yield path
        if changed:
            log.info(
                "Files that have changed since they were predicted and are predicted again: %d",
                changed,
            )

    def add(self, rounds: Iterable[list[Prediction]]) -> Iterator[int]:
        """Write rounds of predictions for the files of `pending`, in its order; yield the files done so far."""
        for predictions in rounds:
            lines = [write_line(one, {"state": self._file_states.popleft()}) for one in predictions]
            self._append("\n".join([*lines, ""]))
            self.done += len(predictions)
            yield self.done

    def __iter__(self) -> Iterator[Prediction]:
        return (prediction for _, prediction, _ in self._numbered())

    def _numbered(self) -> Iterator[tuple[int, Prediction, FileState | None]]:
        """Yield the valid predictions with their numbers and the states of their files."""
        lines = self._reader()
        next(lines)
        end = self._stream.seek(0, os.SEEK_END)
        number = 0
        while lines.tell() < end:
            line = lines.readline()
            if _ends_round(line):
                continue
            try:
                prediction, more = read_line(line.decode("utf-8", "surrogateescape"))
                state = None if more["state"] is None else FileState(**more["state"])
            except (ValueError, TypeError, KeyError) as error:
                raise SecondhandError(
                    f"{self.file}: damaged ({quoted(str(error))}); --overwrite begins anew"
                ) from None
            if number not in self._changed:
                yield number, prediction, state
            number += 1

    def finish(self) -> None:
        """Delete the journal, once everything is written to ``out``."""
        self.file.unlink()

    def _reader(self, mode: str = "rb") -> IO[bytes]:
        file = open(self.file, mode)  # noqa: SIM115 (closed with this)
        self._open.append(file)
        return file

    def _lock(self) -> None:
        """Lock the journal; the lock ends with the process, even if it is killed."""
        try:
            acquire_lock(self._stream)
        except (BlockingIOError, PermissionError):
            raise SecondhandError(
                f"--out {self.out} is in use by another process. Wait until it has ended, or choose another name"
            ) from None
        except OSError:  # the file system has no locks
            pass

    def _remove_incomplete_round(self) -> None:
        """Remove the lines of an incomplete last round, and read which predictions were revoked."""
        lines = self._reader()
        place = whole = len(next(lines))
        for line in lines:
            place += len(line)
            if _ends_round(line):
                whole = place
                if line.strip():
                    self._changed.add(int(line))
        self._stream.truncate(whole)

    def _check(self, first: bytes, job_settings: Mapping[str, Any]) -> None:
        """Raise SecondhandError naming the first setting that differs from the journal's."""
        prefix = f"--out {self.out}: the unfinished job {self.file.name} was started with"
        remedy = "Use the same settings, choose another --out, or start again with --overwrite"
        try:
            begun = read_as(Begun, json.loads(first), "")
        except ValueError:
            raise SecondhandError(
                f"{self.file} is not an unfinished job, so it is not continued. Choose another --out"
            ) from None
        if begun.fields != [*FIELDS]:
            raise SecondhandError(f"{prefix} another version of Secondhand. {remedy}")
        for name in {**begun.call, **job_settings}:
            recorded, current = begun.call.get(name), job_settings.get(name)
            if recorded != current:
                raise SecondhandError(
                    f"{prefix} {name} {recorded}, but this call has {current}. {remedy}"
                )

    def _append(self, text: str) -> None:
        """Append lines and wait until they are on the disk."""
        try:
            self._stream.write(f"{text}\n".encode("utf-8", "surrogateescape"))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            error.filename = str(self.out)
            raise


def journal_file(out: Path) -> Path:
    """Path of the journal for ``out``."""
    return out.with_name(f"{out.name}.part")


def _ends_round(line: bytes) -> bool:
    """Whether nothing before the end of this line is incomplete: it is empty, or revokes a prediction."""
    return line.endswith(b"\n") and (not line.strip() or line.strip().isdigit())
