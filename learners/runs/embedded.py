"""The settings of a training on embeddings of a foreign network, of which only the head is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from datasets.core.errors import SecondhandError
from datasets.core.options import flag
from datasets.embeddings import Vectors
from learners.backbones import EMBEDDING
from learners.cli.settings import Settings


def settings_for_embeddings(
    settings: Settings, typed: Mapping[str, Any] | None, vectors: Vectors
) -> Settings:
    """Return the settings with the network of the embeddings and without epochs of a body.

    Parameters
    ----------
    typed : settings that the user chose. Default: those that differ from their default values.

    Raises
    ------
    SecondhandError : chosen settings need a body, or files to open; the message names all of them.
    """
    flat, defaults = settings.flat(), Settings().flat()
    if typed is None:
        typed = {name: value for name, value in flat.items() if value != defaults[name]}
    fixed = {"backbone": EMBEDDING + vectors.network, "size": vectors.width, "epochs": 0}
    meaningless = (*fixed, "weights", "resize", "tta", "spectrogram", "detectors", "from")
    wrong = [
        f"{flag(name)} {flat[name]}"
        for name in meaningless
        if name in typed and flat[name] not in (defaults[name], fixed.get(name))
    ]
    if typed.get("epochs") == defaults["epochs"]:
        wrong.append(f"--epochs {defaults['epochs']}")
    if wrong:
        raise SecondhandError(
            f"{', '.join(wrong)}: embeddings of {vectors.network} have no body to train and no files to open; only a "
            "head is trained. Leave these flags out. To learn from more labels, name all files as --data"
        )
    train = replace(settings.train, epochs=0)
    network = replace(settings.network, backbone=str(fixed["backbone"]), size=vectors.width)
    return replace(settings, train=train, network=network)
