"""A bucket and a web server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fields.remote.buckets import Bucket, serve
from tests.fields.remote.servers import Server


@pytest.fixture(scope="session")
def served_bucket() -> Iterator[Bucket]:
    with serve() as bucket:
        yield bucket


@pytest.fixture
def bucket(served_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    """A bucket as a new run meets it, with a cache of the test's own."""
    for name, value in {
        **served_bucket.environment,
        "SECONDHAND_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    served_bucket.proxy.counts.clear()
    served_bucket.proxy.every = 0
    return served_bucket


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()
