"""The tree above the classes: how it is read, what is named, against brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from learners.cli.settings import ConfidenceSettings, Settings
from learners.evaluation.figures import tree_figures
from learners.model.bundle import load_bundle, save_bundle
from learners.uncertainty import Outputs
from learners.uncertainty.arrays import softmax
from learners.uncertainty.decision import Confidence
from learners.uncertainty.tree import (
    MAX_DEPTH,
    TOP,
    Tree,
    overconfident_depths,
    read_tree,
)
from tests.learners.evaluations import make_bundle, make_evaluation, outputs

CLASSES = ["apple", "pear", "leek", "milk"]
FRUIT = ["label,parent", "food,", "fruit,food", "apple,fruit", "pear,fruit", "leek,food", "milk,"]


def written(folder: Path, lines: list[str]) -> Path:
    file = folder / "classes.csv"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def random_tree(rng: np.random.Generator, classes: int) -> Tree:
    """Return classes at various depths, some at the top, and some nodes with a single child."""
    above: list[int] = []
    while len(above) < rng.integers(1, 8):
        above.append(TOP if not above or rng.random() < 0.3 else classes + rng.integers(len(above)))
    below = [rng.choice([TOP, *range(classes, classes + len(above))]) for _ in range(classes)]
    below[: len(above)] = range(classes, classes + len(above))  # every node has a class
    names = tuple(f"n{n}" for n in range(classes + len(above)))
    return Tree(names, np.array([*below, *above]), classes)


def above(tree: Tree, node: int) -> list[int]:
    """Yield a node and all above it, step by step."""
    return [] if node == TOP else [node, *above(tree, int(tree.parents[node]))]


def name_by_descent(tree: Tree, p: np.ndarray, reach: float) -> tuple[int, float]:
    """Go down the tree to the most probable node as long as its probability suffices."""
    classes = range(tree.classes)
    mass = [sum(p[c] for c in classes if n in above(tree, c)) for n in range(len(tree.names))]
    best, at = None, TOP
    while below := [n for n in range(len(tree.names)) if tree.parents[n] == at]:
        at = max(below, key=lambda n: mass[n])
        if len(below) == 1 and best is None:
            continue  # all classes are below it
        if best is not None and mass[at] < reach:
            break
        best = at
        if mass[at] < reach:
            break
    assert best is not None
    return best, mass[best]


@pytest.mark.parametrize("seed", range(8))
def test_items_are_named_as_by_walking_down(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 9)
    p, reach = rng.dirichlet(np.full(9, 0.2), 40), rng.uniform(0.3, 0.95)
    nodes, sure = tree.named(p, reach)
    expected = [name_by_descent(tree, row, reach) for row in p]
    assert nodes.tolist() == [node for node, _ in expected]
    assert sure == pytest.approx([mass for _, mass in expected])
    labels = rng.integers(-1, 9, 40)
    assert tree.holds(nodes, labels).tolist() == [
        node in above(tree, label) for node, label in zip(nodes, labels, strict=True)
    ]


def test_a_tree_is_read_as_a_spreadsheet_saves_it(tmp_path: Path) -> None:
    file = written(tmp_path, FRUIT)
    tree = read_tree(file, CLASSES)
    file.write_bytes(file.read_text().replace(",", ";").encode("utf-16"))
    again = read_tree(file, CLASSES)
    assert (again.names, again.parents.tolist()) == (tree.names, tree.parents.tolist())


def test_a_tree_is_written_as_it_is_read(tmp_path: Path) -> None:
    tree = read_tree(written(tmp_path, FRUIT), CLASSES)
    assert tree.names == (*CLASSES, "food", "fruit")
    assert tree.depths.tolist() == [3, 3, 2, 1, 1, 2]
    tree.write(tmp_path / "again.csv")
    again = read_tree(tmp_path / "again.csv", CLASSES)
    assert (again.names, again.parents.tolist()) == (tree.names, tree.parents.tolist())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["name,parent", "apple,"], "columns name, parent; it needs the columns label and parent"),
        ([*FRUIT, "pear,food"], "row 8: 'pear' is also in row 5"),
        ([*FRUIT, "Fruit,food"], "row 8: 'Fruit' is also in row 3"),
        ([*FRUIT, "Unknown,"], "row 8: the name 'unknown' is reserved"),
        ([*FRUIT, ",food"], "row 8: the label '' is empty"),
        ([*FRUIT[:1], *FRUIT[2:]], "row 2: 'food', the parent of 'fruit', has no row of its own. Add one"),
        ([*FRUIT, "fig,fruit"], "row 8: 'fig' is not a class of the data"),
        (FRUIT[:-1], "1 class of the data without a row, such as 'milk'"),
        ([*FRUIT, "cream,milk"], "row 7: 'milk' is a class, so nothing can be below it"),
        (["label,parent", "food,fruit", *FRUIT[2:]], "row 2: 'food' is its own ancestor: food > fruit > food"),
        (["label,parent", "milk,milk", *FRUIT[1:-1]], "row 2: 'milk' is its own ancestor: milk > milk"),
        (["label,parent", *(f"{c}," for c in CLASSES)], "no row has a parent"),
        (["label,parent", "n0,", *(f"n{n},n{n - 1}" for n in range(1, 60)), *FRUIT[1:]],
         f"row {MAX_DEPTH + 2}: 'n{MAX_DEPTH}' is more than {MAX_DEPTH} steps below the top"),
        (["label,parent", '"apple'], "cannot be read as CSV"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, lines: list[str], message: str) -> None:
    file = written(tmp_path, lines)
    with pytest.raises(SecondhandError) as error:
        read_tree(file, CLASSES)
    assert str(file) in str(error.value)
    assert message in str(error.value)


def fitted(
    tree: Tree | None, classes: int, **settings: object
) -> tuple[Confidence, Outputs, Outputs]:
    """Return a confidence, its calibration items, and new items."""
    rng = np.random.default_rng(5)
    parts = []
    for count in (400, 300, 200):
        labels = rng.integers(0, classes, count)
        logits, features = outputs(labels, classes, rng)
        parts.append(Outputs(logits.astype(float), labels, features))
    calibration, train, new = parts
    options = ConfidenceSettings(**settings)  # type: ignore[arg-type]
    return Confidence.fit(calibration, train, options, tree=tree), calibration, new


def test_a_tree_adds_answers_and_changes_none() -> None:
    """Threshold, distance and score of the model's own rule also guard the nodes."""
    tree = random_tree(np.random.default_rng(3), 6)
    plain, _, new = fitted(None, 6, threshold=0.8)
    with_tree, _, _ = fitted(tree, 6, threshold=0.8)
    before, after = (c.decide(new.logits, new.features) for c in (plain, with_tree))
    answered = before.label >= 0
    assert (after.label[answered] == before.label[answered]).all()
    more = (after.label >= 0) & ~answered
    assert more.sum() > 20
    assert (after.label[more] >= 6).all()
    assert {str(after.reason[i]) for i in np.flatnonzero(more)} <= {"ambiguous", "unusual"}
    p = softmax(new.logits / with_tree.calibrator.temperature.value)
    parts = with_tree.score_gate.score.parts  # type: ignore[attr-defined]
    for i in range(len(p)):
        node, mass = name_by_descent(tree, p[i], 0.8)
        # The OOD score, without the doubt between siblings.
        ranks = {
            name: part.score(new.features[i : i + 1], new.logits[i : i + 1])
            for name, part in parts.items()
        }
        ranks["msp"] = np.array([np.log(mass)])
        known = sum(
            np.log((1 + (with_tree.score_gate.score.calibration[n] <= v).sum()) / 401)
            for n, v in ranks.items()
        )  # type: ignore[attr-defined]
        expected = (
            mass >= 0.8
            and known >= with_tree.score_gate.floors["combined"]
            and after.distance_p[i] >= 0.05
        )
        assert after.label[i] == (node if expected else -1)
    loose = with_tree.with_threshold(0.6).decide(new.logits, new.features)
    assert [name_by_descent(tree, row, 0.6)[0] for row in p] == loose.named.tolist()
    restricted = with_tree.only([True] * 3 + [False] * 3).decide(new.logits, new.features)
    assert restricted.probabilities[:, 3:].max() == 0


def test_sums_that_claim_too_much_are_told() -> None:
    tree = Tree(("a", "b", "c", "ab"), np.array([3, 3, TOP, TOP]), 3)
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 500, p=[0.35, 0.35, 0.3])
    assert overconfident_depths(tree, np.tile([0.36, 0.33, 0.31], (500, 1)), labels) == []
    (message,) = overconfident_depths(tree, np.tile([0.49, 0.49, 0.02], (500, 1)), labels)
    assert message.startswith("The probabilities at depth 1 are overconfident")
    p = rng.dirichlet(np.ones(9), 20)
    tree, labels = random_tree(rng, 9), rng.integers(-1, 9, 20)
    for _, nodes in tree.levels:
        masses, truth = tree.class_subset(nodes, p, labels)
        for i, label in enumerate(labels):
            ancestors = [n for n in above(tree, label) if n in nodes]
            assert truth[i] == (nodes.tolist().index(ancestors[0]) if ancestors else len(nodes))
            below = [c for c in range(9) if {*above(tree, c)} & {*nodes.tolist()}]
            assert masses[i].sum() == pytest.approx(1)
            assert masses[i, -1] == pytest.approx(1 - p[i, below].sum(), abs=1e-9)


def test_a_model_folder_keeps_its_tree(tmp_path: Path) -> None:
    bundle = make_bundle(("apple", "pear", "milk"))
    tree = read_tree(
        written(tmp_path, ["label,parent", "fruit,", "apple,fruit", "pear,fruit", "milk,"]),
        bundle.classes,
    )
    bundle.confidence, _, new = fitted(tree, 3, target_accuracy=0.7)
    folder = save_bundle(bundle, tmp_path / "model")
    read = load_bundle(folder).decider
    ours, theirs = (c.decide(new.logits, new.features) for c in (bundle.confidence, read))
    assert (ours.label == theirs.label).all()
    assert (ours.label == 3).any()
    config = json.loads((folder / "config.json").read_text())

    def refused(said: str, **parts: object) -> None:
        changed = {**config, "confidence": {**config["confidence"], **parts}}
        (folder / "config.json").write_text(json.dumps(changed))
        with pytest.raises(SecondhandError, match=said):
            load_bundle(folder)

    cut = config["confidence"]["threshold"]
    refused("threshold.by_name is", threshold={**cut, "by_name": [0.1]})
    refused("threshold.by_name is", threshold={**cut, "by_name": ["x", 0, 0, 0]})
    refused("tree.reach is 2: expected", tree={"reach": 2})
    (folder / "config.json").write_text(json.dumps(config))
    text = (folder / "classes.csv").read_text()
    (folder / "classes.csv").write_text(text.replace("milk,", "milk,fruit"))
    with pytest.raises(SecondhandError, match=r"classes\.csv: its content does not match"):
        load_bundle(folder)
    (folder / "classes.csv").unlink()
    with pytest.raises(SecondhandError, match=r"classes\.csv: missing"):
        load_bundle(folder)


def test_figures_of_depths_are_counted() -> None:
    bundle = make_bundle(("apple", "pear", "leek", "milk"))
    tree = Tree(("apple", "pear", "leek", "milk", "fruit"), np.array([4, 4, TOP, TOP, TOP]), 4)
    bundle.confidence = fitted(tree, 4, threshold=0.7)[0]
    answers = make_evaluation(bundle, valid=120, calibration=0, ood=0, silent=0).predictions
    p = np.full((120, 4), 0.1)
    p[np.arange(120), [bundle.classes.index(name) for name in answers["truth"]]] = 0.7
    figures = tree_figures(answers, p, tree)
    assert figures is not None
    of = {row["named"]: row for row in figures["depths"]}
    kinds = {"apple": "fruit", "pear": "fruit"}
    right = [
        a in (t, kinds.get(t)) for a, t in zip(answers["label"], answers["truth"], strict=True)
    ]
    for name, chosen in (
        ("depth 1", answers["label"].eq("fruit")),
        ("class", answers["label"].isin(bundle.classes)),
    ):
        assert chosen.any()
        assert of[name]["answers"] == chosen.sum()
        assert of[name]["right"] == pytest.approx(np.mean(np.array(right)[chosen]))
    assert figures["unknown"] == pytest.approx(answers["label"].eq("unknown").mean())
    names = {name: {name, kinds.get(name, name)} for name in (*bundle.classes, "fruit")} | {
        "unknown": set()
    }
    both = sum(
        len(names[a] & names[t]) for a, t in zip(answers["label"], answers["truth"], strict=True)
    )
    assert figures["precision"] == both / sum(len(names[a]) for a in answers["label"])
    assert figures["recall"] == both / sum(len(names[t]) for t in answers["truth"])
    # Each class alone is right; at a threshold of 0.7 all are answered.
    assert figures["curves"]["classes alone"] == {"risk": [0.0], "specificity": [1.0]}


def test_what_does_not_go_with_a_tree_is_said_at_the_start() -> None:
    settings = Settings().but(data="x", classes_table=Path("classes.csv"), background="noise")
    with pytest.raises(SecondhandError, match="--background with --classes-table"):
        settings.check()


def test_a_target_out_of_reach_leaves_the_rule_without_one() -> None:
    tree = random_tree(np.random.default_rng(3), 6)
    plain, _, new = fitted(tree, 6, threshold=0.8)
    with_target, _, _ = fitted(tree, 6, threshold=0.8, target_accuracy=0.9999)
    assert (with_target.threshold_gate.on, with_target.threshold_gate.threshold.value) == (
        "probability",
        0.9999,
    )
    assert with_target.score_gate.floors == plain.score_gate.floors
    assert with_target.naming is not None
    assert (with_target.naming.reach, with_target.threshold_gate.by_name) == (0.9999, None)
    assert any("default rule" in note for note in with_target.notes)
    strict, loose = (c.decide(new.logits, new.features).label for c in (with_target, plain))
    assert not ((strict >= 0) & (loose < 0)).any()
