"""Settings of the commands that list files of a pool."""

from __future__ import annotations

from dataclasses import dataclass

from datasets.cli.options import option, positional
from learners.cli.commands import ComputeSettings, EngineSettings, model_help


@dataclass(kw_only=True)
class PoolSettings(ComputeSettings, EngineSettings):
    """files"""

    model: str = positional(model_help)
    overwrite: bool = option(False, "Replace the files at --out.")
