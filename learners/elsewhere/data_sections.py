"""Flags of ``learners.evaluate`` on how its data are read, which fields add.

Nothing heavy is imported, so that ``--help`` answers at once.
"""

from __future__ import annotations

from datasets.core.registry import Registry
from learners.cli.commands import Section

DATA_SECTIONS: Registry[type[Section]] = Registry("learners.elsewhere.data_sections")
