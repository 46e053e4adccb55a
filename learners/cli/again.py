"""The command that trains a model again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from datasets.items.labels import MULTI


def train_again(
    model: Path, tables: Sequence[Path], *, several: bool, name: Callable[[Path], str] = str
) -> list[str]:
    """The words of `learners.finetune` that train a model again with tables of labels.

    A model of ``several`` labels per item is trained anew, on the items and with the settings of its run. If it is not in
    its run, DATA stands for what it was trained on.

    Parameters
    ----------
    name : how paths are written.
    """
    data = [*map(name, tables)]
    if not several:
        return ["--from", name(model), "--data", *data]
    items, config = (model.parent / file for file in ("items.csv", "config.yaml"))
    multi = ["--labels", MULTI]
    if not (items.is_file() and config.is_file()):
        return ["--data", "DATA", *data, *multi]
    out = model.parent.with_name(f"{model.parent.name}-corrected")
    return ["--config", name(config), "--data", name(items), *data, *multi, "--out", name(out)]
