"""What the test run says of itself."""

from __future__ import annotations

from types import SimpleNamespace

from tests.conftest import without_browser


def test_skipped_browser_tests_are_told_with_the_remedy() -> None:
    reasons = ["Skipped: no Chromium at /usr/bin/chromium: apt-get install chromium", "no curl"]
    skipped = [SimpleNamespace(longrepr=("file.py", 1, reason)) for reason in reasons]
    assert without_browser(skipped).startswith("1 tests of the page")
    assert "apt-get install chromium" in without_browser(skipped)
    assert without_browser(skipped[1:]) == ""
