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

    A name that ends with a slash is a folder: all of it is the feature.
    """

    words: str
    files: dict[str, str]


#: What other files know of a feature is a column that is carried along, a registered name, or nothing.
FEATURES = {
    "a cluster": Vocabulary(
        r"\b(OnCluster|ClusterSettings|fields\.cluster|(settings|options|how|self)\.cluster)\b|--cluster",
        {"fields/cluster/": "the feature: Dask"},
    ),
    "events of pictures": Vocabulary(
        r"\b(Bursts|bursts|bursts_\w+|fit_event_threshold|merge_frames)\b",
        {
            "fields/cameras/": "the feature",
            "fields/loop/pool.py": "labels the photos of an event at once",
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
        r"\b([Cc]lock|[Dd]eployments?|TIME_AND_PLACE|WhenAndWhere|BY_DEPLOYMENT)\b",
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
    "tiers": Vocabulary(
        r"\b([Tt]iers?|TIER)\b",
        {
            "fields/recordings/tiers.py": "the feature",
            "fields/recordings/sources/elan.py": "a format that has them",
            "fields/recordings/sources/textgrid.py": "a format that has them",
            "datasets/sources/settings.py": "its flag",
            "learners/cli/commands.py": "its flag",
        },
    ),
    "embeddings of another network": Vocabulary(
        r"\b(Vectors|embeddings_of|add_embeddings|read_embeddings)\b|'embedding'",
        {
            "fields/embeddings/": "the feature",
            "fields/__init__.py": "shows that data need it",
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
            "learners/rule/reasons.py": "a reason",
            "learners/model/parts.py": "a model of parts of pictures",
            "app/corrected.py": "labels of whole photos do not train such a model",
            "app/uploads.py": "names the parts of a photo by numbers",
        },
    ),
}


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
    return {name for name, code in code_of_files().items() if re.search(words, code)}


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
