"""Tables of labels and the recordings that they are named after -> rows of an item table."""

from __future__ import annotations

import filecmp
import os
from collections import defaultdict
from pathlib import Path, PureWindowsPath

from datasets.annotations.tracks import Span, is_track, one_cell, read_track
from datasets.core.cells import file_named
from datasets.core.errors import BadFile, Rejected, SecondhandError, shown
from datasets.core.scanning import files_below, kind_of, visible, walk

Row = dict[str, object]


class Recordings:
    """Sound files by their names, with their endings and without."""

    def __init__(self, files: list[str]) -> None:
        self._named: dict[tuple[Path | None, str], list[str]] = defaultdict(list)
        for file in map(Path, files):
            for key in (file.name, file.stem, one_cell(file.name)):
                for folder in (file.parent, None):
                    if str(file) not in self._named[folder, key]:
                        self._named[folder, key].append(str(file))

    def beside(self, table: Path, there: str) -> str:
        """The recording that a table names; if that lies elsewhere, its copy in the table's folder."""
        if not Path(there).absolute().is_relative_to(table.parent.absolute()):
            for copy in self._named.get((table.parent, Path(there).name), []):
                if filecmp.cmp(copy, there, shallow=False):
                    return copy
        return there

    def named(self, folder: Path, name: str) -> list[str]:
        """Those of this name in the folder; where there are none, those anywhere."""
        return self._named.get((folder, name)) or self._named.get((None, name), [])

    def of_table(self, table: Path) -> list[str]:
        """Those that a table is named after: ``a.Table.1.selections.txt`` is of ``a.wav``, unless
        there is an ``a.Table.wav``."""
        words = table.name.split(".")
        names = (".".join(words[:n]) for n in range(len(words) - 1, 0, -1))
        return next((found for name in names if (found := self.named(table.parent, name))), [])


def has_tracks(folder: Path) -> bool:
    """Whether it holds tables of labels: Raven's anywhere, told by their names, or at its top some
    that read like Raven's or Audacity's."""
    top = (path for path in folder.iterdir() if path.suffix.lower() == ".txt" and visible(path))
    return any(path.is_file() and is_track(path) for path in top) or any(
        path.endswith(".selections.txt") for path in walk(folder, [])
    )


def read_tracks(path: Path, label_column: str | None) -> tuple[list[Row], list[Rejected]]:
    """Of a table the rows of its recording, which lies beside it; of a folder those of all tables
    in it and below. What is left over of either is listed.

    Raises
    ------
    SecondhandError : no label of a recording is there.
    """
    if path.is_dir():
        files, rejected = files_below(path)
        tables = [Path(file) for file in files if file.lower().endswith(".txt")]
    else:
        files = [str(file) for file in sorted(path.parent.iterdir()) if file.is_file()]
        tables, rejected = [path], []
    sounds = [file for file in files if kind_of(file) == "sound"]
    recordings, rows, named = Recordings(sounds), list[Row](), dict[str, str]()
    for table in tables:
        try:
            spans, bad = read_track(table, label_column)
        except BadFile as error:
            rejected.append(Rejected(str(table), error.reason))
            continue
        rejected += bad
        found, bad, of_it = _placed(table, spans, recordings)
        rows += found
        rejected += bad
        named |= of_it
    if not rows:
        first = f"; the first left out: {': '.join(rejected[0])}" if rejected else ""
        raise SecondhandError(f"--data {path}: no labelled span of a recording{first}")
    if path.is_dir():
        labelled = {row["path"] for row in rows}
        for file in files:
            if file in sounds and file not in labelled:
                rejected.append(Rejected(file, named.get(file, "no table of its name")))
            elif file not in sounds and Path(file) not in tables:
                rejected.append(Rejected(file, "neither a recording nor a table of labels"))
    return rows, rejected


def _placed(
    table: Path, spans: list[Span], recordings: Recordings
) -> tuple[list[Row], list[Rejected], dict[str, str]]:
    """The spans of a table in their recordings; the others; and the recordings that it is named after,
    with why they may have no span."""
    own = recordings.of_table(table)
    single = len({span.file for span in spans}) <= 1
    rows: list[Row] = []
    rejected: list[Rejected] = []
    for span in spans:
        said = PureWindowsPath(span.file).name  # which splits at / as well
        there = file_named(table.parent, span.file) if said else ""
        if os.path.isfile(there):
            found = [recordings.beside(table, there)]
        else:
            found = recordings.named(table.parent, said)
        found = found or (own if single else [])
        if len(found) == 1:
            rows.append(
                {"path": found[0], "label": span.label, "start": span.start, "end": span.end}
            )
            continue
        what = f"which of {', '.join(found)}" if found else "no recording"
        of = shown(said) if said else "that the table is named after"
        rejected.append(Rejected(f"{table}, line {span.line}", f"{what}: none {of}"))
    if not spans and len(own) != 1:
        rejected.append(Rejected(str(table), "no recording of its name, and no label in it"))
    why = f"its table is of {rows[0]['path']}" if rows else "its table has no label"
    return rows, rejected, dict.fromkeys(own, why)
