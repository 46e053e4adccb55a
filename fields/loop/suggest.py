"""usage: secondhand suggest MODEL PATH... [flags]

Active learning: list the files whose labels would improve the model most. The model is unsure of them, and no two
are alike (arXiv 1708.00489, 1906.03671). Fill in the column label of the table and give it to finetune --data.
Files that the model was trained on, and copies of them, are skipped. Exit status: 0; 3 if some files could not be
used (they are listed); 2 for a wrong call.

examples:
  secondhand suggest runs/photos/model new/ --n 40 --out next.csv
  secondhand suggest runs/birds/model '2024/*.wav' --n 100
  secondhand suggest runs/birds/model nights-without-birds/ --mine --n 200 --out noise.csv
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets.cli.options import option, positional
from fields.loop.pool_settings import PoolSettings
from learners.cli import console
from learners.cli.commands import paths_help
from learners.cli.flags import read_call


@dataclass(kw_only=True)
class SuggestSettings(PoolSettings):
    """suggestions"""

    paths: list[str] = positional(paths_help)
    n: int = option(50, "Number of files, or windows of long recordings, to suggest.")
    mine: bool = option(
        False,
        "List the surest answers instead. Where nothing should be found, they are likely false alarms: delete the "
        "right ones, and give the table to finetune --background.",
    )
    out: Path = option(
        Path("next.csv"),
        "Table to fill in. A page that shows the files is written beside it (next.csv: next/index.html).",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    settings = read_call(SuggestSettings, argv, __doc__)
    console.start(settings)
    from fields.loop.listing import as_text, write_list
    from fields.loop.sheets import Shot
    from fields.loop.teaching import Pool, suggest, tell_pool
    from learners.cli.again import train_again
    from learners.model.parts import check_labels_train

    pool = Pool.open(settings, settings.paths, settings.out)
    if not settings.mine:
        check_labels_train(pool.predictor.bundle, settings.model)
    suggestions = suggest(pool, n=settings.n, mine=settings.mine)
    status = tell_pool(pool, settings.paths)
    if not suggestions:
        nothing = "No file is answered" if settings.mine else "No files are left to label"
        print(nothing, file=sys.stderr)
        return status

    # False alarms are not labelled: those that stay in the table are background.
    to_fill = () if settings.mine else ("label",)
    columns = ("path", *to_fill, "score", "why", "guess", *pool.predictor.kind.times)
    rows = [
        {"path": s.path, "label": "", "score": score, "why": why, "guess": guess}
        | {"start": s.start, "end": s.end, "gps": s.at}
        for s, score, why, guess in suggestions
    ]
    rule = pool.predictor.rule
    said = "A label may also be a new class, or unknown"
    if not rule.exclusive:
        said += ", or none where there is nothing; several labels are written as a; b"
    elif rule.calibrator.background:
        said += ", or none where there is nothing (the background)"
    shots = [Shot(row.part, str(n), row.why) for n, row in enumerate(suggestions, start=1)]
    title = "Likely false alarms" if settings.mine else "What to label next"
    lead = (
        f"The {len(shots)} surest answers of {pool.judged} candidates. Delete the right ones from "
        f"{settings.out.name}, which has the same order, and give it to finetune --background."
        if settings.mine
        else f"{len(shots)} of {pool.judged} candidates, the most useful first. Fill in the column label of "
        f"{settings.out.name}, which has the same order. {said}. Empty cells are not labelled yet."
    )
    text = as_text(columns, rows)
    written = write_list(settings.out, text, pool.predictor, shots, title=title, lead=lead)
    what = "Likely false alarms" if settings.mine else "To label"
    print(f"{what}: {len(rows)} of {pool.judged}\n{written}")
    if not settings.mine:
        training = train_again(Path(settings.model), [settings.out], several=not rule.exclusive)
        print("Label:  fill in the column label")
        print(f"Then:   {console.as_typed('finetune', training)}")
    return status
