"""A sound file -> samples, opened safely; a recipe for its mel spectrogram -> a picture."""

from datasets.audio.decode import probe
from datasets.audio.mel import hz_to_mel
from datasets.audio.settings import MelSettings, window_of
