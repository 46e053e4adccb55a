"""``--from runs/x/model``: what a training that goes on from a model takes of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets.core.errors import SecondhandError
from datasets.core.options import flag, read_settings
from datasets.items import (
    SPECTROGRAM_OPTIONS,
    DataSettings,
    background_file,
    earlier_items,
    read_spectrogram,
)
from learners.cli.settings import Settings
from learners.model import WEIGHTS, Bundle, load_bundle, model_folder, sha256

log = logging.getLogger(__name__)

#: Epochs with all weights where none are asked for: of a head that can be fitted, and of another one.
#: The body has learnt its like already.
EPOCHS = (0, 2)


#: Settings of a run that hold for files which are added to it: its held-out groups stay held out.
SPLITTING = ("group_by", "near_duplicates", "label_column")


def apply_warm_start(
    asked: Settings, typed: Mapping[str, Any] | None = None, *, network: bool = True
) -> tuple[Settings, Bundle | None]:
    """The settings as a model of ``--from`` has them, and that model, with its ``network`` or without; of
    another training as they are, and None. A run that goes on has what it brings already."""
    if asked.data.from_ is None:
        return asked, None
    folder = model_folder(asked.data.from_)
    settings, origin = asked.but(**{"from": folder}), load_bundle(folder, network=network)
    return (settings if asked.run.resume else settings_from_origin(settings, origin, typed)), origin


def settings_from_origin(
    settings: Settings, origin: Bundle, typed: Mapping[str, Any] | None = None
) -> Settings:
    """The settings with the network and the recipe of the model that they go on from, with what its run was
    told of how to split, and with `EPOCHS`.

    Parameters
    ----------
    typed : the settings that somebody chose; those other than their defaults if not given.

    Raises
    ------
    SecondhandError : some of them contradict the model; all are named.
    """
    assert settings.data.from_ is not None
    if typed is None:
        plain = Settings().flat()
        typed = {name: v for name, v in settings.flat().items() if v != plain[name]}
    spec, spectrogram = origin.spec, origin.spectrogram or {}
    network = {name: getattr(spec, name) for name in ("backbone", "size", "head", "dropout")}
    network |= {"weights": "published"}
    data = {"kind": spectrogram.get("kind", "picture"), "overlap": origin.overlap}
    if data["kind"] == "strain":
        data["detectors"] = "together" if spectrogram.get("together") else "separate"
    data |= _told(settings.data.from_)
    drawn = {"picture" if name == "size" else name: value for name, value in spectrogram.items()}
    if typed.get("spectrogram"):
        typed = {**typed, **read_spectrogram(typed["spectrogram"])}
    usual = {"kind": "auto", "head": "auto"}
    wrong = [
        f"{'--spectrogram ' + name + ':' if name in SPECTROGRAM_OPTIONS else flag(name)} {typed[name]} (it has {was})"
        for name, was in (network | data | drawn).items()
        if name in typed and _plain(typed[name]) not in (_plain(was), usual.get(name, _plain(was)))
    ]
    if wrong:
        raise SecondhandError(
            f"--from {settings.data.from_}: not with {', '.join(wrong)}. Its network, its recipe and how its "
            "files are split go on as they are: leave that out, or train anew without --from"
        )
    if origin.decider.calibrator.background and settings.data.background is None:
        if (file := background_file(settings.data.from_)).is_file():
            data["background"] = str(file)
        else:
            log.warning(
                "--from %s was trained with a background class, but %s is missing beside it, so the background "
                "would be forgotten. Give --background", settings.data.from_, file.name,
            )  # fmt: skip
    settings = settings.but(**network, **data)
    if "epochs" in typed:
        return settings
    if settings.network.fits and settings.train.freeze_epochs == "fit":
        log.info("Warm start: only the head is trained. To train the body as well: --epochs 2")
        return settings.but(epochs=EPOCHS[0])
    return settings.but(epochs=EPOCHS[1])


def _told(model: Path) -> dict[str, Any]:
    """Of `SPLITTING` what the run of a model was told; of a model without its run nothing."""
    file = model.absolute().parent / "config.yaml"
    if not file.is_file():
        return {}
    then, usual = read_settings(file), vars(DataSettings())
    return {name: then[name] for name in SPLITTING if then.get(name, usual[name]) != usual[name]}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def lineage(data: DataSettings, origin: Bundle, folder: Path) -> dict[str, Any]:
    """The models that this one comes from, the oldest first, by what can be checked; and a hash of the
    items that it was trained on itself."""
    assert data.from_ is not None
    known, items = origin.provenance, earlier_items(data)
    name = data.from_.resolve()
    parent = {
        "model": name.parent.name if name.name == "model" else name.name,
        "weights_sha256": sha256(data.from_ / WEIGHTS),
        "data": str(known.get("data", "")),
        "items": known.get("items", 0),
        "items_sha256": "" if items is None else hashlib.sha256(items.read_bytes()).hexdigest(),
        "trained": str(known.get("trained", "")),
    }
    own = hashlib.sha256((folder / "items.csv").read_bytes()).hexdigest()
    older = known.get("lineage")  # of a folder that anybody may have written
    return {
        "lineage": [*(older if isinstance(older, list) else []), parent],
        "items_sha256": own,
    }
