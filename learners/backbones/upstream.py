"""Workarounds for the Hugging Face client and timm, where weights are loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from datasets.core.logs import logger_levels

#: Versions that it was checked with, by package.
CHECKED = {"huggingface_hub": "2.4.0", "timm": "1.0.31"}


@contextmanager
def hub_offline() -> Iterator[None]:
    """Make the Hugging Face client use its cache only.

    Otherwise it retries ten times, for most of a minute. It reads its environment variable only when it
    is imported (huggingface_hub#3593 only reports the value), and timm 1.0 does not pass
    ``local_files_only`` on.
    """
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


class _MissingTensors(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message.startswith("Missing keys"):
            raise RuntimeError(message)
        return record.levelno > logging.INFO


@contextmanager
def require_all_tensors() -> Iterator[None]:
    """Raise RuntimeError if a weights file lacks tensors of a timm network, which would stay random.

    Without a classifier timm loads weights leniently, even with ``pretrained_strict``
    (pytorch-image-models#2142), and only logs the missing tensors.
    """
    logger, check = logging.getLogger("timm.models._builder"), _MissingTensors()
    with logger_levels(logging.INFO, logger.name):
        logger.addFilter(check)
        try:
            yield
        finally:
            logger.removeFilter(check)
