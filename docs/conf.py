"""The site of the documents, `make docs`: the Markdown of the repository as it stands, and the notebooks
as they were run. Nothing is fetched, neither to build it nor to read it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from datasets.core.program import program_version  # noqa: E402

project, release = "Secondhand", program_version()
project_copyright = "Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "README"
include_patterns = [
    "*.md", "docs/*.md", "notebooks/*.ipynb", "benchmarks/README.md",
]  # fmt: skip
# Not even looked through.
exclude_patterns = [
    ".*",
    "docs/_build",
    "runs",
    "tests",
    "app",
    "fields",
    "learners",
    "datasets",
    "build",
]

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
numpydoc_show_class_members = False
add_module_names = False
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, Any] = {}  # else two scripts of others' servers

smartquotes = False  # a flag begins with two hyphens, not with a dash

html_theme = "pydata_sphinx_theme"
html_title = f"{project} {release}"
html_static_path = html_css_files = ["tables.css"]
html_copy_source = html_show_sourcelink = False
html_math_renderer = "mathml"
html_sidebars = {root_doc: []}
html_theme_options = {"navbar_align": "left", "show_toc_level": 2, "footer_end": []}


def setup(app: Any) -> None:
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_inline, None), block_renderers=(_block, None)
    )
    app.connect("source-read", _contents)
    app.connect("autodoc-process-docstring", _described, priority=100)
    app.connect("build-finished", _front)


def _inline(html: Any, node: Any) -> None:
    _mathml(html, node, block=False)


def _block(html: Any, node: Any) -> None:
    _mathml(html, node, block=True)


def _mathml(html: Any, node: Any, *, block: bool) -> None:
    """Formulas as browsers draw them by themselves, without a script."""
    from docutils.nodes import SkipNode
    from docutils.utils.math.latex2mathml import tex2mathml

    html.body.append(tex2mathml(node.astext(), as_block=block))
    raise SkipNode


def _contents(app: Any, page: str, text: list[str]) -> None:
    """Under the front page's text, which others show as well, what stands in the head of every page;
    and under that on the flags the flags."""
    if page == root_doc:
        groups = "\n".join(
            f"docs/{group}"
            for group in ("tutorials", "howto", "reference", "explanation", "project")
        )
        text[0] += f"\n```{{toctree}}\n:hidden:\n\n{groups}\n```\n"
    elif page == "docs/flags":
        from docs import flags

        text[0] += flags.page()


def _described(app: Any, what: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """``name : what it is`` of a docstring: numpydoc, which comes after, takes that for a type."""
    text = re.sub(r"^(\w[\w, ]*) : (?=\S)", r"\1\n    ", "\n".join(lines), flags=re.M)
    lines[:] = text.split("\n")


def _front(app: Any, error: Exception | None) -> None:
    """The folder opens at the front page."""
    if error is None:
        to = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={root_doc}.html">'
        Path(app.outdir, "index.html").write_text(f"<!doctype html>{to}<title>{project}</title>\n")
