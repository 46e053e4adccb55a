"""Bytes without a name that processes share."""

from __future__ import annotations

import os
import pickle
import sys

import pytest

from datasets.core.processes import IsolatedCalls
from datasets.core.shared import Shared

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has such memory")


def mirror(shared: Shared) -> bool:
    """Write the first bytes behind them, in a worker that was there before; whether it can."""
    content = bytearray(6)
    try:
        shared.read_into(content)
        shared.write(content[::-1], 1 << 40)
    except OSError:
        return False
    return True


def test_a_worker_reads_and_writes_what_is_shared_after_its_start() -> None:
    calls: IsolatedCalls[Shared, bool] = IsolatedCalls(mirror, 1, False)
    calls.start()
    shared = Shared()
    shared.write(b"abcdef")
    assert calls.result(calls.submit([shared])) == [True]
    found = bytearray(6)
    shared.read_into(found, 1 << 40)
    assert found == b"fedcba"
    shared.close()
    assert calls.result(calls.submit([shared])) == [False]
    calls.close()


def test_a_copy_has_the_same_bytes_and_is_refused_when_they_are_gone() -> None:
    shared = Shared()
    shared.write(b"\x00" * 5_000_000 + b"end")
    copy = pickle.loads(pickle.dumps(shared))
    found = bytearray(3)
    copy.read_into(found, 5_000_000)
    assert found == b"end"
    copy.check()
    with pytest.raises(OSError, match="not so many bytes"):
        copy.read_into(bytearray(4), 5_000_000)
    shared.close()
    with pytest.raises(FileNotFoundError):
        copy.check()


def test_another_file_of_the_same_number_is_not_written(tmp_path) -> None:
    shared = Shared()
    copy = pickle.loads(pickle.dumps(shared))
    number = int(os.path.basename(copy._name))
    shared.close()
    other = tmp_path / "weights"
    other.write_bytes(b"precious")
    file = os.open(other, os.O_RDWR)
    if file != number:
        os.dup2(file, number)
    with pytest.raises(FileNotFoundError, match="no longer shared"):
        copy.write(b"spoiled!")
    assert other.read_bytes() == b"precious"
    for opened in {file, number}:
        os.close(opened)


def test_a_fork_keeps_no_bytes_that_are_freed() -> None:
    shared = Shared()
    shared.write(bytes(1_000_000))
    file = os.dup(shared._file)  # as a fork has it
    shared.close()
    assert os.fstat(file).st_size == 0
    os.close(file)
