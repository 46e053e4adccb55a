"""Warm start (``--from runs/x/model``): the settings that a training inherits from an earlier model."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets.core.errors import SecondhandError
from datasets.core.options import flag, read_settings
from datasets.items.rehearsal import background_file, earlier_items
from datasets.items.settings import SPECTROGRAM_OPTIONS, DataSettings, read_spectrogram
from datasets.kinds.base import KINDS
from learners.cli.settings import Settings
from learners.model.bundle import Bundle, as_ancestor, load_bundle
from learners.model.hub import model_folder

log = logging.getLogger(__name__)

#: Default epochs with all weights, for a head that can be fitted and for another head. They are few, because the
#: body is already trained on similar data.
EPOCHS = (0, 2)


#: Settings of the earlier run that also apply to added files, so that its splits do not change.
SPLITTING = ("group_by", "near_duplicates", "label_column")


def apply_warm_start(
    settings: Settings, typed: Mapping[str, Any] | None = None, *, network: bool = True
) -> tuple[Settings, Bundle | None]:
    """Return the settings with those of the model of ``--from``, and that model.

    Without ``--from`` the settings are unchanged, and the model is None. A resumed run already has the settings of the
    model.

    Parameters
    ----------
    network : also load the model's network.
    """
    if settings.data.from_ is None:
        return settings, None
    folder = model_folder(settings.data.from_)
    settings, origin = settings.but(**{"from": folder}), load_bundle(folder, network=network)
    if not KINDS[origin.kind].opened:
        raise SecondhandError(
            f"--from {folder}: a training cannot start from a model of embeddings. Training anew takes seconds: name the "
            "earlier and the new files as --data, and leave --from out"
        )
    if not settings.run.resume:
        settings = settings_from_origin(settings, origin, typed)
    return settings, origin


def settings_from_origin(
    settings: Settings, origin: Bundle, typed: Mapping[str, Any] | None = None
) -> Settings:
    """Return the settings with the network, spectrogram settings and splits of the model of ``--from``.

    The number of epochs is one of `EPOCHS` unless the user chose it.

    Parameters
    ----------
    typed : settings that the user chose. Default: those that differ from their default values.

    Raises
    ------
    SecondhandError : chosen settings contradict the model; the message names all of them.
    """
    assert settings.data.from_ is not None
    typed = settings.chosen() if typed is None else typed
    spec, spectrogram = origin.spec, origin.spectrogram or {}
    network = {name: getattr(spec, name) for name in ("backbone", "size", "head", "dropout")}
    network |= {"weights": "published", "resize": origin.preprocessing.resize}
    data = {"kind": origin.kind, "overlap": origin.overlap}
    data |= _split_settings_of(settings.data.from_)
    spectrogram_settings = {
        "picture" if name == "size" else name: value for name, value in spectrogram.items()
    }
    if typed.get("spectrogram"):
        typed = {**typed, **read_spectrogram(typed["spectrogram"])}
    defaults = {"kind": "auto", "head": "auto"}
    contradictions = [
        f"{'--spectrogram ' + name + ':' if name in SPECTROGRAM_OPTIONS else flag(name)} {typed[name]} (the model has {value_of_origin})"
        for name, value_of_origin in (network | data | spectrogram_settings).items()
        if name in typed
        and _as_yaml(typed[name])
        not in (_as_yaml(value_of_origin), defaults.get(name, _as_yaml(value_of_origin)))
    ]
    if contradictions:
        raise SecondhandError(
            f"--from {settings.data.from_} cannot be combined with {', '.join(contradictions)}. The network, the "
            "spectrogram settings and the splits are those of the model. Leave these flags out, or train without --from"
        )
    if origin.rule.calibrator.background and settings.data.background is None:
        if (file := background_file(settings.data.from_)).is_file():
            data["background"] = str(file)
        else:
            log.warning(
                "--from %s was trained with a background class, but its file %s is missing, so the new model would "
                "lose this class. Give the files as --background", settings.data.from_, file.name,
            )  # fmt: skip
    settings = settings.but(**network, **data)
    if "epochs" in typed:
        return settings
    if settings.network.fits and settings.train.freeze_epochs == "fit":
        log.info("Warm start: only the head is trained. To train the body as well: --epochs 2")
        return settings.but(epochs=EPOCHS[0])
    return settings.but(epochs=EPOCHS[1])


def _split_settings_of(model: Path) -> dict[str, Any]:
    """Settings `SPLITTING` of the run around a model folder; empty without a run."""
    file = model.absolute().parent / "config.yaml"
    if not file.is_file():
        return {}
    config, defaults = read_settings(file), vars(DataSettings())
    return {
        name: config[name]
        for name in SPLITTING
        if config.get(name, defaults[name]) != defaults[name]
    }


def _as_yaml(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def lineage(data: DataSettings, origin: Bundle, folder: Path) -> dict[str, Any]:
    """Provenance of a warm start: the earlier models, oldest first, and the SHA-256 of the run's items."""
    assert data.from_ is not None
    items = earlier_items(data)
    parent = as_ancestor(origin, data.from_) | {
        "items_sha256": "" if items is None else hashlib.sha256(items.read_bytes()).hexdigest()
    }
    items_sha256 = hashlib.sha256((folder / "items.csv").read_bytes()).hexdigest()
    # The model folder may come from an untrusted source.
    earlier_models = origin.provenance.get("lineage")
    return {
        "lineage": [*(earlier_models if isinstance(earlier_models, list) else []), parent],
        "items_sha256": items_sha256,
    }
