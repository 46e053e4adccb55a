"""What fields add to the page of its first model: tabs, parts under an answer, and labels to train with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets.core.registry import Registry

if TYPE_CHECKING:
    from app.labels import Labels
    from app.serving import Served
    from app.settings import PageSettings
    from learners.cli.commands import Section


class Taught(NamedTuple):
    """A table of what visitors have said of files: what one row of it is, and the model that all rows are for; "" if
    each names its own."""

    what: str
    table: Labels
    model: str


class Opened:
    """What a field has open for the first model while the page is served.

    Attributes
    ----------
    title : of its tab; "" without one.
    head : HTML for the head of the page.
    """

    title = ""
    head = ""

    def begin(self) -> None:
        """Called when the page answers."""

    def close(self) -> None:
        """Called when the page ends."""

    def fill(self, tab: Any) -> None:
        """Fill its tab."""

    def under_answer(self, seen: Any) -> Any:
        """Build what stands under the answer to one file, of which ``seen`` is the state; returns the component that is
        emptied for another file, or None."""
        return None

    @property
    def taught(self) -> Taught | None:
        """The labels to train with, if it collects some."""
        return None


@dataclass(frozen=True)
class Tab:
    """What a field adds to the page of the first model.

    Attributes
    ----------
    open : gives it for the settings of a page and its first model; None if they do not ask for it.
    section : the flags that ask for it; None for none.
    """

    name: str
    open: Callable[[PageSettings, Served], Opened | None]
    section: type[Section] | None = None


TABS: Registry[Tab] = Registry("app.tabs")


def sections() -> list[type[Section]]:
    """The flags that fields add."""
    return [tab.section for tab in TABS.ours().values() if tab.section is not None]


def taught_by(opened: Sequence[Opened]) -> list[Taught]:
    """What visitors have taught the first model."""
    return [taught for one in opened if (taught := one.taught) is not None]
