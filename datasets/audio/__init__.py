"""Reads sound files safely and renders mel spectrograms."""

from datasets.audio.band import BAND_COLUMNS, are_outside, hertz, labelled_band, show_band
from datasets.audio.decode import ULTRASOUND, check_whole, outside, probe
from datasets.audio.mel import hz_to_mel
from datasets.audio.recorders import expansion_of, recorder_notes, time_expansion
from datasets.audio.settings import MelSettings, window_of
