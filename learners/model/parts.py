"""Models that were trained on parts of pictures, as a detector finds them, and not on whole pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datasets.core.errors import SecondhandError
from datasets.core.shipped import BOXES, needed_for

if TYPE_CHECKING:
    from learners.model.bundle import Bundle


def trained_on_boxes(bundle: Bundle) -> bool:
    """Whether a model was trained on boxes of pictures, as a detector finds them, and not on whole pictures."""
    return bool(bundle.provenance.get("boxes"))


def boxes_alone(bundle: Bundle) -> bool:
    """Whether a model was trained on boxes of pictures and on no whole picture."""
    boxes = bundle.provenance.get("boxes")
    return bool(boxes) and bundle.provenance.get("items", boxes) == boxes


def check_whole(bundle: Bundle) -> None:
    """Raise SecondhandError if a model is for boxes of pictures, and not for whole ones."""
    if trained_on_boxes(bundle):
        raise SecondhandError(
            f"the model was trained on boxes of pictures, and nothing here finds them{needed_for(BOXES)}"
        )


def check_labels_train(bundle: Bundle, model: str) -> None:
    """Raise SecondhandError if labels of whole files cannot train a model, because it learns from boxes."""
    if boxes_alone(bundle):
        raise SecondhandError(
            f"{model} was trained on boxes of photos, so labels of whole photos cannot train it. Run MegaDetector on them, then "
            f"predict its JSON with --windows --out boxes.csv, correct the labels there, and train --from {model} --data boxes.csv"
        )
