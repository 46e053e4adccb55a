"""What to do where a model refuses far more than it should: label a few files there, and train with them."""

from __future__ import annotations

from pathlib import Path

from learners.cli.again import train_again
from learners.cli.console import as_typed, command_line
from learners.predictions.advice import ADVICE, Advice, Asked

#: Number of labels that are suggested.
LABELS = 40


def label_there(asked: Asked) -> list[str]:
    """The commands that choose what to label, and that train with it, and what they cost."""
    table = "next.csv"
    words = [asked.model, *asked.files, "--n", str(LABELS), "--out", table]
    again = train_again(Path(asked.model), [Path(table)], several=asked.several)
    return [
        f"Label {LABELS} {asked.unit}s from there (some ten minutes; choosing them takes as long as this prediction):  "
        f"{as_typed('suggest', words)}",
        f"Then train with them (a minute or less, on a laptop):  {command_line('finetune', *again)}",
    ]


ADVICE.add(Advice("label there", label_there))
