"""What a test asks of the steps of reading."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from datasets.items.settings import SignalSettings
from datasets.steps.base import Asked
from learners.cli.settings import Settings


def asked(signal: SignalSettings | None = None, *, seed: int = 0, **values: Any) -> Asked:
    """What settings by name ask for, as a command that has these flags would."""
    sections = [
        type(section)(**{f.name: values[f.name] for f in fields(section) if f.name in values})
        for section in Settings().sections.values()
    ]
    assert set(values) <= {f.name for section in sections for f in fields(section)}
    if signal is not None:
        sections = [section for section in sections if type(section) is not SignalSettings]
        sections.append(signal)
    return Asked.by(*sections, seed=seed)
