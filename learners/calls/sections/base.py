"""The registry of the groups of flags for calls of ``learners.predict``.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets.core.registry import Registry
from learners.cli.commands import PredictSettings, Section, with_sections

SECTIONS: Registry[type[Section]] = Registry("learners.calls.sections")


def predict_settings(values: Mapping[str, Any]) -> PredictSettings:
    """The settings of a call of ``learners.predict`` from their values by name; the others have their defaults."""
    return with_sections(PredictSettings, SECTIONS.ours().values(), values)
