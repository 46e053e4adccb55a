"""The items of a run: what each step from reading to the report hands on to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pandas as pd

from datasets.core.errors import Rejected
from datasets.items.labels import parse_names

F = TypeVar("F")


@dataclass(frozen=True)
class Items:
    """The items of a run. A step takes them and returns others; nothing is changed in place.

    Attributes
    ----------
    frame : items of the classes, one row each.
    unknown_items : items labelled ``unknown``, which are not trained on.
    kind : name of the kind of all files, a key of `datasets.kinds.base.KINDS`; "" before it is known.
    source : what the user named; several sources are joined by " + ".
    multi_label : an item may have several labels, or none (see `datasets.items.labels`).
    background : files of the background (negative) class, labelled ``unknown``, with their splits.
    rejected : files that were left out, and why.
    facts : what the steps have found, by the type that each of them defines for it.
    """

    frame: pd.DataFrame
    unknown_items: pd.DataFrame
    kind: str
    source: str
    multi_label: bool = False
    background: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame({"path": [], "split": []})
    )
    rejected: tuple[Rejected, ...] = ()
    facts: Mapping[type, Any] = field(default_factory=dict)

    @classmethod
    def none(cls) -> Items:
        """No items, with which reading begins."""
        return cls(pd.DataFrame(), pd.DataFrame(), "", "")

    @property
    def classes(self) -> list[str]:
        """The classes, sorted: the order of a network's outputs."""
        labels = self.frame["label"].unique()
        return sorted(
            {name for label in labels for name in parse_names(label)}
            if self.multi_label
            else labels
        )

    def fact(self, of: type[F]) -> F:
        """What a step has found, which these items have passed."""
        found: F = self.facts[of]
        return found

    def get(self, of: type[F]) -> F | None:
        """What a step has found; None if it did not look for it."""
        return self.facts.get(of)

    def knowing(self, *facts: object) -> Items:
        """These items with further facts; one of a type replaces an earlier one."""
        return replace(self, facts={**self.facts, **{type(fact): fact for fact in facts}})

    def forgetting(self, of: type) -> Items:
        """These items without what a step has found, which does not hold for them."""
        return replace(
            self, facts={kind: fact for kind, fact in self.facts.items() if kind is not of}
        )

    def leaving_out(self, rejected: Iterable[Rejected]) -> Items:
        """These items with further files among those that were left out; the caller removes their rows."""
        return replace(self, rejected=(*self.rejected, *rejected))
