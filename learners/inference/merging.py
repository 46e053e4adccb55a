"""Merges the probabilities of windows or frames that show the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

from learners.inference.predictions import Prediction

#: Lower bound of probabilities before taking logarithms.
_TINY = 1e-12


def merge_probabilities(windows: Sequence[Prediction]) -> list[tuple[str, float]]:
    """Classes of an event with their probabilities, most probable first.

    The normalised geometric mean of the windows' probabilities (with that of the background class, if
    there is one), which is the softmax of their mean logits:

        log p(c) = mean over windows w of log p_w(c) - log of the sum over c

    Neighbouring windows overlap and share noise and errors, so their agreement adds no evidence: they are
    averaged, not multiplied. If windows overlap strongly, this probability is calibrated, and the largest
    of the windows' would be too high; if their noise is independent, it is too cautious.
    """
    names = [name for name, _ in windows[0].top]
    log_means = dict.fromkeys(names, 0.0)
    log_background = 0.0
    for window in windows:
        for name, p in window.top:
            log_means[name] += math.log(max(p, _TINY)) / len(windows)
        log_background += math.log(max(1 - sum(p for _, p in window.top), _TINY)) / len(windows)
    shares = {name: math.exp(value) for name, value in log_means.items()}
    total = sum(shares.values()) + math.exp(log_background)
    return sorted(((name, p / total) for name, p in shares.items()), key=lambda pair: -pair[1])


def merge_label_probabilities(windows: Sequence[Prediction]) -> list[tuple[str, float]]:
    """`merge_probabilities` of each label of a multi-label model, with the classes present and absent."""
    merged = [
        merge_probabilities(
            [window._replace(top=[(name, dict(window.top)[name])]) for window in windows]
        )
        for name, _ in windows[0].top
    ]
    return sorted((pair for (pair,) in merged), key=lambda pair: -pair[1])
