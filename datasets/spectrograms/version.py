"""Version of the renderer of spectrograms."""

RENDERER_VERSION = 3  # raise it whenever the same settings would render other pixels
