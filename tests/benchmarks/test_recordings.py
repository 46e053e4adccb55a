"""The recordings in which events are searched."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bench_events import recording


def test_a_recording_holds_its_sounds_where_it_says():
    labels = ["Rain_sim", "Bird_sim", "Siren_sim"]
    values, events = recording(labels, rng=3, duration=60, snr=(20, 20))
    again, _ = recording(labels, rng=3, duration=60, snr=(20, 20))
    np.testing.assert_array_equal(values, again)
    assert values.shape == (60 * 16000,)
    assert [event.label for event in events] == labels
    inside = np.zeros(len(values), dtype=bool)
    levels = []
    for event, slot in zip(events, (0, 20, 40), strict=True):
        assert slot < event.start < event.end < slot + 20
        first, last = round(event.start * 16000), round(event.end * 16000)
        inside[first - 16000 : last + 16000] = True
        levels.append(np.mean(values[first:last] ** 2))
    noise = np.mean(values[~inside] ** 2)
    np.testing.assert_allclose(levels, 100 * noise, rtol=0.3)  # 20 dB
    with pytest.raises(ValueError, match="at most one in 10 s"):
        recording(labels, duration=20)
