"""Says in words which weights of a training are kept, and why."""

from __future__ import annotations

from learners.training.keep import Kept

#: A difference of up to this many correct files may be chance (two-sided sign test, 5 %): 2 * 0.5^5 > 0.05.
CHANCE = 5

#: `Kept.why` in words.
WHY = {
    "lowest": "the lowest",
    "highest": "with the highest figure of --keep",
    "last": "the last epoch (--keep last)",
    "expected": "no others on the way are clearly better",
    "better": "clearly lower than that of the weights that were expected to be best",
    "bodies": "the middle one of what the bodies kept that measure the files",
}


def kept_in_words(kept: Kept) -> str:
    """Sentence on which weights are kept, and why."""
    reached, probe, n = kept.reached, kept.probe, kept.items
    if kept.share is not None:
        weights = f"a blend, {100 * kept.share:.0f} % of the way from the head-only model to epoch {kept.epoch}"
    elif probe == reached or (kept.why == "bodies" and kept.phase == "frozen" and kept.of == 1):
        weights = "the head-only model"
    else:
        weights = f"epoch {kept.epoch} of {kept.of}, {kept.phase}"
    if kept.why == "bodies":
        return f"{weights}, {WHY[kept.why]}"
    sentence = f"{weights}: validation loss {kept.loss:.3g}, {WHY[kept.why]}"
    if "accuracy" not in reached:
        return sentence
    right = round(n * reached["accuracy"])
    sentence += f"; {right} of {n} right"
    if "f1" in reached:
        sentence += f", f1 {reached['f1']:.3f}"
    if probe is None or probe == reached:
        return sentence
    before = round(n * probe["accuracy"])
    sentence += f". Head-only: loss {probe['valid_loss']:.3g}, {before} right"
    if 0 < before - right <= CHANCE:
        sentence += f"; with {n} items a difference of {before - right} may be chance"
    return sentence
