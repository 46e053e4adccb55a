"""What a way to call ``learners.predict`` is, and the registry of all."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from datasets.cli.options import flag
from datasets.core.errors import SecondhandError
from datasets.core.registry import Registry
from learners.cli.commands import OutputSettings

if TYPE_CHECKING:
    from learners.inference.machines import Machines
    from learners.inference.predictor import Predictor
    from learners.model.bundle import Bundle
    from learners.outputs.base import Output
    from learners.predictions.provenance import Provenance

_DEFAULTS = {field.name: field.default for field in fields(OutputSettings)}


class Call:
    """A way to call ``learners.predict``.

    Attributes
    ----------
    title : what is predicted, for messages.
    order : calls are asked in this order, and the first that claims the settings of a call predicts.
    flags : settings that only some calls have, and this is one of them.
    excludes : settings that all calls but this one have.
    apart : two settings that cannot be combined, and why.
    needs : a setting, and the one that it needs.

    Raises
    ------
    SecondhandError : a flag is for other calls, or does not go with another one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    order: ClassVar[int] = 100
    flags: ClassVar[tuple[str, ...]] = ()
    excludes: ClassVar[tuple[str, ...]] = ()
    apart: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    needs: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __init__(self, settings: Any, bundle: Bundle, output: Output) -> None:
        self.settings, self.bundle, self.output = settings, bundle, output
        self._check()

    @classmethod
    def claims(cls, settings: Any, bundle: Bundle) -> bool:
        """Whether the paths and flags of a call of this model are for it."""
        raise NotImplementedError

    def has(self, name: str) -> bool:
        """Whether a setting is given."""
        return bool(getattr(self.settings, name) != _DEFAULTS[name])

    @property
    def top(self) -> int:
        """Number of classes to list."""
        return 3 if self.settings.top is None else int(self.settings.top)

    @property
    def lists_all(self) -> bool:
        """Whether predictions list all classes, however many are written."""
        return False

    @property
    def on_one_machine(self) -> str:
        """What of the call only one machine can predict, for the message about several; "" for nothing."""
        return ""

    def options(self) -> dict[str, Any]:
        """Options of the `Predictor`."""
        return {}

    def run(self, predictor: Predictor, machines: Machines, provenance: Provenance) -> int:
        """Predict, and write the predictions. Returns the exit status: 0, or 3 if some could not be made."""
        raise NotImplementedError

    def _given(self, name: str) -> str:
        value = getattr(self.settings, name)
        if isinstance(value, bool):
            return flag(name)
        # A GPS time has ten digits before the point.
        return f"{flag(name)} {value:.15g}" if isinstance(value, float) else f"{flag(name)} {value}"

    def _check(self) -> None:
        others = {name for call in in_order() for name in call.flags} - {*self.flags}
        for name in filter(self.has, (name for name in _DEFAULTS if name in others)):
            titles = " or ".join(call.title for call in in_order() if name in call.flags)
            raise SecondhandError(
                f"{self._given(name)} is for {titles}, but this call predicts {self.title}. Leave it out"
            )
        for name, other in self.needs:
            if self.has(name) and not self.has(other):
                raise SecondhandError(
                    f"{flag(name)} needs {flag(other)}. Give it too, or leave {flag(name)} out"
                )
        for one, other, why in self.apart:
            if self.has(one) and self.has(other):
                raise SecondhandError(
                    f"{self._given(one)} cannot be combined with {self._given(other)}: {why}. Leave one of them out"
                )
        if self.output.windows and self.settings.at is not None:
            raise SecondhandError(
                f"--format {self.output.name} cannot be combined with {self._given('at')}: it has all windows of a "
                "recording. Leave one of them out"
            )
        if self.has("top") and not self.output.lists_classes and "format" not in self.excludes:
            raise SecondhandError(
                f"--top: --format {self.output.name} has no column for it. Use --format csv or jsonl"
            )
        wrong = [self._given(name) for name in self.excludes if self.has(name)]
        if wrong:
            raise SecondhandError(
                f"{' and '.join(wrong)}: this call predicts {self.title}. Leave it out"
            )


CALLS: Registry[type[Call]] = Registry("learners.calls")


def in_order() -> list[type[Call]]:
    """The calls in their order. The last one claims what is left, so those of other packages are not looked for."""
    return sorted(CALLS.ours().values(), key=attrgetter("order"))


def find_call(settings: Any, bundle: Bundle, output: Output) -> Call:
    """The way in which these settings call a model; raises SecondhandError for flags that do not suit it."""
    call = next(call for call in in_order() if call.claims(settings, bundle))
    return call(settings, bundle, output)
