"""A tree above the classes, for a less specific prediction where the class is uncertain.

The probability of a node is the sum over the classes below it. An item is named by the deepest node whose
probability reaches a limit; the gates then judge that name as they judge a class.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.core.cells import read_csv, write_rows
from datasets.core.errors import SecondhandError, quoted
from datasets.items import UNKNOWN, clean_label, label_error, spelling_key
from learners.files import ranged, read_as
from learners.uncertainty.arrays import Floats, Groups, Ints, softmax
from learners.uncertainty.calibrators import fit_temperature
from learners.uncertainty.scores import MSP

COLUMNS = ("label", "parent")
#: Limits of the file, which may come from an untrusted source.
MAX_BYTES, MAX_DEPTH = 8 << 20, 50
#: Parent number of the nodes at the top.
TOP = -1


@dataclass(frozen=True, eq=False)
class Tree:
    """The classes and the nodes above them.

    Attributes
    ----------
    names : the ``classes`` in the order of their logits, then the nodes above them.
    parents : [names], number of each node's parent; `TOP` at the top.
    classes : number of classes.
    """

    names: tuple[str, ...]
    parents: Ints
    classes: int

    @cached_property
    def depths(self) -> Ints:
        """[names], depth of each node: 1 at the top, one more for each step down."""
        return np.array([len(self.path(node)) for node in range(len(self.names))])

    @cached_property
    def _children(self) -> dict[int, Ints]:
        order = np.argsort(self.parents, kind="stable")
        above, first = np.unique(self.parents[order], return_index=True)
        return dict(zip(above.tolist(), np.split(order, first[1:]), strict=True))

    @cached_property
    def levels(self) -> list[tuple[str, Ints]]:
        """Name and nodes of each depth above the classes, from the top down, and last of the classes."""
        nodes = np.arange(len(self.names))
        above = nodes >= self.classes
        levels = [
            (f"depth {depth}", nodes[above & (self.depths == depth)])
            for depth in range(1, int(self.depths[above].max()) + 1)
        ]
        return [*levels, ("class", nodes[~above])]

    def class_subset(self, nodes: Ints, probabilities: Floats, labels: Ints) -> tuple[Floats, Ints]:
        """Probabilities [n, nodes + 1] of disjoint ``nodes`` and of the rest, and the column [n] of each label."""
        masses = self.masses(probabilities)[:, nodes]
        remainder = np.maximum(1 - masses.sum(axis=1, keepdims=True), 0)
        place = np.full(len(self.names) + 1, len(nodes))
        place[nodes] = np.arange(len(nodes))
        at, position = labels, place[labels]
        for _ in range(self.depths.max()):
            at = np.where(at == TOP, TOP, self.parents[at])
            position = np.minimum(position, place[at])
        return np.hstack([masses, remainder]), position

    def path(self, node: int) -> list[int]:
        """Nodes from the top down to ``node``."""
        path = [node]
        while (node := int(self.parents[node])) != TOP:
            path.insert(0, node)
        return path

    def masses(self, probabilities: Floats) -> Floats:
        """Probability of each class and each node (the sum over the classes below it), [n, names]."""
        out = np.zeros((len(self.names), len(probabilities)))
        out[: self.classes] = probabilities.T
        for depth in range(self.depths.max(), 1, -1):
            (nodes,) = np.nonzero(self.depths == depth)
            np.add.at(out, self.parents[nodes], out[nodes])
        return out.T

    def chains(self, masses: Floats) -> Ints:
        """Nodes from the top down, at each step the most probable child, [n, steps].

        A class that is reached early is repeated. A node above all classes carries no information and is left out.
        """
        begin = TOP
        while len(self._children[begin]) == 1:
            begin = int(self._children[begin][0])
        at = np.full(len(masses), begin)
        steps: list[Ints] = []
        while not steps or (at >= self.classes).any():
            for node in np.unique(at[(at >= self.classes) | (at == TOP)]):
                rows, below = np.flatnonzero(at == node), self._children[int(node)]
                at[rows] = below[masses[np.ix_(rows, below)].argmax(axis=1)]
            steps.append(at.copy())
        return np.stack(steps, axis=1)

    def named(self, probabilities: Floats, reach: float) -> tuple[Ints, Floats]:
        """Deepest node of each item's chain with a probability of at least ``reach``, and its probability; each [n].

        If no node of a chain reaches it, the first one counts.
        """
        masses = self.masses(probabilities)
        chains = self.chains(masses)
        chain_masses = np.take_along_axis(masses, chains, axis=1)
        last = np.maximum((chain_masses >= reach).cumprod(axis=1).sum(axis=1) - 1, 0)
        rows = np.arange(len(chains))
        return chains[rows, last], chain_masses[rows, last]

    def branches(self, probabilities: Floats) -> list[tuple[tuple[str, float], ...]]:
        """Names and probabilities along each item's chain."""
        masses = self.masses(probabilities)
        return [
            tuple((self.names[node], float(mass[node])) for node in dict.fromkeys(chain.tolist()))
            for chain, mass in zip(self.chains(masses), masses, strict=True)
        ]

    def holds(self, nodes: Ints, labels: Ints) -> NDArray[np.bool_]:
        """Whether each node is the class of the label or above it, bool [n]; false for a label of -1."""
        at, matches = np.where(labels < 0, TOP, labels), np.zeros(len(labels), bool)
        for _ in range(self.depths.max()):
            matches |= (at == nodes) & (at != TOP)
            at = np.where(at == TOP, TOP, self.parents[at])
        return matches

    def correct(self, predicted: Iterable[object], truths: Iterable[object]) -> NDArray[np.bool_]:
        """Like `holds`, for names; a name outside the tree is wrong."""
        numbers = {name: number for number, name in enumerate(self.names)}
        nodes, labels = (
            np.array([numbers.get(str(name), TOP) for name in names], np.int64)
            for names in (predicted, truths)
        )
        return self.holds(nodes, labels)

    def rows(self) -> list[tuple[str, str]]:
        """Each name with its parent's name, "" at the top."""
        above = ["" if parent == TOP else self.names[parent] for parent in self.parents]
        return list(zip(self.names, above, strict=True))

    def write(self, file: Path) -> None:
        """Write the CSV file that `read_tree` reads."""
        with open(file, "w", encoding="utf-8", newline="") as stream:
            write_rows(stream, [COLUMNS, *self.rows()])


def read_tree(file: str | os.PathLike[str], classes: Sequence[str]) -> Tree:
    """The tree in a CSV file with the columns label and parent.

    The file has a row for each class and each node above the classes; the parent is empty at the top.

    Raises
    ------
    SecondhandError : with file, row, value and remedy. Columns are missing; a name is empty, repeated or "unknown";
        a parent has no row; the rows form a circle; a node has no class below it; a class has no row, or has
        children; no row has a parent.
    """
    rows = _rows(Path(file))
    begin = f"classes table {file}"
    seen_names: dict[str, int] = {}
    for number, (name, _) in rows.items():
        if fault := label_error(name, multi_label=True):
            raise SecondhandError(
                f"{begin}, row {number}: the label {quoted(name)} {fault}. Choose another name"
            )
        if earlier_row := seen_names.get(spelling_key(name)):
            raise SecondhandError(
                f"{begin}, row {number}: {quoted(name)} is also in row {earlier_row}, perhaps in other letter case. "
                "Keep one of the rows"
            )
        if name == UNKNOWN:
            raise SecondhandError(
                f"{begin}, row {number}: the name {quoted(name)} is reserved. Choose another name"
            )
        seen_names[spelling_key(name)] = number
    parents = dict(rows.values())
    row_numbers = {name: number for number, (name, _) in rows.items()}
    for name, parent in parents.items():
        if parent and parent not in parents:
            raise SecondhandError(
                f"{begin}, row {row_numbers[name]}: {quoted(parent)}, the parent of {quoted(name)}, has no row of its "
                "own. Add one, with an empty parent if it is at the top"
            )
    _check_steps(parents, row_numbers, begin)
    above = {parent for parent in parents.values() if parent}
    for name in parents:
        if name in above and name in classes:
            raise SecondhandError(
                f"{begin}, row {row_numbers[name]}: {quoted(name)} is a class, so nothing can be below it. Give the "
                "group above another name"
            )
        if name not in above and name not in classes:
            raise SecondhandError(
                f"{begin}, row {row_numbers[name]}: {quoted(name)} is not a class of the data, and no row has it as "
                "parent. Delete the row or correct the name"
            )
    if missing := [name for name in classes if name not in parents]:
        raise SecondhandError(
            f"{begin}: {len(missing)} class{'es' * (len(missing) != 1)} of the data without a row, such as "
            f"{quoted(missing[0])}. Add each with its parent, or with an empty one"
        )
    if not above:
        raise SecondhandError(
            f"{begin}: no row has a parent, so this is not a tree. Fill in the column parent or leave out "
            "--classes-table"
        )
    names = (*classes, *(name for name in parents if name in above))
    place = {name: number for number, name in enumerate(names)} | {"": TOP}
    return Tree(names, np.array([place[parents[name]] for name in names]), len(classes))


def _rows(file: Path) -> dict[int, tuple[str, str]]:
    """Label and parent by row number; the header is row 1."""
    begin = f"classes table {file}"
    try:
        if file.stat().st_size > MAX_BYTES:
            raise SecondhandError(f"{begin} is larger than {MAX_BYTES >> 20} MiB. Make it smaller")
        cells = read_csv(file)
    except (OSError, SecondhandError) as error:
        raise SecondhandError(f"{begin} cannot be read as CSV ({str(error)[:200]})") from None
    if not {*COLUMNS} <= {*cells}:
        columns_text = ", ".join(map(str, cells))[:200] or "none"
        raise SecondhandError(
            f"{begin} has the columns {columns_text}; it needs the columns label and parent"
        )
    rows = zip(*(cells[name].map(clean_label) for name in COLUMNS), strict=True)
    return dict(enumerate(rows, start=2))


def _check_steps(parents: Mapping[str, str], row_numbers: Mapping[str, int], begin: str) -> None:
    """Raise SecondhandError for a circle, or for more than `MAX_DEPTH` steps to the top."""
    depths = {"": 0}
    for name in parents:
        steps: list[str] = []
        at, fault = name, ""
        while at not in depths and not fault:
            if at in steps:
                fault = f"is its own ancestor: {' > '.join([*steps[steps.index(at) :], at])}"
            elif len(steps) == MAX_DEPTH:
                fault = f"is more than {MAX_DEPTH} steps below the top"
            steps.append(at)
            at = parents[at]
        if not fault:
            for node in reversed(steps):
                depths[node] = depths[parents[node]] + 1
            if depths[name] > MAX_DEPTH:
                fault = f"is more than {MAX_DEPTH} steps below the top"
        if fault:
            raise SecondhandError(
                f"{begin}, row {row_numbers[name]}: {quoted(name)} {fault}"[:600]
                + ". Correct its parent"
            )


@dataclass(frozen=True)
class Naming:
    """Names each item by the deepest node whose probability reaches ``reach``."""

    tree: Tree
    reach: float

    def name(self, z: Floats, probabilities: Floats) -> tuple[Ints, Floats, Floats]:
        """Named node, its probability and its msp score, for scaled logits ``z [n, classes]``.

        Doubt between the children of the node does not lower its score.
        """
        named, sure = self.tree.named(probabilities, self.reach)
        msp = MSP().score(None, z)
        rows = np.arange(len(z))
        mass = self.tree.masses(softmax(z))[rows, named]
        return named, sure, np.where(named == z.argmax(1), msp, np.log(np.maximum(mass, 1e-300)))

    def to_dict(self) -> dict[str, object]:
        """Settings as JSON; the tree has its own file, ``classes.csv``."""
        return {"reach": self.reach}

    @classmethod
    def from_dict(cls, values: object, tree: Tree) -> Naming:
        """The naming from `to_dict`, with checked values."""
        return cls(tree, read_as(_StoredNaming, values, "confidence.tree").reach)


@dataclass(frozen=True)
class _StoredNaming:
    reach: float = ranged(0, 1)


def overconfident_depths(
    tree: Tree, probabilities: Floats, labels: Ints, groups: Groups = None
) -> list[str]:
    """Messages on depths whose summed probabilities are overconfident for the calibration ``labels``.

    Depths are not calibrated separately, so these probabilities are not corrected.
    """
    messages = []
    for name, nodes in tree.levels[:-1]:
        masses, truth = tree.class_subset(nodes, probabilities, labels)
        best = fit_temperature(np.log(np.maximum(masses, 1e-300)), truth, groups=groups)
        if best.low > 1:
            limits = f"{best.value:.2f} [{best.low:.2f}, {best.high:.2f}]"
            messages.append(
                f"The probabilities at {name} are overconfident: they would need a temperature of {limits}"
            )
    return messages
