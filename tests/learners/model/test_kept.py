"""Model folders of every format there was, as its own version wrote them, open and answer as they did.

Each archive in ``kept`` holds a folder ``model`` and, in ``answers.json``, what that version answered for
`pictures`. Before `FORMAT` is raised, or a key of config.json changes, one of today's is added.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from learners.inference import Predictor
from learners.model import bundle

KEPT = Path(__file__).parent / "kept"


def pictures(folder: Path) -> list[str]:
    y, x = np.mgrid[:40, :48]
    for n in range(4):
        bands = [(x * (n + 3) + y * (band + 1) * (n + 1)) % 256 for band in range(3)]
        Image.fromarray(np.stack(bands, -1).astype(np.uint8)).save(folder / f"{n}.png")
    return sorted(map(str, folder.glob("*.png")))


@pytest.mark.parametrize("name", sorted(file.name for file in KEPT.iterdir()))
def test_it_opens_and_answers_as_it_did(name: str, tmp_path: Path) -> None:
    shutil.unpack_archive(KEPT / name, tmp_path, filter="data")
    predictor = Predictor(tmp_path / "model", device="cpu")
    assert (predictor.engine == "onnx") == ("onnx" in name)
    answers = [one._asdict() for one in predictor.predict(pictures(tmp_path))]
    then = json.loads((tmp_path / "answers.json").read_text())
    for key in ("best", "label", "reason"):
        assert [one[key] for one in answers] == [one[key] for one in then]
    for key in ("probability", "distance_p"):
        now, before = ([one[key] for one in some] for some in (answers, then))
        np.testing.assert_allclose(now, before, atol=1e-4)


def test_there_is_one_of_each_format() -> None:
    formats = {int(file.name.split("-")[1]) for file in KEPT.iterdir()}
    assert formats == set(range(1, bundle.FORMAT + 1))
