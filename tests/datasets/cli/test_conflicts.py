"""Tables of settings that exclude or need each other: when a condition holds, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from datasets.cli.conflicts import Conflict, Missing, Need, Refused
from datasets.cli.options import Checked, Condition, option, positional
from datasets.core.errors import SecondhandError


@dataclass(kw_only=True)
class Call(Checked):
    """call"""

    paths: list[str] = positional("Files.", [])
    out: Path | None = option(None, "Out.")
    overwrite: bool = option(False, "Overwrite.")
    labels: bool = option(True, "Labels.")
    at: float | None = option(None, "Time.")
    bs: int = option(16, "Batch.")
    accumulate: int | None = option(None, "Accumulate.")
    auth: list[str] = option([], "Auth.")
    from_: Path | None = option(None, "From.")


MULTIPLE = Conflict(
    "accumulate", "bs", remedy="use a multiple", clash=lambda files, batch: (files or 0) % batch
)
PASSWORD = Refused("auth", "no password", "write NAME:PASSWORD", of=bool, secret=True)


@pytest.mark.parametrize(
    ("condition", "values", "problem"),
    [
        (Conflict("at", "labels"), {"at": 1126259462.4}, ""),
        (
            Conflict("at", "labels", "a moment has none"),
            {"at": 1126259462.4, "labels": False},
            "--at 1126259462.4 with --no-labels (a moment has none: leave one of them out)",
        ),
        (MULTIPLE, {"accumulate": 32}, ""),
        (MULTIPLE, {"accumulate": 20}, "--accumulate 20 with --bs 16 (use a multiple)"),
        (
            Conflict("paths", "at", unless="auth"),
            {"paths": ["a.wav", "b.wav"], "at": 0.0},
            "a.wav … with --at 0 without --auth (leave one of them out)",
        ),
        (Conflict("paths", "at", unless="auth"), {"paths": ["a"], "at": 0.0, "auth": ["x"]}, ""),
        (Need("overwrite", ("out",), "name it"), {"overwrite": True, "out": Path("o")}, ""),
        (
            Need("from", ("out", "paths"), "name one"),
            {"from_": Path("model")},
            "--from model without --out or PATH (name one)",
        ),
        (Refused("bs", "too small", "use 2", of=lambda n: n == 1), {}, ""),
        (
            Refused("bs", "too small", "use 2", of=lambda n: n == 1),
            {"bs": 1},
            "--bs 1 (too small: use 2)",
        ),
        (PASSWORD, {"auth": ["me:secret"]}, "--auth (no password: write NAME:PASSWORD)"),
        (Missing(("paths", "at"), "no files", "name some"), {"at": 0.0}, ""),
        (Missing(("paths", "at"), "no files", "name some"), {}, "no files (name some)"),
    ],
)
def test_a_condition_says_what_is_wrong_as_it_was_typed(
    condition: Condition, values: dict[str, Any], problem: str
) -> None:
    assert condition.problem(Call(**values).call) == problem


def test_everything_that_is_wrong_is_said_at_once() -> None:
    class Both(Call):
        conflicts = (Need("overwrite", ("out",), "name it"), MULTIPLE)

    with pytest.raises(SecondhandError, match=r"--overwrite without --out .*; --accumulate 20 "):
        Both(overwrite=True, accumulate=20).check()
