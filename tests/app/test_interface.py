from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.__main__ import newest_model
from app.interface import build_page
from datasets.errors import SecondhandError
from learners.backbones import NetworkSpec, build
from learners.bundle import Bundle
from learners.predictor import Predictor
from tests.learners.confidences import settings
from tests.pictures import write_pictures


@pytest.mark.slow
def test_the_page_answers_as_the_predictor_does(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    from gradio_client import Client, handle_file

    torch.manual_seed(0)
    network, spec, preprocessing = build(NetworkSpec("test_resnet", 3, size=32), pretrained=False)
    bundle = Bundle(network.eval(), spec, ["a", "b", "c"], preprocessing, confidence=settings(3))
    predictor = Predictor(bundle, threshold=0)
    picture = write_pictures(tmp_path, per_class=1) / "red" / "red_000.jpg"
    (expected,) = predictor.predict([picture])
    page = build_page(predictor)
    _, url, _ = page.launch(prevent_thread_lock=True, server_name="127.0.0.1", quiet=True)
    try:
        label, best = Client(url, verbose=False).predict(handle_file(picture), api_name="/ask")
    finally:
        page.close()
    assert label == expected.label
    shown = {row["label"]: row["confidence"] for row in best["confidences"]}
    assert shown.keys() == {name for name, _ in expected.top}
    # The page hands the picture on as it decoded it: JPEG to WebP and back is not exact.
    assert shown[expected.best] == pytest.approx(expected.probability, abs=0.05)


def test_the_newest_model_is_the_one_written_last(tmp_path):
    import os

    with pytest.raises(SecondhandError, match="make demo"):
        newest_model(tmp_path)
    for age, name in enumerate(["old", "new", "older"]):
        file = tmp_path / name / "model" / "config.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        stamp = 1e9 + (5 if name == "new" else -age)
        os.utime(file, (stamp, stamp))
    assert newest_model(tmp_path) == Path(tmp_path / "new" / "model")
