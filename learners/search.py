"""``python -m learners.search MODEL EXAMPLE PATH...``: more files like an example."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.core.errors import SecondhandError
from datasets.core.scanning import some_files
from learners.acceleration import keep_memory_on_cpu
from learners.cli import console
from learners.cli.flags import add_flags, bare_parser
from learners.cli.settings import SearchSettings, check_replaced

if TYPE_CHECKING:
    from learners.active import Embeddings

COLUMNS = ("path", "similarity", "start", "end", "at")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, embed, search, print. Returns 0, or 3 where some files were bad."""
    parser = bare_parser(
        "learners.search",
        "List the files, or windows of long recordings, that are most similar to an example, by the cosine "
        "similarity of the model's features. Exit status: 0; 3 if some files could not be used (they are "
        "listed); 2 for a wrong call.",
        usage="MODEL EXAMPLE [PATH...]",
        examples=(
            "python -m learners.search runs/photos/model odd.jpg photos/ --top 10",
            "python -m learners.search runs/birds/model call.wav night/ --at 12.5 --out near.csv",
            "python -m learners.search runs/photos/model odd.jpg photos/ --embeddings photos.parquet",
        ),
    )
    parser.add_argument("model", help="Model folder, such as runs/photos/model or hf:USER/NAME.")
    parser.add_argument("example", help="File to find similar ones to.")
    parser.add_argument(
        "paths",
        nargs="*",
        help="Files, folders, or patterns in quotes to search. Write them before the flags. Default: all files in "
        "--embeddings.",
    )
    add_flags(parser, SearchSettings)
    settings = parser.parse_args(argv)
    if not settings.paths and settings.embeddings is None:
        parser.error("there are no files to search: name files or folders, or --embeddings FILE")
    check_replaced(settings)

    console.log_to_terminal()
    keep_memory_on_cpu("cpu" if settings.engine == "onnx" else settings.device)
    from learners.active import Embeddings, as_text, check_out, sheet_of, write_list
    from learners.inference import Predictor, check_moment
    from learners.model import model_folder
    from learners.report import Shot

    if settings.out is not None:
        check_out(settings.out, overwrite=settings.overwrite)
    settings.model = str(model_folder(settings.model))
    predictor = Predictor(settings.model, device=settings.device, engine=settings.engine)
    check_moment(predictor.kind, settings.at)
    skipped: Counter[str] = Counter()
    files = [*some_files(settings.paths, predictor.kind, skipped)] if settings.paths else []
    with tempfile.TemporaryDirectory() as folder:
        kept = Embeddings(settings.embeddings or Path(folder, "pool"), settings.model, predictor)
        status = _embed(kept, files, skipped, settings) if files else 0
        near = kept.search(settings.example, top=settings.top, at=settings.at, files=files or None)

    # As they were named; what the embeddings hold besides by its whole path.
    names = {os.path.abspath(file): file for file in files}
    near = [
        one._replace(source=one.source._replace(path=names.get(one.source.path, one.source.path)))
        for one in near
    ]
    rows = [one.source._asdict() | {"similarity": one.similarity} for one in near]
    text = as_text(COLUMNS, rows, settings.format)
    if settings.out is None:
        sys.stdout.write(text)
        return status
    from datasets.spectrograms import Source

    example = Shot(Source(settings.example, at=settings.at), "", "the example")
    shots = [Shot(s, str(n), f"{cosine:.3f}") for n, (s, cosine) in enumerate(near, start=1)]
    write_list(
        settings.out, text, predictor, [example, *shots],
        title=f"More like {Path(settings.example).name}",
        lead=f"The {len(shots)} nearest to it, and the cosine of their features and its own.",
    )  # fmt: skip
    print(f"table   {settings.out}\nsheet   {sheet_of(settings.out) / 'index.html'}")
    return status


def _embed(kept: Embeddings, files: list[str], skipped: Counter[str], settings: Any) -> int:
    """Embed the files that have no embedding yet, and say so; the exit status."""
    found = kept.extend(files, bs=settings.bs, workers=settings.workers)
    if settings.embeddings:
        counts = f"embeddings of {found.new} files made, of {found.kept} there already"
        print(f"{counts}: {settings.embeddings}", file=sys.stderr)
    if found.silent:
        print(f"{found.silent} without signal: left out", file=sys.stderr)
    status = console.tell_left_out(found.rejected, len(files), skipped)
    if not found.new + found.kept:
        raise SecondhandError(f"{', '.join(settings.paths)[:500]}: no file of it can be used")
    return status


if __name__ == "__main__":
    console.run(main)
