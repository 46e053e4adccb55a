"""usage: secondhand discover MODEL PATH... [flags]

Find new classes: cluster the files that a model refuses, and list which files are of classes that it does not know
(conformal p-values and Benjamini-Hochberg, arXiv 2104.08279). Write the name of a cluster into one row of the
table, and give the table to finetune --data. Files that the model was trained on, and copies of them, are skipped.
Exit status: 0; 3 if some files could not be used (they are listed); 2 for a wrong call.

examples:
  secondhand discover runs/photos/model new/ --out found.csv
  secondhand discover runs/birds/model '2024/*.wav' --fdr 0.05 --overwrite
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.cli.options import Limits, option, positional
from datasets.core.errors import counted
from fields.loop.pool_settings import PoolSettings
from learners.cli import console
from learners.cli.commands import paths_help
from learners.cli.flags import read_call

if TYPE_CHECKING:
    from fields.loop.discovery import Cluster, Discoveries

#: Files of a cluster, and of no cluster, on the page.
SHOWN = 24


@dataclass(kw_only=True)
class DiscoverSettings(PoolSettings):
    """discovery"""

    paths: list[str] = positional(paths_help)
    fdr: float = option(
        0.1,
        "False discovery rate: largest expected fraction of files of known classes among the files called new.",
        limits=Limits(above=0, below=1, like=0.1),
    )
    out: Path = option(
        Path("found.csv"),
        "Table to name the clusters in. A page that shows them is written beside it (found.csv: found/index.html).",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    settings = read_call(DiscoverSettings, argv, __doc__)

    console.start(settings)
    from fields.loop.discovery import discover
    from fields.loop.listing import as_text, write_list
    from fields.loop.sheets import Shot
    from fields.loop.teaching import Pool, tell_pool

    pool = Pool.open(settings, settings.paths, settings.out)
    found = discover(pool, fdr=settings.fdr)
    status = tell_pool(pool, settings.paths)
    if not found.rows:
        print(
            f"No file is refused; answered: {found.judged}. To check the answers: "
            f"{console.as_typed('audit', [settings.model, *settings.paths])}",
            file=sys.stderr,
        )
        return status

    columns = (
        "path",
        "label",
        "cluster",
        "new",
        "p_value",
        "why",
        "guess",
        *pool.predictor.kind.times,
    )
    groups = [
        *((str(n), c.rows) for n, c in enumerate(found.clusters, start=1)),
        ("", found.others),
    ]
    rows, shots = [], []
    for number, members in groups:
        name = f"Cluster {number}" if number else "In no cluster"
        if number:
            name += f": {_sure(found.clusters[int(number) - 1])}"
        for place, row in enumerate(members):
            part, prediction = row.prediction.part, row.prediction
            rows.append(
                {"path": part.path, "label": "", "cluster": number, "new": "yes" if row.new else "",
                 "p_value": row.p_value, "why": str(prediction.reason), "guess": prediction.best,
                 "start": part.start, "end": part.end, "gps": part.at}
            )  # fmt: skip
            if place < SHOWN:
                caption = f"p-value {row.p_value:.3f}{', new' if row.new else ''}; most like {prediction.best}"
                shots.append(Shot(part, str(place + 1), caption, name))
    lines = _lines(found, settings.fdr)
    lead = " ".join(lines)
    if found.clusters:
        lead += (
            " To name a cluster, write the name into the column label of one of its rows in "
            f"{settings.out.name}; the same name may stand at several clusters."
        )
    if any(len(members) > SHOWN for _, members in groups):
        lead += f" The first {SHOWN} files of each group are shown."
    text = as_text(columns, rows)
    title = "Files of unknown classes"
    written = write_list(settings.out, text, pool.predictor, shots, title=title, lead=lead)
    for n, cluster in enumerate(found.clusters, start=1):
        print(f"Cluster {n}: {_sure(cluster)}")
    print(*lines, written, sep="\n")
    if not any(row.new for row in found.rows) and not any(one.new for one in found.clusters):
        suggesting = console.as_typed("suggest", [settings.model, *settings.paths])
        print(f"Nothing new is found. To list the files that are most worth a label:  {suggesting}")
    return status


def _sure(cluster: Cluster) -> str:
    """How sure it is that a cluster is of a new class, as text."""
    best, _ = Counter(row.prediction.best for row in cluster.rows).most_common(1)[0]
    verdict = f"a new class, most like {best}" if cluster.new else f"{best} or a new class"
    files = f"{len(cluster.rows)} files"
    if cluster.groups < len(cluster.rows):
        files += f" in {counted(cluster.groups, 'scene')}"
    return f"{files}, {cluster.far} far (expected {cluster.known_far:.0f}): {verdict}"


def _lines(found: Discoveries, fdr: float) -> list[str]:
    """Sentences on the number of refused files, and of those that are of unknown classes."""
    from fields.loop.discovery import calibration_needed, fewest_discoveries

    refused, count = len(found.rows), sum(row.new for row in found.rows)
    lines = [
        f"Refused: {refused} of {found.judged} files, {refused - len(found.others)} in clusters."
    ]
    if found.clusters:
        lines.append(
            "Far: less like the known classes than 95 % of known files; in brackets, how many would be if they were "
            "refused files of a known class."
        )
    fewest = fewest_discoveries(found.judged, found.calibration, fdr)
    if count:
        lines.append(
            f"Of classes that the model does not know: {count} of {found.judged} files (column new). On average at "
            f"most {100 * fdr:g} % of such a list are files of known classes."
        )
    elif fewest > refused:
        needed = calibration_needed(found.judged, refused, fdr)
        lines.append(
            f"No single file can be called new at --fdr {fdr:g}: {found.calibration} calibration files are too few (a "
            f"group counts as one). For {refused} new files among {found.judged}, at least {needed} are needed."
        )
    else:
        lines.append(
            f"No single file is called new at --fdr {fdr:g}: with {found.calibration} calibration files, at least {fewest} "
            f"of {found.judged} files would have to be less like the known classes than every calibration file."
        )
    return lines
