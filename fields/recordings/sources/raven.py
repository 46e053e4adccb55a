"""Selection tables of Raven (https://ravensoundsoftware.com), which BirdNET-Analyzer writes, too."""

from __future__ import annotations

from pathlib import Path

from datasets.core.errors import BadFile
from datasets.sources.base import ReadOptions
from fields.recordings import tracks
from fields.recordings.tracks import ParsedSelection, Selection, seconds

#: The columns; the last three are in tables of several recordings.
BEGIN, END = "Begin Time (s)", "End Time (s)"
FILE, PATH, OFFSET = "Begin File", "Begin Path", "File Offset (s)"
LOW, HIGH = "Low Freq (Hz)", "High Freq (Hz)"
#: Names of the column of labels, in order of preference; the last is BirdNET's.
LABELS = ("Annotation", "Species", "Label", "Common Name")

#: The columns by their names in small letters; programs that write such tables differ in the case.
_COLUMNS = {
    name.casefold(): name
    for name in ("Selection", BEGIN, END, FILE, PATH, OFFSET, LOW, HIGH, *LABELS)
}


def _canonical(name: str) -> str:
    return _COLUMNS.get(name.casefold(), name)


def _starts(path: Path) -> bool:
    return bool({BEGIN, END} & {*map(_canonical, tracks.first_cells(path))})


def _parse(path: Path, options: ReadOptions) -> list[ParsedSelection]:
    (_, header), *lines = tracks.read_lines(path)
    names, label_column = [*map(_canonical, header)], options.label_column
    if label_column and label_column not in names:
        alike = (name for name in names if name.casefold() == label_column.casefold())
        label_column = next(alike, label_column)
    label_columns = (
        [label_column] if label_column else [name for name in LABELS if name in names][:1]
    )
    missing = [name for name in (BEGIN, END, *label_columns) if name not in names]
    if missing or not label_columns:
        lack = f"no column {' and no column '.join(missing)}" if missing else "no column of labels"
        remedy = "" if label_column or missing else ". Name the column with --label-column"
        raise BadFile(path, f"{lack}. It has {', '.join(names)}{remedy}")
    selections: list[ParsedSelection] = []
    known_selections: set[tuple[str, ...]] = set()
    for n, cells in lines:
        row = dict(zip(names, cells, strict=False))
        selection = tuple(row.get(name, "") for name in ("Selection", BEGIN, END, *label_columns))
        if selection in known_selections and selection[0]:
            continue  # Raven lists a selection once for its waveform and once for its spectrogram
        known_selections.add(selection)
        begin, end = seconds(row.get(BEGIN, "")), seconds(row.get(END, ""))
        start = seconds(row[OFFSET]) if row.get(OFFSET) else begin
        file = row.get(PATH) or row.get(FILE) or ""
        low, high = (seconds(row.get(name, "")) for name in (LOW, HIGH))
        label = row.get(label_columns[0], "")
        span = Selection(start, start + (end - begin), label, n, file, low, high)
        selections.append((span, (row.get(BEGIN, ""), row.get(END, ""))))
    if OFFSET not in names and len({span.file for span, _ in selections}) > 1:
        raise BadFile(
            path, f"it names several recordings, but has no column {OFFSET} with the times in them"
        )
    return selections


tracks.add_format(
    "raven",
    40,
    ".txt",
    f"a Raven selection table (tab-separated, with the columns {BEGIN} and {END})",
    _parse,
    starts=_starts,
    has_header=True,
)
