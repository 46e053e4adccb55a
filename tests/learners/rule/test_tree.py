"""The groups above the classes: how they are read, and which answer, against brute force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datasets.core.errors import SecondhandError
from learners.cli.settings import Settings
from learners.model.bundle import load_bundle, save_bundle
from learners.rule.base import AnyRule
from learners.rule.fitting import fit_rule
from learners.rule.numbers.arrays import Outputs
from learners.rule.rule import Rule
from learners.rule.settings import ConfidenceSettings
from learners.rule.tree import MAX_DEPTH, TOP, Tree, read_tree
from learners.rule.tree_rule import with_tree
from tests.learners.evaluations import make_bundle, outputs

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


def descended(tree: Tree, p: np.ndarray) -> list[tuple[int, float]]:
    """Go down the tree, each time to the most probable name, from where there is a choice; with probabilities."""
    numbers = range(len(tree.names))
    sums = [sum(p[c] for c in range(tree.classes) if n in above(tree, c)) for n in numbers]
    steps: list[tuple[int, float]] = []
    at = TOP
    while below := [n for n in numbers if tree.parents[n] == at]:
        at = max(below, key=lambda n: sums[n])
        if steps or len(below) > 1:
            steps.append((at, sums[at]))
    return steps


def rolled_up(tree: Tree, p: np.ndarray, threshold: float) -> tuple[int, float]:
    """The last group on the way down that reaches the threshold."""
    groups = [(n, s) for n, s in descended(tree, p) if n >= tree.classes and s >= threshold]
    return groups[-1] if groups else (TOP, 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_groups_answer_as_by_walking_down(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 9)
    p, threshold = rng.dirichlet(np.full(9, 0.2), 40), rng.uniform(0.3, 0.95)
    found = [tree.deepest(branch, threshold) for branch in tree.branches(p)]
    groups, sure = (
        np.array([group for group, _ in found]),
        [probability for _, probability in found],
    )
    expected = [rolled_up(tree, row, threshold) for row in p]
    assert groups.tolist() == [group for group, _ in expected]
    assert sure == pytest.approx([s for _, s in expected])
    for branch, row in zip(tree.branches(p), p, strict=True):
        steps = descended(tree, row)
        assert [name for name, _ in branch] == [tree.names[n] for n, _ in steps]
        assert [s for _, s in branch] == pytest.approx([s for _, s in steps])
    labels = rng.integers(-1, 9, 40)
    assert tree.holds(groups, labels).tolist() == [
        group in above(tree, label) for group, label in zip(groups, labels, strict=True)
    ]
    assert tree.ancestors == {
        f"n{c}": [tree.names[n] for n in reversed(above(tree, c)[1:])] for c in range(9)
    }


def test_a_tree_is_read_as_a_spreadsheet_saves_it(tmp_path: Path) -> None:
    file = written(tmp_path, FRUIT)
    tree = read_tree(file, CLASSES)
    file.write_bytes(file.read_text().replace(",", ";").encode("utf-16"))
    again = read_tree(file, CLASSES)
    assert (again.names, again.parents.tolist()) == (tree.names, tree.parents.tolist())


def test_a_tree_is_written_as_it_is_read(tmp_path: Path) -> None:
    tree = read_tree(written(tmp_path, FRUIT), CLASSES)
    assert tree.names == (*CLASSES, "food", "fruit")
    assert tree.ancestors["pear"] == ["food", "fruit"]
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


def fitted(tree: Tree | None, classes: int, **settings: object) -> tuple[AnyRule, Outputs]:
    """Return a rule, and new items."""
    rng = np.random.default_rng(5)
    parts = []
    for count in (400, 300, 200):
        labels = rng.integers(0, classes, count)
        logits, features = outputs(labels, classes, rng)
        parts.append(Outputs(logits.astype(float), labels, features))
    calibration, train, new = parts
    options = ConfidenceSettings(**settings)  # type: ignore[arg-type]
    return with_tree(fit_rule(calibration, train, options), tree), new


@pytest.mark.parametrize("settings", [{"threshold": 0.8}, {"target_accuracy": 0.8}])
def test_a_tree_adds_answers_and_changes_none(settings: dict[str, float]) -> None:
    """A group needs what a class needs: the threshold, and the score without the doubt between its classes."""
    tree = random_tree(np.random.default_rng(3), 6)
    plain, new = fitted(None, 6, **settings)
    grouped = with_tree(plain, tree)
    before, after = (rule.decide(new.logits, new.features) for rule in (plain, grouped))
    assert before.reason == after.reason
    answered = before.label >= 0
    assert (after.label[answered] == before.label[answered]).all()
    assert (after.sure[answered] == before.probability[answered]).all()
    assert ((after.label >= 6) & ~answered).sum() > 5
    assert isinstance(plain, Rule)
    score, on_score = plain.floor.score, plain.on != "probability"
    least = max(plain.floor.value, plain.threshold.value if on_score else -np.inf)
    logits = plain.calibrator.scaled(new.logits)
    for i, p in enumerate(before.probabilities):
        if before.reason[i] != "ambiguous":
            assert after.label[i] == before.label[i]
            continue
        group, sure = rolled_up(tree, p, plain.threshold.target if on_score else 0.8)
        ranks = {
            name: part.score(new.features[i : i + 1], logits[i : i + 1])
            for name, part in score.parts.items()
        }
        ranks["msp"] = np.array([np.log(max(sure, 1e-9))])
        known = score.rank(None, logits[i : i + 1], ranks)
        assert after.label[i] == (group if known[0] >= least else TOP)
    loose = grouped.but(threshold=0.6).decide(new.logits, new.features)
    for i in np.flatnonzero([reason == "ambiguous" for reason in loose.reason]):
        assert loose.label[i] == rolled_up(tree, loose.probabilities[i], 0.6)[0]
    restricted = grouped.but(classes=[True] * 3 + [False] * 3).decide(new.logits, new.features)
    assert restricted.probabilities[:, 3:].max() == 0


def test_a_model_folder_keeps_its_tree(tmp_path: Path) -> None:
    bundle = make_bundle(("apple", "pear", "milk"))
    tree = read_tree(
        written(tmp_path, ["label,parent", "fruit,", "apple,fruit", "pear,fruit", "milk,"]),
        bundle.classes,
    )
    bundle.rule, new = fitted(tree, 3, threshold=0.8)
    folder = save_bundle(bundle, tmp_path / "model")
    read = load_bundle(folder).rule
    ours, theirs = (c.decide(new.logits, new.features) for c in (bundle.rule, read))
    assert (ours.label == theirs.label).all()
    assert (ours.label == 3).any()
    text = (folder / "classes.csv").read_text()
    (folder / "classes.csv").write_text(text.replace("milk,", "milk,fruit"))
    with pytest.raises(SecondhandError, match=r"classes\.csv: its content does not match"):
        load_bundle(folder)
    (folder / "classes.csv").unlink()
    with pytest.raises(SecondhandError, match=r"classes\.csv: missing"):
        load_bundle(folder)


def test_what_does_not_go_with_a_tree_is_said_at_the_start() -> None:
    settings = Settings().but(data="x", classes_table=Path("classes.csv"), background="noise")
    with pytest.raises(SecondhandError, match=r"--background .* with --classes-table"):
        settings.check()
