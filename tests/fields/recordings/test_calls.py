"""Calls on recordings: the flags that they have."""

from __future__ import annotations

import pytest

from datasets.core.errors import SecondhandError
from tests.learners.test_calls import call
from tests.left_out import needs


def test_sound_is_predicted_as_recordings() -> None:
    assert call("sound", "a.wav").name == "recordings"


@needs("cameras")
@pytest.mark.parametrize(
    ("kind", "given", "flag"),
    [
        ("picture", {"min_length": 1.0, "events": True}, "--min-length 1"),
    ],
)
def test_a_flag_of_recordings_is_refused_elsewhere(kind, given, flag):
    with pytest.raises(SecondhandError, match=f"{flag} .*sound"):
        call(kind, "a", **given)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"windows": True, "events": True}, ("--windows", "--events")),
        ({"events": True, "at": 2.5}, ("--events", "--at 2.5")),
        ({"gap": 1.0}, ("--gap", "--events")),
    ],
)
def test_flags_that_do_not_go_together_are_refused(given, flags):
    with pytest.raises(SecondhandError) as error:
        call("sound", "a", **given)
    for flag in flags:
        assert flag in str(error.value)
