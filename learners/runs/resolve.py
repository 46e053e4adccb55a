"""What a run does where its user left a setting open.

The order of weight is default < what the model of ``--from`` was trained with < preset < file < flag. `Settings` holds
the last four when a command has been read, and the names of those that are the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from datasets.cli.options import flag
from datasets.core.errors import SecondhandError
from datasets.items.facts import Inputs, Seen
from datasets.items.items import Items
from datasets.kinds.base import KINDS, Kind
from datasets.kinds.lookup import Lookup
from datasets.sources.base import is_multi_label
from learners.backbones.choices import EMBEDDED, RECIPES, usual_backbone
from learners.backbones.spec import EMBEDDING, FITTED_HEADS, HEAD_ONLY
from learners.cli.settings import Settings


class Machine(NamedTuple):
    """What this machine trains a network with: ``fp32``, ``fp16`` or ``bf16``, a number of threads, and whether it pays to
    compile steps of half precision."""

    precision: str
    threads: int
    compiling_pays: bool = False


def resolve(
    asked: Settings,
    origin: Mapping[str, Any] = MappingProxyType({}),
    items: Items | None = None,
    backbone: str | None = None,
    machine: Machine | None = None,
) -> Settings:
    """The settings of a run: those that the user chose, and for the others what follows from what is known.

    It is a pure function of its arguments. A run asks it again as it comes to know more: to read the data with the
    splits of its origin; with the data, to compare backbones; with the best of these, to build the network; and with
    the network, for the precision that suits it on this machine. The last answer is the run's. The settings of a
    resumed run were resolved when it began.

    Parameters
    ----------
    origin : what a training inherits from the model of ``--from``, see `learners.runs.warm_start.inherited`.
    items : the data, of which the kind and the width of embeddings count.
    backbone : what ``--backbone auto`` has chosen.

    Raises
    ------
    SecondhandError : settings that the user chose do not suit the data; the message names all of them.
    """
    if asked.run.resume is not None:
        return asked
    values = {**asked.flat(), **origin}
    fitted = values["head"] in FITTED_HEADS and values["weights"] != "none"
    fitted &= values["freeze_epochs"] == "fit"
    if origin and "epochs" not in asked.chosen:
        # Few, because the body is already trained on similar data; none, if the head can be fitted.
        values["epochs"] = 0 if fitted else 2
    if items is not None:
        kind = KINDS[items.kind]
        if (seen := items.get(Seen)) and seen.settings is not None:
            values |= seen.settings.flags()
        if not kind.opened:
            lookup = items.fact(Inputs).lookup
            assert lookup is not None
            values |= _of_embeddings(asked, lookup)
        elif not origin:
            values["resize"] = _resize(values["resize"], kind)
            values["backbone"] = backbone or _backbone(asked, kind)
            if values["head"] == "fastai" and "dropout" not in asked.chosen:
                values["dropout"] = 0.5
            if values["weights"] == "none":
                values |= _recipe(asked, values["backbone"])
            if fitted and values["backbone"] in HEAD_ONLY and "epochs" not in asked.chosen:
                values["epochs"] = 0
        if not fitted and values["freeze_epochs"] == "fit":
            values["freeze_epochs"] = 1 if values["epochs"] else 20
        if values["optimizer"] == "adadelta":
            if values["lr"] is None:
                values["lr"] = 1.0
            if "wd" not in asked.chosen:
                values["wd"] = 0.0
        if values["lr"] is None:
            values["lr"] = 3e-4 if fitted else 6e-3
        if values["lr_mult"] is None and not fitted:
            # With a fitted head the first layers are frozen instead, because small steps hardly change them.
            # Random weights have learnt nothing yet, so all layers learn at one rate.
            from_random = values["weights"] == "none" and not origin
            values["lr_mult"] = 1.0 if from_random else kind.lr_mult
    if machine is not None:
        if values["precision"] == "auto":
            values["precision"] = machine.precision
        if values["threads"] is None:
            values["threads"] = machine.threads
        if values["compile"] is None:
            half = values["precision"] in ("fp16", "bf16")
            values["compile"] = machine.compiling_pays and half
    return asked.filled(**values)


def _recipe(asked: Settings, backbone: str) -> dict[str, Any]:
    """The backbone's own settings, as far as the user left them open."""
    recipe = {
        name: value for name, value in RECIPES.get(backbone, {}).items() if name not in asked.chosen
    }
    if asked.train.epochs == 0 and "epochs" in asked.chosen:
        recipe.pop("freeze_epochs", None)  # the head is all that is trained
    if asked.train.optimizer != "adamw":
        recipe.pop("lr", None)
    return recipe


def _backbone(asked: Settings, kind: Kind) -> str:
    """The backbone that the user named, else the default for this kind of data."""
    network, spectrogram = asked.network, asked.signal.for_kind(kind.name)
    if network.backbone != "default":
        return network.backbone
    # Networks are compared where each may bring its own spectrogram settings, size and weights.
    free = not (spectrogram or is_multi_label(asked.data) or network.size)
    return usual_backbone(kind) if free and network.weights == "published" else EMBEDDED


def _resize(chosen: str | None, kind: Kind) -> str:
    """How the files become square: photos are cropped by default, spectrograms are squashed."""
    if kind.settings() is None:
        return chosen or "crop"
    if chosen not in (None, "squash"):
        raise SecondhandError(
            f"--resize {chosen}: spectrograms are always squashed, because their edges are data. Leave it out"
        )
    return "squash"


def _of_embeddings(asked: Settings, lookup: Lookup) -> dict[str, Any]:
    """The settings of a training on embeddings: their network, of which only the head is trained."""
    flat, defaults = asked.flat(), Settings().flat()
    fixed = {"backbone": EMBEDDING + lookup.network, "size": lookup.width, "epochs": 0}
    opens = chain(*(section.opens for section in asked.added))
    meaningless = (*fixed, "weights", "resize", "tta", "spectrogram", "from", *opens)
    wrong = [
        f"{flag(name)} {flat[name]}"
        for name in meaningless
        if name in asked.chosen and flat[name] not in (defaults[name], fixed.get(name))
    ]
    if "epochs" in asked.chosen and flat["epochs"] == defaults["epochs"]:
        wrong.append(f"--epochs {flat['epochs']}")
    if wrong:
        raise SecondhandError(
            f"{', '.join(wrong)}: embeddings of {lookup.network} have no body to train and no files to open; only a "
            "head is trained. Leave these flags out. To learn from more labels, name all files as --data"
        )
    return fixed
