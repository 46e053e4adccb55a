"""A long job's answers while it is at work: killed at any moment, it goes on where it was.

They are kept in ``OUT.part``, JSON lines: the question first, then a line for each round of answers
(`learners.inference.predictor.ROUND`) and the `FileState` of their files, on the disk before the next round.
What a kill cut off has no end of line and is asked again. A line with a number alone takes back the
answer of that number, whose file has changed since. All formats are written from there, at the end, so
that what lies at ``OUT`` is whole and the same however often the job was stopped.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from datasets.core.errors import SecondhandError, quoted
from datasets.core.file_state import FileState, is_same
from learners.files import acquire_lock
from learners.inference import Prediction
from learners.uncertainty import Reason, Why

log = logging.getLogger(__name__)


class Journal:
    """The answers for ``out`` so far. Closed by a ``with``; kept until `finish`.

    Parameters
    ----------
    out : the file or folder that they are meant for.
    question : what the answers depend on, by name; JSON. A journal of another one is an error.
    overwrite : begin anew, whatever is there.

    Raises
    ------
    SecondhandError : it belongs to another question, is damaged, or another process is at work on it.
    """

    def __init__(self, out: Path, question: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.out = out
        self.file = journal_file(out)
        self.before = self.done = 0  # files, of which before this process; by now
        self._asked = deque[FileState | None]()  # of the files that `left` gave out, until `add`
        self._changed = set[int]()  # the numbers of answers whose files have changed since
        out.parent.mkdir(parents=True, exist_ok=True)
        self._open: list[IO[bytes]] = []  # for as long as this lives: to close one ends the lock
        self._written = self._reader("a+b")
        self._lock()
        first = b"" if overwrite else next(self._reader(), b"")
        if first.endswith(b"\n"):
            self._check(first, json.loads(json.dumps(question)))
            self._cut_off()
        else:
            self._written.truncate(0)
            self._append([Prediction._fields, question])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._open:
            with suppress(OSError):  # of a full disk, said before
                file.close()

    def left(self, files: Iterable[str]) -> Iterator[str]:
        """Those of the files that have no answer yet, each as often as it is named; so have those that
        have changed since they were answered.

        Files are met in the order of the answers, so nothing is kept in memory; only where some have
        come or gone since, the names of the answers are.
        """
        answers = self._numbered()
        passed: dict[str, deque[tuple[int, FileState | None]]] = {}
        changed = 0
        for path in files:
            if path not in passed:
                for number, answer, state in answers:
                    passed.setdefault(answer.path, deque()).append((number, state))
                    if answer.path == path:
                        break
            if path in passed:
                number, state = passed[path].popleft()
                if not passed[path]:
                    del passed[path]
                if is_same(state, path):
                    self.before += 1
                    self.done += 1
                    continue
                self._append(number)
                self._changed.add(number)
                changed += 1
            self._asked.append(FileState.of(path))  # before it is read, for it may change meanwhile
            yield path
        if changed:
            log.info(
                "%d files have changed since they were predicted and are predicted again", changed
            )

    def add(self, rounds: Iterable[list[Prediction]]) -> Iterator[int]:
        """Keep rounds of answers for what `left` gives, in its order, as they come; after each, how
        many files are answered."""
        for taken in rounds:
            self._append([[_plain(answer), self._asked.popleft()] for answer in taken])
            self.done += len(taken)
            yield self.done

    def __iter__(self) -> Iterator[Prediction]:
        return (answer for _, answer, _ in self._numbered())

    def _numbered(self) -> Iterator[tuple[int, Prediction, FileState | None]]:
        """The answers that hold, with their numbers, and the states of their files."""
        lines = self._reader()
        next(lines)
        end = self._written.seek(0, os.SEEK_END)
        number = 0
        while lines.tell() < end:
            try:
                values = json.loads(lines.readline())
                found = [] if isinstance(values, int) else [_answered(*one) for one in values]
            except (ValueError, TypeError) as error:
                raise SecondhandError(
                    f"{self.file}: damaged ({quoted(str(error))}); --overwrite begins anew"
                ) from None
            for answer, state in found:
                if number not in self._changed:
                    yield number, answer, state
                number += 1

    def finish(self) -> None:
        """All is written at ``out``: the journal goes."""
        self.file.unlink()

    def _reader(self, mode: str = "rb") -> IO[bytes]:
        file = open(self.file, mode)  # noqa: SIM115 (closed with this)
        self._open.append(file)
        return file

    def _lock(self) -> None:
        """Keep others out, by a record lock: it ends with the process, however that dies."""
        try:
            acquire_lock(self._written)
        except (BlockingIOError, PermissionError):
            raise SecondhandError(
                f"--out {self.out}: another process is at work on it; wait for its end, or choose "
                "another"
            ) from None
        except OSError:  # there are none
            pass

    def _cut_off(self) -> None:
        """Drop what a kill left of a line, and read which answers were taken back."""
        whole = 0
        for line in self._reader():
            if line.endswith(b"\n"):
                whole += len(line)
                if line.strip().isdigit():
                    self._changed.add(int(line))
        self._written.truncate(whole)

    def _check(self, first: bytes, question: Mapping[str, Any]) -> None:
        """Raise SecondhandError where the journal's question is another, and say in what."""
        begin = f"--out {self.out}: {self.file.name} there was begun with"
        remedy = "give the same, choose another --out, or begin anew with --overwrite"
        try:
            fields, before = json.loads(first)
            names = [*before, *(name for name in question if name not in before)]
        except (ValueError, TypeError):
            raise SecondhandError(
                f"{self.file}: is no journal of answers, so nothing is added; choose another --out"
            ) from None
        if fields != [*Prediction._fields]:
            raise SecondhandError(f"{begin} another version of this program; {remedy}")
        for name in names:
            was, now = before.get(name), question.get(name)
            if was != now:
                raise SecondhandError(f"{begin} {name} {was}, and this call has {now}; {remedy}")

    def _append(self, values: object) -> None:
        """A line more, on the disk when this returns."""
        try:
            self._written.write(json.dumps(values).encode() + b"\n")
            self._written.flush()
            os.fsync(self._written.fileno())
        except OSError as error:
            error.filename = str(self.out)
            raise


def journal_file(out: Path) -> Path:
    """Where the answers for ``out`` are kept while it is not whole."""
    return out.with_name(f"{out.name}.part")


def _plain(answer: Prediction) -> list[Any]:
    """As JSON has it; `_prediction` makes the same of it again, to the last bit."""
    reason = [str(answer.reason.why), answer.reason.detail]
    windows = [_plain(window) for window in answer.windows]
    return [*answer._replace(reason=reason, windows=windows)]  # type: ignore[arg-type]


def _answered(values: list[Any], state: list[Any] | None) -> tuple[Prediction, FileState | None]:
    return _prediction(values), None if state is None else FileState(*state)


def _prediction(values: list[Any]) -> Prediction:
    found = Prediction(*values)
    why, detail = found.reason
    return found._replace(
        reason=Reason(Why(why), detail),
        top=[(name, p) for name, p in found.top],
        windows=tuple(map(_prediction, found.windows)),  # type: ignore[arg-type]
        set=tuple(found.set),
        branch=tuple((name, p) for name, p in found.branch),
    )
