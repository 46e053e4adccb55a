"""How a file of each kind is opened by the program, and what a right answer looks like."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.spectrograms.pictures import Source

__all__ = ["Openings", "SecondhandError"]


class Openings:
    """The readers of the program, and two models to ask about files."""

    def __init__(self, models: Path, out: Path) -> None:
        from learners.inference.predictor import Predictor

        self.models = models
        self.predictors = {kind: Predictor(models / kind) for kind in ("picture", "sound")}
        # The table's pictures; one of its rows names a file that is not there.
        for label in ("cat", "dog"):
            for n in range(4):
                noise = np.random.default_rng([n, len(label), ord(label[0])]).integers(
                    0, 255, (9, 9, 3)
                )
                Image.fromarray(noise.astype(np.uint8)).save(out / f"{label}{n}.jpg")

    def originals(self) -> dict[str, list[bytes]]:
        """Valid files that come out of a model folder."""
        models = [self.models / kind for kind in ("picture", "sound", "strain")]
        return {
            "config": [(folder / "config.json").read_bytes() for folder in models],
            "safetensors": [
                (folder / f"{name}.safetensors").read_bytes()
                for folder in models
                for name in ("model", "reference")
            ],
        }

    def prepare(self, kind: str, path: Path, data: bytes, rng: Any) -> Callable[[], None]:
        """Put the file where it is read from; what opens it."""
        if kind in ("config", "safetensors"):
            return self._model(kind, path, data, rng)
        path.write_bytes(data)
        way = int(rng.integers(3))
        if kind in ("png", "jpeg", "heic", "avif"):
            return lambda: self.predicted("picture", path) if way == 0 else self.picture(path, way)
        if kind in ("wav", "flac", "m4a"):
            return lambda: self.predicted("sound", path) if way == 0 else self.sound(path, way)
        if kind == "hdf5":
            return lambda: self.strain(path, way)
        if kind == "csv":
            return lambda: self.table(path, way)
        return lambda: self.settings(path)

    def _model(self, kind: str, path: Path, data: bytes, rng: Any) -> Callable[[], None]:
        shutil.copytree(self.models / ("picture" if rng.random() < 0.5 else "sound"), path)
        if kind == "config":
            (path / "config.json").write_bytes(data)
        else:
            name = ("model.safetensors", "reference.safetensors")[int(rng.integers(2))]
            (path / name).write_bytes(data)
            config = json.loads((path / "config.json").read_text())
            # Whoever changes the tensors also changes the hash that stands for them.
            config["hashes"][name] = hashlib.sha256(data).hexdigest()
            (path / "config.json").write_text(json.dumps(config))
        return lambda: self.model(path)

    def picture(self, path: Path, way: int) -> None:
        from datasets.images.opening import open_picture, pixels

        opened = open_picture(path, at_least=64 if way == 1 else 0)
        assert opened.mode == "RGB"
        assert min(opened.size) >= 1
        assert pixels(opened.resize((8, 8))).shape == (3, 8, 8)

    def sound(self, path: Path, way: int) -> None:
        from datasets.audio import decode

        info = decode.probe(path)
        signal, rate = decode.read_audio(path, longest=60, rate=8000 if way == 1 else None)
        assert rate == (8000 if way == 1 else info.rate)
        assert signal.dtype == np.float32
        assert len(signal) >= 1
        assert np.isfinite(signal).all()
        assert np.abs(signal).max() <= 1

    def strain(self, path: Path, way: int) -> None:
        from datasets.strain.files import read_strain
        from datasets.strain.recipe import StrainRecipe

        if way == 1:
            read = read_strain(path, at=1126259458.0, context=16.0)
            assert read.values.dtype == np.float64
            assert len(read.values) == round(16 * read.rate)
            assert np.isfinite(read.values).all()
            return
        recipe = StrainRecipe(context=16.0, fmax=100.0)
        image = recipe.image(recipe.read(path))
        assert image.size[0] >= 1

    def table(self, path: Path, way: int) -> None:
        from datasets.items.table import load_table, read_rows

        if way == 0:
            frame, _ = read_rows(path)
            assert {"path", "label"} <= set(frame)
            return
        table = load_table(path)
        assert len(table.frame) >= 2
        assert all(Path(file).is_file() for file in table.frame["path"])
        assert all(isinstance(label, str) and label for label in table.classes)

    def settings(self, path: Path) -> None:
        from learners.cli.flags import make_parser, parse

        parser = make_parser("learners.finetune", "words")
        settings = parse(parser, ["--config", str(path)])
        assert type(settings.train.epochs) is int

    def predicted(self, kind: str, path: Path) -> None:
        (answer,) = self.predictors[kind].predict([path], workers=1)
        assert answer.path == str(path)
        if answer.label == "unknown" and answer.reason.startswith("bad file: "):
            raise SecondhandError(f"{path}: {answer.reason}")
        self._check(answer, self.predictors[kind].classes)

    def model(self, path: Path) -> None:
        """Loaded, and if it is, asked about an input that suits it."""
        from learners.inference.predictor import Predictor

        predictor = Predictor(path)
        size = predictor.bundle.preprocessing.size
        batch = np.zeros((2, 3, size, size), np.uint8)
        logits, features = predictor.forward(batch)
        assert np.isfinite(logits).all()
        for answer in predictor._decide([Source("a"), Source("b")], logits, features):
            self._check(answer, predictor.classes)

    def _check(self, answer: Any, classes: list[str]) -> None:
        if answer.reason == "no signal":
            return
        assert answer.label in (*classes, "unknown")
        assert answer.best in classes
        assert 0 <= answer.probability <= 1 or math.isnan(answer.probability)
