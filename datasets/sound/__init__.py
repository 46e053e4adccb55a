"""A sound file -> samples, opened safely; a recipe for its mel spectrogram -> a picture."""

from datasets.sound.audio import probe, windows
from datasets.sound.mel import hz_to_mel
from datasets.sound.recipe import AudioRecipe, window_of
