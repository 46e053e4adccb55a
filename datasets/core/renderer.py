"""Which renderer draws: its version is part of each stored spectrogram's name and of each model."""

RENDERER_VERSION = 1  # raised whenever the same settings would draw another picture
