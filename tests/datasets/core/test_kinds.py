"""Endings of names: what each kind of file is read as, from the table to the picture."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from datasets.audio.recipe import AudioRecipe
from datasets.items.table import load_table
from datasets.spectrograms.pictures import PictureCache
from tests.datasets.files import picture, reasons
from tests.phones import avif, heic, m4a


def test_what_phones_save(tmp_path: Path) -> None:
    photos = {".heic": heic, ".HEIF": heic, ".avif": avif}
    for n, (label, ending) in enumerate(product(("a", "b"), photos)):
        source = picture(tmp_path / "source" / f"{n}.png")
        file = tmp_path / "photos" / label / f"{n}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(photos[ending](Image.open(source)))
    (tmp_path / "photos" / "a" / "cut.heic").write_bytes(file.read_bytes()[:200])
    table = load_table(tmp_path / "photos")
    assert (table.kind, len(table.frame)) == ("picture", 6)
    assert [*reasons(table)] == ["cut.heic"]
    rng = np.random.default_rng(0)
    for n, label in enumerate(("a", "a", "b", "b")):
        file = tmp_path / "calls" / label / f"{n}.m4a"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(m4a(rng.uniform(-0.5, 0.5, 8000), 8000))
    file.write_bytes(file.read_bytes()[:500])
    table = load_table(tmp_path / "calls", learned=False)
    assert (table.kind, len(table.frame)) == ("sound", 3)
    assert "truncated" in reasons(table)["3.m4a"]
    cache = PictureCache(tmp_path / "cache")
    recipe = AudioRecipe.infer(table.frame["path"], size=(32, 32))
    assert (recipe.rate, recipe.window) == (8000, 1.0)
    pictures, bad = cache.render_all(table.frame["path"], recipe, workers=1)
    assert bad == []
    drawn = recipe.picture(table.frame["path"][0])
    assert np.array_equal(np.asarray(Image.open(pictures[0]).convert("RGB")), drawn)
