"""A run over a folder of which a fifth is bad: it ends as the run without them does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from datasets.items.table import load_table
from learners.finetune import main
from tests.bad_files import DAMAGES, write_digits

pytestmark = [pytest.mark.usefixtures("unreported"), pytest.mark.forks]

QUICK = ["--backbone", "scratch/digits_cnn", "--no-pretrained", "--size", "32", "--epochs", "1",
         "--freeze-epochs", "0", "--no-flip", "--workers", "0", "--threads", "1"]  # fmt: skip


def test_every_damage_is_refused(tmp_path: Path) -> None:
    damaged = write_digits(tmp_path, 60, 2 * len(DAMAGES))
    assert set(damaged.values()) == {*DAMAGES}
    table = load_table(tmp_path)
    assert {item.path for item in table.rejected} == {*damaged}
    assert len(table.frame) == 60
    assert all(item.reason.isprintable() and len(item.reason) < 200 for item in table.rejected)


@pytest.mark.slow
def test_a_fifth_of_the_folder_is_bad(tmp_path: Path) -> None:
    damaged = write_digits(tmp_path / "mixed", 160, 40)
    write_digits(tmp_path / "good", 160, 0)
    found = {}
    for name in ("mixed", "good"):
        out = tmp_path / "runs" / name
        assert main(["--data", str(tmp_path / name), "--out", str(out), *QUICK]) == 0
        found[name] = json.loads((out / "model" / "config.json").read_text())["metrics"]
    rejected = pd.read_csv(tmp_path / "runs" / "mixed" / "rejected.csv")
    assert set(rejected["path"]) == {*damaged}
    assert len(rejected) == 40
    assert rejected["reason"].str.len().min() > 5
    # The same files are left, so the same run is: to the last bit of every figure.
    assert found["mixed"].keys() == found["good"].keys()
    for key, value in found["good"].items():
        if isinstance(value, float) and "seconds" not in key:
            assert np.isclose(found["mixed"][key], value, rtol=0, atol=0, equal_nan=True), key
