"""Ways to call predict: which one claims a call, and the flags that it has."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from datasets.core.errors import SecondhandError
from datasets.kinds.base import KINDS
from learners.calls.base import CALLS, Call, find_call
from learners.cli.commands import OutputSettings
from learners.outputs.base import OUTPUTS


def settings(*paths: str, **given: Any) -> SimpleNamespace:
    defaults = {field.name: field.default for field in fields(OutputSettings)}
    return SimpleNamespace(**{**defaults, "model": "m", "paths": [*paths], **given})


def call(kind: str, *paths: str, **given: Any) -> Call:
    bundle: Any = SimpleNamespace(kind=KINDS[kind], provenance={}, classes=["a"])
    return find_call(settings(*paths, **given), bundle, OUTPUTS["csv"])


def test_a_call_is_claimed_by_its_paths_and_flags_before_the_kind_of_its_model(tmp_path):
    results = tmp_path / "detections.json"
    results.write_text("{}")
    for name, of in {
        "pictures": call("picture", "a.jpg"),
        "recordings": call("sound", "a.wav"),
        "strain": call("strain", "a.hdf5"),
        "embeddings": call("embedding", "a.npz"),
        "megadetector": call("picture", str(results)),
        "triggers": call("strain", triggers="t.csv", strain="x"),
    }.items():
        assert of.name == name
    assert len(CALLS) == 7


def test_flags_of_calls_are_settings():
    for one in CALLS.values():
        named = {*one.flags, *one.excludes, *(name for pair in one.needs for name in pair)}
        named |= {name for first, second, _ in one.apart for name in (first, second)}
        assert named <= {field.name for field in fields(OutputSettings)}, one.name


@pytest.mark.parametrize(
    ("kind", "given", "flag", "owner"),
    [
        ("picture", {"windows": True}, "--windows", "MegaDetector"),
        ("picture", {"min_length": 1.0, "events": True}, "--min-length 1", "sound"),
        ("picture", {"channel": "H1"}, "--channel H1", "strain"),
        ("sound", {"min_box_confidence": 0.0}, "--min-box-confidence 0", "MegaDetector"),
        ("strain", {"deployments": "d.csv"}, "--deployments d.csv", "pictures"),
        ("strain", {"scores": True}, "--scores", "--triggers"),
        ("strain", {"strain": "x"}, "--strain x", "--triggers"),
        ("embedding", {"events": True}, "--events", "strain"),
    ],
)
def test_a_flag_of_other_calls_is_refused(kind, given, flag, owner):
    with pytest.raises(SecondhandError, match=f"{flag} .*{owner}"):
        call(kind, "a", **given)


@pytest.mark.parametrize(
    ("kind", "given", "flags"),
    [
        ("sound", {"windows": True, "events": True}, ("--windows", "--events")),
        ("strain", {"events": True, "at": 2.5}, ("--events", "--at 2.5")),
        ("sound", {"gap": 1.0}, ("--gap", "--events")),
        ("picture", {"events": True, "threshold_per_class": "t"}, ("--threshold-per-class t",)),
        ("strain", {"triggers": "t", "strain": "x", "format": "csv"}, ("--format csv", "--triggers")),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_together_are_refused(kind, given, flags):
    with pytest.raises(SecondhandError) as error:
        call(kind, *(() if "triggers" in given else ("a",)), **given)
    for flag in flags:
        assert flag in str(error.value)
