"""datasets.items.lengths: classes that the length of a clip gives away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

from datasets.items.lengths import telling_lengths

RATE = 4000


def clips(folder: Path, seconds: dict[str, list[float]]) -> pd.DataFrame:
    rows = []
    for label, lengths in seconds.items():
        for number, length in enumerate(lengths):
            path = str(folder / f"{label}{number}.wav")
            soundfile.write(path, np.zeros(round(length * RATE)), RATE)
            rows.append({"path": path, "label": label})
    return pd.DataFrame(rows).assign(start=np.nan, end=np.nan)


RNG = np.random.default_rng(0)
SAME = list(RNG.uniform(1, 3, 20))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"short": [1.0] * 20, "long": [4.0] * 20}, ["long", "short"]),
        ({"a": [2.0] * 20, "b": [2.0] * 20}, []),
        ({"a": SAME, "b": list(RNG.uniform(1, 3, 20))}, []),
        ({"cat": [4.5] * 15, "a": SAME, "b": list(RNG.uniform(1, 3, 20))}, ["cat"]),
        ({"a": [6.0] * 20, "b": [9.0] * 20}, []),  # longer than the window, so cut into windows
        ({"a": [1.0] * 20, "b": [4.0] * 9}, []),  # too few to say
        ({"most": list(RNG.uniform(1, 3, 90)), "few": list(RNG.uniform(1, 3, 10))}, []),
    ],
)
def test_classes_with_a_length_of_their_own_are_found(
    tmp_path: Path, seconds: dict[str, list[float]], expected: list[str]
) -> None:
    found = telling_lengths(clips(tmp_path, seconds), window=5.0)
    assert [name for name, _ in found.classes] == expected
    for name, median in found.classes:
        assert median == pytest.approx(np.median(seconds[name]), abs=1 / RATE)


def test_parts_of_recordings_and_damaged_files_are_left_out(tmp_path: Path) -> None:
    frame = clips(tmp_path, {"short": [1.0] * 20, "long": [4.0] * 20})
    assert telling_lengths(frame.assign(start=0.0, end=1.0), window=5.0).classes == ()
    Path(frame["path"][0]).write_bytes(b"RIFF")
    assert len(telling_lengths(frame, window=5.0).classes) == 2
