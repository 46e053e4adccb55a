"""What of a GPU's arithmetic is set, and what compiling needs. The settings are torch's own, with and without a GPU."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils import _triton

from datasets.core.errors import SecondhandError
from learners.machine import hardware

BACKENDS = torch.backends


def state() -> tuple[object, ...]:
    cudnn = BACKENDS.cudnn
    return (
        cudnn.conv.fp32_precision, BACKENDS.cuda.matmul.fp32_precision, cudnn.allow_tf32,
        BACKENDS.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision(), cudnn.deterministic, cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    before = state()
    yield
    hardware.repeat_exactly("cuda", False)
    BACKENDS.cudnn.allow_tf32, BACKENDS.cuda.matmul.allow_tf32 = True, False
    BACKENDS.cuda.matmul.fp32_precision = "none"
    assert state()[:-1] == before[:-1]


def test_float32_is_float32_on_a_gpu_and_a_cpu_is_left_alone() -> None:
    before = state()
    hardware.keep_float32("cpu")
    hardware.keep_float32("mps")
    assert state() == before
    assert before[0] == "tf32", "torch's default for convolutions"
    for device in ("cuda", "cuda:1"):
        BACKENDS.cudnn.allow_tf32 = True
        hardware.keep_float32(device)
        assert state()[:5] == ("ieee", "ieee", False, False, "highest")
    hardware.allow_tf32(True)
    assert state()[:5] == ("tf32", "tf32", True, True, "high")
    hardware.allow_tf32(False)
    assert state()[:5] == ("ieee", "ieee", False, False, "highest")


def test_a_default_for_all_backends_does_not_reach_float32() -> None:
    """As a program may set that calls this one."""
    try:
        BACKENDS.fp32_precision = "tf32"
        hardware.keep_float32("cuda")
        for of in (BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn, BACKENDS.cuda.matmul):
            assert of.fp32_precision == "ieee"
    finally:
        BACKENDS.fp32_precision = "none"


def test_methods_that_repeat_are_asked_for() -> None:
    before = state()
    hardware.repeat_exactly("cpu", True)
    assert state() == before
    hardware.repeat_exactly("cuda", True)
    assert state()[5:] == (True, False, True, ":4096:8")
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    hardware.repeat_exactly("cuda", False)
    assert state()[5:8] == (False, False, False)


@pytest.mark.parametrize(
    ("device", "found", "header", "triton", "missing"),
    [
        ("cpu", ("g++",), True, False, ""),
        ("cpu", ("clang++",), True, False, ""),
        ("cpu", ("gcc",), True, False, "a C++ compiler"),
        ("cpu", ("g++",), False, False, "Python's header files"),
        ("cuda", ("gcc",), True, True, ""),
        ("cuda:1", ("clang",), True, True, ""),
        ("cuda", ("g++",), True, True, "a C compiler"),
        ("cuda", ("gcc",), True, False, "Triton"),
        ("mps", ("gcc", "g++"), True, True, "a CUDA GPU"),
    ],
)
def test_what_compiling_needs_is_named_up_front(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, found: tuple[str, ...],
    header: bool, triton: bool, missing: str,
) -> None:  # fmt: skip
    if header:
        (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in found else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(_triton, "has_triton", lambda: triton)
    assert hardware.missing_to_compile(device).startswith(missing)
    assert bool(hardware.missing_to_compile(device)) == bool(missing)
    for asked in (None, False, True):
        if asked and missing:
            with pytest.raises(
                SecondhandError, match=re.escape(f"device {device} needs {missing}")
            ):
                hardware.check_compile(asked, device)
        else:
            hardware.check_compile(asked, device)


def test_a_compiler_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CXX", "/opt/bin/g++-13")
    assert "compiler" not in hardware.missing_to_compile("cpu")
