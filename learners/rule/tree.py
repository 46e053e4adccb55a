"""Groups above the classes: a less specific answer where the model cannot tell the classes of a group apart."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np

from datasets.core.errors import SecondhandError, quoted
from datasets.items.labels import UNKNOWN, clean_label, label_error, spelling_key
from datasets.tables.cells import read_csv, write_rows
from learners.rule.decisions import Branch
from learners.rule.numbers.arrays import Floats, Ints, Mask

COLUMNS = ("label", "parent")
#: Limits of the file, which may come from an untrusted source.
MAX_BYTES, MAX_DEPTH = 8 << 20, 50
#: Parent number of the groups at the top, and the number of no group.
TOP = -1


@dataclass(frozen=True, eq=False)
class Tree:
    """The classes and the groups above them.

    Attributes
    ----------
    names : the ``classes`` in the order of their logits, then the groups above them.
    parents : [names], number of each name's parent; `TOP` at the top.
    classes : number of classes.
    """

    names: tuple[str, ...]
    parents: Ints
    classes: int

    def path(self, number: int) -> list[int]:
        """Numbers from the top down to ``number``."""
        path = [number]
        while (number := int(self.parents[number])) != TOP:
            path.insert(0, number)
        return path

    @cached_property
    def ancestors(self) -> dict[str, list[str]]:
        """Names of the groups above each class, from the top down."""
        paths = {self.names[k]: self.path(k)[:-1] for k in range(self.classes)}
        return {name: [self.names[group] for group in path] for name, path in paths.items()}

    def branches(self, probabilities: Floats) -> list[Branch]:
        """Names and probabilities of each item from the top down, at each step those of the most probable child."""
        return [
            tuple((self.names[k], float(p)) for k, p in dict(zip(chain, sums, strict=True)).items())
            for chain, sums in zip(*self._chains(probabilities), strict=True)
        ]

    def deepest(self, branch: Branch, least: float) -> tuple[int, float]:
        """The last group on a branch with a probability of at least ``least``, and its probability; `TOP` and 0 where
        none has it.
        """
        groups = ((self._numbers.get(name, TOP), p) for name, p in reversed(branch))
        return next(((k, p) for k, p in groups if k >= self.classes and p >= least), (TOP, 0.0))

    def holds(self, numbers: Ints, labels: Ints) -> Mask:
        """Whether each number is the class of the label or a group above it, bool [n]; false for a label of -1."""
        at, matches = np.where(labels < 0, TOP, labels), np.zeros(len(labels), bool)
        while (at != TOP).any():
            matches |= (at == numbers) & (at != TOP)
            at = np.where(at == TOP, TOP, self.parents[at])
        return matches

    def write(self, file: Path) -> None:
        """Write the CSV file that `read_tree` reads."""
        above = ["" if parent == TOP else self.names[parent] for parent in self.parents]
        with open(file, "w", encoding="utf-8", newline="") as stream:
            write_rows(stream, [COLUMNS, *zip(self.names, above, strict=True)])

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def _children(self) -> dict[int, Ints]:
        order = np.argsort(self.parents, kind="stable")
        above, first = np.unique(self.parents[order], return_index=True)
        return dict(zip(above.tolist(), np.split(order, first[1:]), strict=True))

    def _chains(self, probabilities: Floats) -> tuple[Ints, Floats]:
        """Numbers from the top down, at each step the most probable child, and their probabilities; each [n, steps].

        A class that is reached early is repeated. A group of all classes carries no information and is left out.
        """
        sums = np.zeros((len(self.names), len(probabilities)))
        sums[: self.classes] = probabilities.T
        for number in range(self.classes):
            sums[self.path(number)[:-1]] += sums[number]
        begin = TOP
        while len(self._children[begin]) == 1:
            begin = int(self._children[begin][0])
        at = np.full(len(probabilities), begin)
        steps: list[Ints] = []
        while not steps or (at >= self.classes).any():
            for node in np.unique(at[(at >= self.classes) | (at == TOP)]):
                rows, below = np.flatnonzero(at == node), self._children[int(node)]
                at[rows] = below[sums[np.ix_(below, rows)].argmax(axis=0)]
            steps.append(at.copy())
        chains = np.stack(steps, axis=1)
        return chains, np.take_along_axis(sums.T, chains, axis=1)


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
    name, fault, depths = "", "", {"": 0}
    try:
        for name in TopologicalSorter(
            {name: [above] for name, above in parents.items()}
        ).static_order():
            depths[name] = depths[parents[name]] + 1 if name else 0
            if depths[name] > MAX_DEPTH:
                fault = f"is more than {MAX_DEPTH} steps below the top"
                break
    except CycleError as error:
        circle = error.args[1][::-1]
        start = circle.index(min(circle, key=row_numbers.__getitem__))
        circle = [*circle[start:-1], *circle[: start + 1]]
        name, fault = circle[0], f"is its own ancestor: {' > '.join(circle)}"
    if fault:
        raise SecondhandError(
            f"{begin}, row {row_numbers[name]}: {quoted(name)} {fault}"[:600]
            + ". Correct its parent"
        )
