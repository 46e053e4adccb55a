"""What confidence costs: fitting all of it, and what one prediction pays.

Peer for the distance: scikit-learn's exact `NearestNeighbors` (brute force) on the same features.
Figures to reach on two cores: all of the fitting under 20 s for 10 000 calibration items, 512
features and 100 classes; one prediction under 2 ms with 5000 reference items.

    python benchmarks/bench_confidence.py
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from sklearn.neighbors import NearestNeighbors

from benchmarks._record import parse
from learners.confidence.arrays import softmax
from learners.confidence.decision import Confidence
from learners.confidence.detectors import Items, fit_scores, rank_scores
from learners.confidence.prediction_sets import fit_prediction_sets
from learners.confidence.thresholds import aurc, risk_coverage
from learners.evaluation.calibration_metrics import calibration_figures, reliability
from learners.settings import ConfidenceSettings


def world(n: int, width: int, classes: int, seed: int) -> Items:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(0, 1, (classes, width)) / np.sqrt(width)
    labels = rng.integers(0, classes, n)
    features = centres[labels] * 6 + rng.normal(0, 1, (n, width))
    return Items(features @ centres.T * 2, labels, features.astype(np.float32))


def timed(name: str, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    print(f"  {name:<52}{took:8.2f} s")
    return took


def fitting(items: int, classes: int) -> None:
    half = items // 2
    print(
        f"fitting: {items} calibration items, 512 features, {classes} classes, {half} reference items"
    )
    train, calibration = world(half, 512, classes, 1), world(items, 512, classes, 2)
    strangers = world(items // 10, 512, classes, 3)
    z, y = calibration.logits, calibration.labels
    assert y is not None
    model = Confidence.fit(calibration, train)
    p = softmax(z, model.temperature.value)
    right = p.argmax(axis=1) == y
    figures = (softmax(z), p)
    total = sum(
        (
            timed(
                "temperature, distance, threshold for 0.9 accuracy",
                lambda: Confidence.fit(calibration, train, ConfidenceSettings(target_accuracy=0.9)),
            ),
            timed(
                "figures before and after, 1000 resamples each",
                lambda: [calibration_figures(q, y) for q in figures],
            ),
            timed(
                "reliability, risk-coverage, AURC",
                lambda: (
                    reliability(p, y),
                    risk_coverage(p.max(axis=1), right),
                    aurc(p.max(axis=1), right),
                ),
            ),
            timed("prediction sets", lambda: fit_prediction_sets(p, y)),
            timed(
                "all scores ranked",
                lambda: rank_scores(fit_scores(train, calibration), calibration, strangers),
            ),
        )
    )
    print(f"  {'all of it':<52}{total:8.2f} s   (to reach: 20 s)")


def one_prediction(width: int, items: int, classes: int, rounds: int) -> None:
    train, calibration = world(items // 2, width, classes, 1), world(1000, width, classes, 2)
    model = Confidence.fit(calibration, train)
    assert calibration.features is not None
    peer = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(train.features)
    ours: list[float] = []
    theirs: list[float] = []
    for start in range(0, rounds, 20):  # blocks: each library's idle threads spin for a while
        items = range(start, start + 20)
        for took, work in (
            (ours, lambda z, x: model.decide(z, x)),
            (theirs, lambda z, x: peer.kneighbors(x / np.linalg.norm(x))),
        ):
            time.sleep(0.3)
            for i in items:
                z, x = calibration.logits[i : i + 1], calibration.features[i : i + 1]
                begun = time.perf_counter()
                work(z, x)
                took.append(time.perf_counter() - begun)
    a, b = np.median(ours) * 1e3, np.median(theirs) * 1e3
    print(
        f"one prediction, {width} features: {a:.2f} ms for all of decide (to reach: 2 ms), "
        f"{b:.2f} ms for scikit-learn's search alone, ratio {a / b:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=10_000, help="to calibrate on")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200, help="predictions of each width")
    settings = parse(parser, items=400, classes=4, rounds=20)
    for width in (512, 1280):
        one_prediction(width, settings.items, settings.classes, settings.rounds)
    fitting(settings.items, settings.classes)


if __name__ == "__main__":
    main()
