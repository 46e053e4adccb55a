"""The headless browser of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium, until the block ends. Without one the test is skipped, or fails where ``CI`` is set."""
    if not Path(CHROMIUM).exists():
        reason = f"no Chromium at {CHROMIUM}: apt-get install chromium"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()
