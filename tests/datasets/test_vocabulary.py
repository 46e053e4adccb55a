"""An optional feature is named only in its own files, and in those that have a reason, which stands beside them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("app", "datasets", "fields", "learners", "secondhand")


class Vocabulary(NamedTuple):
    """The words of a feature, as a regular expression on code, and the files that may name it: why.

    A name that ends with a slash is a folder, each file of which may.
    """

    words: str
    files: dict[str, str]


#: What other files know of a feature is a column that is carried along, a registered name, or nothing.
FEATURES = {
    "a cluster": Vocabulary(
        r"(?i:dask)|\b(distributed|OnCluster|ClusterSettings|(settings|options|how|self)\.cluster)\b|--cluster",
        {"fields/cluster/": "the feature: Dask"},
    ),
    "events of pictures": Vocabulary(
        r"(?i:bursts?\b|bursts?_)|\b(fit_event_threshold|merge_frames)\b",
        {
            "fields/cameras/": "the feature",
            "fields/loop/pool.py": "labels the photos of an event at once",
            "fields/detectors/trigger_tables.py": "sngl_burst, a table of LIGO_LW",
            "datasets/core/recorded.py": "a name of the column of events in others' tables",
            "datasets/sources/sounds.py": "bursts of noise, a made-up sound",
        },
    ),
    "events of recordings": Vocabulary(
        r"learners\.predictions\.merging|\b(held_out_events|write_events|event_sentences)\b",
        {
            "fields/recordings/": "the feature",
            "app/views.py": "events of a recording on the page",
            "learners/calls/events.py": "--events of recordings and of strain",
        },
    ),
    "time and place": Vocabulary(
        r"(?i:clock|deployment)|\b(TIME_AND_PLACE|WhenAndWhere)\b",
        {
            "fields/cameras/": "the feature",
            "datasets/audio/recorders.py": "the clock of a recorder, in its own notes",
            "datasets/core/recorded.py": "the columns of a table",
            "datasets/items/settings.py": "its flag",
            "datasets/items/columns.py": "a column that items are grouped by",
            "datasets/sources/coco.py": "a column of the format",
            "datasets/sources/programs.py": "a column of the formats",
        },
    ),
    "programs for camera traps": Vocabulary(
        r"(?i:megadetector|camtrap)",
        {
            "fields/cameras/": "the feature",
            "datasets/sources/programs.py": "tables of camtrapR, by their columns",
        },
    ),
    "programs for recordings": Vocabulary(
        r"(?i:raven|audacity|textgrid|praat|\belan\b)",
        {
            "fields/recordings/": "the feature",
            "datasets/sources/programs.py": "tables of Raven, by their columns",
        },
    ),
    "triggers": Vocabulary(
        r"(?i:trigger)",
        {
            "fields/detectors/": "the feature: tables of them",
            "datasets/strain/": "the moment that a Q-scan is centred on",
            "datasets/sources/glitches.py": "that moment of a made-up glitch",
            "app/interface.py": "Gradio's word for what starts a function",
        },
    ),
    "judging at the loudest tile": Vocabulary(
        r"(?i:recentre)",
        {
            "fields/detectors/": "the feature: its flag",
            "learners/inference/": "opens files so",
            "learners/loading/predictor.py": "a parameter for programs",
        },
    ),
    "what to label next": Vocabulary(
        r"(?i:\baudit|\bdiscover|\bsuggest(s|ed)?\b)",
        {
            "fields/loop/": "the feature",
            "learners/evaluation/suspects.py": "the class that the features of a file suggest",
        },
    ),
    "several labels": Vocabulary(
        r"multi_label|several_labels|\b(LabelRule|MULTI)\b",
        {
            "datasets/items/": "labels of an item",
            "datasets/sources/": "whether a format can have several",
            "datasets/steps/": "contradictions are none where an item may have several",
            "learners/backbones/spec.py": "a fact of the network",
            "learners/cli/": "says so in words",
            "learners/elsewhere/evaluation.py": "labels are read as the model's",
            "learners/evaluation/matching.py": "a name of a way to match",
            "learners/model/bundle.py": "a fact of the network that is stored",
            "learners/rule/": "the rule of several labels",
            "learners/runs/resolve.py": "chooses the network",
            "learners/tasks/": "the task of several labels",
            "learners/training/": "target and loss",
            "fields/cameras/sources/megadetector.py": "a box has one",
            "fields/detectors/sources/triggers.py": "a trigger has one",
            "fields/embeddings/sources.py": "items may have several",
            "fields/remote/sources/": "whether a format can have several",
            "fields/recordings/tracks.py": "a span may have several",
        },
    ),
    "background": Vocabulary(
        r"\b[Bb]ackground\b|\bBACKGROUND\b",
        {
            "app/labels.py": "whether nothing is a label",
            "datasets/items/": "its files, beside the items",
            "datasets/loaders/augment.py": "of a picture: what is behind it",
            "datasets/steps/": "reads, splits and counts its files",
            "learners/cli/": "its flag, and the result in words",
            "learners/evaluation/": "its figures",
            "learners/inference/": "a file that is it has no class",
            "learners/report/report.py": "its figures",
            "learners/rule/": "the last class, which is never answered",
            "learners/runs/": "its files in a run",
            "learners/tasks/": "its place among the targets",
            "learners/training/": "its place among the targets",
            "fields/cameras/": "an empty photo",
            "fields/loop/": "is not proposed to be labelled",
        },
    ),
    "a tree of classes": Vocabulary(
        r"\b(Tree|TreeRule|with_tree|classes_table)\b",
        {
            "learners/rule/tree.py": "the feature",
            "learners/rule/tree_rule.py": "the feature: its rule",
            "learners/rule/base.py": "what a rule says of it",
            "learners/tasks/single.py": "the task with such a rule",
            "learners/tasks/multi_label.py": "refuses it",
            "learners/cli/settings.py": "what its flag excludes",
            "datasets/items/settings.py": "its flag",
        },
    ),
    "a warm start": Vocabulary(
        r"\b(warm_start|WarmStart\w*|[Rr]ehears\w*|REHEARSED|is_rehearsed)\b",
        {
            "datasets/items/": "its flags, and the mark of items of the earlier run",
            "datasets/sources/": "a column of labels may be inherited",
            "datasets/steps/": "items of the earlier run keep their parts",
            "learners/cli/settings.py": "its flags",
            "learners/runs/": "the feature",
            "learners/tasks/": "whether a task has it",
            "learners/training/": "begins from its weights",
            "fields/cameras/": "whole photos for a model of boxes",
            "fields/loop/": "before and after",
        },
    ),
    "tiers": Vocabulary(
        r"\b([Tt]iers?|TIER)\b",
        {
            "fields/recordings/": "the feature",
        },
    ),
    "embeddings of another network": Vocabulary(
        r"\b(Vectors|embeddings_of|add_embeddings|read_embeddings)\b|'embedding'",
        {
            "fields/embeddings/": "the feature",
            "datasets/tables/cells.py": "passes over their column in an archive",
            "learners/backbones/spec.py": "a body of that name",
            "learners/model/bundle.py": "reads a model with that body",
            "fields/loop/embeddings.py": "a column of a file of features",
        },
    ),
    "ONNX": Vocabulary(
        r"\b(onnx|onnxruntime|Onnx\w*)\b",
        {
            "learners/export.py": "the feature: its command",
            "learners/inference/exporting.py": "the feature: writing a file",
            "learners/inference/engine.py": "the feature: running one",
            "learners/model/bundle.py": "a file of the model folder",
            "learners/cli/commands.py": "its flag",
            "learners/cli/console.py": "keeps its library quiet",
            "fields/loop/adapt.py": "writes the copy's file",
        },
    ),
    "boxes of a detector": Vocabulary(
        r"\b([Dd]etections|Box|Boxes|WholePhotos|NOT_ANIMAL|trained_on_boxes|boxes_alone|min_box_confidence)\b|\.box\b",
        {
            "fields/cameras/": "the feature",
            "app/serving.py": "predicts a part of an upload",
            "datasets/core/part.py": "a field of Part",
            "datasets/images/boxes.py": "opens the box of a picture",
            "datasets/sources/coco.py": "a column of the format",
            "datasets/sources/label_studio.py": "a region of the format",
            "datasets/sources/regions.py": "a box of a format in pixels",
            "datasets/sources/voc.py": "columns of the format",
            "datasets/kinds/picture.py": "columns of the parts of a picture",
            "datasets/items/columns.py": "columns of a table",
            "learners/evaluation/held_out.py": "columns of the predictions of a run",
            "learners/predictions/refused.py": "the boxes of a photo are judged one by one",
            "fields/loop/adapt.py": "refuses a model of boxes",
            "learners/rule/reasons.py": "a reason",
            "learners/model/parts.py": "a model of parts of pictures",
            "app/corrected.py": "labels of whole photos do not train such a model",
            "app/uploads.py": "names the parts of a photo by numbers",
        },
    ),
}


#: What the program is shipped with, to say what is missed where it is left out.
LIST_OF_FIELDS = "datasets/core/shipped.py"


class _Code(ast.NodeTransformer):
    """Leaves the code without docstrings and sentences: help and messages may name what they are about."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        shown = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
        return ast.Tuple([self.visit(one) for one in shown], ast.Load())


@cache
def code_of_files() -> dict[str, str]:
    """The code of each file of the product."""
    paths = sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    return {
        path.relative_to(ROOT).as_posix(): ast.unparse(
            ast.fix_missing_locations(_Code().visit(ast.parse(path.read_text(encoding="utf-8"))))
        )
        for path in paths
    }


def named_in(words: str) -> set[str]:
    return {
        name
        for name, code in code_of_files().items()
        if name != LIST_OF_FIELDS and re.search(words, code)
    }


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_named_in_its_own_files_alone(feature: str) -> None:
    words, files = FEATURES[feature]
    folders = tuple(name for name in files if name.endswith("/"))
    others = {name for name in named_in(words) - files.keys() if not name.startswith(folders)}
    assert not others, f"{feature}: let its room do this, or give the reason here"


@pytest.mark.parametrize("feature", FEATURES)
def test_no_file_is_listed_in_vain(feature: str) -> None:
    words, files = FEATURES[feature]
    found = named_in(words)
    assert [
        name
        for name in files
        if (not name.startswith("fields/") or (ROOT / name).exists())  # or it is left out
        and not any(one == name or (name.endswith("/") and one.startswith(name)) for one in found)
    ] == []


def test_a_sentence_names_no_feature() -> None:
    code = ast.unparse(_Code().visit(ast.parse('x = f"the cluster {y}"\nz = "of a cluster"')))
    assert "cluster" not in code
    assert "y" in code
