"""Commands and Python blocks in documents and docstrings, and files to run them on."""

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
#: Programs that a shell line begins with.
PROGRAMS = ("python", "secondhand", "make", "pip", "dask", "curl")
LINE = re.compile(rf"(?m)^\s*(?:[rR]?[\"']{{3}})?[\s$]*(?:{'|'.join(PROGRAMS)})")
#: Marks a Markdown block that is not run, and says why.
MARKER = re.compile(r"<!-- no test: (.+?) -->")


@dataclass(frozen=True)
class Block:
    """A block of a document: its place, its text, and the reason why it is not run, or ""."""

    where: str
    text: str
    excused: str = ""

    @property
    def kind(self) -> str:
        """The kind of text: "shell", "python", or "" for any other."""
        if self.commands():
            return "shell"
        try:
            tree = ast.parse(self.text)
        except SyntaxError:
            return ""
        code_nodes = (ast.Import, ast.ImportFrom, ast.Call)
        return "python" if any(isinstance(node, code_nodes) for node in ast.walk(tree)) else ""

    def commands(self) -> list[list[str]]:
        """Split the block into commands without comments.

        If lines begin with "$ ", all other lines are output. Otherwise a line that begins with no
        known program continues the one before.
        """
        lines = self.text.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        result: list[list[str]] = []
        for line in lines:
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                return []
            if words and words[0] in PROGRAMS:
                result.append(words)
            elif words and not result:
                return []
            elif words:
                result[-1] += words
        return result


def markdown(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks, and those indented by four spaces after an empty line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at, excused = 0, ""
    while at < len(lines):
        line, first = lines[at], at
        if line.startswith("```"):
            at = next(n for n in range(at + 1, len(lines)) if lines[n].startswith("```"))
            body = lines[first + 1 : at]
            at += 1
            if line.startswith("```{"):  # a Sphinx directive, such as a list of pages
                continue
        elif line.startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            body = [text[4:] for text in lines[first:at]]
        else:
            marker = MARKER.search(line)
            excused = marker[1] if marker else excused if not line.strip() else ""
            at += 1
            continue
        yield Block(f"{path.relative_to(ROOT)}:{first + 1}", "\n".join(body).strip("\n"), excused)
        excused = ""


def docstrings(path: Path) -> Iterator[Block]:
    """Yield the paragraphs of docstrings that are commands."""
    source = path.read_text(encoding="utf-8")
    if not LINE.search(source):  # walking through all trees takes a second
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node, clean=False) or ""
            for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
                if not paragraph.lstrip(" $").startswith(PROGRAMS):
                    continue
                place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
                block = Block(place, inspect.cleandoc("\n" + paragraph))
                if block.kind == "shell":
                    yield block


def blocks() -> list[Block]:
    """Return all blocks; a command that is documented twice is run, or excused, once."""
    documents = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
    documents.append(ROOT / "benchmarks" / "README.md")
    all_blocks = [block for path in documents for block in markdown(path)]
    seen = {tuple(words) for block in all_blocks for words in block.commands()}
    for package in ("fields", "app", "learners", "datasets", "benchmarks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for block in docstrings(path):
                new = [words for words in block.commands() if tuple(words) not in seen]
                if new:
                    all_blocks.append(Block(block.where, "\n".join(map(shlex.join, new))))
                    seen |= {tuple(words) for words in new}
    return all_blocks


def write_world(folder: Path) -> None:
    """Write all files that the documents name."""
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
    ):  # their pictures would be copies
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
