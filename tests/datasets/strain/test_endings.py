"""Strain is told by the ending of a name, and a page takes no frames."""

from __future__ import annotations

import pytest

from datasets.kinds.base import KINDS
from datasets.strain.endings import is_strain


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H1.HDF5", True),
        ("a/b.gwf", True),
        ("noise.txt.gz", True),
        ("a.wav", False),
        ("hdf5", False),
    ],
)
def test_strain_is_told_by_its_ending(name: str, expected: bool) -> None:
    assert is_strain(name) == expected


def test_a_page_takes_neither_frames_nor_lists_of_files() -> None:
    strain, picture = KINDS["strain"], KINDS["picture"]
    assert {*strain.suffixes} - {*strain.uploads} == {".gwf", ".frames"}
    assert picture.uploads == picture.suffixes
