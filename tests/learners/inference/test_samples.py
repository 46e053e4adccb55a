"""A picture that is not of 8 bits has the same pixels on every route: training, prediction, page, report, ONNX."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.panels import input_panels
from datasets.core.part import Part
from datasets.images.decoded import PictureOpener
from datasets.images.opening import pixels
from datasets.images.settings import PictureSettings
from datasets.images.standalone import model_input
from datasets.loaders.blocks import LabelledItem, OpenPicture
from learners.inference.decoding import Pages, Pieces
from learners.inference.exporting import metadata
from learners.inference.predictor import Predictor
from learners.model.bundle import Bundle, load_bundle, save_bundle
from learners.predict import main
from learners.report.galleries import Pictures

tifffile = pytest.importorskip("tifffile")
KEPT = Path(__file__).parents[2] / "kept/model"
RNG = np.random.default_rng(0)


def files(folder: Path) -> dict[str, Path]:
    """Pictures of several depths, with several pages and channels."""
    contents = {
        "12.tif": RNG.integers(0, 4096, (60, 70)).astype(np.uint16),
        "float.tif": RNG.normal(500, 200, (60, 70)).astype(np.float32),
        "stack.tif": RNG.integers(0, 4096, (3, 60, 70)).astype(np.uint16),
        "five.tif": RNG.integers(0, 4096, (60, 70, 5)).astype(np.uint16),
    }
    for name, values in contents.items():
        options = {"planarconfig": "contig"} if name == "five.tif" else {}
        tifffile.imwrite(folder / name, values, photometric="minisblack", **options)
    return {name: folder / name for name in contents}


CASES = {
    "12.tif": PictureSettings(range="fixed", low=(0.0,), high=(4095.0,)),
    "float.tif": PictureSettings(range="file"),
    "stack.tif": PictureSettings(range="fixed", low=(100.0,), high=(4000.0,), page="max"),
    "five.tif": PictureSettings(
        range="fixed", low=(0.0, 9.0, 99.0), high=(4095.0, 3000.0, 2000.0), channels=(0, 4, 2)
    ),
}


@pytest.fixture(scope="module")
def kept() -> Bundle:
    """A model of sounds, which takes pictures, too, once it has no spectrogram settings."""
    return replace(load_bundle(KEPT), spectrogram=None)


@pytest.mark.parametrize("name", CASES)
def test_every_route_draws_the_same_pixels(name: str, kept: Bundle, tmp_path: Path) -> None:
    settings = CASES[name]
    part = Part(str(files(tmp_path)[name]))
    written = replace(
        kept, preprocessing=replace(kept.preprocessing, samples=settings), folder=None
    )
    bundle = load_bundle(save_bundle(written, tmp_path / "model"))
    assert bundle.preprocessing.samples == settings
    predictor = Predictor(bundle)
    try:
        predicted = predictor.open(part)
        panels = input_panels(predictor, part, 0)
        shown = Pictures(predictor).render(part)
    finally:
        predictor.close()
    assert isinstance(predicted, np.ndarray)
    assert len(np.unique(predicted)) > 64
    trained = OpenPicture(PictureOpener(bundle.preprocessing, 1.0, None))
    source = metadata(bundle)["secondhand.onnx_input"]
    alone: dict[str, object] = {}
    exec(source, alone)
    exported = alone["model_input"](part.path, bundle.preprocessing.to_dict())  # type: ignore[operator]
    for other in (
        pixels(trained(LabelledItem(part, "a"), split_idx=1)),
        pixels(panels[0].picture),
        model_input(part.path, bundle.preprocessing.to_dict())[0],
        exported[0],
        pixels(bundle.preprocessing.fit(shown)),
    ):
        np.testing.assert_array_equal(other, predicted)


def test_a_bad_page_is_a_bad_file(kept: Bundle, tmp_path: Path) -> None:
    settings = PictureSettings(page=7)
    bundle = replace(kept, preprocessing=replace(kept.preprocessing, samples=settings))
    predictor = Predictor(bundle)
    try:
        (answer,) = predictor.predict([files(tmp_path)["stack.tif"]])
    finally:
        predictor.close()
    assert answer.reason.startswith("bad file: it has no page 7: there are pages 0 to 2")


def test_each_page_is_predicted_as_a_file_of_its_own_is(
    kept: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a stack, of an animation and of a picture of one page, in CSV, in JSON lines and in Python."""
    settings = PictureSettings(range="fixed", low=(0.0,), high=(4095.0,))
    preprocessing = replace(kept.preprocessing, samples=settings)
    bundle = replace(kept, preprocessing=preprocessing, folder=None)
    model = save_bundle(bundle, tmp_path / "model")
    (tmp_path / "files").mkdir()
    stack = RNG.integers(0, 4096, (3, 60, 70)).astype(np.uint16)
    frames = [Image.fromarray(RNG.integers(0, 255, (60, 70), dtype=np.uint8)) for _ in range(2)]
    tifffile.imwrite(tmp_path / "files/b.tif", stack, photometric="minisblack")
    frames[0].save(tmp_path / "files/a.gif", save_all=True, append_images=frames[1:])
    frames[1].save(tmp_path / "files/c.png")
    (tmp_path / "files/d.tif").write_bytes(b"II*\0")
    alone = []
    for number, page in enumerate([*frames, *stack, frames[1]]):
        alone.append(tmp_path / f"{number}.tif")
        tifffile.imwrite(alone[-1], np.asarray(page), photometric="minisblack")
    plain = Predictor(bundle)
    expected = [(one.best, one.probability) for one in plain.predict(alone)]
    plain.close()
    places = [("a.gif", 0), ("a.gif", 1), ("b.tif", 0), ("b.tif", 1), ("b.tif", 2), ("c.png", None)]

    words = [str(model), str(tmp_path / "files"), "--windows", "--threshold", "0"]
    assert main(words) == 3
    written = capsys.readouterr()
    *rows, bad = csv.DictReader(io.StringIO(written.out))
    assert [(Path(row["path"]).name, row["at"]) for row in rows] == [
        (name, "" if page is None else str(page)) for name, page in places
    ]
    for row, (best, probability) in zip(rows, expected, strict=True):
        assert row["best"] == best
        assert float(row["probability"]) == pytest.approx(probability, abs=1e-4)
    assert bad["reason"].startswith("bad file: damaged TIFF")
    assert "1 of 4 files could not be read" in written.err

    out = tmp_path / "pages.jsonl"
    assert main([*words, "--format", "jsonl", "--out", str(out)]) == 3
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(Path(line["path"]).name, line["at"]) for line in lines[:-1]] == places
    capsys.readouterr()
    assert main([*words, "--format", "table"]) == 3
    table = capsys.readouterr().out.splitlines()
    assert ["page 2" in line for line in table] == [False] * 4 + [True, False, False]

    predictor = Predictor(bundle, pieces=Pages(bundle.kind, Pieces()))
    (whole,) = predictor.predict([tmp_path / "files/b.tif"])
    (page,) = predictor.predict([Part(str(tmp_path / "files/b.tif"), at=1)])
    predictor.close()
    assert [one.part.at for one in whole.windows] == [0, 1, 2]
    assert (whole.part.at, page.part.at, page.windows) == (None, 1, ())
    assert page.probability == pytest.approx(expected[3][1], abs=1e-4)
