"""The pages of the site: each is reached, and what they name is there. (`make docs` checks their links.)"""

from __future__ import annotations

import re
from pathlib import Path

from tests.documented import ROOT


def test_each_page_is_reached_from_the_front() -> None:
    """As Sphinx finds, too, which the tests do not run: it takes seconds."""
    config = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    groups = re.search(r"for group in \((.*?)\)", config)
    assert groups
    left = [ROOT / "docs" / f"{group}.md" for group in re.findall(r'"(\w+)"', groups[1])]
    found: set[Path] = set()
    while left:
        found.add(page := left.pop())
        if page.suffix == ".md":
            for names in re.findall(r"```{toctree}\n(.*?)```", page.read_text("utf-8"), re.S):
                for name in re.findall(r"^(?!:)\S+$", names, re.M):
                    stem = (page.parent / name).resolve()
                    ends = [
                        file
                        for end in (".md", ".ipynb")
                        if (file := Path(f"{stem}{end}")).is_file()
                    ]
                    assert ends, f"{page.name}: {name}"
                    left += ends
    patterns = ("*.md", "docs/*.md", "notebooks/*.ipynb", "benchmarks/README.md")
    pages = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert pages - found == {ROOT / "README.md"}
