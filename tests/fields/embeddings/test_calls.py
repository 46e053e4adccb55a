"""Embeddings are predicted by a call of their own, which has no flags of the others."""

from __future__ import annotations

import pytest

from datasets.core.errors import SecondhandError
from tests.learners.test_calls import call


def test_a_call_is_claimed_by_the_kind_of_its_model() -> None:
    assert call("embedding", "a.npz").name == "embeddings"


def test_a_flag_of_other_calls_is_refused() -> None:
    with pytest.raises(
        SecondhandError, match=r"--events is for .*, but this call predicts embeddings"
    ):
        call("embedding", "a", events=True)


def test_they_are_predicted_on_this_machine() -> None:
    pytest.importorskip("fields.cluster")
    with pytest.raises(SecondhandError, match=r"--cluster local.*embeddings take seconds"):
        call("embedding", "a", cluster="local")
