"""What a way to call ``learners.predict`` is, and the registry of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar

from datasets.cli.conflicts import Conflict, Refused
from datasets.cli.options import Condition, check_conditions, flag
from datasets.core.errors import SecondhandError
from datasets.core.registry import Registry
from datasets.core.shipped import needed_for
from learners.calls.sections.base import SECTIONS

if TYPE_CHECKING:
    from learners.cli.commands import PredictSettings
    from learners.inference.decoding import Pieces
    from learners.inference.machines import Machines
    from learners.inference.options import Options
    from learners.inference.predictor import Predictor
    from learners.model.bundle import Bundle
    from learners.outputs.base import Output
    from learners.predictions.provenance import Provenance


class Call:
    """A way to call ``learners.predict``.

    Attributes
    ----------
    title : what is predicted, for messages.
    has_own_format : it is written in a format of its own, and not in that of ``--format``.
    order : calls are asked in this order, and the first that claims the settings of a call predicts.
    flags : settings that only some calls have, and this is one of them.
    conflicts : settings that exclude each other in this call, or that it cannot have.
    one_machine : why no other machine predicts the files, by the name of the setting with which that is so, or by "".

    Raises
    ------
    SecondhandError : a flag is for other calls, or does not go with another one.
    """

    name: ClassVar[str]
    has_own_format: ClassVar[bool] = False
    title: ClassVar[str]
    order: ClassVar[int] = 100
    flags: ClassVar[tuple[str, ...]] = ()
    conflicts: ClassVar[tuple[Condition, ...]] = ()
    one_machine: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: PredictSettings, bundle: Bundle, output: Output) -> None:
        self.settings, self.bundle, self.output = settings, bundle, output
        self._given = settings.call
        self._check()

    @classmethod
    def taken(cls) -> Sequence[str]:
        """`flags`, and those that fields add."""
        return cls.flags

    @classmethod
    def claims(cls, settings: PredictSettings, bundle: Bundle) -> bool:
        """Whether the paths and flags of a call of this model are for it."""
        raise NotImplementedError

    def has(self, name: str) -> bool:
        """Whether a setting is given."""
        return bool(self._given[name])

    @property
    def top(self) -> int:
        """Number of classes to list."""
        return 3 if self.settings.top is None else int(self.settings.top)

    @property
    def lists_all(self) -> bool:
        """Whether predictions list all classes, however many are written."""
        return False

    def options(self, options: Options) -> Options:
        """Those of all calls, as this one has them."""
        return options

    def pieces(self) -> Pieces | None:
        """The pieces of a file to predict; None for whole files, or their windows."""
        return None

    def run(self, predictor: Predictor, machines: Machines, provenance: Provenance) -> int:
        """Predict, and write the predictions. Returns the exit status: 0, or 3 if some could not be made."""
        raise NotImplementedError

    @classmethod
    def against_others(cls) -> Iterator[Condition]:
        """What this call excludes of the settings that send files to other machines."""
        for section in SECTIONS.ours().values():
            for name, (setting, why) in product(section.elsewhere, cls.one_machine.items()):
                if setting:
                    yield Conflict(name, setting, why)
                else:
                    yield Refused(name, why, "leave it out")

    def _check(self) -> None:
        others = {name for call in in_order() for name in call.taken()} | {*_of_sections()}
        others -= {*self.taken()}
        for name in filter(self.has, (name for name in self._given if name in others)):
            titles = dict.fromkeys(call.title for call in in_order() if name in call.taken())
            asked = f"{' or '.join(titles)}, but this call predicts {self.title}"
            missed = needed_for(f"{flag(name)} of {self.bundle.kind} files")
            raise SecondhandError(
                f"{self._given[name]} is for {asked if titles else 'no call here'}. Leave it out{missed}"
            )
        table = (*self.conflicts, *self.against_others(), *self.output.conflicts)
        check_conditions(table, self._given)
        if self.has("top") and not self.output.lists_classes and not self.has_own_format:
            raise SecondhandError(
                f"--top: --format {self.output.name} has no column for it. Use --format csv or jsonl"
            )


CALLS: Registry[type[Call]] = Registry("learners.calls")


def _of_sections() -> Iterator[str]:
    """The settings that calls may take: those of the sections, but for what sends files to other machines."""
    for section in SECTIONS.ours().values():
        yield from (item.name for item in fields(section) if item.name not in section.elsewhere)


def in_order() -> list[type[Call]]:
    """The calls in their order. The last one claims what is left, so those of other packages are not looked for."""
    return sorted(CALLS.ours().values(), key=attrgetter("order"))


def find_call(settings: PredictSettings, bundle: Bundle, output: Output) -> Call:
    """The way in which these settings call a model; raises SecondhandError for flags that do not suit it."""
    call = next(call for call in in_order() if call.claims(settings, bundle))
    return call(settings, bundle, output)
