"""The blocks of commands and of Python in the documents and docstrings, and a world to run them in."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tests.pictures import COLOURS, write_pictures

ROOT = Path(__file__).parents[1]
#: What a line of shell begins with here.
PROGRAMS = ("python", "make", "pip", "dask", "accelerate", "torchrun", "curl")
#: Before a block of Markdown: why it is not run.
MARKER = re.compile(r"<!-- no test: (.+?) -->")


@dataclass(frozen=True)
class Block:
    """A block of a document: where it stands, its lines, and why it is not run ("": it is)."""

    where: str
    text: str
    excused: str = ""

    @property
    def kind(self) -> str:
        """shell, python, or "" for what is neither."""
        if self.commands():
            return "shell"
        try:
            parsed = ast.parse(self.text)
        except SyntaxError:
            return ""
        found = (ast.Import, ast.ImportFrom, ast.Call)
        return "python" if any(isinstance(node, found) for node in ast.walk(parsed)) else ""

    def commands(self) -> list[list[str]]:
        """The words of each command, without comments. Where lines begin with "$ " the others are
        what was printed; else a line that begins with no program goes on with the one before."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        found: list[list[str]] = []
        for line in lines:
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                return []
            if words and words[0] in PROGRAMS:
                found.append(words)
            elif words and not found:
                return []
            elif words:
                found[-1] += words
        return found


def markdown(path: Path) -> Iterator[Block]:
    """Fenced blocks, and those indented by four spaces after an empty line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at, excused = 0, ""
    while at < len(lines):
        line, first = lines[at], at
        if line.startswith("```"):
            at = next(n for n in range(at + 1, len(lines)) if lines[n].startswith("```"))
            taken = lines[first + 1 : at]
            at += 1
            if line.startswith("```{"):  # of the site: a list of pages, and the like
                continue
        elif line.startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            taken = [text[4:] for text in lines[first:at]]
        else:
            marker = MARKER.search(line)
            excused = marker[1] if marker else excused if not line.strip() else ""
            at += 1
            continue
        yield Block(f"{path.relative_to(ROOT)}:{first + 1}", "\n".join(taken).strip("\n"), excused)
        excused = ""


def docstrings(path: Path) -> Iterator[Block]:
    """Of all docstrings the paragraphs that are commands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node, clean=False) or ""
            for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
                where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
                found = Block(where, inspect.cleandoc("\n" + paragraph))
                if found.kind == "shell":
                    yield found


def blocks() -> list[Block]:
    """All of them; a command that is documented twice is run, or excused, once."""
    papers = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
    papers.append(ROOT / "benchmarks" / "README.md")
    found = [block for path in papers for block in markdown(path)]
    said = {tuple(words) for block in found for words in block.commands()}
    for room in ("app", "learners", "datasets", "benchmarks"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for block in docstrings(path):
                new = [words for words in block.commands() if tuple(words) not in said]
                if new:
                    found.append(Block(block.where, "\n".join(map(shlex.join, new))))
                    said |= {tuple(words) for words in new}
    return found


def write_world(folder: Path) -> None:
    """All files that the documents speak of, under the names that they have there."""
    import soundfile

    from learners.model.bundle import save_bundle
    from tests.app import sites

    photos = write_pictures(folder / "photos", per_class=12)
    write_pictures(folder / "test", per_class=4)
    for place, count in (("strange/deep", 2), ("shelves", 6), ("empty", 6), ("new", 2)):
        write_pictures(folder / place, per_class=count, classes=1)
    rng = np.random.default_rng(5)
    for place in (
        "strange/deep/red",
        "shelves/red",
        "empty/red",
        "new/red",
    ):  # those would be copies
        for path in (folder / place).iterdir():
            _picture(path, rng)
    for name in ("a.jpg", "b.jpg", "photo.jpg"):
        _picture(folder / name, rng)
    paths = [str(path.relative_to(folder)) for path in sorted(photos.glob("*/*.jpg"))]
    items = pd.DataFrame({"path": paths, "label": [path.split("/")[1] for path in paths]})
    items.assign(fold=items.index % 2).to_csv(folder / "items.csv", index=False)
    features = rng.standard_normal((2, 8))[items["label"].eq("red").astype(int)]
    features = features + 0.1 * rng.standard_normal((len(items), 8))
    columns = {name: items[name].to_numpy(str) for name in items}
    np.savez(folder / "features.npz", **columns, embedding=features, network="random")
    (folder / "corrected").mkdir()
    items.assign(path="../" + items["path"]).to_csv(folder / "corrected/feedback.csv", index=False)
    (folder / "strain").mkdir()
    for place in ("H-H1_LOSC_4_V2-1126259446-32.hdf5", "strain/H-H1_GWOSC-1126259446-32.hdf5"):
        sites.strain(folder / place)
    (folder / "calls").mkdir()
    t = np.arange(4000) / 8000
    for label, hertz in (("low", 300), ("high", 1200)):
        (folder / "recordings" / label).mkdir(parents=True)
        for number in range(12):
            sound = 0.3 * np.sin(2 * np.pi * hertz * t) + 0.01 * rng.standard_normal(len(t))
            name = f"{label}_{'abcd'[number % 4]}_{number}.wav"
            soundfile.write(folder / "recordings" / label / name, sound, 8000)
            if number < 2:
                soundfile.write(folder / "calls" / name, sound, 8000)
    save_bundle(sites.bursts(), folder / "runs" / "glitches" / "model")


def _picture(path: Path, rng: np.random.Generator) -> None:
    from PIL import Image

    noise = rng.normal(0, 40, (40, 48, 3)) + COLOURS["green"]
    Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(path, quality=90)
