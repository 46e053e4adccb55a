"""What a group of flags for calls of ``learners.predict`` is, and the registry of all.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from datasets.cli.options import Checked, take_sections
from datasets.core.registry import Registry
from learners.cli.commands import PredictSettings


@dataclass(kw_only=True)
class Section(Checked):
    """A dataclass of settings, which its docstring heads in the help.

    Attributes
    ----------
    name : its name in the registry.
    usual : settings that the help shows by itself.
    free : settings that may change when a job resumes, because they do not affect the predictions.
    elsewhere : settings that send files to other machines, which some calls do not allow.
    """

    name: ClassVar[str]
    usual: ClassVar[tuple[str, ...]] = ()
    free: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[tuple[str, ...]] = ()


SECTIONS: Registry[type[Section]] = Registry("learners.calls.sections")


def predict_settings(values: Mapping[str, Any]) -> PredictSettings:
    """The settings of a call of ``learners.predict`` from their values by name; the others have their defaults."""
    rest = dict(values)
    added = take_sections(rest, SECTIONS.ours().values())
    return PredictSettings(**rest, added=added)
