"""The embeddings of a pool of files: a Parquet file that grows with the pool, searched exactly.

A row is a file, or a window of a long recording. Its columns:

``path, start, end, at``
    the absolute path; seconds in a recording, null for the whole file; the GPS time of strain, in seconds.
``embedding``
    the model's features, scaled to length 1, as 16-bit floats (little-endian):
    ``numpy.frombuffer(cell, "<f2")``. A list would take seven times longer to read. Silent files have no row.
``network``
    `learners.model.bundle.hash_of_features` of the model that computed it.
``size, mtime, ctime, inode, digest``
    the `datasets.core.file_state.FileState` of the file when it was read. A file in the same state is not read again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.core.address import absolute
from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.file_state import FileState, is_same
from datasets.core.files import file_beside
from datasets.core.part import FileOrPart, Part
from learners.files.lock import locked
from learners.inference.predictions import DetailedPrediction, Floats, stack_outputs
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.model.bundle import hash_of_features
from learners.rule.reasons import Why
from learners.rule.scores.base import normalise

if TYPE_CHECKING:
    import pyarrow as pa

    from datasets.kinds.lookup import Lookup

#: Number of rows that are read and searched at once; 21 MB at 1280 features.
ROWS = 8192
#: Number of rows that are multiplied at once; as 32-bit floats they fit into the cache of a core.
BLOCK = 256
#: Most work that is lost if the process is killed: time in seconds, or number of rows.
PART_SECONDS, PART_ROWS = 30.0, 8192
_SAME_MOMENT = 0.5  # s

log = logging.getLogger(__name__)


class Match(NamedTuple):
    """A file or a part of it, and its cosine similarity to the example, from -1 to 1."""

    part: Part
    similarity: float


class ExtendSummary(NamedTuple):
    """Result of `Embeddings.extend`: numbers of files read, unchanged and silent, and the bad files."""

    new: int
    kept: int
    silent: int
    rejected: list[Rejected]


class Embeddings:
    """A file of embeddings and the model that computes them.

    Parameters
    ----------
    file : Parquet file, which need not exist yet.
    model : model folder.
    predictor : predictor of this model, if it is loaded already.

    Raises
    ------
    SecondhandError : ``model`` is not a model folder.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        model: str | os.PathLike[str],
        predictor: Predictor | None = None,
    ) -> None:
        self.file = Path(file)
        self.model = hash_of_features(model)
        self.predictor = predictor or load_predictor(model)
        self._parts = self.file.with_name(f".{self.file.name}.part")

    def extend(self, files: Iterable[str | os.PathLike[str]]) -> ExtendSummary:
        """Embed files that are new or have changed, and drop the rows of files that have become bad or silent.

        Rows of other files stay. Every half minute the new rows are written beside the file, so a call after a kill
        continues there; the file itself is replaced at the end. Bad and silent files are left out, and the next call
        tries them again.

        Raises
        ------
        SecondhandError : the file does not hold embeddings, holds those of another model, or is used by another
            process.
        OSError : the disk is full or not writable.
        """
        self._parts.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self._parts, f"--embeddings {self.file}"):
                return self._extend(files)
        finally:
            with suppress(OSError):  # it is not empty
                self._parts.rmdir()

    def check(self) -> None:
        """Raise SecondhandError unless the file exists and holds embeddings of this model."""
        self._open(self.file)

    def search(
        self,
        example: FileOrPart,
        *,
        top: int = 20,
        at: float | None = None,
        files: Iterable[str | os.PathLike[str]] | None = None,
    ) -> list[Match]:
        """The rows that are most similar to an example by the cosine of their features, best first.

        For an example longer than the model's window, its most similar window counts. Rows of the example itself are
        left out. The search is exact: it compares all rows, in blocks of `ROWS`.

        Parameters
        ----------
        example : a file, or a part with a span or a moment in it.
        top : number of rows to return.
        at : moment of the example, as in `Predictor.predict`.
        files : files to search; all by default.

        Raises
        ------
        BadFile : the example cannot be used.
        SecondhandError : there are no embeddings, or they are those of another model.
        """
        ((part, predictions),) = self.predictor.predict_windows([example], at=at)
        _, queries, why = _vectors(predictions)
        if why or not len(queries):
            raise BadFile(part.path, why or f"{Why.NO_SIGNAL}: there is nothing to search for")
        excluded = part._replace(path=absolute(part.path))
        if excluded.at is None and len(predictions) == 1:  # of strain its loudest moment
            excluded = excluded._replace(at=predictions[0].prediction.part.at)
        paths = None if files is None else {absolute(path) for path in files}
        return self.nearest(queries, top=top, paths=paths, exclude=excluded)

    def nearest(
        self,
        queries: Floats,
        *,
        top: int = 20,
        paths: Collection[str] | None = None,
        exclude: Part | None = None,
    ) -> list[Match]:
        """The rows that are most similar to any of the queries, float [m, width], by the cosine.

        A million rows of 1280 features (2.6 GB) take about 2 s on one core and 0.2 GB of memory
        (``benchmarks/bench_suggest.py --search``).

        Parameters
        ----------
        paths : absolute paths of the files to search; all by default.
        exclude : a file, or a span or a moment of one, whose rows are left out.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if top < 1:
            raise SecondhandError(f"--top {top}: expected at least 1")
        allowed = None if paths is None else pa.array(sorted(paths), pa.string())
        query_columns = np.ascontiguousarray(normalise(np.asarray(queries, np.float32)).T)
        best = np.empty(0, np.float32)
        parts: list[Part] = []
        for rows in self._read(self._open(self.file), (*_PLACE, "embedding")):
            vectors = numbers(rows["embedding"])
            if vectors.shape[1] != len(query_columns):
                raise BadFile(
                    self.file,
                    f"has vectors of width {vectors.shape[1]}, but the features have width {len(query_columns)}",
                )
            cosines = cosines_of(vectors, query_columns)
            if allowed is not None:
                cosines[~_mask(pc.is_in(rows["path"], allowed))] = -np.inf
            if exclude is not None:
                for row in np.flatnonzero(_mask(pc.equal(rows["path"], exclude.path))):
                    if _overlap(_part(rows, int(row)), exclude):
                        cosines[row] = -np.inf
            least = best[-1] if len(best) == top else -np.inf
            rows_above = np.flatnonzero(cosines > least)
            order = rows_above[np.argsort(-cosines[rows_above], kind="stable")[:top]]
            # Of equal rows, those that come first in the file.
            candidates = np.concatenate([best, cosines[order]])
            order_kept = np.argsort(-candidates, kind="stable")[:top]
            parts += [_part(rows, int(row)) for row in order]
            best, parts = candidates[order_kept], [parts[n] for n in order_kept]
        return [Match(part, min(float(s), 1.0)) for part, s in zip(parts, best, strict=True)]

    def _extend(self, files: Iterable[str | os.PathLike[str]]) -> ExtendSummary:
        known, rejected, silent = self._known(), list[Rejected](), 0
        names = {absolute(name): name for name in nameable(files, rejected)}
        to_read = [
            name
            for path, name in names.items()
            if path not in known or not is_same(known[path], name)
        ]
        states: dict[str, FileState | None] = {}
        without = {absolute(name) for name in to_read} & known.keys()

        def names_to_read() -> Iterator[str]:
            # The state is taken before the file is read, so that a file written meanwhile is read again later.
            for name in to_read:
                states[name] = FileState.read(name)
                yield name

        unnamed = len(rejected)
        rows: list[tuple[Any, ...]] = []
        began, done = time.monotonic(), 0

        def write_rows() -> None:
            nonlocal began
            if rows:
                self._write_part(rows)
                log.info("Embedded %d of %d files", done, len(to_read))
            rows.clear()
            began = time.monotonic()

        try:
            for part, predictions in self.predictor.predict_windows(names_to_read()):
                done += 1
                places, vectors, why = _vectors(predictions)
                state = states.pop(part.path)
                if why or state is None:
                    rejected.append(Rejected(part.path, why or "created while it was read"))
                    continue
                silent += not places
                path = absolute(part.path)
                if places:
                    without.discard(path)
                cells = vectors.astype("<f2")
                rows += [
                    (path, *place, cell.tobytes(), *state)
                    for place, cell in zip(places, cells, strict=True)
                ]
                if len(rows) >= PART_ROWS or time.monotonic() - began > PART_SECONDS:
                    write_rows()
        finally:  # also after Ctrl-C
            write_rows()
        self._merge(without)
        new = done - silent - (len(rejected) - unnamed)
        return ExtendSummary(new, len(names) - len(to_read), silent, rejected)

    def _pieces(self) -> list[Path]:
        """The file and the parts that are not merged into it yet; if a path is in several, the last counts."""
        return [f for f in (self.file, *sorted(self._parts.glob("*.parquet"))) if f.exists()]

    def _known(self) -> dict[str, FileState]:
        states: dict[str, FileState] = {}
        names = ("path", *FileState._fields)
        for piece in self._pieces():
            for rows in self._read(self._open(piece), names):
                paths, *state = (rows[name].to_pylist() for name in names)
                states |= zip(paths, map(FileState, *state), strict=True)
        return states

    def _paths(self, piece: Path) -> Iterator[str]:
        for rows in self._read(self._open(piece), ("path",)):
            yield from rows["path"].to_pylist()

    def _write_part(self, rows: Sequence[tuple[Any, ...]]) -> None:
        import pyarrow as pa

        names = (*_PLACE, "embedding", *FileState._fields)
        schema = _schema(len(rows[0][len(_PLACE)]))
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        columns["network"] = (self.model,) * len(rows)
        table = pa.table({f.name: pa.array(columns[f.name], f.type) for f in schema}, schema)
        number = max((int(f.stem) for f in self._parts.glob("*.parquet")), default=0) + 1
        _write(self._parts / f"{number:06d}.parquet", [table], schema)

    def _merge(self, without: Collection[str]) -> None:
        """Merge all pieces into the file, without the rows of some paths, and remove the parts."""
        import pyarrow as pa

        pieces = self._pieces()
        if pieces in ([], [self.file]) and not without:
            return
        last = {path: n for n, piece in enumerate(pieces) for path in self._paths(piece)}
        last |= dict.fromkeys(without, -1)

        def tables() -> Iterator[pa.Table]:
            for n, piece in enumerate(pieces):
                for rows in self._read(self._open(piece)):
                    kept = [last[path] == n for path in rows["path"].to_pylist()]
                    yield pa.Table.from_batches([rows]).filter(pa.array(kept, pa.bool_()))

        _write(self.file, _rebatched(tables()), self._open(pieces[-1]).schema_arrow)
        for part in pieces[1 if pieces[0] == self.file else 0 :]:
            part.unlink()

    def _open(self, piece: Path) -> Any:
        """An open file of embeddings of this model.

        Raises
        ------
        SecondhandError : the file does not exist, or its embeddings are those of another model.
        BadFile : it is not a file of embeddings.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not piece.exists():
            raise SecondhandError(f"--embeddings {piece} does not exist. Name files to embed")
        try:
            # With a buffer the whole file would stay in memory.
            opened = pq.ParquetFile(piece, pre_buffer=False)
            kind = opened.schema_arrow.field("embedding").type
            width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else 0
            if not opened.schema_arrow.equals(_schema(width)):
                raise BadFile(
                    piece, "has other columns than a file of embeddings. Give another file"
                )
            rows = opened.read(columns=["network"])["network"]
        except (pa.ArrowException, KeyError, OSError) as error:
            reason = f"cannot be read as embeddings ({str(error)[:100]}). Give another file"
            raise BadFile(piece, reason) from None
        for model in rows.unique().to_pylist():
            if model != self.model:
                raise SecondhandError(
                    f"--embeddings {piece} holds embeddings of another model ({model}, this model is {self.model}). Give "
                    "another file"
                )
        return opened

    def _read(self, opened: Any, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            yield from opened.iter_batches(ROWS, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise BadFile(self.file, f"is damaged ({str(error)[:100]}). Delete it") from None


_PLACE = ("path", "start", "end", "at")


def _schema(vector_bytes: int) -> pa.Schema:
    import pyarrow as pa

    whole, number = pa.int64(), pa.float64()
    return pa.schema(
        [
            ("path", pa.string()), ("start", number), ("end", number), ("at", number),
            ("embedding", pa.binary(max(vector_bytes, 2))), ("network", pa.string()), ("size", whole),
            ("mtime", whole), ("ctime", whole), ("inode", pa.uint64()), ("digest", pa.string()),
        ]
    )  # fmt: skip


def _write(file: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write a Parquet file atomically; disk errors are OSError."""
    import pyarrow.parquet as pq

    plain = {
        "compression": "none",
        "write_statistics": False,
        "use_dictionary": ["path", "network"],
    }
    with (
        file_beside(file) as beside,
        open(beside, "wb") as stream,
        pq.ParquetWriter(stream, schema, **plain) as writer,
    ):
        for table in tables:
            writer.write_table(table, row_group_size=ROWS)


def _rebatched(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of `ROWS`, the last one smaller."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        while sum(len(t) for t in waiting) >= ROWS:
            joined_table = pa.concat_tables(waiting)
            yield joined_table.slice(0, ROWS)
            waiting = [joined_table.slice(ROWS)]
    yield pa.concat_tables(waiting)


def _vectors(
    predictions: Sequence[DetailedPrediction],
) -> tuple[list[tuple[float | None, ...]], Floats, str]:
    """(start, end, at) and features (rows of length 1) of the audible windows, or what is wrong with the file."""
    for window in predictions:
        if window.prediction.reason.failed:
            return [], np.empty((0, 0), np.float32), window.prediction.reason.detail
    audible = [window for window in predictions if window.features is not None]
    _, features = stack_outputs(audible)
    parts = [window.prediction.part for window in audible]
    return [(part.start, part.end, part.at) for part in parts], normalise(features), ""


def nameable(files: Iterable[FileOrPart], rejected: list[Rejected]) -> Iterator[Any]:
    """The files whose names are valid UTF-8; the others are added to ``rejected``. Sources are passed on."""
    for file in files:
        if isinstance(file, Part):
            yield file
            continue
        name = os.fspath(file)
        readable = name.encode("utf-8", "replace").decode()
        if name == readable:
            yield name
        else:
            rejected.append(Rejected(readable, "its name is not valid UTF-8: rename it"))


def nearest_items(
    lookup: Lookup, example: str, *, top: int = 20, at: float | None = None
) -> list[Match]:
    """The embeddings that are most similar to an example's by their cosine, best first; not those of the example.

    Parameters
    ----------
    example : path of an item, as ``lookup`` has it. If it has several, that with the most similar one counts.
    at : a second, or GPS time, within the item of the example.

    Raises
    ------
    SecondhandError : no item has this path and moment.
    """
    if top < 1:
        raise SecondhandError(f"--top {top}: expected at least 1")
    wanted, queries, others = Part(example, at=at), [], []
    for part in lookup.parts():
        with suppress(BadFile):  # an embedding of NaN is listed where it is read
            vector = normalise(lookup[part][None])[0]
            if part.path != example:
                others.append((part, vector))
            elif at is None or _overlap(part, wanted):
                queries.append(vector)
    if not queries:
        moment = "" if at is None else f" at {at:g} s"
        raise SecondhandError(
            f"{example}{moment} is none of the {len(lookup)} items with embeddings. Name one as their column path does"
        )
    columns = np.stack(queries).T
    matches = [Match(part, min(float((vector @ columns).max()), 1.0)) for part, vector in others]
    return sorted(matches, key=lambda match: -match.similarity)[:top]


def numbers(column: Any) -> NDArray[np.uint16]:
    """The vectors of a column as uint16 [n, width], without a copy."""
    width = column.type.byte_width
    values = np.frombuffer(column.buffers()[1], np.uint16)
    first = column.offset * width // 2
    return values[first : first + len(column) * width // 2].reshape(len(column), width // 2)


def cosines_of(vectors: NDArray[np.uint16], queries: Floats) -> Floats:
    """Largest product of each row with any column of ``queries``, [n]."""
    out = np.empty(len(vectors), np.float32)
    for first in range(0, len(vectors), BLOCK):
        block = vectors[first : first + BLOCK].view(np.float16).astype(np.float32)
        out[first : first + BLOCK] = (block @ queries).max(axis=1)
    return out


def _mask(column: Any) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _part(rows: Any, row: int) -> Part:
    return Part(*(rows[name][row].as_py() for name in _PLACE))


def _overlap(row: Part, example: Part) -> bool:
    """Whether a row of the example's file overlaps the example."""
    if example.at is not None:
        if row.at is not None:
            return abs(row.at - example.at) < _SAME_MOMENT
        return (row.start or 0) <= example.at <= (np.inf if row.end is None else row.end)
    first, last = example.start or 0.0, np.inf if example.end is None else example.end
    return (row.start or 0.0) < last and first < (np.inf if row.end is None else row.end)
