"""What a field adds to the page is shown for the first model, and taught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from app.interface import build_page
from app.labels import Labels
from app.serving import Served, Site
from app.tabs import Opened, Taught, taught_by
from learners.inference.predictor import Predictor
from tests.app.sites import colours


class Notebook(Opened):
    """A tab with a button, a line under each answer, and a table of labels."""

    title = "Notebook"

    def __init__(self, table: Labels) -> None:
        self.table = table

    def fill(self, tab: Any) -> None:
        gr.Button("Write it down")

    def under_answer(self, seen: Any) -> Any:
        return gr.HTML("noted before")

    @property
    def taught(self) -> Taught:
        return Taught("note", self.table, "first")


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook(Labels(tmp_path / "notes.csv", ("path", "label")))


def test_a_tab_of_a_field_is_on_the_page_of_the_first_model(
    notebook: Notebook, tmp_path: Path
) -> None:
    models = {name: Served(name, Predictor(colours())) for name in ("first", "second")}
    page = build_page(Site(models, str(tmp_path)), [notebook])
    parts = [*page.blocks.values()]
    tabs = [part.label for part in parts if isinstance(part, gr.Tab)]
    assert tabs.count("Notebook") == 1
    assert tabs.index("first") < tabs.index("Notebook") < tabs.index("second")
    assert [getattr(part, "value", "") for part in parts].count("noted before") == 1
    assert [taught.what for taught in taught_by([Opened(), notebook])] == ["note"]
    page.close(verbose=False)
    for served in models.values():
        served.close()
