"""One class an item, of a tree: where no class is likely enough a node above it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from datasets.core.errors import SecondhandError
from learners.tasks.single import SingleLabel
from learners.uncertainty import Tree, read_tree

if TYPE_CHECKING:
    from datasets.items import DataSettings, ItemTable
    from learners.cli.settings import Settings
    from learners.model import Bundle


@dataclass(frozen=True)
class ClassTree(SingleLabel):
    """Trained and judged as single labels are. ``origin`` is the model of ``--from``, whose tree goes on."""

    origin: Bundle | None = None

    def check(self, settings: Settings) -> None:
        if settings.confidence.per_class:
            raise SecondhandError(
                "--per-class: with a tree each depth has its own threshold; leave it out"
            )

    def of_items(self, settings: Settings, table: ItemTable) -> ClassTree:
        tree = tree_of(settings.data, table.classes, self.origin)
        return ClassTree(tree=tree, origin=self.origin)

    def match_labels(self, table: ItemTable, classes: Sequence[str], columns: None) -> list[str]:
        assert self.tree is not None
        above = table.frame["label"].isin(self.tree.names[self.tree.classes :])
        if above.any():
            row = table.frame.loc[above].iloc[0]
            raise SecondhandError(
                f"{row['path']}: label {row['label']!r} stands above the model's classes: name the "
                "class, or leave such files out"
            )
        return super().match_labels(table, classes, columns)


def tree_of(data: DataSettings, classes: Sequence[str], origin: Bundle | None) -> Tree | None:
    """The tree of ``--classes-table``, else that of the model that is gone on from.

    Raises
    ------
    SecondhandError : it does not fit the classes.
    """
    if data.classes_table is not None:
        return read_tree(data.classes_table, classes)
    if origin is None or origin.decider.tree is None:
        return None
    if origin.classes != [*classes]:
        raise SecondhandError(
            f"--from {data.from_}: its classes have a tree, and these are others: give "
            "--classes-table with all of them"
        )
    return origin.decider.tree
