"""Reads sound files safely and renders mel spectrograms."""

from datasets.audio.decode import check_whole, probe
from datasets.audio.mel import hz_to_mel
from datasets.audio.recorders import recorder_notes
from datasets.audio.settings import MelSettings, window_of
