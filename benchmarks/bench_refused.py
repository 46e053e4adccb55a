"""How often a call is told that far more is refused than usual: where its files are like those of the calibration, and at a
site where the odds of a refusal are six times as high.

Each redraw makes groups (recordings, bursts, single files) with shares of their own, some for the model and others for the
call, whose places and recordings are tested, too. With `--run` the groups are those of a trained model: half of its
held-out files against the other half, and against as many rows of `--site`, a table of predictions of another source.

    python benchmarks/bench_refused.py --draws 200
    python benchmarks/bench_refused.py --run runs/photos --site site.csv
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse
from datasets.core.part import Part
from learners.inference.predictions import NAN, Prediction
from learners.predictions.refused import RefusedCount
from learners.rule.reasons import AMBIGUOUS, REFUSALS, Reason, Why
from learners.rule.refused import FILE, WINDOW, Shares, Usual

#: Groups of the calibration and of the call, items of a group, and how alike they are (intraclass correlation).
WORLDS = {
    "3 recordings, 3 new": (3, 3, 60, 0.1),
    "8 recordings, 3 new": (8, 3, 60, 0.1),
    "8 recordings, 12 new": (8, 12, 60, 0.2),
    "20 recordings, 5 new": (20, 5, 60, 0.2),
    "50 bursts, 100 photos": (50, 25, 4, 0.3),
    "150 files, 40 new": (150, 40, 1, 0.0),
    "150 files, 1000 new": (150, 1000, 1, 0.0),
}
SHARES, SITE = (0.05, 0.2, 0.4), 6.0
FIELDS = ("path", "reason", "split", "unit")


def groups(
    rng: np.random.Generator, number: int, size: int, share: float, alike: float
) -> list[NDArray[np.bool_]]:
    """Of each group whether its items are refused."""
    sizes = rng.integers(max(1, size // 2), size * 3 // 2 + 1, number)
    of_group = np.full(number, share)
    if alike:
        total = 1 / alike - 1
        of_group = rng.beta(share * total, (1 - share) * total, number)
    return [rng.random(n) < p for n, p in zip(sizes, of_group, strict=True)]


def is_told(usual: Usual, here: Sequence[NDArray[np.bool_]]) -> bool:
    """Whether a call of these groups, each in a folder, is told of refusals; of single files that are in one folder."""
    count = RefusedCount(usual, lambda one: one.path.rpartition("/")[0])
    for _ in count(_predictions(usual.unit, here)):
        pass
    return bool(count.found())


def _predictions(unit: str, here: Sequence[NDArray[np.bool_]]) -> list[Prediction]:
    def one(path: str, refused: bool) -> Prediction:
        label, reason = ("unknown", AMBIGUOUS) if refused else ("a", Reason())
        return Prediction(Part(path), label, "a", 0.5, reason, [], NAN)

    if unit == WINDOW:
        return [
            one(f"{n % 2}/{n}.wav", False).with_more(
                windows=tuple(one(f"{n % 2}/{n}.wav", bool(refused)) for refused in group)
            )
            for n, group in enumerate(here)
        ]
    items = np.concatenate(here)
    return [one(f"site/{n}.jpg", bool(refused)) for n, refused in enumerate(items)]


def usual_of(unit: str, of_groups: Sequence[NDArray[np.bool_]]) -> Usual:
    return Usual.of(unit, Shares.of((int(one.sum()), len(one)) for one in of_groups))


def drawn(world: str, share: float, odds: float, draws: int, seed: int) -> float:
    """Share of redraws in which a call is told, where the odds of a refusal are ``odds`` times those of the calibration."""
    before, after, size, alike = WORLDS[world]
    unit = WINDOW if "recordings" in world else FILE
    here = odds * share / (1 - share + odds * share)
    told = 0
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        usual = usual_of(unit, groups(rng, before, size, share, alike))
        told += is_told(usual, groups(rng, after, size, here, alike))
    return told / draws


def of_run(run: Path, site: Path | None, draws: int, number: int) -> list[tuple[str, float]]:
    """Shares of redraws of the held-out files of a run, and of a site, in which a call of ``number`` files is told."""
    rows = pd.read_csv(run / "predictions.csv", keep_default_na=False)
    rows = rows.loc[rows["split"].isin(["calibration", "test"])]
    units = rows["unit"] if "unit" in rows else pd.Series(rows.index, rows.index)
    of_groups = [_refused(one) for _, one in rows.groupby(units)]
    elsewhere = None if site is None else _refused(pd.read_csv(site, keep_default_na=False))
    told = {"same source": 0, "site": 0}
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        order = rng.permutation(len(of_groups))
        known, new = ([of_groups[n] for n in part] for part in np.array_split(order, 2))
        usual = usual_of(FILE, known)
        told["same source"] += is_told(usual, [np.concatenate(new)[:number]])
        if elsewhere is not None:
            told["site"] += is_told(usual, [rng.permutation(elsewhere)[:number]])
    return [(name, n / draws) for name, n in told.items() if name != "site" or site is not None]


def _refused(rows: pd.DataFrame) -> NDArray[np.bool_]:
    whys = [Reason.parse(str(text)).why for text in rows["reason"]]
    judged = [why for why in whys if why in (Why.ACCEPTED, *REFUSALS)]
    return np.array([why in REFUSALS for why in judged], bool)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--run", type=Path, help="a trained run: redraw its held-out files")
    parser.add_argument("--site", type=Path, help="with --run: predictions of another source")
    parser.add_argument("--number", type=int, default=40, help="with --run: files of a call")
    args = parse(parser, draws=2)
    if args.run is not None:
        for name, told in of_run(args.run, args.site, args.draws, args.number):
            print(f"{name:<24}{100 * told:6.1f} %")
        return
    print(f"told, in % of {args.draws} redraws{'':<6}refused  same source  site")
    for world in WORLDS:
        for share in SHARES:
            same, there = (drawn(world, share, odds, args.draws, 0) for odds in (1.0, SITE))
            print(f"{world:<32}{100 * share:5.0f} %{100 * same:13.1f}{100 * there:6.1f}")


if __name__ == "__main__":
    main()
