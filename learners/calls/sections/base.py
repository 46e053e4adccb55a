"""The registry of the groups of flags for calls of ``learners.predict``.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from datasets.core.registry import Registry
from learners.cli.commands import PredictSettings, Section

SECTIONS: Registry[type[Section]] = Registry("learners.calls.sections")


def predict_settings(values: Mapping[str, Any]) -> PredictSettings:
    """The settings of a call of ``learners.predict`` from their values by name; the others have their defaults."""
    rest, added = dict(values), list[Section]()
    for section in SECTIONS.ours().values():
        names = [item.name for item in fields(section) if item.name in rest]
        added.append(section(**{name: rest.pop(name) for name in names}))
    return PredictSettings(**rest, added=tuple(added))
