"""The headless browser for tests."""

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
    """Yield Chromium. Without it the test is skipped, or fails if ``CI`` is set."""
    if not Path(CHROMIUM).exists():
        reason = f"no Chromium at {CHROMIUM}: apt-get install chromium"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
