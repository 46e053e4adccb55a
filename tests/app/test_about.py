from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from app.about import card_text, examples, report_html
from app.interface import build_page
from app.serving import Served, Site
from learners.inference.predictor import Predictor
from learners.model.bundle import card
from tests.app.sites import colours, write_run
from tests.app.test_views import EVIL, Seen

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run")).parent


@pytest.fixture
def served(run, tmp_path):
    model = shutil.copytree(run, tmp_path, dirs_exist_ok=True) / "model"
    served = Served("run", Predictor(model), model)
    yield served
    served.close()


def test_examples_are_existing_files_outside_training(served, tmp_path):
    items = pd.read_csv(tmp_path / "items.csv")
    items.loc[items["label"].eq("red"), "split"] = "train"
    missing = items.index[items["label"].eq("blue")][0]
    items.loc[missing, "path"] = str(tmp_path / "gone.jpg")
    items.to_csv(tmp_path / "items.csv", index=False)
    found = examples(served)
    assert [item.label for item in found] == ["blue", "green", "unknown"]
    assert found[0].path.endswith("blue_001.jpg")
    assert [item.label for item in examples(served, most=1)] == ["blue", "unknown"]


def test_an_example_is_given_as_an_upload_is(served, tmp_path):
    """Gradio serves files of the folder of uploads alone: those of a run may lie anywhere."""
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    page = build_page(Site({"run": served}, str(uploads)))
    (give, *_) = [one.fn for one in page.fns.values() if "give" in str(one.fn)]
    path, at = give()
    assert uploads in type(uploads)(path).parents
    assert at is None
    page.close(verbose=False)


@pytest.mark.parametrize("content", [None, "", "path,best\n1,2", "\x00\xff", "a" * 1000])
def test_without_items_there_are_no_examples(served, tmp_path, content):
    (tmp_path / "items.csv").unlink()
    if content is not None:
        (tmp_path / "items.csv").write_text(content, encoding="latin-1")
    assert examples(served) == []


def test_the_report_cannot_reach_the_page(served, tmp_path):
    """A run folder may come from anyone: its report is in a frame without the page's origin."""
    file = tmp_path / "report" / "index.html"
    file.write_text(f'<script>parent.document</script>{EVIL}</iframe>"')
    assert served.report == file
    seen = Seen(report_html(file))
    assert seen.tags == ["iframe"]
    assert 'sandbox="allow-scripts"' in report_html(file)


def test_the_card_of_a_strangers_model_has_no_markup(served):
    """No picture, link or heading of its own, whatever its config.json says."""
    text = "# x\n![x](http://stranger.example/x.png) <script>alert(1)</script> www.stranger.example me@stranger.example"
    bundle = served.predictor.bundle
    spec = replace(bundle.spec, backbone=text)
    provenance = dict.fromkeys(("note", "protocol", "backbone", "headline", "data"), text)
    bundle = replace(bundle, spec=spec, provenance=provenance, metrics={f"valid {text}": 0.5})
    shown = card(bundle).removeprefix("---\n").partition("\n---\n")[2]
    html = MarkdownIt("commonmark").render(shown)
    assert not re.search("<(a|img|script|h2)", html), html
    assert html.count("<h1>") == 1
    assert "http://stranger.example/x.png" in html, "it is there, as text"
    # GitHub's Markdown and Gradio's make links of these as well, unless they are code or escaped.
    outside = re.sub("`[^`]*`", "", shown)
    assert not re.search(r"\w://|www\.|\w@", outside), outside


def test_a_model_that_was_moved_out_of_its_run_shows_its_card(tmp_path):
    model = write_run(tmp_path / "run")
    moved = shutil.copytree(model, tmp_path / "moved")
    served = Served("moved", Predictor(moved), moved)
    assert served.report is None
    assert examples(served) == []
    text = card_text(served)
    assert text.startswith("# ") or text.strip().startswith("# ")
    assert "library_name" not in text
    assert "a random split of tests" in text
    served.close()
    bare = Served("bare", Predictor(colours()))
    assert bare.report is None
    bare.close()
