"""The kind of embeddings: the names of its files, what it can do, and the settings of a training on it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from datasets.kinds.base import KINDS, empty_lookup, find_kind, kind_of
from learners.cli.settings import Settings
from learners.runs.resolve import resolve
from tests.learners.runs.test_resolve import items


def test_the_longest_suffix_tells_the_kind() -> None:
    assert kind_of("d.birdnet.embeddings.txt") == "embedding"  # which ends like strain
    assert find_kind("a.npz") is KINDS["embedding"]


def test_it_is_sent_to_other_processes_and_has_neither_spectrogram_nor_moment() -> None:
    kind = KINDS["embedding"]
    assert pickle.loads(pickle.dumps(kind)) == kind
    assert kind.takes({})
    assert not kind.takes({"rate": 16_000})
    assert kind.cells(Part("a")) == {}
    kind.check_moment(None)
    with pytest.raises(SecondhandError, match=r"--at 1\.5"):
        kind.check_moment(1.5)


def test_its_lookup_begins_empty() -> None:
    lookup = empty_lookup()
    assert lookup is not None
    assert (len(lookup), lookup.parts(), lookup.files) == (0, [], [])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"backbone": "embedding/perch_v2", "size": 1280, "epochs": 0, "lr": 3e-4, "resize": None}),
        ({"head": "cosine"}, {"epochs": 0, "freeze_epochs": 20, "lr_mult": 100}),
        ({"epochs": 0, "size": 1280}, {"epochs": 0}),
    ],
)  # fmt: skip
def test_only_a_head_is_trained(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    flat = resolve(Settings().but(**asked), items=items("embedding")).flat()
    assert {name: flat[name] for name in expected} == expected


def test_nothing_of_them_is_computed_on_other_machines() -> None:
    pytest.importorskip("fields.cluster")
    with pytest.raises(
        SecondhandError, match="--cluster local: embeddings of perch_v2 have no body"
    ):
        resolve(Settings().but(cluster="local"), items=items("embedding"))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"size": 64, "tta": 4}, ["--size 64", "--tta 4"]),
        ({"epochs": 5}, ["--epochs 5"]),
        ({"weights": "none", "epochs": 3}, ["--epochs 3", "--weights none"]),
    ],
)
def test_settings_of_a_body_are_named(asked: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(SecondhandError) as error:
        resolve(Settings().but(**asked), items=items("embedding"))
    assert all(flag in str(error.value) for flag in named)
