"""What a step of reading is, and what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from datasets.core.registry import Registry
from datasets.items.items import Items
from datasets.items.labels import MULTI
from datasets.items.settings import DataSettings, SignalSettings, WarmStartSettings
from datasets.sources.base import ReadOptions, is_multi_label
from datasets.spectrograms.settings import SpectrogramSettings

S = TypeVar("S")


@dataclass(frozen=True)
class Asked:
    """What a call asks of the steps.

    Attributes
    ----------
    sources : what ``--data`` names.
    sections : sections of its settings by their types, of which each step takes its own; one that is missing has its
        defaults.
    seed : of what is drawn at random.
    options : how the sources are read.
    check : open each file. Otherwise those that cannot be read stay among the items.
    trained_on : spectrogram settings of the backbone's training, which apply where the user leaves them open.
    spectrogram : spectrogram settings of a warm start. Default: inferred from the training files.
    """

    sources: Sequence[str] = ()
    sections: Mapping[type, Any] = field(default_factory=dict)
    seed: int = 0
    options: ReadOptions = ReadOptions()
    check: bool = True
    trained_on: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    spectrogram: SpectrogramSettings | None = None

    @classmethod
    def by(cls, *sections: Any, seed: int = 0) -> Asked:
        """What the settings of a training ask for, whose sources are read as these say."""
        asked = cls(sections={type(section): section for section in sections}, seed=seed)
        data, signal = asked.of(DataSettings), asked.of(SignalSettings)
        settings = signal.given()
        for section in sections:
            settings |= vars(section)
        options = ReadOptions(
            kind=data.kind,
            path_column=data.path_column,
            label_column=data.label_column,
            labels=data.labels or (MULTI if is_multi_label(data) else None),
            warm_start=asked.of(WarmStartSettings).from_ is not None,
            settings=settings,
        )
        return replace(asked, sources=data.sources, options=options)

    def of(self, section: type[S]) -> S:
        """A section of the settings."""
        found: S = self.sections.get(section) or section()
        return found

    def but(self, *sections: Any) -> Asked:
        """The same call with other values in some sections."""
        return replace(self, sections={**self.sections, **{type(one): one for one in sections}})


#: A step of reading. It raises SecondhandError for settings that do not suit the items, or if nothing is left.
Run = Callable[[Items, Asked], Items]


@dataclass(frozen=True)
class Step:
    """A step that a field adds.

    Attributes
    ----------
    before : name of the step of `datasets.steps.reading` that it precedes; several run in the order of their names.
    run : the step.
    """

    name: str
    before: str
    run: Run


#: Steps that fields add.
STEPS: Registry[Step] = Registry("datasets.steps")


def added_before(step: Run) -> list[Run]:
    """The steps that fields have added before one."""
    return [one.run for one in STEPS.values() if one.before == step.__name__]
