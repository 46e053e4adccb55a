"""What a run does where its user left a setting open, as a table of cases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from datasets.core.errors import SecondhandError
from datasets.items.facts import Inputs
from datasets.items.items import Items
from learners.backbones.choices import RECIPES, SOUND_BACKBONE
from learners.cli.settings import Settings
from learners.runs.resolve import Machine, resolve

PERCH = SimpleNamespace(network="perch_v2", width=1280)
#: What a warm start inherits.
MODEL = {
    "backbone": "convnext_atto", "size": 64, "head": "stages", "dropout": 0.1, "weights": "published",
    "resize": "pad", "kind": "picture", "overlap": 0.5,
}  # fmt: skip
BUSY = Machine("bf16", 3)
LONG = Machine("bf16", 3, compiling_pays=True)


def items(kind: str) -> Items:
    none = Items(pd.DataFrame(), pd.DataFrame(), kind, "files")
    return none.knowing(Inputs(PERCH))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "known", "expected"),
    [
        # Before the data are read everything is open.
        ({}, {}, {"backbone": "default", "freeze_epochs": "fit", "lr": None, "resize": None}),
        # The network, by the kind of the data.
        ({}, {"items": "picture"}, {"backbone": "embedded", "resize": "crop", "size": None}),
        ({}, {"items": "strain"}, {"backbone": "embedded", "resize": "squash"}),
        ({}, {"items": "sound"}, {"backbone": SOUND_BACKBONE, "resize": "squash"}),
        ({}, {"items": "sound", "backbone": "embedded/speech"}, {"backbone": "embedded/speech"}),
        ({"size": 64}, {"items": "sound"}, {"backbone": "embedded", "size": 64}),
        ({"weights": "none"}, {"items": "sound"}, {"backbone": "embedded"}),
        ({"labels": "multi"}, {"items": "sound"}, {"backbone": "embedded"}),
        ({"spectrogram": "{rate: 8000}"}, {"items": "sound"}, {"backbone": "embedded"}),
        ({"backbone": "test_vit"}, {"items": "sound"}, {"backbone": "test_vit"}),
        ({"resize": "pad"}, {"items": "picture"}, {"resize": "pad"}),
        ({"resize": "squash"}, {"items": "sound"}, {"resize": "squash"}),
        # The training, by the head and the kind: with a fitted head the first layers are frozen.
        ({}, {"items": "picture"}, {"epochs": 5, "freeze_epochs": "fit", "lr": 3e-4, "lr_mult": None}),
        ({}, {"items": "sound"}, {"freeze_epochs": "fit", "lr": 3e-4, "lr_mult": None}),
        *(
            (asked, {"items": kind}, {"freeze_epochs": 1, "lr": 6e-3, "lr_mult": lr_mult})
            for asked in ({"head": "cosine"}, {"freeze_epochs": 1})
            for kind, lr_mult in (("picture", 100), ("strain", 100), ("sound", 2))
        ),
        # Of a body that fine-tuning does not improve, the head.
        ({"backbone": "embedded/sound"}, {"items": "sound"}, {"epochs": 0, "freeze_epochs": "fit"}),
        ({}, {"items": "sound", "backbone": "embedded/sound"}, {"epochs": 0, "lr": 3e-4}),
        ({}, {"items": "sound", "backbone": "embedded/speech"}, {"epochs": 5}),
        ({"epochs": 5}, {"items": "sound", "backbone": "embedded/sound"}, {"epochs": 5}),
        ({"head": "cosine"}, {"items": "sound", "backbone": "embedded/sound"}, {"epochs": 5, "freeze_epochs": 1}),
        ({"head": "linear"}, {"items": "picture"}, {"freeze_epochs": "fit"}),
        ({"head": "fastai"}, {"items": "picture"}, {"freeze_epochs": 1, "lr": 6e-3, "dropout": 0.5}),
        ({"head": "fastai", "dropout": 0.1}, {"items": "picture"}, {"dropout": 0.1}),
        ({"head": "stages"}, {"items": "picture"}, {"freeze_epochs": "fit"}),
        ({"head": "cosine", "epochs": 0}, {"items": "picture"}, {"freeze_epochs": 20}),
        ({"freeze_epochs": 3}, {"items": "picture"}, {"freeze_epochs": 3, "lr": 6e-3}),
        # A backbone's own recipe, from random weights, as far as it was left open.
        (
            {"backbone": "scratch/mnist_cnn", "weights": "none"}, {"items": "picture"},
            {"epochs": 14, "freeze_epochs": 0, "lr": 2e-3, "dropout": 0.5, "flip": False, "lr_mult": 1.0},
        ),
        (
            {"backbone": "scratch/mnist_cnn", "weights": "none", "epochs": 3, "flip": True}, {"items": "picture"},
            {"epochs": 3, "freeze_epochs": 0, "flip": True},
        ),
        (
            {"backbone": "scratch/mnist_cnn", "weights": "none", "epochs": 0}, {"items": "picture"},
            {"epochs": 0, "freeze_epochs": 20},
        ),
        (
            {"backbone": "scratch/mnist_cnn", "weights": "none", "optimizer": "adadelta"}, {"items": "picture"},
            {"lr": 1.0, "wd": 0.0, "epochs": 14},
        ),
        (
            {"backbone": "scratch/mnist_cnn", "weights": "mnist_cnn.pt"}, {"items": "picture"},
            {"epochs": 5, "freeze_epochs": "fit", "flip": True},
        ),
        ({"optimizer": "adadelta", "lr": 0.3, "wd": 0.1}, {"items": "picture"}, {"lr": 0.3, "wd": 0.1}),
        # Random weights: one rate for all layers.
        *(
            ({"weights": "none"}, {"items": kind}, {"freeze_epochs": 1, "lr": 6e-3, "lr_mult": 1.0})
            for kind in ("picture", "strain", "sound")
        ),
        ({"lr": 1.0, "lr_mult": 7}, {"items": "sound"}, {"lr": 1.0, "lr_mult": 7}),
        # A warm start: the model's network, and few epochs.
        ({}, {"origin": MODEL}, {**MODEL, "epochs": 0, "lr": None}),
        ({}, {"origin": MODEL, "items": "picture"}, {**MODEL, "lr": 3e-4, "lr_mult": None}),
        ({"epochs": 3}, {"origin": MODEL}, {"epochs": 3}),
        ({"epochs": 5}, {"origin": MODEL}, {"epochs": 5}),
        ({"freeze_epochs": 1}, {"origin": MODEL}, {"epochs": 2}),
        ({}, {"origin": MODEL | {"head": "cosine"}, "items": "picture"}, {"epochs": 2, "freeze_epochs": 1}),
        # The machine.
        ({}, {"items": "picture", "machine": BUSY}, {"precision": "bf16", "threads": 3, "workers": None}),
        ({"precision": "fp32", "threads": 1}, {"machine": BUSY}, {"precision": "fp32", "threads": 1}),
        # Long trainings are compiled where steps are of half precision, unless the user has said.
        ({}, {"machine": BUSY}, {"compile": False}),
        ({"compile": True}, {"machine": BUSY}, {"compile": True}),
        ({}, {"machine": LONG}, {"compile": True, "precision": "bf16"}),
        ({"precision": "fp16"}, {"machine": LONG}, {"compile": True}),
        ({"precision": "fp32"}, {"machine": LONG}, {"compile": False}),
        ({"precision": "tf32"}, {"machine": LONG}, {"compile": False}),
        ({"compile": False}, {"machine": LONG}, {"compile": False}),
        ({}, {}, {"compile": None}),
        # A resumed run has settings that were resolved.
        ({"resume": "runs/x"}, {"origin": MODEL, "items": "sound", "machine": BUSY}, Settings().flat() | {"resume": "runs/x"}),
    ],
)  # fmt: skip
def test_what_is_left_open_follows_from_what_is_known(
    asked: dict[str, Any], known: dict[str, Any], expected: dict[str, Any]
) -> None:
    if "items" in known:
        known = {**known, "items": items(known["items"])}
    before = Settings().but(**asked)
    after = resolve(before, **known)
    flat = after.flat()
    assert {name: flat[name] for name in expected} == expected
    assert {name: flat[name] for name in asked} == asked
    assert after.chosen == before.chosen == {*asked}
    assert before == Settings().but(**asked)
    open_ = {name for name, value in flat.items() if value != before.flat()[name]}
    assert open_ <= {
        *MODEL, "epochs", "freeze_epochs", "lr", "lr_mult", "precision", "threads", "compile", "wd",
        *RECIPES.get(flat["backbone"], {}),
    }, "nothing else is filled in"  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "kind", "named"),
    [
        ({"resize": "pad"}, "sound", ["--resize pad"]),
        ({"spectrogram": "{rate: 8000}"}, "picture", ["--spectrogram rate"]),
    ],
)
def test_what_does_not_suit_the_data_is_named(
    asked: dict[str, Any], kind: str, named: list[str]
) -> None:
    with pytest.raises(SecondhandError) as error:
        resolve(Settings().but(**asked), items=items(kind))
    assert all(flag in str(error.value) for flag in named)
