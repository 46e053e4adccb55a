"""usage: secondhand search MODEL EXAMPLE [PATH...] [flags]

List the files, or windows of long recordings, that are most similar to an example, by the cosine similarity of the
model's features. Exit status: 0; 3 if some files could not be used (they are listed); 2 for a wrong call.

examples:
  secondhand search runs/photos/model odd.jpg photos/ --top 10
  secondhand search runs/birds/model call.wav night/ --at 12.5 --out near.csv
  secondhand search runs/photos/model odd.jpg photos/ --embeddings photos.parquet
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from datasets.cli.conflicts import Missing
from datasets.cli.options import option, positional
from datasets.core.address import absolute
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.kinds.finding import some_files
from fields.loop.pool_settings import PoolSettings
from learners.cli import console
from learners.cli.commands import MOMENT, OVERWRITING
from learners.cli.flags import read_call

if TYPE_CHECKING:
    from fields.loop.embeddings import Embeddings, Match
    from learners.inference.predictor import Predictor

COLUMNS = ("path", "similarity", "start", "end", "at")


@dataclass(kw_only=True)
class SearchSettings(PoolSettings):
    """search"""

    example: str = positional("File to find similar ones to.")
    paths: list[str] = positional(
        "Files, folders, or patterns in quotes to search. Default: all files in --embeddings.", []
    )
    top: int = option(20, "Number of files, or windows of long recordings, to list.")
    embeddings: Path | None = option(
        None,
        "Parquet file that keeps the embeddings of the files for later searches; it is created, or extended by new "
        "files. Default: embeddings are not kept.",
        metavar="FILE",
    )
    at: float | None = option(
        None,
        "Time within the example: GPS seconds for strain, seconds from the start for sound.",
        means=MOMENT,
    )
    format: Literal["csv", "jsonl"] = option("csv", "Output format.")
    out: Path | None = option(
        None,
        "File to write the rows to. A page that shows the files is written beside it (near.csv: "
        "near/index.html). Default: standard output.",
    )

    conflicts = (
        OVERWRITING,
        Missing(
            ("paths", "embeddings"),
            "no files to search",
            "name files or folders, or --embeddings FILE",
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    settings = read_call(SearchSettings, argv, __doc__)

    console.start(settings)
    from fields.loop.embeddings import Embeddings
    from fields.loop.listing import check_out
    from learners.loading.predictor import load_predictor
    from learners.model.places import model_folder

    if settings.out is not None:
        check_out(settings.out, overwrite=settings.overwrite)
    settings.model = str(model_folder(settings.model))
    predictor = load_predictor(settings.model, **settings.computing)
    skipped: Counter[str] = Counter()
    files = [*some_files(settings.paths, predictor.kind, skipped)] if settings.paths else []
    if not predictor.bundle.spec.takes_pixels:
        matches, status = _search_embeddings(predictor, files, settings)
        return _write(matches, predictor, settings) or status
    predictor.kind.check_moment(settings.at)
    with tempfile.TemporaryDirectory() as folder:
        embeddings = Embeddings(
            settings.embeddings or Path(folder, "pool"), settings.model, predictor
        )
        status = _embed(embeddings, files, skipped, settings) if files else 0
        matches = embeddings.search(
            settings.example, top=settings.top, at=settings.at, files=files or None
        )

    # Files of this call keep the names that the user wrote; other files of the embeddings have absolute paths.
    names = {absolute(file): file for file in files}
    matches = [
        match._replace(part=match.part._replace(path=names.get(match.part.path, match.part.path)))
        for match in matches
    ]
    return _write(matches, predictor, settings) or status


def _write(matches: list[Match], predictor: Predictor, settings: SearchSettings) -> int:
    """Write the matches to ``--out`` with their page, or to standard output. Returns 0."""
    from fields.loop.listing import as_text, write_list
    from fields.loop.sheets import Shot

    rows = [match.part._asdict() | {"similarity": match.similarity} for match in matches]
    text = as_text(COLUMNS, rows, settings.format)
    if settings.out is None:
        console.require_output()
        sys.stdout.write(text)
        return 0
    example = Shot(Part(settings.example, at=settings.at), "", "the example")
    shots = [Shot(s, str(n), f"{cosine:.3f}") for n, (s, cosine) in enumerate(matches, start=1)]
    written = write_list(
        settings.out, text, predictor, [example, *shots],
        title=f"Files like {Path(settings.example).name}",
        lead=f"The {len(shots)} most similar files or windows, with the cosine similarity of their features.",
    )  # fmt: skip
    print(written)
    return 0


def _search_embeddings(
    predictor: Predictor, files: list[str], settings: SearchSettings
) -> tuple[list[Match], int]:
    """The most similar items in files of embeddings, and the exit status."""
    from fields.loop.embeddings import nearest_items

    if settings.embeddings is not None or not files:
        raise SecondhandError(
            f"{settings.model} is a model of embeddings. Name the files of embeddings to search after the example, and "
            "leave --embeddings out"
        )
    lookup = predictor.lookup
    assert lookup is not None
    rejected = lookup.read(files)
    matches = nearest_items(lookup, settings.example, top=settings.top, at=settings.at)
    return matches, console.tell_left_out(rejected, len(files), Counter())


def _embed(
    embeddings: Embeddings, files: list[str], skipped: Counter[str], settings: SearchSettings
) -> int:
    """Embed the files that have no embedding yet and print their number; return the exit status."""
    summary = embeddings.extend(files)
    if settings.embeddings:
        print(
            f"{settings.embeddings}: files embedded now {summary.new}, earlier {summary.kept}",
            file=sys.stderr,
        )
    if summary.silent:
        print(f"Files without signal, left out: {summary.silent}", file=sys.stderr)
    status = console.tell_left_out(summary.rejected, len(files), skipped)
    if not summary.new + summary.kept:
        raise SecondhandError(f"{', '.join(settings.paths)[:500]}: no file can be used")
    return status
