"""Whether the limits of `secondhand audit` hold, and how wide they are beside those of labels drawn at random.

From the predictions of a model for labelled files (``predictions.csv`` of `learners.evaluate`), an audit of `--n` labels
is drawn and estimated `--draws` times. For all files, and for the answers, the table has the true accuracy of the set;
how many of the 95 % limits contain it; their mean width, and that of Clopper and Pearson's limits with twice as many
labels drawn at random; and the mean error of the estimate.

    python benchmarks/bench_audit.py --predictions shops=report/predictions.csv --predictions blur=blurred/predictions.csv
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware
from datasets.items.labels import UNKNOWN
from datasets.tables.cells import read_frame
from learners.evaluation.calibration_metrics import clopper_pearson
from learners.evaluation.stratified import Stratum, accuracies, draw


class Site:
    """The files of a site: bool ``answered`` and ``right``, ``p`` and ``best``, each [files]."""

    def __init__(self, file: str) -> None:
        frame = read_frame(file)
        frame = frame.loc[frame["probability"].ne("")]  # all that could be read
        self.answered = frame["label"].ne(UNKNOWN).to_numpy()
        self.right = (
            frame["best"].eq(frame["truth"]).to_numpy() & frame["split"].ne(UNKNOWN).to_numpy()
        )
        self.p, self.best = frame["probability"].to_numpy(np.float64), frame["best"].to_numpy()

    def audit(self, n: int, seed: int) -> list[tuple[float, float, float]]:
        """Accuracy of all files and of the answers, with limits, from one draw of ``n`` labels."""
        stratum, drawn = draw(self.answered, self.p, self.best, n, seed)
        strata = [
            Stratum(
                bool(self.answered[stratum == k][0]), int((stratum == k).sum()),
                float(self.p[stratum == k].mean()), self.right[drawn[stratum[drawn] == k]],
            )
            for k in range(stratum.max() + 1)
        ]  # fmt: skip
        found = accuracies(strata, seed)
        return [found["all"], found["answers"]]

    def at_random(self, n: int, seed: int) -> list[float]:
        """Width of exact limits of both accuracies from ``n`` files drawn at random."""
        drawn = np.random.default_rng(seed).permutation(len(self.p))[:n]
        parts = (self.right[drawn], self.right[drawn[self.answered[drawn]]])
        limits = [clopper_pearson(part.sum(), len(part)) if len(part) else (0, 1) for part in parts]
        return [float(high - low) for low, high in limits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--predictions", action="append", help="NAME=predictions.csv; repeatable")
    parser.add_argument("--n", type=int, default=50, help="labels of an audit")
    parser.add_argument("--draws", type=int, default=500)
    words = parse(parser, draws=20)
    sites = {
        name: Site(file)
        for name, _, file in (text.partition("=") for text in words.predictions or [_made_up()])
    }
    columns = f"{'accuracy':>9}{'held':>8}{'width':>7}{f'random {2 * words.n}':>12}{'error':>7}"
    print(f"{'':20}{'files':>6}{'of':>9}{columns}")
    for name, site in sites.items():
        found = np.array([site.audit(words.n, seed) for seed in range(words.draws)])
        random = np.mean([site.at_random(2 * words.n, seed) for seed in range(words.draws)], axis=0)
        truths = site.right.mean(), site.right[site.answered].mean()
        for part, what in enumerate(("all", "answers")):
            value, low, high = 100 * found[:, part].T
            truth = 100 * truths[part]
            held = 100 * np.mean((low <= truth + 1e-9) & (truth <= high + 1e-9))
            print(
                f"{name:20}{len(site.p):6}{what:>9}{truth:9.1f}{held:7.1f}%{np.mean(high - low):7.1f}"
                f"{100 * random[part]:12.1f}{np.mean(value) - truth:+7.2f}"
            )
    print(software_and_hardware("scipy"))


def _made_up() -> str:
    """A table of 400 predictions whose probabilities are a little too high."""
    rng = np.random.default_rng(0)
    logits, file = rng.normal(2.5, 2, 400), Path("made-up.csv")
    p, right = 1 / (1 + np.exp(-logits)), rng.random(400) < 1 / (1 + np.exp(0.5 - logits))
    rows = [
        f"{'a' if one > 0.95 else UNKNOWN},a,{one:.6f},{'a' if hit else 'b'},test\n"
        for one, hit in zip(p, right, strict=True)
    ]
    file.write_text("label,best,probability,truth,split\n" + "".join(rows))
    return f"made up={file}"


if __name__ == "__main__":
    main()
