"""Settings of a training on embeddings of another network, of which only a head is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from datasets.core.errors import SecondhandError
from datasets.core.lookup import Lookup
from datasets.core.options import flag
from learners.backbones.spec import EMBEDDING
from learners.cli.settings import Settings


def settings_for_embeddings(
    settings: Settings, typed: Mapping[str, Any] | None, lookup: Lookup
) -> Settings:
    """The settings of a training on embeddings: with their network, of which only the head is trained.

    Parameters
    ----------
    typed : settings that the user chose. Default: those that differ from their default values.

    Raises
    ------
    SecondhandError : chosen settings need a body, or files to open; the message names all of them.
    """
    flat, defaults = settings.flat(), Settings().flat()
    typed = settings.chosen() if typed is None else typed
    fixed = {"backbone": EMBEDDING + lookup.network, "size": lookup.width, "epochs": 0}
    meaningless = (*fixed, "weights", "resize", "tta", "spectrogram", "from")
    wrong = [
        f"{flag(name)} {flat[name]}"
        for name in meaningless
        if name in typed and flat[name] not in (defaults[name], fixed.get(name))
    ]
    if typed.get("epochs") == defaults["epochs"]:
        wrong.append(f"--epochs {defaults['epochs']}")
    if wrong:
        raise SecondhandError(
            f"{', '.join(wrong)}: embeddings of {lookup.network} have no body to train and no files to open; only a "
            "head is trained. Leave these flags out. To learn from more labels, name all files as --data"
        )
    train = replace(settings.train, epochs=0)
    network = replace(settings.network, backbone=str(fixed["backbone"]), size=lookup.width)
    return replace(settings, train=train, network=network)
