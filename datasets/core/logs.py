"""Levels of loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logger_levels(level: int, *names: str) -> Iterator[None]:
    """Set the level of loggers for the length of a block."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(level)
        yield
    finally:
        for logger, old_level in zip(loggers, before, strict=True):
            logger.setLevel(old_level)
