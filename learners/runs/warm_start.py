"""Warm start (``--from runs/x/model``): the earlier model, and what a training inherits from it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets.cli.options import flag, read_settings
from datasets.core.errors import SecondhandError
from datasets.images.settings import FLAGS
from datasets.items.labels import is_nothing
from datasets.items.settings import SPECTROGRAM_OPTIONS, read_spectrogram
from datasets.steps.earlier import background_file, earlier_items
from learners.cli.settings import Settings
from learners.model.bundle import Bundle, as_ancestor, load_bundle
from learners.model.places import model_folder

log = logging.getLogger(__name__)

#: Settings of the earlier run that also apply to added files, so that its splits do not change.
SPLITTING = ("group_by", "near_duplicates", "path_column", "label_column")


def start_from(asked: Settings, *, network: bool = True) -> tuple[Settings, Bundle | None]:
    """The settings with the folder of the model of ``--from``, and that model; None without ``--from``.

    Parameters
    ----------
    network : also load the model's network.
    """
    if asked.warm_start.from_ is None:
        return asked, None
    folder = model_folder(asked.warm_start.from_)
    origin = load_bundle(folder, network=network)
    if not origin.spec.takes_pixels:
        raise SecondhandError(
            f"--from {folder}: a training cannot start from a model of embeddings. Training anew takes seconds: name the "
            "earlier and the new files as --data, and leave --from out"
        )
    return asked.but(**{"from": folder}), origin


def inherited(asked: Settings, origin: Bundle | None) -> dict[str, Any]:
    """The settings that a training has from the model of ``--from`` and its run, as in `Settings.flat`.

    They are those of network, overlap and splits; empty without a model.

    Raises
    ------
    SecondhandError : settings that the user chose contradict the model; the message names all of them.
    """
    if origin is None:
        return {}
    folder, given = asked.warm_start.from_, asked.given()
    assert folder is not None
    settings = {
        name: getattr(origin.spec, name) for name in ("backbone", "size", "head", "dropout")
    }
    settings |= {"weights": "published", "resize": origin.preprocessing.resize}
    settings |= {
        "kind": origin.kind.name,
        "overlap": origin.overlap,
        **_read_split_settings(folder),
    }
    samples = origin.preprocessing.samples
    settings |= dict.fromkeys(FLAGS) if samples is None else samples.flags()
    if "group_by" in given:  # another is refused only where it crosses the splits (`check_groups`)
        settings.pop("group_by", None)
    drawn = {
        "picture" if name == "size" else name: value
        for name, value in (origin.spectrogram or {}).items()
    }
    if given.get("spectrogram"):
        given |= read_spectrogram(given["spectrogram"])
    defaults = {"kind": "auto", "head": "auto"}
    contradictions = [
        f"{'--spectrogram ' + name + ':' if name in SPECTROGRAM_OPTIONS else flag(name)} {given[name]} (the model has {value_of_origin})"
        for name, value_of_origin in (settings | drawn).items()
        if name in given
        and _as_yaml(given[name])
        not in (_as_yaml(value_of_origin), defaults.get(name, _as_yaml(value_of_origin)))
    ]
    if contradictions:
        raise SecondhandError(
            f"--from {folder} cannot be combined with {', '.join(contradictions)}. The network, the "
            "spectrogram settings and the splits are those of the model. Leave these flags out, or train without --from"
        )
    if origin.rule.calibrator.background and asked.classes.background is None:
        if (file := background_file(folder)).is_file():
            settings["background"] = str(file)
        else:
            log.warning(
                "--from %s was trained with a background class, but its file %s is missing, so the new model would "
                "lose this class. Give the files as --background", folder, file.name,
            )  # fmt: skip
    return settings


def check_empties(origin: Bundle | None, settings: Settings, classes: Sequence[str]) -> None:
    """Raise SecondhandError if items labelled `NOTHING` would become a class, because the background of ``origin`` is lost."""
    if origin is None or not origin.rule.calibrator.background or settings.classes.background:
        return
    if (name := next(filter(is_nothing, classes), "")) and name not in origin.classes:
        raise SecondhandError(
            f"--from {settings.warm_start.from_}: files of --data are labelled {name}, which is the background of this model. Its other "
            "background files are not known any more: give them as --background"
        )


def _read_split_settings(model: Path) -> dict[str, Any]:
    """Settings `SPLITTING` of the run around a model folder; empty without a run."""
    file = model.absolute().parent / "config.yaml"
    if not file.is_file():
        return {}
    config, defaults = read_settings(file), Settings().flat()
    return {
        name: config[name]
        for name in SPLITTING
        if config.get(name, defaults[name]) != defaults[name]
    }


def _as_yaml(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def lineage(model: Path, origin: Bundle, folder: Path) -> dict[str, Any]:
    """Provenance of a warm start: the earlier models, oldest first, and the SHA-256 of the run's items."""
    items = earlier_items(model)
    parent = as_ancestor(origin, model) | {
        "items_sha256": "" if items is None else hashlib.sha256(items.read_bytes()).hexdigest()
    }
    items_sha256 = hashlib.sha256((folder / "items.csv").read_bytes()).hexdigest()
    # The model folder may come from an untrusted source.
    earlier_models = origin.provenance.get("lineage")
    return {
        "lineage": [*(earlier_models if isinstance(earlier_models, list) else []), parent],
        "items_sha256": items_sha256,
    }
