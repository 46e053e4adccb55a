"""Exported models in their own runtimes, on arrays made here, against the predictor."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

import learners.inference.engine
import learners.inference.exporting
from datasets.audio.settings import MelSettings
from datasets.core.errors import SecondhandError
from datasets.images import standalone
from datasets.images.opening import Preprocessing, open_picture, pixels
from datasets.kinds.base import spectrogram_from_dict
from datasets.strain.settings import QScanSettings
from learners.backbones.building import build
from learners.backbones.names import SOUND
from learners.backbones.spec import NetworkSpec
from learners.export import main as export
from learners.inference.exporting import export_limitations, export_onnx, metadata
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.model.bundle import Bundle, save_bundle
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.scratch import vit
from tests.learners.exports import (
    CLASSES,
    NETWORKS,
    SIZE,
    TEMPERATURE,
    VIEWS,
    bundle,
    close,
    noise,
    softmax,
)
from tests.learners.rules import plain_rule

LONG = pytest.mark.long("the embedded backbone and a transformer are tried")
SHARING = (Path(__file__).parents[2] / "docs/sharing.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small() -> Bundle:
    return bundle()


@pytest.fixture(scope="module")
def written(small: Bundle, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output folder of the command, and what it printed."""
    root = tmp_path_factory.mktemp("files")
    folder = save_bundle(small, root / "run" / "model")
    with redirect_stdout(io.StringIO()) as output:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learners.inference.exporting, "export_onnx", lambda _, file: file.touch())
            assert export([str(folder)]) == 0
        assert export([str(folder), "--out", str(root / "new" / "v1.2.onnx")]) == 0
    return root, output.getvalue()


@pytest.fixture(scope="module")
def onnx_file(written: tuple[Path, str]) -> Path:
    return written[0] / "new" / "v1.2.onnx"


# --- files ----------------------------------------------------------------------------------------


def shallow(size: int, n_classes: None) -> vit.ViT:
    """Use ``scratch/vit_b_16`` with two of its twelve equal layers."""
    return vit.ViT(size=size, width=48, depth=2, heads=3, hidden=96, n_classes=n_classes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("embedded", "transformer") else LONG)
        for name in NETWORKS
    ],
)
def test_the_file_answers_as_the_predictor(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vit, "vit_b_16", shallow)
    model = bundle(*NETWORKS[name])
    session = onnxruntime.InferenceSession(export_onnx(model, tmp_path / "it.onnx"))
    assert [p.name for p in tmp_path.iterdir()] == ["it.onnx"]
    predictor = load_predictor(model, device="cpu")
    for n in (1, 3, 33):
        pixels = noise(n, seed=n)
        logits, features = predictor.forward(pixels)
        answers = session.run(["probabilities", "logits", "features"], {"pixels": pixels})
        close(answers[0], softmax(logits / TEMPERATURE))
        close(answers[1], logits)
        close(answers[2], features)
    assert np.ptp(logits, axis=0).max() > 1e-3, "the pictures are all the same to this network"


@pytest.mark.slow
def test_the_file_of_a_body_of_sound_cuts_patches_as_torch_does(tmp_path: Path) -> None:
    network, spec, preprocessing = build(NetworkSpec(SOUND, 4, 64, width=192), pretrained=False)
    model = replace(bundle(), built=network.eval(), spec=spec, preprocessing=preprocessing)
    session = onnxruntime.InferenceSession(export_onnx(model, tmp_path / "it.onnx"))
    predictor = load_predictor(model, device="cpu")
    for n in (1, 3):
        pixels = np.random.default_rng(n).integers(0, 256, (n, *spec.input_shape), dtype=np.uint8)
        logits, features = predictor.forward(pixels)
        answers = session.run(["logits", "features"], {"pixels": pixels})
        assert features.shape == (n, 2048)
        close(answers[0], logits)
        close(answers[1], features)


#: Runs a program as if this project were not installed.
ALONE = """
import runpy, sys
for name in ("secondhand", "fields", "app", "learners", "datasets", "torch", "timm", "fastai", "scipy"):
    sys.modules[name] = None
sys.path.insert(0, ".")
runpy.run_path("alone.py", run_name="__main__")
"""


@pytest.mark.slow
def test_the_documented_lines_answer_as_the_predictor_does(small: Bundle, tmp_path: Path) -> None:
    """They run as printed and need only ONNX Runtime, NumPy and Pillow, also beside a background."""
    (lines,) = re.findall(r"^```\n(import json\nimport os\n.*?)^```", SHARING, re.S | re.M)
    fitted = plain_rule(len(CLASSES), temperature=0.1, threshold=0.6)
    calibrator = replace(fitted.calibrator, background=True)
    model = replace(small, rule=replace(fitted, calibrator=calibrator))
    (tmp_path / "runs/photos").mkdir(parents=True)
    export_onnx(model, tmp_path / "runs/photos/model.onnx")
    shutil.copy(standalone.__file__, tmp_path)
    files = []
    for number, content in enumerate(odd_pictures().values()):
        files.append(f"{number}.jpg")
        (tmp_path / files[-1]).write_bytes(content)
    (tmp_path / "alone.py").write_text(lines.replace('["a.jpg", "b.png"]', str(files)))
    answers = load_predictor(model, device="cpu").predict([tmp_path / name for name in files])
    expected = [f"{a.label} {a.probability:.3f}" for a in answers]
    assert len({"unknown" in line for line in expected}) == 2
    command = [sys.executable, "-I", "-c", ALONE]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = [line.split() for line in completed.stdout.splitlines()]
    assert [name for name, _, _ in printed] == files
    assert [f"{label} {float(p):.3f}" for _, label, p in printed] == expected


@pytest.mark.slow
def test_the_file_carries_what_makes_its_input(onnx_file: Path, tmp_path: Path) -> None:
    """For a program with only NumPy and Pillow."""
    session = onnxruntime.InferenceSession(onnx_file)
    metadata = session.get_modelmeta().custom_metadata_map
    (tmp_path / "onnx_input.py").write_text(metadata["secondhand.onnx_input"])
    (tmp_path / "a.jpg").write_bytes(odd_pictures()["upright by EXIF"])
    code = """
import json, sys
sys.path.insert(0, ".")
from onnx_input import model_input
model_input("a.jpg", json.loads(sys.argv[1])).tofile("pixels")
print(*sorted({"datasets", "learners", "torch", "pandas"} & set(sys.modules)))
"""
    steps = metadata["secondhand.preprocessing"]
    command = [sys.executable, "-I", "-c", code, steps]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert completed.stdout == "\n"
    settings = Preprocessing(**{k: tuple(v) if k in ("mean", "std") else v
                            for k, v in json.loads(steps).items()})  # fmt: skip
    expected = pixels(settings.fit(open_picture(tmp_path / "a.jpg", at_least=settings.needs)))
    assert (tmp_path / "pixels").read_bytes() == expected.tobytes()


def odd_pictures() -> dict[str, bytes]:
    """Write files that look different after Pillow opens and resizes them."""
    rng = np.random.default_rng(0)

    def photo(width: int, height: int) -> Image.Image:
        values = rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)
        return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)

    def file(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
        out = io.BytesIO()
        picture.save(out, kind, **options)
        return out.getvalue()

    turned = Image.Exif()
    turned[0x0112] = 6
    holes = Image.fromarray(rng.integers(0, 256, (60, 90), dtype=np.uint8))
    deep = rng.integers(20_000, 40_000, (70, 50), dtype=np.uint16)
    return {
        "upright by EXIF": file(photo(90, 150), "JPEG", exif=turned),
        "large": file(photo(700, 500), "JPEG"),
        "grey": file(photo(80, 60).convert("L"), "JPEG"),
        "palette": file(photo(60, 90).quantize(8), transparency=0),
        "alpha": file(Image.merge("RGBA", [*photo(90, 60).split(), holes])),
        "CMYK": file(photo(120, 90).convert("CMYK"), "JPEG"),
        "16 bit": file(Image.fromarray(deep)),
        "float": file(Image.fromarray(deep.astype(np.float32)), "TIFF"),
        "tiny": file(photo(3, 2)),
        "strip": file(photo(900, 12)),
    }


@pytest.mark.slow
def test_what_the_file_tells_of_itself(onnx_file: Path) -> None:
    model = onnx.load(onnx_file)
    onnx.checker.check_model(model)
    all_metadata = {p.key: p.value for p in model.metadata_props}
    own = {key.removeprefix("secondhand."): value for key, value in all_metadata.items()}
    assert json.loads(own["format"]) == 1
    assert json.loads(own["classes"]) == CLASSES
    assert json.loads(own["temperature"]) == TEMPERATURE
    assert json.loads(own["threshold"]) == 0.5
    assert own["threshold_on"] == "probability"
    assert json.loads(own["spectrogram"]) is None
    assert json.loads(own["preprocessing"])["mean"] == [0.4, 0.5, 0.6]
    (pixels,) = model.graph.input
    assert pixels.name == "pixels"
    assert pixels.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    sizes = [d.dim_value for d in pixels.type.tensor_type.shape.dim]
    assert sizes == [0, 3, SIZE, SIZE]  # 0: any number of pictures
    assert not any(t.data_location for t in model.graph.initializer), "weights outside the file"


@pytest.mark.slow
def test_no_file_tells_where_it_was_made(onnx_file: Path) -> None:
    private = {sys.prefix, str(Path.home()), str(Path.cwd()), str(onnx_file.parents[1])}
    content = onnx_file.read_bytes()
    assert not [name for name in private if f"{name}/".encode() in content]
    assert not re.search(rb"/[\w./-]+\.py\b", content)


@pytest.mark.parametrize("spectrogram", [MelSettings(rate=8000, window=1.0), QScanSettings()])
def test_models_of_signals_carry_their_recipe(spectrogram: Any, small: Bundle) -> None:
    sound_model = replace(small, spectrogram=spectrogram.to_dict())
    stored = json.loads(metadata(sound_model)["secondhand.spectrogram"])
    assert spectrogram_from_dict(stored).fingerprint() == spectrogram.fingerprint()
    assert "rendered spectrograms" in export_limitations(sound_model)[0]
    assert export_limitations(small) == []


def test_what_a_file_leaves_out_is_said(small: Bundle) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 5))
    held_out = Outputs(rng.normal(size=(60, 4)), rng.integers(0, 4, 60), features)
    fitted = fit_rule(held_out, held_out)
    model = replace(small, tta_views=VIEWS, rule=fitted)
    limitations, near = export_limitations(model)
    assert "mean of 3 variants" in limitations
    assert "refuses nothing as out of distribution" in near


class Forgetful(learners.inference.exporting.ExportedModel):
    """Leaves the temperature out."""

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        _, logits, features = super().forward(pixels)
        return logits.softmax(1), logits, features


class OfTwo(learners.inference.exporting.ExportedModel):
    """Is right for two pictures only."""

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        p, logits, features = super().forward(pixels)
        return p.reshape(2, -1), logits.reshape(2, -1), features.reshape(2, -1)


class Branching(learners.inference.exporting.ExportedModel):
    """Depends on the values of its input, which no exporter follows."""

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        p, logits, features = super().forward(pixels)
        return (p, logits, features) if logits.sum() > 0 else (p, -logits, features)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_class", "words"),
    [
        (Forgetful, "probabilities of the ONNX file"),
        (OfTwo, "torch.export does not support this network|a batch of 1 picture"),
        (Branching, "torch.export does not support this network"),
    ],
)
def test_what_answers_differently_is_thrown_away(
    model_class: type, words: str, small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners.inference.exporting, "ExportedModel", model_class)
    target = tmp_path / "it"
    target.write_bytes(b"what was there")
    with pytest.raises(SecondhandError, match=words):
        export_onnx(small, target)
    assert target.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [target]


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command(written: tuple[Path, str]) -> None:
    root, output = written
    folder = root / "run" / "model"
    assert output == f"{folder}.onnx\n{root}/new/v1.2.onnx\n"
    with pytest.raises(SecondhandError, match=r"model\.onnx .*--overwrite"):
        export([str(folder)])
    with pytest.raises(SecondhandError, match=r"--out .*v1\.2 .*\.onnx"):
        export([str(folder), "--out", str(root / "new" / "v1.2")])
    assert [p.name for p in (root / "new").iterdir()] == ["v1.2.onnx"]
    assert sorted(p.name for p in folder.parent.iterdir()) == ["model", "model.onnx"]
    Predictor(folder)  # the folder still opens


@pytest.mark.slow
def test_inside_it_is_the_file_with_which_the_folder_predicts_on_a_cpu(
    small: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_bundle(small, tmp_path / "model")
    assert load_predictor(folder, device="cpu").engine == "torch"
    with pytest.raises(SecondhandError, match=r"--out .*--inside"):
        export([str(folder), "--inside", "--out", str(tmp_path / "other.onnx")])
    assert export([str(folder), "--inside"]) == 0
    assert capsys.readouterr().out == f"{folder / 'model.onnx'}\n"
    assert load_predictor(folder, device="cpu").engine == "onnx"
    with pytest.raises(SecondhandError, match=r"model\.onnx .*--overwrite"):
        export([str(folder), "--inside"])
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_missing_package_is_named(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learners.inference.engine.find_spec", lambda name: None if "script" in name else 1
    )
    with pytest.raises(SecondhandError, match=r"onnxscript.*pip install onnxscript"):
        export_onnx(small, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
